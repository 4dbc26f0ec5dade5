"""Outcomes as arrays over reshuffles, and the comparisons that the paper's tables show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.cells import Cell, Outcome
from kcal.errors import InvalidInputError
from kcal.metrics import (
    AverageRanks,
    MethodComparison,
    ReshuffleSummary,
    average_ranks,
    compare_methods,
    overall_ranks,
)
from kcal.metrics.comparison import Better
from kcal.metrics.significance import summarize


class Measure(NamedTuple):
    """A metric as the tables show it."""

    title: str
    better: Better
    scale: float  # what numbers are multiplied with: the paper's are in units of 10⁻²


MEASURES = {
    "accuracy": Measure("Accuracy", "higher", 100.0),
    "classwise_calibration_error": Measure("CECE", "lower", 100.0),
    "expected_calibration_error": Measure("ECE", "lower", 100.0),
    "top_label_brier_loss": Measure("Brier", "lower", 100.0),
    "negative_log_likelihood": Measure("NLL", "lower", 1.0),
    "static_classwise_calibration_error": Measure("static CECE", "lower", 100.0),
    "static_expected_calibration_error": Measure("static ECE", "lower", 100.0),
    "multiclass_brier_loss": Measure("multi-class Brier", "lower", 100.0),
    "classwise_calibration_error_min": Measure("CECE, threshold min(0.01, 1/K)", "lower", 100.0),
}
"""In the order of the tables; the first four are the paper's main ones."""

RANKED = ("accuracy", "classwise_calibration_error", "expected_calibration_error", "top_label_brier_loss")
"""The metrics whose ranks the paper averages; the log-loss stands beside them."""
BASELINE = "uncal"
"""Whose accuracy is to be kept."""


class Row(NamedTuple):
    """A task under one way of dealing out its pool: a row of the tables."""

    task: str
    by_group: bool

    @property
    def label(self) -> str:
        """How a table calls it."""
        return f"{self.task} (by group)" if self.by_group else self.task


@dataclass(frozen=True, eq=False)
class Results:
    """All outcomes of a run; methods in the order of the run."""

    outcomes: tuple[Outcome, ...] = field(repr=False)
    methods: tuple[str, ...]

    @classmethod
    def of(cls, outcomes: Iterable[Outcome], methods: Iterable[str]) -> Results:
        """Gather outcomes."""
        found = tuple(outcomes)
        if not found:
            raise InvalidInputError("there are no outcomes to show; run at least one task.")
        return cls(found, tuple(methods))

    @cached_property
    def by_cell(self) -> dict[Cell, Outcome]:
        """The outcome of each cell."""
        return {outcome.cell: outcome for outcome in self.outcomes}

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Tasks and ways of dealing, in the order in which they were run."""
        return tuple(dict.fromkeys(Row(outcome.cell.task, outcome.cell.by_group) for outcome in self.outcomes))

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """Cells in which a method failed."""
        return tuple(outcome for outcome in self.outcomes if outcome.error is not None)

    @property
    def versions(self) -> dict[str, str]:
        """What the cells were measured with, by package; several versions are joined by a slash."""
        found: dict[str, dict[str, None]] = {}
        for outcome in self.outcomes:
            for name, number in (outcome.origin.versions if outcome.origin is not None else {}).items():
                found.setdefault(name, {})[number] = None
        return {name: " / ".join(numbers) for name, numbers in found.items()}

    @property
    def dealt_by_row_only(self) -> dict[str, int]:
        """Tasks that have groups, but fewer than can be dealt: how many, by task."""
        by_group = {row.task for row in self.rows if row.by_group}
        return {
            outcome.cell.task: outcome.n_groups
            for outcome in self.outcomes
            if outcome.n_groups is not None and outcome.cell.task not in by_group
        }

    @cached_property
    def _reshuffles(self) -> dict[Row, int]:
        found: dict[Row, int] = {}
        for cell in self.by_cell:
            row = Row(cell.task, cell.by_group)
            found[row] = max(found.get(row, 0), cell.reshuffle + 1)
        return found

    def reshuffles(self, row: Row) -> int:
        """Return how many reshuffles a row has."""
        return self._reshuffles[row]

    def of_method(self, row: Row, method: str) -> list[Outcome]:
        """Return a method's outcomes over the reshuffles of a row, failures too; none if it did not take part."""
        cells = (Cell(row.task, row.by_group, index, method) for index in range(self.reshuffles(row)))
        return [self.by_cell[cell] for cell in cells if cell in self.by_cell]

    def sizes(self, row: Row) -> tuple[int, int] | None:
        """Return how many samples calibrate and test in a row, on average over reshuffles; None if it is not known."""
        cells = [outcome for outcome in self.outcomes if (outcome.cell.task, outcome.cell.by_group) == row]
        known = [outcome.sizes for outcome in cells if outcome.sizes is not None]
        if not known:
            return None
        n_calibration, n_test = np.rint(np.mean(known, axis=0)).astype(int).tolist()
        return n_calibration, n_test

    def values(self, row: Row, metric: str, method: str) -> NDArray[np.float64] | None:
        """Return a metric over the reshuffles; None if the method did not take part or failed anywhere."""
        found = self.of_method(row, method)
        if len(found) < self.reshuffles(row) or any(outcome.error is not None for outcome in found):
            return None
        return _finite([outcome.metrics[metric] for outcome in found])

    def partly(self, row: Row, metric: str, method: str) -> tuple[ReshuffleSummary | None, int]:
        """Return a summary over the reshuffles in which a method did not fail, and in how many it failed.

        It describes, and is not compared: other methods have numbers of other reshuffles too.
        """
        found = self.of_method(row, method)
        fine = [outcome.metrics[metric] for outcome in found if outcome.error is None]
        values = _finite(fine) if fine else None
        return None if values is None else summarize(values), len(found) - len(fine)

    def seconds(self, row: Row, method: str) -> tuple[float, float] | None:
        """Return the median seconds to fit and to predict, or None."""
        found = [outcome for outcome in self.of_method(row, method) if outcome.error is None]
        if not found:
            return None
        fits, predictions = (
            [getattr(outcome, name) for outcome in found] for name in ("fit_seconds", "predict_seconds")
        )
        return float(np.median(fits)), float(np.median(predictions))

    def training_seconds(self, row: Row, method: str) -> float | None:
        """Return the seconds that a row's projection was trained; None for a method that learns none.

        Where a run went on after it was stopped there were several trainings: the median over cells.
        """
        found = [outcome.train_seconds for outcome in self.of_method(row, method) if outcome.train_seconds is not None]
        return float(np.median(found)) if found else None

    def comparison(self, row: Row, metric: str) -> MethodComparison | None:
        """Compare the methods of a row as the paper marks its tables; by the corrected test too, with sizes known.

        Methods that failed anywhere are left out. None where nothing is left, or where the uncalibrated network, whose
        accuracy is to be kept, has no numbers.
        """
        values = {method: self.values(row, metric, method) for method in self.methods}
        accuracies = {method: self.values(row, "accuracy", method) for method in self.methods}
        if accuracies.get(BASELINE) is None or all(each is None for each in values.values()):
            return None
        n_calibration, n_test = self.sizes(row) or (None, None)
        return compare_methods(
            values,
            accuracies,
            better=MEASURES[metric].better,
            baseline=BASELINE,
            n_calibration=n_calibration,
            n_test=n_test,
        )

    def ranks(self, metric: str) -> AverageRanks | None:
        """Rank the methods in every reshuffle of every row, and average; None if nobody has a number.

        A method that failed in a row is not ranked there, and the others are ranked without it.
        """
        tasks = {row.label: {method: self.values(row, metric, method) for method in self.methods} for row in self.rows}
        if all(values is None for methods in tasks.values() for values in methods.values()):
            return None
        return average_ranks(tasks, better=MEASURES[metric].better)

    def overall(self, metrics: Iterable[str] = RANKED) -> dict[str, float]:
        """Average the average ranks over metrics."""
        found = {metric: self.ranks(metric) for metric in metrics}
        return overall_ranks({metric: ranks for metric, ranks in found.items() if ranks is not None})


def _finite(values: list[float]) -> NDArray[np.float64] | None:
    found = np.array(values)
    return found if np.isfinite(found).all() else None
