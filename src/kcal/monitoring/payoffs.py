"""Payoffs of mean 0 under calibration, with the bounds that a prediction sets them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from kcal.monitoring.betting import Floats, Wealth

N_OVERALL = 2
"""Payoffs of all classes together: Brier loss and confidence."""


@dataclass(frozen=True, eq=False)
class Payoffs:
    """Payoffs of rows in several games and their bounds given the predictions, each (n_rows, n_games).

    ``reach``, (n_games,), is the largest mean of a payoff if every probability is off by 1 at most.
    """

    values: Floats
    lows: Floats
    highs: Floats
    reach: Floats

    def rows(self, chosen: NDArray[np.intp]) -> Payoffs:
        """Return the payoffs of some rows."""
        return replace(self, values=self.values[chosen], lows=self.lows[chosen], highs=self.highs[chosen])

    def beside(self, other: Payoffs) -> Payoffs:
        """Return the games of both."""
        pairs = ((getattr(self, entry.name), getattr(other, entry.name)) for entry in fields(self))
        return Payoffs(*(np.concatenate(pair, axis=-1) for pair in pairs))

    def play(self, wealth: Wealth, tolerance: float) -> tuple[Wealth, Floats]:
        """Return the wealth after the rows, and its logarithm after each of them, (n_rows, n_games)."""
        return wealth.play(self.values, self.lows, self.highs, tolerance * self.reach)


def normalised(probs: NDArray[np.floating]) -> Floats:
    """Return rows that sum to 1 in double precision: payoffs have mean 0 only then."""
    wide = probs.astype(np.float64)
    return np.asarray(wide / wide.sum(axis=1, keepdims=True))


def overall_payoffs(probs: Floats, labels: NDArray[np.intp]) -> Payoffs:
    """Return the payoffs of all classes together.

    The Brier loss minus its expectation, Σ_k (p_k − 1[y = k])² − (1 − Σ_k p_k²) = 2·(Σ_k p_k² − p_y), between
    2·(Σ p² − max p) and 2·(Σ p² − min p); and max p − 1[y is the predicted class], between max p − 1 and max p.
    """
    rows = np.arange(len(labels))
    top, squares = probs.max(axis=1), (probs**2).sum(axis=1)
    correct = probs.argmax(axis=1) == labels
    values = np.column_stack([2.0 * (squares - probs[rows, labels]), top - correct])
    lows = np.column_stack([2.0 * (squares - top), top - 1.0])
    highs = np.column_stack([2.0 * (squares - probs.min(axis=1)), top])
    return Payoffs(values, np.minimum(lows, 0.0), np.maximum(highs, 0.0), np.array([2.0, 1.0]))


def class_payoffs(probs: Floats, labels: NDArray[np.intp]) -> Payoffs:
    """Return the payoffs of each class against the rest, (n_rows, 2·n_classes).

    First p_k − 1[y = k], which sees a class that is predicted too often or too rarely; then the Brier loss of the class
    minus its expectation, (1[y = k] − p_k)·(1 − 2·p_k), which sees over- and underconfident predictions.
    """
    own = np.eye(probs.shape[1])[labels]
    tilt = 1.0 - 2.0 * probs
    if_own, if_other = (1.0 - probs) * tilt, -probs * tilt
    return Payoffs(
        np.concatenate([probs - own, (own - probs) * tilt], axis=1),
        np.concatenate([probs - 1.0, np.minimum(if_own, if_other)], axis=1),
        np.concatenate([probs, np.maximum(if_own, if_other)], axis=1),
        np.ones(2 * probs.shape[1]),
    )
