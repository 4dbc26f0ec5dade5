"""Average ranks of methods over tasks, and over metrics."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from kcal.errors import InvalidInputError
from kcal.metrics.comparison import Better, check_mapping, summarize
from kcal.validation import check_choice, shown, to_numbers


@dataclass(frozen=True)
class AverageRank:
    """Mean and standard deviation (ddof = 1; nan for a single task) of a method's ranks; 1 is the best rank."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f}"


@dataclass(frozen=True)
class AverageRanks:
    """The average rank of each method, in the order in which methods first came; prints from best to worst."""

    ranks: dict[str, AverageRank]

    @property
    def best(self) -> tuple[str, ...]:
        """Methods of the lowest average rank."""
        lowest = min(rank.mean for rank in self.ranks.values())
        return tuple(name for name, rank in self.ranks.items() if rank.mean == lowest)

    def __str__(self) -> str:
        width = max(len(name) for name in self.ranks)
        ordered = sorted(self.ranks.items(), key=lambda item: item[1].mean)
        return "\n".join(f"{name:<{width}}  {rank}" for name, rank in ordered)


def average_ranks(tasks: Mapping[str, Mapping[str, ArrayLike | None]], *, better: Better = "lower") -> AverageRanks:
    """Rank the methods in each task, the best is 1, and average each method's ranks over the tasks.

    Parameters
    ----------
    tasks
        {task: {method: value}}. A value may be an array over splits: each split is then ranked separately, and the
        ranks are averaged within the task first. The standard deviation is that over tasks, as in the KCal paper: its
        9.99 ± 0.03 over 11 tasks of 10 splits is one rank of 9 and 109 of 10.
        None or nan leaves a method out of the task; the others are ranked without it.
    better
        Which direction of the values is better.

    Notes
    -----
    Equal values share the mean of their ranks. A method without any value does not occur in the result.
    """
    check_choice(better, "better", get_args(Better))
    collected: dict[str, list[float]] = {}
    for task, methods in check_mapping(tasks, "tasks", "{task: {method: value}}").items():
        columns = _columns(f"tasks[{task!r}]", methods)
        if not columns:
            continue
        values = np.stack(list(columns.values()))  # (n_methods, n_splits)
        ranks = rankdata(values if better == "lower" else -values, axis=0, nan_policy="omit")
        for name, row in zip(columns, ranks, strict=True):
            if not np.isnan(row).all():
                collected.setdefault(name, []).append(float(np.nanmean(row)))
    summaries = {name: summarize(np.array(means)) for name, means in collected.items()}
    averages = {name: AverageRank(summary.mean, summary.std) for name, summary in summaries.items()}
    if not averages:
        raise InvalidInputError("tasks", "must have at least one value", got="none")
    return AverageRanks(averages)


def overall_ranks(metrics: Mapping[str, AverageRanks]) -> dict[str, float]:
    """Average each method's mean rank over {metric: result of `average_ranks`}, with equal weight per metric."""
    collected: dict[str, list[float]] = {}
    for metric, averages in check_mapping(metrics, "metrics", "{metric: average_ranks(...)}").items():
        if not isinstance(averages, AverageRanks):
            expected = "must be a result of average_ranks"
            raise InvalidInputError(f"metrics[{metric!r}]", expected, got=shown(averages))
        for name, rank in averages.ranks.items():
            collected.setdefault(name, []).append(rank.mean)
    return {name: float(np.mean(means)) for name, means in collected.items()}


def _columns(name: str, methods: Mapping[str, ArrayLike | None]) -> dict[str, NDArray[np.float64]]:
    """Return the values of each method of a task that has any, all of one length."""
    columns = {}
    for method, value in check_mapping(methods, name, "{method: value}").items():
        if value is None:
            continue
        entry = f"{name}[{method!r}]"
        column = np.atleast_1d(to_numbers(value, entry)).astype(np.float64)
        if column.ndim != 1 or len(column) == 0:
            expected = "must be a number, None, or an array over splits"
            raise InvalidInputError(entry, expected, got=shown(value))
        columns[method] = column
    lengths = {method: len(column) for method, column in columns.items()}
    if len(set(lengths.values())) > 1:
        expected = "must have values for the same splits of all methods"
        raise InvalidInputError(name, expected, got=shown(lengths), remedy="Fill a missing one with nan.")
    return columns
