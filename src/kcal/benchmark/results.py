"""Results of methods on splits: one record per method and split, one table of all, and the comparisons it allows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from kcal.errors import FileFormatError, InvalidInputError
from kcal.metrics import AverageRanks, MethodComparison, SplitSummary, average_ranks, compare_methods, overall_ranks
from kcal.metrics.comparison import summarize
from kcal.metrics.registry import PAPER_METRICS, Metric

RANKED_METRICS = ("accuracy", "classwise_calibration_error", "expected_calibration_error", "top_label_brier_loss")
"""The paper's main metrics, over whose ranks it averages."""
MAIN_METRICS = (*RANKED_METRICS, "negative_log_likelihood")
OTHER_THRESHOLD = "classwise_calibration_error_min"
"""Measured besides the paper's metrics: the class-wise error at its other threshold."""
TABLE_METRICS: dict[str, Metric] = {
    name: PAPER_METRICS[name]
    for name in (
        *MAIN_METRICS,
        "static_classwise_calibration_error",
        "static_expected_calibration_error",
        "multiclass_brier_loss",
        OTHER_THRESHOLD,
    )
}
"""The metrics of the tables, in their order."""
BASELINE = "uncal"
"""The method whose accuracy must be kept."""


class Row(NamedTuple):
    """A row of the tables: a task, split by row or by group."""

    task: str
    by_group: bool

    @property
    def label(self) -> str:
        """The name of the row in tables."""
        return f"{self.task} (by group)" if self.by_group else self.task


@dataclass(frozen=True)
class ResultKey:
    """Which method on which split; ``by_group`` for grouped splits."""

    task: str
    by_group: bool
    split: int
    method: str

    @property
    def row(self) -> Row:
        """The row of the tables that the result belongs to."""
        return Row(self.task, self.by_group)


@dataclass(frozen=True)
class Result:
    """What was measured on the test samples of a split, or the error of a method that failed."""

    key: ResultKey
    sizes: tuple[int, int]  # number of calibration and test samples
    metrics: Mapping[str, float] = field(default_factory=dict)
    fit_seconds: float | None = None  # None if the method failed
    predict_seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # what the method chose: the checkpoint of its projection
    reliability: Mapping[str, Any] | None = None  # bins of the confidence and of classes; only for the first split
    error: str | None = None
    train_seconds: float | None = None  # to train the projection, which all splits share
    origin: str = ""  # a hash of what the result depends on
    versions: Mapping[str, str] = field(default_factory=dict)  # of packages, by name

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can hold; numbers that are not finite become null."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        return plain

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Result:
        """Return the result that was stored."""
        metrics = {name: math.nan if value is None else value for name, value in stored["metrics"].items()}
        fields = {"key": ResultKey(**stored["key"]), "sizes": tuple(stored["sizes"]), "metrics": metrics}
        return cls(**{**stored, **fields})


@dataclass(frozen=True, eq=False)
class Results:
    """All results of a run; methods in the order of the run."""

    results: tuple[Result, ...] = field(repr=False)
    methods: tuple[str, ...]

    @classmethod
    def of(cls, results: Iterable[Result], methods: Iterable[str]) -> Results:
        """Collect results."""
        collected = tuple(results)
        if not collected:
            raise InvalidInputError("results", "must not be empty", remedy="Run at least one task.")
        return cls(collected, tuple(methods))

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the results of a run from its ``results.json``."""
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return cls.of(map(Result.from_json, stored["results"]), stored["settings"]["methods"])
        except FileNotFoundError:
            raise FileFormatError(f"{path} does not exist. Run kcal bench with that folder first.") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{path} does not hold the results of kcal bench ({error!r}).") from error

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """One line per result: its key, every metric and everything else that was recorded."""
        missing = dict.fromkeys(TABLE_METRICS, math.nan)
        lines = [
            {**vars(result), **vars(result.key), "label": result.key.row.label, **missing, **result.metrics}
            for result in self.results
        ]
        return pandas.DataFrame(lines).drop(columns=["key", "metrics"])

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Tasks, by row and by group, in the order of the run."""
        return tuple(dict.fromkeys(result.key.row for result in self.results))

    @cached_property
    def _by_method(self) -> dict[Any, pandas.DataFrame]:
        return dict(list(self.frame.groupby(["label", "method"], sort=False)))

    def of_method(self, row: Row, method: str) -> pandas.DataFrame:
        """Return a method's lines over the splits of a row, with failures; empty if it was not run there."""
        return self._by_method.get((row.label, method), self.frame.iloc[:0])

    @property
    def versions(self) -> dict[str, str]:
        """Versions by package; several are joined by a slash."""
        measured = pandas.DataFrame([dict(result.versions) for result in self.results])
        return {name: " / ".join(measured[name].dropna().unique()) for name in measured}

    def sizes(self, row: Row) -> tuple[int, int]:
        """Return the number of calibration and test samples of a row, averaged over splits."""
        every = [result.sizes for result in self.results if result.key.row == row]
        n_calibration, n_test = np.rint(np.mean(every, axis=0)).astype(int).tolist()
        return n_calibration, n_test

    def values(self, row: Row, metric: str, method: str) -> NDArray[np.float64] | None:
        """Return a metric over the splits; None if the method was not run or failed on any split."""
        lines = self.of_method(row, method)
        values: NDArray[np.float64] = lines[metric].to_numpy(dtype=float)
        return values if len(lines) and lines["error"].isna().all() and np.isfinite(values).all() else None

    def partial_summary(self, row: Row, metric: str, method: str) -> tuple[SplitSummary | None, int]:
        """Return a summary over the splits without failure, and the number of failures; not for comparison."""
        lines = self.of_method(row, method)
        values = lines.loc[lines["error"].isna(), metric].to_numpy(dtype=float)
        is_usable = len(values) > 0 and np.isfinite(values).all()
        return summarize(values) if is_usable else None, len(lines) - len(values)

    def seconds(self, row: Row, method: str) -> dict[str, float]:
        """Return the median seconds to "fit", to "predict" and to "train" the projection; nan where not known."""
        lines = self.of_method(row, method)
        return {kind: lines[f"{kind}_seconds"].astype(float).dropna().median() for kind in ("fit", "predict", "train")}

    def comparison(self, row: Row, metric: str) -> MethodComparison | None:
        """Compare the methods of a row as the paper marks its tables, and by the corrected test.

        Methods that failed on any split are left out. None if nothing is left, or the uncalibrated network, whose
        accuracy is the reference, has no results.
        """
        values = {method: self.values(row, metric, method) for method in self.methods}
        accuracies = {method: self.values(row, "accuracy", method) for method in self.methods}
        if accuracies.get(BASELINE) is None or all(per_split is None for per_split in values.values()):
            return None
        n_calibration, n_test = self.sizes(row)
        better = TABLE_METRICS[metric].direction
        return compare_methods(
            values, accuracies, better=better, baseline=BASELINE, n_calibration=n_calibration, n_test=n_test
        )

    def ranks(self, metric: str) -> AverageRanks | None:
        """Rank the methods on every split, average over the splits and then over rows; None if no method has results.

        A method that failed in a row is not ranked there; the others are ranked without it.
        """
        tasks = {row.label: {method: self.values(row, metric, method) for method in self.methods} for row in self.rows}
        if all(values is None for methods in tasks.values() for values in methods.values()):
            return None
        return average_ranks(tasks, better=TABLE_METRICS[metric].direction)

    def overall(self) -> dict[str, float]:
        """Average the average ranks over the paper's main metrics."""
        return overall_ranks({metric: ranks for metric in RANKED_METRICS if (ranks := self.ranks(metric)) is not None})
