"""An alarm for probabilities that are no longer calibrated, valid however long it watches."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.errors import FileFormatError, InvalidInputError
from kcal.monitoring.betting import STAKES, Floats, Wealth
from kcal.monitoring.payoffs import N_OVERALL, Payoffs, class_payoffs, normalised, overall_payoffs
from kcal.monitoring.reports import MonitorReport, Part, reading_state
from kcal.validation import (
    check_groups,
    check_labels,
    check_number,
    check_probs,
    collect_classes,
    encode_labels,
)

BLOCK_NUMBERS = 2**18
"""Numbers of a block of rows, at most, in all games and stakes."""
OVERALL_SHARE, CLASS_SHARE, GROUP_SHARE = 0.5, 0.25, 0.25
"""Shares of the initial wealth; those of classes are equal, that of the j-th group is GROUP_SHARE/(j·(j + 1))."""
FORMAT = 1


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
        is finite, so that no calibrator is perfect: with 0, a monitor that watches long enough finds that out.

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
        self._groups: list[Any] = []
        self._group_wealth = Wealth.start(0)
        self._sums = np.zeros((1 + n_classes, 3))  # rows, predicted, observed: of all classes together, of each class
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
        n_classes = len(self.classes)
        checked = check_probs(probs, n_classes=n_classes)
        if checked.shape[1] != n_classes:
            raise InvalidInputError("probs", f"must have one column per class ({n_classes})", got=f"{checked.shape[1]}")
        known = check_labels(labels, len(checked), "labels")
        wide, codes = normalised(checked), encode_labels(known, self.classes).astype(np.intp)
        numbers = self._group_numbers(groups, len(wide))
        rows = max(1, BLOCK_NUMBERS // (len(self._wealth.counts) * len(STAKES)))
        blocks = [slice(start, start + rows) for start in range(0, len(wide), rows)]
        paths = [self._play(wide[b], codes[b], None if numbers is None else numbers[b]) for b in blocks]
        return self._report(np.concatenate(paths))

    def report(self) -> MonitorReport:
        """Return the present state."""
        return self._report(np.empty(0))

    def _group_numbers(self, groups: ArrayLike | None, n_rows: int) -> NDArray[np.int64] | None:
        """Return the number of the group of each row, in the order in which groups first appeared."""
        if groups is None:
            return None
        codes = check_groups(groups, n_rows)
        names = np.asarray(groups).tolist()
        _, firsts = np.unique(codes, return_index=True)
        places = {name: number for number, name in enumerate(self._groups)}
        for row in np.sort(firsts):
            places.setdefault(names[row], len(places))
        self._groups = list(places)
        n_new = len(places) - len(self._group_sums)
        self._group_wealth = self._group_wealth.join(Wealth.start(N_OVERALL * n_new))
        self._group_sums = np.concatenate([self._group_sums, np.zeros((n_new, 3))])
        return np.array([places[names[row]] for row in firsts])[codes]

    def _play(self, probs: Floats, labels: NDArray[np.intp], groups: NDArray[np.int64] | None) -> Floats:
        """Play a block of rows; return the logarithm of the whole wealth after each, (n_rows,)."""
        before = self.n_samples
        every = overall_payoffs(probs, labels)
        self._wealth, path = every.beside(class_payoffs(probs, labels)).play(self._wealth, self.tolerance)
        parts = self._log_parts(path)  # (n_rows, 1 + n_classes)
        own = np.eye(probs.shape[1])[labels]
        confident = np.array([probs.max(axis=1).sum(), (probs.argmax(axis=1) == labels).sum()])
        self._sums += np.column_stack(
            [
                np.full(len(self._sums), len(probs)),
                np.append(confident[0], probs.sum(axis=0)),
                np.append(confident[1], own.sum(axis=0)),
            ]
        )
        group_parts = self._play_groups(probs, labels, groups, every, before)
        whole = np.logaddexp.reduce(np.column_stack([parts, group_parts]), axis=1)
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

    def _play_groups(
        self,
        probs: Floats,
        labels: NDArray[np.intp],
        groups: NDArray[np.int64] | None,
        payoffs: Payoffs,
        before: int,
    ) -> Floats:
        """Play the games of the groups; return the logarithm of their part of the wealth after each row, (n_rows,)."""
        starts = _group_parts(self._group_wealth.log_totals)
        unseen = np.log(GROUP_SHARE / (1 + len(starts)))  # the share of groups that have not appeared: Σ 1/(j·(j + 1))
        if groups is None:
            return np.full(len(probs), np.logaddexp.reduce(np.append(starts, unseen)))
        paths = np.tile(starts, (len(probs), 1))
        for number in np.unique(groups):
            rows = np.flatnonzero(groups == number)
            games = np.arange(N_OVERALL * number, N_OVERALL * (number + 1))
            played, path = payoffs.rows(rows).play(self._group_wealth.select(games), self.tolerance)
            self._group_wealth = self._group_wealth.replaced(games, played)
            own = np.logaddexp.reduce(path, axis=1) + _log_group_share(number) - np.log(N_OVERALL)
            last = np.searchsorted(rows, np.arange(len(probs)), side="right")  # rows of the group up to each row
            paths[:, number] = np.append(starts[number], own)[last]
            self._note("group", int(number), paths[:, number], before)
            correct = probs[rows].argmax(axis=1) == labels[rows]
            self._group_sums[number] += len(rows), probs[rows].max(axis=1).sum(), correct.sum()
        return np.asarray(np.logaddexp.reduce(np.column_stack([paths, np.full(len(probs), unseen)]), axis=1))

    def _note(self, kind: str, place: int, path: Floats, before: int) -> None:
        """Note the first row at which a part of the wealth reached 1/α."""
        crossed = path >= -np.log(self.alpha)
        if (kind, place) not in self._alarms and crossed.any():
            self._alarms[kind, place] = before + int(crossed.argmax()) + 1

    def _report(self, path: Floats) -> MonitorReport:
        parts = self._log_parts(self._wealth.log_totals[None])[0]
        group_parts = _group_parts(self._group_wealth.log_totals)
        unseen = np.log(GROUP_SHARE / (1 + len(group_parts)))
        whole = np.logaddexp.reduce([*parts, *group_parts, unseen])
        lines = {"class": (self.classes.tolist(), parts[1:], self._sums[1:])}
        lines["group"] = (self._groups, group_parts, self._group_sums)
        listed = {
            kind: tuple(
                Part(name, *_means(sums), float(part), self._alarms.get((kind, place)))
                for place, (name, part, sums) in enumerate(zip(*columns, strict=True))
            )
            for kind, columns in lines.items()
        }
        overall = Part("all", *_means(self._sums[0]), float(whole), self._alarms.get(("overall", 0)))
        return MonitorReport(overall, listed["class"], listed["group"], self.alpha, path)

    def to_dict(self) -> dict[str, Any]:
        """Return the state in a form that JSON can represent; classes and groups must be text or numbers."""
        return {
            "format": FORMAT,
            "alpha": self.alpha,
            "tolerance": self.tolerance,
            "classes": self.classes.tolist(),
            "groups": self._groups,
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
            n_classes, n_groups = len(monitor.classes), len(state["groups"])
            monitor._groups = list(state["groups"])
            monitor._sums = np.array(state["sums"], dtype=np.float64).reshape(1 + n_classes, 3)
            monitor._group_sums = np.array(state["group_sums"], dtype=np.float64).reshape(n_groups, 3)
            monitor._wealth = Wealth.from_dict(state["wealth"], N_OVERALL + 2 * n_classes)
            monitor._group_wealth = Wealth.from_dict(state["group_wealth"], N_OVERALL * n_groups)
            monitor._alarms = {(str(kind), int(place)): int(row) for kind, place, row in state["alarms"]}
            sums = np.concatenate([monitor._sums, monitor._group_sums])
            unique = len(set(map(str, monitor._groups))) == len(monitor._groups)
            if not (np.isfinite(sums).all() and unique and sums.min() >= 0):
                raise FileFormatError("the state of a monitor is damaged: its numbers must be finite and not negative.")
        return monitor


def _log_group_share(number: Any) -> Any:
    """Return the logarithm of the share of the group of this number, from 0."""
    return np.log(GROUP_SHARE) - np.log(number + 1.0) - np.log(number + 2.0)


def _group_parts(log_totals: Floats) -> Floats:
    """Return the logarithm of the part of each group, (n_groups,), from those of its games."""
    n_groups = len(log_totals) // N_OVERALL
    games = log_totals.reshape(n_groups, N_OVERALL)
    return np.asarray(np.logaddexp.reduce(games, axis=1) - np.log(N_OVERALL) + _log_group_share(np.arange(n_groups)))


def _means(sums: Floats) -> tuple[int, float, float]:
    """Return the number of rows, the mean prediction and the mean outcome."""
    count = max(float(sums[0]), 1.0)
    return int(sums[0]), float(sums[1]) / count, float(sums[2]) / count
