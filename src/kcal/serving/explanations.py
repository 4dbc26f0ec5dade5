"""Explanations of predictions as objects of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kcal.calibrators import Explanation


def explanation_entries(
    explanation: Explanation, heads: Sequence[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return an object for each prediction: probabilities, samples with shares and distances, parts and log-odds.

    ``heads`` begin the objects, one per prediction. Infinite numbers become null, since JSON has none.
    """
    entries = explanation.to_dict()
    for entry in entries:
        del entry["row"]
    return entries if heads is None else [{**head, **entry} for head, entry in zip(heads, entries, strict=True)]


def plain(label: Any) -> Any:
    """Return a label as a type of JSON."""
    return label.item() if isinstance(label, np.generic) else label
