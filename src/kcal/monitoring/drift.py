"""An alarm for inputs that are unlike the calibration set, without labels, valid however long it watches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.monitoring.betting import Floats, Payoffs, Wealth, first_crossing, reading_state
from kcal.validation import check_number, check_seed, refuse_where, to_numbers

TAIL = 0.05
N_GAMES = 3
FORMAT = 1


@dataclass(frozen=True, eq=False)
class DriftReport:
    """What a monitor of inputs has found so far.

    Attributes
    ----------
    alarm_at : int or None
        Rows after which the wealth first reached 1/α.
    path : array, (n,)
        Logarithm of the wealth after each row of the last update.
    ranks : array, (n,)
        Rank of each row of the last update among the reference and the rows before it, from 0 to 1: uniform and
        independent while nothing has changed.
    """

    n_samples: int
    alpha: float
    log_wealth: float
    alarm_at: int | None
    path: Floats = field(repr=False)
    ranks: Floats = field(repr=False)

    @property
    def alarm(self) -> bool:
        """Whether rows were found to be unlike the reference."""
        return self.alarm_at is not None

    def __str__(self) -> str:
        found = "no alarm" if self.alarm_at is None else f"ALARM after {self.alarm_at:,} samples"
        wealth = np.exp(min(self.log_wealth, 700.0))
        return f"{self.n_samples:,} samples: {found} (wealth {wealth:.3g}, alarm at {1 / self.alpha:g})"


class DriftMonitor:
    """Watch a score of unlabelled rows, such as their evidence, and raise an alarm when it is unlike the reference.

    The rank of every new score among the reference and the rows before it is uniform, and independent of those before,
    while reference and rows are exchangeable (conformal prediction; Vovk). A gambler bets against that: on low ranks,
    on the lowest 5 %, and on the extremes, a third of the wealth each. The alarm is raised when the wealth reaches
    1/α, which exchangeable rows reach with probability α at most, however long it watches. Rows that depend on each
    other, like the successive windows of one recording, are not exchangeable: give one of each, or shuffle them.

    Rows after a change become part of what later rows are compared with: look at the alarm, not at the present wealth.

    Parameters
    ----------
    reference : (n,) array
        Scores of rows like the calibration set that the score was not fitted on: ``calibration_log_evidence_`` of a
        KCal, to be followed by ``log_evidence(X)`` of new rows. Take both from one ``snapshot()`` if the KCal learns
        online: more samples change the density everywhere, which would look like drift.
    alpha : float
        Probability of a false alarm, at most.
    seed : int
        Of the random order of equal scores.
    """

    def __init__(self, reference: ArrayLike, *, alpha: float = 0.05, seed: int = 0) -> None:
        self.alpha = check_number(alpha, "alpha", minimum=0, maximum=1, exclusive=True)
        self._sorted: list[float] = np.sort(_check_scores(reference, "reference")).tolist()
        self._generator = np.random.default_rng(check_seed(seed))
        self._wealth = Wealth.start(N_GAMES)
        self._alarm_at: int | None = None

    @property
    def n_samples(self) -> int:
        """Rows seen."""
        return int(self._wealth.counts[0])

    def update(self, scores: ArrayLike) -> DriftReport:
        """Bet on some more rows, in their order, by their scores, (n,); return the state after them."""
        ranks = np.array([self._rank(score) for score in _check_scores(scores, "scores").tolist()])
        before = self.n_samples
        self._wealth, games = self._wealth.play(_uniformity_payoffs(ranks))
        path = np.logaddexp.reduce(games, axis=1) - np.log(games.shape[1])
        row = first_crossing(path, self.alpha)
        if self._alarm_at is None and row is not None:
            self._alarm_at = before + row
        return DriftReport(self.n_samples, self.alpha, float(path[-1]), self._alarm_at, path, ranks)

    def to_dict(self) -> dict[str, Any]:
        """Return the state in a form that JSON can represent, with the scores of the reference and of all rows."""
        return {
            "format": FORMAT,
            "alpha": self.alpha,
            "scores": [score if isfinite(score) else str(score) for score in self._sorted],
            "wealth": self._wealth.to_dict(),
            "alarm_at": self._alarm_at,
            "generator": self._generator.bit_generator.state,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the monitor that :meth:`to_dict` described; it goes on as that one would."""
        with reading_state(state, FORMAT):
            monitor = cls([float(score) for score in state["scores"]], alpha=state["alpha"])
            monitor._wealth = Wealth.from_dict(state["wealth"], N_GAMES)
            monitor._alarm_at = None if state["alarm_at"] is None else int(state["alarm_at"])
            monitor._generator.bit_generator.state = state["generator"]
            counts = set(monitor._wealth.counts.tolist())
            if len(counts) > 1 or not (monitor._alarm_at is None or 1 <= monitor._alarm_at <= max(counts)):
                raise ValueError("its counts contradict each other")
        return monitor

    def _rank(self, score: float) -> float:
        """Return the rank of a score, equal ones in random order, and add the score to those of later ranks."""
        below, above = bisect_left(self._sorted, score), bisect_right(self._sorted, score)
        rank = (below + self._generator.random() * (above - below + 1)) / (len(self._sorted) + 1)
        insort(self._sorted, score)
        return rank


def _uniformity_payoffs(ranks: Floats) -> Payoffs:
    """Return payoffs of mean 0 for uniform ranks, (n, 3): low ranks, the lowest 5 %, the extremes."""
    values = np.column_stack([0.5 - ranks, (ranks < TAIL) - TAIL, (ranks - 0.5) ** 2 - 1 / 12])
    lows, highs = np.array([-0.5, -TAIL, -1 / 12]), np.array([0.5, 1 - TAIL, 1 / 6])
    bounds = np.broadcast_to(lows, values.shape), np.broadcast_to(highs, values.shape)
    return Payoffs(values, *bounds, reach=np.zeros(N_GAMES))


def _check_scores(scores: ArrayLike, name: str) -> Floats:
    array = to_numbers(scores, name).astype(np.float64)
    if array.ndim != 1 or not len(array):
        raise InvalidInputError(name, "must be one number per row, of at least one row", got=f"shape {array.shape}")
    refuse_where(np.isnan(array), array, name, "must not be NaN")
    return array
