"""Inputs that are unlike the calibration set, found without labels.

:class:`DriftMonitor` is an alarm for a stream, valid however long it watches. :func:`mean_embedding_test` compares two
samples of embeddings: maximum mean discrepancy by random Fourier features. :func:`river_alarms` feeds detectors of the
package river with labelled predictions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.monitoring.betting import (
    Floats,
    Payoffs,
    Wealth,
    first_crossing,
    normalised,
    overall_payoffs,
    reading_state,
    sum_by_group,
)
from kcal.validation import (
    check_columns,
    check_groups,
    check_integer,
    check_matrix,
    check_number,
    check_probs,
    check_seed,
    raise_where,
    to_numbers,
)

TAIL = 0.05
N_GAMES = 3
FORMAT = 1
MEDIAN_ROWS = 1_000
"""Rows by which the median distance is estimated."""
BLOCK = 64
"""Permutations at once."""


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
    raise_where(np.isnan(array), array, name, "must not be NaN")
    return array


@dataclass(frozen=True)
class MeanEmbeddingTest:
    """The distance of two samples and its p-value.

    Attributes
    ----------
    statistic : float
        ‖mean φ(x) − mean φ(y)‖², φ being the random features: the squared maximum mean discrepancy.
    p_value : float
        Share of the permutations with at least this distance, the sample itself included.
    bandwidth : float
        Of the kernel exp(−‖x − y‖²/(2·bandwidth²)): the median distance of all rows.
    """

    statistic: float
    p_value: float
    bandwidth: float
    n_reference: int
    n_samples: int


def mean_embedding_test(
    reference: ArrayLike,
    X: ArrayLike,
    *,
    reference_groups: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    n_features: int = 256,
    n_permutations: int = 500,
    seed: int = 0,
) -> MeanEmbeddingTest:
    """Test whether embeddings come from the distribution of the reference.

    φ(x) = [cos(w_j·x), sin(w_j·x)]_j/√D with w_j from the spectrum of a Gaussian kernel, D of them (Rahimi and Recht);
    the p-value is that of permutations, exact for exchangeable rows at any D. With many rows a harmless difference is
    found too: look at the statistic.

    Parameters
    ----------
    reference, X
        Embeddings of the calibration set and of new rows, (n, h) and (m, h).
    reference_groups, groups
        Patients, recordings of both: whole groups are permuted, because rows of one are alike.
    n_features, n_permutations
        D, and how many permutations the p-value counts.
    """
    before, after = (
        check_matrix(rows, name).detach().cpu().double().numpy() for rows, name in ((reference, "reference"), (X, "X"))
    )
    if before.shape[1] != after.shape[1]:
        raise InvalidInputError(
            "X", f"must have the columns of the reference ({before.shape[1]})", got=f"{after.shape[1]}"
        )
    check_integer(n_features, "n_features", minimum=1, maximum=100_000)
    check_integer(n_permutations, "n_permutations", minimum=19, maximum=1_000_000)
    generator = np.random.default_rng(check_seed(seed))
    rows = np.concatenate([before, after])
    bandwidth = _median_distance(rows, generator)
    frequencies = generator.normal(size=(rows.shape[1], n_features)) / bandwidth
    angles = rows @ frequencies
    features = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(n_features)
    parts = [_by_group(features[: len(before)], reference_groups, "reference_groups")]
    parts.append(_by_group(features[len(before) :], groups, "groups"))
    sums, sizes = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
    own = np.arange(len(sizes)) < len(parts[0][1])
    statistic = float(_distances(own[None], sums, sizes)[0])
    permuted = []
    for start in range(0, n_permutations, BLOCK):
        sides = np.tile(own, (min(BLOCK, n_permutations - start), 1))
        permuted.append(_distances(generator.permuted(sides, axis=1), sums, sizes))
    # Equal distances, of the same division, differ by rounding only.
    at_least = int((np.concatenate(permuted) >= statistic * (1 - 1e-9)).sum())
    p_value = (1 + at_least) / (1 + n_permutations)
    return MeanEmbeddingTest(statistic, p_value, bandwidth, len(before), len(after))


def _distances(first: NDArray[np.bool_], sums: Floats, sizes: Floats) -> Floats:
    """Return the squared distance of the means of both sides, (n,), for n divisions, (n, n_units)."""
    chosen = first.astype(np.float64)
    n_first = chosen @ sizes
    of_first = chosen @ sums
    of_second = sums.sum(axis=0) - of_first
    gaps = of_first / n_first[:, None] - of_second / (sizes.sum() - n_first)[:, None]
    return np.asarray((gaps**2).sum(axis=1))


def _by_group(features: Floats, groups: Any, name: str) -> tuple[Floats, Floats]:
    """Return the sums of the features of each group, or of each row, and the numbers of rows."""
    if groups is None:
        return features, np.ones(len(features))
    codes = check_groups(groups, len(features), name)
    return sum_by_group(features, codes), np.bincount(codes).astype(np.float64)


def _median_distance(rows: Floats, generator: np.random.Generator) -> float:
    """Return the median distance of rows that differ; 1 if all are equal."""
    first, second = generator.integers(len(rows), size=(2, MEDIAN_ROWS))
    distances = np.linalg.norm(rows[first] - rows[second], axis=1)
    positive = distances[distances > 0]
    return float(np.median(positive)) if len(positive) else 1.0


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
    codes = check_columns(labels, len(checked), checked.shape[1]).astype(np.intp)
    found = []
    for row, payoff in enumerate(overall_payoffs(checked, codes).values[:, 0].tolist()):
        detector.update(payoff)
        if detector.drift_detected:
            found.append(row)
    return np.array(found, dtype=np.intp)
