"""Explanations of predictions as objects of JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import Explanation


def explanation_entries(
    explanation: Explanation, heads: Sequence[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return an object for each prediction: probabilities, samples with shares and distances, parts and log-odds.

    ``heads`` begin the objects, one per prediction. Infinite numbers become null, since JSON has none.
    """
    entries = []
    for place, one in enumerate(explanation):
        entry: dict[str, Any] = {} if heads is None else dict(heads[place])
        entry |= {
            "prediction": plain(one.predictions[0]),
            "probabilities": _by_class(one, one.probabilities),
            "samples": [_sample(one, i) for i in range(one.ids.shape[1])],
            "rest": _by_class(one, one.rest),
            "parts": {name: _by_class(one, part) for name, part in one.parts.items()},
        }
        if (odds := one.log_odds) is not None:
            terms = dict(zip(odds.terms, odds.contributions[0].tolist(), strict=True))
            classes = {"first": plain(odds.first[0]), "second": plain(odds.second[0])}
            entry["log_odds"] = classes | {"total": float(odds.total[0]), "terms": terms}
        entries.append(entry)
    standard: list[dict[str, Any]] = json.loads(json.dumps(entries), parse_constant=lambda _: None)
    return standard


def plain(label: Any) -> Any:
    """Return a label as a type of JSON."""
    return label.item() if isinstance(label, np.generic) else label


def _by_class(one: Explanation, part: NDArray[Any]) -> dict[str, float]:
    return {str(label): share for label, share in zip(one.classes.tolist(), part[0].tolist(), strict=True)}


def _sample(one: Explanation, place: int) -> dict[str, Any]:
    return {
        "id": plain(one.ids[0, place]),
        "row": int(one.rows[0, place]),
        "label": plain(one.labels[0, place]),
        "share": float(one.shares[0, place]),
        "distances": dict(zip(one.metrics, one.distances[0, place].tolist(), strict=True)),
    }
