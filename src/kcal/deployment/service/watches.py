"""The alarms of a served model: with labels on its calibration, without labels on its inputs; in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.monitoring import CalibrationMonitor, DriftMonitor, DriftReport, MonitorReport

ALPHA = 0.05
TOLERANCE = 0.01
"""By how much probabilities may be off without an alarm: no calibrator is perfect."""
MOST_GROUPS = 200
"""Groups that are watched one by one: those that come first. All later ones are watched as one."""
OTHER_GROUPS = "other groups"
PERIOD = 5_000
"""Rows after which inputs are compared with the calibration set again, so that memory is bounded."""


class LabelWatch:
    """A :class:`~kcal.CalibrationMonitor` whose groups can be forgotten."""

    def __init__(self, classes: ArrayLike) -> None:
        self.monitor = CalibrationMonitor(classes, alpha=ALPHA, tolerance=TOLERANCE)
        self._groups: list[str | None] = []  # by the number that the monitor knows; None once forgotten
        self._rows: Counter[str] = Counter()  # of each group that has not been forgotten

    def update(self, probs: NDArray[Any], labels: NDArray[Any], groups: Sequence[str | None]) -> None:
        """Watch some more rows; those without a group are not watched by group."""
        named = np.array([group is not None for group in groups])
        if named.any():
            numbers = [self._number(group) for group in groups if group is not None]
            self.monitor.update(probs[named], labels[named], numbers)
        if not named.all():
            self.monitor.update(probs[~named], labels[~named])

    def _number(self, group: str) -> int:
        """Return the number of a group, and count its row."""
        if group not in self._rows:
            if len(self._groups) >= MOST_GROUPS:
                return MOST_GROUPS
            self._groups.append(group)
        self._rows[group] += 1
        return self._groups.index(group)

    def forget_group_of_row(self, group: str | None) -> None:
        """Forget a row of a group; without rows, its name."""
        if group is None or group not in self._rows:
            return
        self._rows[group] -= 1
        if self._rows[group] == 0:
            del self._rows[group]
            self._groups[self._groups.index(group)] = None

    def report(self) -> MonitorReport:
        """Return the report of the monitor, with the names of the groups."""
        report = self.monitor.report()
        names = dict(enumerate(self._groups)) | {MOST_GROUPS: OTHER_GROUPS}
        groups = [replace(part, name=name) for part in report.groups if (name := names[part.name]) is not None]
        return replace(report, groups=tuple(groups))

    def to_dict(self) -> dict[str, Any]:
        """Return the state in a form that JSON can represent."""
        return {"monitor": self.monitor.to_dict(), "groups": self._groups, "rows": dict(self._rows)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the watch that :meth:`to_dict` described."""
        monitor = CalibrationMonitor.from_dict(state["monitor"])
        watch = cls(monitor.classes)
        watch.monitor, watch._groups, watch._rows = monitor, list(state["groups"]), Counter(state["rows"])
        return watch


class DriftWatch:
    """Watch the ranks of rows among the calibration samples, from 0 to 1, for a change of their distribution.

    The rows of a period of ``PERIOD`` are watched by one :class:`~kcal.DriftMonitor`; the j-th has the probability
    α/(j·(j + 1)) of a false alarm, so that all of them have α at most. Each begins with the calibration set, so that a
    slow drift does not become the rule. Ranks are those of :func:`rank_inputs`, among ``n_references``.
    """

    def __init__(self, n_references: int) -> None:
        self.n_references = n_references
        self.period = 1
        self.alarm_at: int | None = None  # rows after which the first alarm was raised
        self.report: DriftReport | None = None
        self._before = 0  # rows of earlier periods
        self._ranks = np.empty(0)
        self._numbers = np.empty(0, dtype=np.int64)
        self._monitor: DriftMonitor | None = None

    @property
    def n_samples(self) -> int:
        """Rows watched."""
        return self._before + len(self._ranks)

    @property
    def log_wealth(self) -> float | None:
        """Logarithm of the wealth of the present period, weighted: the alarm is raised at −log α. None at first."""
        if self.report is None:
            return None
        return self.report.log_wealth - float(np.log(self.period * (self.period + 1)))

    def update(self, ranks: NDArray[np.float64], numbers: NDArray[np.int64]) -> None:
        """Watch some more rows by their ranks; ``numbers`` are those of the rows in the stream."""
        self.refresh()
        for start in range(0, len(ranks), PERIOD):
            if len(self._ranks) >= PERIOD:
                self._begin_period()
            self._ranks = np.concatenate([self._ranks, ranks[start : start + PERIOD]])
            self._numbers = np.concatenate([self._numbers, numbers[start : start + PERIOD]])
            self._watch(ranks[start : start + PERIOD])

    def _watch(self, ranks: NDArray[np.float64]) -> None:
        if self._monitor is None:
            self._monitor = self._new_monitor()
        self.report = self._monitor.update(ranks)
        if self.alarm_at is None and self.report.alarm_at is not None:
            self.alarm_at = self._before + self.report.alarm_at

    def _begin_period(self) -> None:
        self._before += len(self._ranks)
        self._ranks, self._numbers = self._ranks[:0].copy(), self._numbers[:0].copy()
        self.period += 1
        self._monitor = None

    def _new_monitor(self) -> DriftMonitor:
        middles = (np.arange(self.n_references) + 0.5) / self.n_references  # among them, a rank has no equal
        alpha = ALPHA / (self.period * (self.period + 1))
        return DriftMonitor(middles, alpha=alpha, seed=self.period)

    def forget(self, numbers: NDArray[np.int64]) -> None:
        """Forget rows of the present period, by their numbers in the stream; the others are watched again."""
        kept = ~np.isin(self._numbers, numbers)
        if kept.all():
            return
        self._ranks, self._numbers = self._ranks[kept], self._numbers[kept]
        self._monitor = self.report = None
        if self.alarm_at is not None and self.alarm_at > self._before:
            self.alarm_at = None

    def refresh(self) -> None:
        """Watch the rows of the present period again, if some were forgotten."""
        if self._monitor is None and len(self._ranks):
            self._watch(self._ranks)

    def to_dict(self) -> dict[str, Any]:
        """Return the state in a form that JSON can represent."""
        names = ("n_references", "period", "alarm_at")
        return {name: getattr(self, name) for name in names} | {"before": self._before, "ranks": self._ranks.tolist()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Return the watch that :meth:`to_dict` described."""
        watch = cls(int(state["n_references"]))
        watch.period, watch._before = int(state["period"]), int(state["before"])
        watch._ranks = np.array(state["ranks"], dtype=np.float64)
        watch._numbers = np.full(len(watch._ranks), -1)
        watch.refresh()
        watch.alarm_at = None if state["alarm_at"] is None else int(state["alarm_at"])
        return watch


def rank_inputs(calibrator: Any, rows: NDArray[Any], evidence: NDArray[np.float64]) -> tuple[Any, Any]:
    """Return the ranks of rows by density among calibration samples, and the evidence, filled in where it is nan.

    A rank is the share of the calibration samples whose density, from the others, is lower. Pass the ``snapshot()`` of
    a calibrator that learns online: other samples change the density everywhere.
    """
    reference = calibrator.calibration_log_evidence_
    ranks = np.searchsorted(reference, np.asarray(calibrator.log_evidence(rows), dtype=np.float64)) / len(reference)
    lacking = np.isnan(evidence)
    if lacking.any():
        evidence = evidence.copy()
        evidence[lacking] = calibrator.evidence(rows[lacking])
    return ranks, evidence
