"""An alarm for probabilities that are no longer calibrated, valid however long it watches."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.monitoring.betting import (
    N_OVERALL,
    STAKES,
    Floats,
    Payoffs,
    Wealth,
    check_named_probs,
    class_payoffs,
    first_crossing,
    normalised,
    overall_payoffs,
    reading_state,
)
from kcal.validation import check_group_names, check_labels, check_number, collect_classes, encode_labels

BLOCK_NUMBERS = 2**18
"""Numbers of a block of rows, at most, in all games and stakes."""
OVERALL_SHARE, CLASS_SHARE, GROUP_SHARE = 0.5, 0.25, 0.25
"""Shares of the initial wealth; those of classes are equal, that of the j-th group is GROUP_SHARE/(j·(j + 1))."""
FORMAT = 1
MAX_SHOWN = 10
MAX_EXPONENT = 700.0


@dataclass(frozen=True)
class Part:
    """A class, a group, or all predictions together.

    Attributes
    ----------
    predicted, observed : float
        Mean probability and frequency of the class; for a group and for all, mean confidence and accuracy.
    log_wealth : float
        Logarithm of its part of the wealth, weighted: it is named when this reaches −log α.
    alarm_at : int or None
        Rows of the monitor after which that happened first.
    """

    name: Any
    n_samples: int
    predicted: float
    observed: float
    log_wealth: float
    alarm_at: int | None

    @property
    def alarm(self) -> bool:
        """Whether it has been named."""
        return self.alarm_at is not None


@dataclass(frozen=True, eq=False)
class MonitorReport:
    """What a monitor has found so far.

    Attributes
    ----------
    overall : Part
        All predictions; its wealth is the sum of all parts.
    classes, groups : tuple of Part
        Each class against the rest, and each group.
    alpha : float
        Probability of a false alarm, at most.
    path : array, (n,)
        Logarithm of the wealth after each row of the last update.
    """

    overall: Part
    classes: tuple[Part, ...]
    groups: tuple[Part, ...]
    alpha: float
    path: NDArray[np.float64] = field(repr=False)

    @property
    def alarm(self) -> bool:
        """Whether the probabilities were found not to be calibrated."""
        return self.overall.alarm

    @property
    def alarm_at(self) -> int | None:
        """Rows after which the alarm was raised."""
        return self.overall.alarm_at

    @property
    def n_samples(self) -> int:
        """Rows seen."""
        return self.overall.n_samples

    @property
    def wealth(self) -> float:
        """The wealth of the gambler, who started with 1; the alarm is raised at 1/α."""
        return exp(min(self.overall.log_wealth, MAX_EXPONENT))

    @property
    def alarmed_classes(self) -> tuple[Any, ...]:
        """Classes that were named."""
        return tuple(part.name for part in self.classes if part.alarm)

    @property
    def alarmed_groups(self) -> tuple[Any, ...]:
        """Groups that were named."""
        return tuple(part.name for part in self.groups if part.alarm)

    def __str__(self) -> str:
        import pandas

        found = f"ALARM after {self.alarm_at:,} samples" if self.alarm_at is not None else "no alarm"
        title = f"{self.n_samples:,} samples: {found} (wealth {self.wealth:.3g}, alarm at {1 / self.alpha:g})"
        parts, n_hidden = {"all: confidence": self.overall}, 0
        for kind, every in (("class", self.classes), ("group", self.groups)):
            ordered = sorted(every, key=lambda part: -part.log_wealth)
            parts |= {f"{kind} {part.name}": part for part in ordered[:MAX_SHOWN]}
            n_hidden += len(ordered[MAX_SHOWN:])
        columns = {
            "samples": [part.n_samples for part in parts.values()],
            "predicted": [f"{part.predicted:.4f}" for part in parts.values()],
            "observed": [f"{part.observed:.4f}" for part in parts.values()],
            "wealth": [f"{exp(min(part.log_wealth, MAX_EXPONENT)):.3g}" for part in parts.values()],
            "alarm after": ["" if part.alarm_at is None else f"{part.alarm_at:,}" for part in parts.values()],
        }
        text = f"{title}\n{pandas.DataFrame(columns, index=list(parts)).to_string()}"
        return f"{text}\n… and {n_hidden} more" if n_hidden else text


class CalibrationMonitor:
    """Watch labelled predictions and raise an alarm when their probabilities are not calibrated.

    While the probabilities are calibrated, every payoff below has mean 0 given the prediction and everything before it,
    so that the wealth of a gambler who bets on them is a martingale. The alarm is raised when it reaches 1/α: with
    calibrated probabilities this happens with probability α at most, however long the monitor watches and however often
    it is looked at. No window or sample size is to be chosen.

    The wealth is the sum of parts: half bets on all predictions together (Brier loss minus its expectation; confidence
    minus correctness), a quarter on each class against the rest, a quarter on each group. A class or group is named
    once its own part reaches 1/α, which is Bonferroni's rule with these shares: the probability that any calibrated
    class or group is ever named is α at most.

    Rows must come in an order that does not depend on their labels, and each once.

    Parameters
    ----------
    classes : sequence
        The label of every column, such as ``classes_`` of a calibrator.
    alpha : float
        Probability of a false alarm, at most.
    tolerance : float
        By how much any probability may be off without an alarm: the guarantee then holds while
        |P(y = k given the prediction and the past) − p_k| is at most the tolerance for every class. A calibration set
        is finite, and no calibrator is perfect: with 0, a monitor that watches long enough finds that out.

    Examples
    --------
    >>> from kcal import CalibrationMonitor
    >>> monitor = CalibrationMonitor([0, 1], alpha=0.05)
    >>> report = monitor.update([[0.1, 0.9]] * 200, [0, 1] * 100)
    >>> report.alarm, report.alarm_at < 30
    (True, True)
    """

    def __init__(self, classes: ArrayLike, *, alpha: float = 0.05, tolerance: float = 0.0) -> None:
        self.classes = collect_classes([], classes)
        self.alpha = check_number(alpha, "alpha", minimum=0, maximum=1, exclusive=True)
        self.tolerance = check_number(tolerance, "tolerance", minimum=0, maximum=1)
        n_classes = len(self.classes)
        if n_classes < 2:
            raise InvalidInputError("classes", "must be at least two", got=str(n_classes))
        self._wealth = Wealth.start(N_OVERALL + 2 * n_classes)
        self._sums = np.zeros((1 + n_classes, 3))  # rows, predicted, observed: of all classes together, of each class
        self._groups: dict[Any, int] = {}  # numbers by name
        self._group_wealth = Wealth.start(0)
        self._group_sums = np.zeros((0, 3))
        self._alarms: dict[tuple[str, int], int] = {}  # rows at which a part reached 1/α

    @property
    def n_samples(self) -> int:
        """Rows seen."""
        return int(self._sums[0, 0])

    def update(self, probs: ArrayLike, labels: ArrayLike, groups: ArrayLike | None = None) -> MonitorReport:
        """Bet on some more rows, in their order; return the state after them.

        Parameters
        ----------
        probs
            Calibrated probabilities, (n, n_classes), given before the labels were known; or (n,) of the second of two
            classes.
        labels
            Their labels, (n,), as in ``classes``.
        groups
            Patients, devices, sites, (n,): each is watched by itself too.
        """
        checked, _ = check_named_probs(probs, self.classes)
        known = check_labels(labels, len(checked), "labels")
        wide, codes = normalised(checked), encode_labels(known, self.classes).astype(np.intp)
        names = self._group_names(groups, len(wide))
        rows = max(1, BLOCK_NUMBERS // (len(self._wealth.counts) * len(STAKES)))
        blocks = [slice(start, start + rows) for start in range(0, len(wide), rows)]
        return self._report(np.concatenate([self._play(wide[block], codes[block], names[block]) for block in blocks]))

    def report(self) -> MonitorReport:
        """Return the present state."""
        return self._report(np.empty(0))

    def _group_names(self, groups: ArrayLike | None, n_rows: int) -> list[Any]:
        """Return the name of the group of each row, empty without groups; new groups begin to be watched."""
        if groups is None:
            return []
        names: list[Any] = check_group_names(groups, n_rows).tolist()
        for name in names:
            self._groups.setdefault(name, len(self._groups))
        n_new = len(self._groups) - len(self._group_sums)
        self._group_wealth = self._group_wealth.beside(Wealth.start(N_OVERALL * n_new))
        self._group_sums = np.concatenate([self._group_sums, np.zeros((n_new, 3))])
        return names

    def _play(self, probs: Floats, labels: NDArray[np.intp], names: list[Any]) -> Floats:
        """Play a block of rows; return the logarithm of the whole wealth after each, (n_rows,)."""
        before, every = self.n_samples, overall_payoffs(probs, labels)
        self._wealth, path = self._wealth.play(every.beside(class_payoffs(probs, labels)), self.tolerance)
        parts = self._log_parts(path)  # (n_rows, 1 + n_classes)
        events = np.column_stack([probs.argmax(axis=1) == labels, np.eye(probs.shape[1])[labels]])
        predicted = np.column_stack([probs.max(axis=1), probs])
        counts = np.full(len(self._sums), len(probs))
        self._sums += np.column_stack([counts, predicted.sum(axis=0), events.sum(axis=0)])
        rows = np.column_stack([np.ones(len(probs)), predicted[:, 0], events[:, 0]])
        of_groups = self._play_groups(every, rows, names, before)
        whole = np.logaddexp.reduce(np.column_stack([parts, of_groups]), axis=1)
        self._note("overall", 0, whole, before)
        for place in range(len(self.classes)):
            self._note("class", place, parts[:, 1 + place], before)
        return np.asarray(whole)

    def _log_parts(self, path: Floats) -> Floats:
        """Return the logarithms of the parts of the wealth, (n_rows, 1 + n_classes): overall, and of each class."""
        n_classes = len(self.classes)
        overall = np.logaddexp.reduce(path[:, :N_OVERALL], axis=1) + np.log(OVERALL_SHARE / N_OVERALL)
        classes = np.logaddexp(path[:, N_OVERALL : N_OVERALL + n_classes], path[:, N_OVERALL + n_classes :])
        return np.column_stack([overall, classes + np.log(CLASS_SHARE / (2 * n_classes))])

    def _play_groups(self, payoffs: Payoffs, sums: Floats, names: list[Any], before: int) -> Floats:
        """Play the games of groups; return the logarithm of their parts after each row, (n_rows, n_groups + 1)."""
        rows_of: dict[Any, list[int]] = {}
        for row, name in enumerate(names):
            rows_of.setdefault(name, []).append(row)
        wealth, parts, shares = self._group_wealth, self._log_group_parts(), self._log_group_shares()
        log_parts = np.tile(parts, (len(sums), 1))
        for name, rows in rows_of.items():
            number = self._groups[name]
            own = slice(N_OVERALL * number, N_OVERALL * (number + 1))
            after, games = wealth.games(own).play(payoffs.rows(rows), self.tolerance)
            wealth.counts[own], wealth.log_stakes[own] = after.counts, after.log_stakes
            path = np.append(parts[number], np.logaddexp.reduce(games, axis=1) + shares[number])
            last = np.searchsorted(rows, np.arange(len(sums)), side="right")  # rows of the group up to each row
            log_parts[:, number] = path[last]
            self._note("group", number, path[last], before)
            self._group_sums[number] += sums[rows].sum(axis=0)
        return log_parts

    def _log_group_shares(self) -> Floats:
        """Return the logarithm of the share of the initial wealth that each game of a group got, (n_groups,)."""
        numbers = np.arange(1, len(self._groups) + 1)
        return np.log(GROUP_SHARE / (numbers * (numbers + 1) * N_OVERALL))

    def _log_group_parts(self) -> Floats:
        """Return the logarithms of the parts of the wealth of each group and of those that have not appeared."""
        totals = np.logaddexp.reduce(self._group_wealth.log_totals.reshape(-1, N_OVERALL), axis=1)
        unseen = np.log(GROUP_SHARE / (1 + len(self._groups)))  # Σ 1/(j·(j + 1)) over their numbers j
        return np.append(totals + self._log_group_shares(), unseen)

    def _note(self, kind: str, place: int, path: Floats, before: int) -> None:
        """Note the first row at which a part of the wealth reached 1/α."""
        row = first_crossing(path, self.alpha)
        if row is not None:
            self._alarms.setdefault((kind, place), before + row)

    def _report(self, path: Floats) -> MonitorReport:
        parts, of_groups = self._log_parts(self._wealth.log_totals[None])[0], self._log_group_parts()
        whole = np.logaddexp.reduce([*parts, *of_groups])
        lines = zip(self.classes.tolist(), self._sums[1:], parts[1:], strict=True)
        group_lines = zip(self._groups, self._group_sums, of_groups[:-1], strict=True)
        return MonitorReport(
            self._part("overall", 0, "all", self._sums[0], whole),
            tuple(self._part("class", place, *line) for place, line in enumerate(lines)),
            tuple(self._part("group", number, *line) for number, line in enumerate(group_lines)),
            self.alpha,
            path,
        )

    def _part(self, kind: str, place: int, name: Any, sums: Floats, log_wealth: float) -> Part:
        n_samples, predicted, observed = sums.tolist()
        count = max(n_samples, 1.0)
        alarm_at = self._alarms.get((kind, place))
        return Part(name, int(n_samples), predicted / count, observed / count, float(log_wealth), alarm_at)

    def to_dict(self) -> dict[str, Any]:
        """Return the state in a form that JSON can represent; classes and groups must be text or numbers."""
        return {
            "format": FORMAT,
            "alpha": self.alpha,
            "tolerance": self.tolerance,
            "classes": self.classes.tolist(),
            "groups": list(self._groups),
            "sums": self._sums.tolist(),
            "group_sums": self._group_sums.tolist(),
            "wealth": self._wealth.to_dict(),
            "group_wealth": self._group_wealth.to_dict(),
            "alarms": [[*key, row] for key, row in self._alarms.items()],
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the monitor that :meth:`to_dict` described."""
        with reading_state(state, FORMAT):
            monitor = cls(state["classes"], alpha=state["alpha"], tolerance=state["tolerance"])
            monitor._groups = {name: number for number, name in enumerate(state["groups"])}
            n_classes, n_groups = len(monitor.classes), len(state["groups"])
            monitor._sums = np.array(state["sums"], dtype=np.float64).reshape(1 + n_classes, 3)
            monitor._wealth = Wealth.from_dict(state["wealth"], N_OVERALL + 2 * n_classes)
            monitor._group_sums = np.array(state["group_sums"], dtype=np.float64).reshape(n_groups, 3)
            monitor._group_wealth = Wealth.from_dict(state["group_wealth"], N_OVERALL * n_groups)
            monitor._alarms = {(str(kind), int(place)): int(row) for kind, place, row in state["alarms"]}
            sums = np.concatenate([monitor._sums, monitor._group_sums])
            if not (np.isfinite(sums).all() and sums.min() >= 0 and len(monitor._groups) == n_groups):
                raise ValueError("numbers must be finite and not negative, groups different")
        return monitor
