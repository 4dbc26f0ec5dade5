"""Drift detectors of the package river, fed with the payoff of calibrated predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.monitoring.betting import normalised, overall_payoffs
from kcal.validation import check_columns, check_probs


def river_alarms(detector: Any, probs: ArrayLike, labels: ArrayLike) -> NDArray[np.intp]:
    """Feed a detector with the Brier loss minus its expectation; return the rows at which it found a drift.

    Parameters
    ----------
    detector
        Of ``river.drift``, such as ``ADWIN()`` or ``PageHinkley()``: it has ``update(x)`` and ``drift_detected``, and
        keeps its state from call to call.
    probs, labels
        Calibrated probabilities, (n, n_classes), and column indices, (n,), in their order.
    """
    if not (callable(getattr(detector, "update", None)) and hasattr(detector, "drift_detected")):
        expected = "must be a drift detector of river, with update(x) and drift_detected"
        raise InvalidInputError("detector", expected, got=f"an object of type {type(detector).__name__}")
    checked = normalised(check_probs(probs))
    codes = check_columns(labels, len(checked), checked.shape[1])
    found = []
    for row, payoff in enumerate(overall_payoffs(checked, codes).values[:, 0].tolist()):
        detector.update(payoff)
        if detector.drift_detected:
            found.append(row)
    return np.array(found, dtype=np.intp)
