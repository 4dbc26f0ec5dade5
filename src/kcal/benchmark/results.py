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
from kcal.metrics import AverageRanks, MethodComparison, average_ranks, compare_methods, overall_ranks
from kcal.metrics.comparison import Better


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

    def reshuffles(self, row: Row) -> int:
        """Return how many reshuffles a row has."""
        return 1 + max(cell.reshuffle for cell in self.by_cell if (cell.task, cell.by_group) == row)

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
        cells = [Cell(row.task, row.by_group, index, method) for index in range(self.reshuffles(row))]
        found = [self.by_cell.get(cell) for cell in cells]
        if any(outcome is None or outcome.error is not None for outcome in found):
            return None
        values = np.array([outcome.metrics[metric] for outcome in found if outcome is not None])
        return values if np.isfinite(values).all() else None

    def seconds(self, row: Row, method: str) -> tuple[float, float] | None:
        """Return the median seconds to fit and to predict, or None."""
        found = [
            outcome
            for cell, outcome in self.by_cell.items()
            if Row(cell.task, cell.by_group) == row and cell.method == method and outcome.error is None
        ]
        if not found:
            return None
        fits, predictions = (
            [getattr(outcome, name) for outcome in found] for name in ("fit_seconds", "predict_seconds")
        )
        return float(np.median(fits)), float(np.median(predictions))

    def comparison(self, row: Row, metric: str) -> MethodComparison:
        """Compare the methods of a row as the paper marks its tables; by the corrected test too, with sizes known."""
        values = {method: self.values(row, metric, method) for method in self.methods}
        accuracies = {method: self.values(row, "accuracy", method) for method in self.methods}
        n_calibration, n_test = self.sizes(row) or (None, None)
        return compare_methods(
            values,
            accuracies,
            better=MEASURES[metric].better,
            baseline="uncal",
            n_calibration=n_calibration,
            n_test=n_test,
        )

    def ranks(self, metric: str) -> AverageRanks:
        """Rank the methods in every reshuffle of every row, and average."""
        tasks = {row.label: {method: self.values(row, metric, method) for method in self.methods} for row in self.rows}
        return average_ranks(tasks, better=MEASURES[metric].better)

    def overall(self, metrics: Iterable[str] = RANKED) -> dict[str, float]:
        """Average the average ranks over metrics."""
        return overall_ranks({metric: self.ranks(metric) for metric in metrics})
