"""Predictions of a method pooled with the scaled network, by the formula."""

from __future__ import annotations

from typing import Any

from scipy.special import softmax

from kcal import TemperatureScaling


def pooled(probs: Any, rows: Any, logits: Any, labels: Any, weights: Any = None) -> Any:
    """Return (1 − ν)·p + ν·softmax(z / T) of the method's p for ``rows``, fitted to ``logits`` and ``labels``."""
    n = len(labels)
    share = max(1 - (n / 300) ** 3, 1 / (n + 2))
    temperature = TemperatureScaling().fit(logits, labels, sample_weight=weights).temperature_
    return (1 - share) * probs + share * softmax(rows / temperature, axis=1)
