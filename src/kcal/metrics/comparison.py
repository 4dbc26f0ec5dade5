"""Methods compared over repeated random splits of the data ("splits"): tests of "the mean is higher", the best, ranks.

The KCal paper marks its tables at p = 0.01: a method preserves accuracy unless it is significantly worse than
the uncalibrated one; best are the accuracy-preserving method of the best mean and those not significantly worse.
The published marks follow a one-sided, unpaired, pooled t-test. It treats splits as independent although they
share samples; the corrected test of Nadeau and Bengio is computed too. With fewer than ten splits, as many as the
paper has, "not significantly worse" says little, and no method is called best.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from kcal.errors import InvalidInputError
from kcal.validation import check_choice, check_integer, check_number, shown, to_numbers

Better = Literal["lower", "higher"]

ROUNDING = 1e-12  # standard errors and differences below this fraction of the values are rounding errors
UNPAIRED = "Without n_calibration and n_test, only the pooled test is computed."
MAX_SAMPLES = 10**15
MIN_SPLITS = 10
"""Splits without which no method is called best: the tests would not find most differences at p = 0.01."""


@dataclass(frozen=True)
class SplitSummary:
    """Mean and standard deviation (ddof = 1; nan for a single value) over splits."""

    mean: float
    std: float
    n_splits: int

    def __str__(self) -> str:
        return f"{self.mean:.5f} ± {self.std:.5f}"


SplitValues = ArrayLike | SplitSummary
Checked = NDArray[np.float64] | SplitSummary


def pooled_t_test(first: SplitValues, second: SplitValues) -> float:
    """One-sided p-value of "the mean of first is higher", unpaired: t = (x̄ − ȳ) / √(s²·(1/n + 1/m)).

    s² = ((n − 1)·s_x² + (m − 1)·s_y²) / (n + m − 2) is the pooled variance, with n + m − 2 degrees of freedom.
    Without variance the p-value is next to 0 or 1, or 0.5 for equal means; nan for one value on each side.
    """
    x, y = summarize(check_splits(first, "first")), summarize(check_splits(second, "second"))
    freedom = x.n_splits + y.n_splits - 2
    if freedom == 0:
        return float("nan")
    squares = sum((s.n_splits - 1) * s.std**2 for s in (x, y) if s.n_splits > 1)
    standard_error = math.sqrt(squares / freedom * (1 / x.n_splits + 1 / y.n_splits))
    return _upper_tail(x.mean - y.mean, standard_error, freedom, scale=max(abs(x.mean), abs(y.mean)))


def corrected_resampled_t_test(first: ArrayLike, second: ArrayLike, *, n_calibration: int, n_test: int) -> float:
    """One-sided p-value of "the mean of first is higher", paired: t = d̄ / √(s_d²·(1/J + n_test/n_calibration)).

    d are the differences over J splits, with J − 1 degrees of freedom. The plain paired test has only 1/J;
    the second term accounts for the samples that splits share (Nadeau and Bengio, "Inference for the
    generalization error", 2003). Without variance the p-value is next to 0 or 1, or 0.5 for equal means;
    nan for J = 1.
    """
    calibration = check_integer(n_calibration, "n_calibration", minimum=1, maximum=MAX_SAMPLES)
    share = check_integer(n_test, "n_test", minimum=1, maximum=MAX_SAMPLES) / calibration
    x, y = check_splits(first, "first"), check_splits(second, "second")
    if isinstance(x, SplitSummary) or isinstance(y, SplitSummary):
        raise InvalidInputError("values", "must be arrays for the corrected test", got="a summary", remedy=UNPAIRED)
    if len(x) != len(y):
        expected = "must have the same splits for every method in the corrected test"
        raise InvalidInputError("values", expected, got=f"{len(x)} and {len(y)} values", remedy=UNPAIRED)
    if len(x) == 1:
        return float("nan")
    differences = x - y
    standard_error = float(differences.std(ddof=1)) * math.sqrt(1 / len(x) + share)
    scale = float(max(np.abs(x).max(), np.abs(y).max()))
    return _upper_tail(float(differences.mean()), standard_error, len(x) - 1, scale=scale)


def _upper_tail(difference: float, standard_error: float, freedom: int, *, scale: float) -> float:
    """Return the probability that Student's t exceeds difference / standard error."""
    standard_error = max(standard_error, ROUNDING * scale)
    return float(stdtr(freedom, -difference / standard_error)) if standard_error > 0 else 0.5


def summarize(entry: Checked) -> SplitSummary:
    """Return mean and standard deviation."""
    if isinstance(entry, SplitSummary):
        return entry
    std = float(entry.std(ddof=1)) if entry.shape[0] > 1 else float("nan")
    return SplitSummary(float(entry.mean()), std, int(entry.shape[0]))


@dataclass(frozen=True)
class ComparisonMarks:
    """The result of one test for the methods of a comparison; p-values are nan where nothing can be tested."""

    accuracy_preserving: tuple[str, ...]  # methods whose accuracy is not significantly lower than the baseline's
    best: tuple[str, ...]  # of these, the one of the best mean, first, and those not significantly worse than it
    underlined: str | None  # the method of the best mean of all, if it does not preserve accuracy
    # Below MIN_SPLITS, best is empty and underlined None.
    accuracy_p_values: dict[str, float]  # by method, of "less accurate than the baseline"
    p_values: dict[str, float]  # by method, of "worse than the best accuracy-preserving mean"


@dataclass(frozen=True)
class MethodComparison:
    """Mean ± standard deviation of each method, and the marks of both tests; `corrected` is None without sizes."""

    summaries: dict[str, SplitSummary]
    accuracies: dict[str, SplitSummary]
    pooled: ComparisonMarks
    corrected: ComparisonMarks | None
    better: Better
    baseline: str
    level: float

    def __str__(self) -> str:
        import pandas

        columns = {"mean ± std": [str(summary) for summary in self.summaries.values()]}
        for test, marks in (("pooled", self.pooled), ("corrected", self.corrected)):
            if marks is not None:
                columns[test] = [_mark(name, marks) for name in self.summaries]
        explanation = (
            f"{self.better} is better; best: not significantly worse than the best mean among the methods "
            f"that are not significantly less accurate than {self.baseline} (p = {self.level:g})"
        )
        n_splits = _min_count(self.summaries, self.accuracies)
        if n_splits < MIN_SPLITS:
            explanation = (
                f"{self.better} is better; {MIN_SPLITS} splits are needed to call methods best, not {n_splits}"
            )
        return f"{pandas.DataFrame(columns, index=list(self.summaries)).to_string()}\n{explanation}"


def compare_methods(
    values: Mapping[str, SplitValues | None],
    accuracies: Mapping[str, SplitValues | None],
    *,
    better: Better = "lower",
    baseline: str = "uncalibrated",
    level: float = 0.01,
    n_calibration: int | None = None,
    n_test: int | None = None,
) -> MethodComparison:
    """Compare methods by one metric over splits, as the KCal paper marks its tables.

    Parameters
    ----------
    values
        The metric of each method, one number per split, or a `SplitSummary` (of a printed table).
        None leaves a method out.
    accuracies
        The accuracies likewise, of every method in values and of the baseline.
    better
        Which direction of the metric is better.
    baseline
        The method whose accuracy is to be preserved.
    level
        A difference is significant if p < level.
    n_calibration, n_test
        Numbers of samples that the methods were fitted on and tested on in each split. They add the corrected
        test, which pairs the splits: these must be the same in the same order.

    Notes
    -----
    With fewer than 10 splits no method is called best: at p = 0.01 the tests have too little power, and a method that
    is not significantly worse may still be much worse. With one split p-values are nan.
    """
    check_choice(better, "better", get_args(Better))
    level = check_number(level, "level", minimum=0, maximum=1, exclusive=True)
    entries = check_mapping(values, "values", "{method: values over splits}")
    given = {name: check_splits(entry, f"values[{name!r}]") for name, entry in entries.items() if entry is not None}
    if not given:
        raise InvalidInputError("values", "must have at least one method", got="none")
    if not isinstance(baseline, str):
        raise InvalidInputError("baseline", "must be the name of a method", got=shown(baseline))
    known = check_mapping(accuracies, "accuracies", "{method: accuracies over splits}")
    for name in (*given, baseline):
        if known.get(name) is None:
            expected = "must have every method in values and the baseline"
            remedy = "Pass its accuracies, or name another baseline."
            raise InvalidInputError("accuracies", expected, got=f"none of {name!r}", remedy=remedy)
    right = {name: check_splits(known[name], f"accuracies[{name!r}]") for name in (*given, baseline)}
    mark = partial(_marks, given, right, baseline, better, level)
    corrected = None
    sizes: dict[str, Any] = {"n_calibration": n_calibration, "n_test": n_test}  # one that is None is named in an error
    if any(size is not None for size in sizes.values()):
        corrected = mark(partial(corrected_resampled_t_test, **sizes))
    summaries, accuracy_summaries = ({name: summarize(part[name]) for name in part} for part in (given, right))
    return MethodComparison(summaries, accuracy_summaries, mark(pooled_t_test), corrected, better, baseline, level)


def _marks(
    values: Mapping[str, Checked],
    accuracies: Mapping[str, Checked],
    baseline: str,
    better: Better,
    level: float,
    test: Callable[..., float],
) -> ComparisonMarks:
    """Mark the methods by a test that gives the p-value of "the first is higher"."""
    accuracy_p_values = {name: test(accuracies[baseline], accuracies[name]) for name in values}
    preserving = [name for name, p in accuracy_p_values.items() if not p < level]  # nan is not significant
    sign = 1 if better == "lower" else -1
    badness = {name: sign * summarize(entry).mean for name, entry in values.items()}
    leader = min(badness, key=badness.__getitem__)
    is_conclusive = _min_count(values, accuracies) >= MIN_SPLITS
    if not preserving:
        p_values, underlined = dict.fromkeys(values, float("nan")), leader if is_conclusive else None
        return ComparisonMarks((), (), underlined, accuracy_p_values, p_values)
    best = min(preserving, key=badness.__getitem__)
    underlined = leader if badness[leader] < badness[best] else None
    p_values = {
        name: test(entry, values[best]) if better == "lower" else test(values[best], entry)
        for name, entry in values.items()
    }
    if not is_conclusive:
        return ComparisonMarks(tuple(preserving), (), None, accuracy_p_values, p_values)
    others = [name for name in preserving if name != best and not p_values[name] < level]
    return ComparisonMarks(tuple(preserving), (best, *others), underlined, accuracy_p_values, p_values)


def _min_count(*entries: Mapping[str, Checked]) -> int:
    """Return the smallest number of splits."""
    return min(summarize(entry).n_splits for part in entries for entry in part.values())


def _mark(name: str, marks: ComparisonMarks) -> str:
    if name in marks.best:
        return "best"
    if name == marks.underlined:
        return "best but inaccurate"
    return "" if name in marks.accuracy_preserving else "inaccurate"


def check_splits(entry: Any, name: str) -> Checked:
    """Return one finite number per split, or a summary of them."""
    if isinstance(entry, SplitSummary):
        return entry
    array = to_numbers(entry, name).astype(np.float64)
    if array.ndim != 1 or len(array) == 0 or not np.isfinite(array).all():
        remedy = "Pass None for a method without values."
        raise InvalidInputError(name, "must have one finite number per split", got=shown(entry), remedy=remedy)
    return array


def check_mapping(entries: Any, name: str, form: str) -> Mapping[str, Any]:
    """Return a mapping from names, such as {method: values}."""
    if isinstance(entries, Mapping) and all(isinstance(key, str) for key in entries):
        return entries
    raise InvalidInputError(name, "must be a mapping from names", got=shown(entries), remedy=f"Pass {form}.")


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
    import pandas

    check_choice(better, "better", get_args(Better))
    entries = check_mapping(tasks, "tasks", "{task: {method: value}}")
    values = {task: pandas.DataFrame(_columns(f"tasks[{task!r}]", methods)) for task, methods in entries.items()}
    ranks = [frame.rank(axis=1, ascending=better == "lower").mean() for frame in values.values() if frame.size]
    table = pandas.concat(ranks, axis=1).dropna(how="all") if ranks else pandas.DataFrame()  # (n_methods, n_tasks)
    if table.empty:
        raise InvalidInputError("tasks", "must have at least one value", got="none")
    return AverageRanks({str(name): AverageRank(float(row.mean()), float(row.std())) for name, row in table.iterrows()})


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
    entries = check_mapping(methods, name, "{method: value}").items()
    columns = {
        method: np.atleast_1d(to_numbers(value, f"{name}[{method!r}]")).astype(np.float64)
        for method, value in entries
        if value is not None
    }
    shapes = {column.shape for column in columns.values()}
    if len(shapes) > 1 or any(len(shape) != 1 or 0 in shape for shape in shapes):
        expected = "must have a number, None, or an array over the same splits for every method"
        raise InvalidInputError(name, expected, got=f"shapes {sorted(shapes)}", remedy="Fill a missing value with nan.")
    return columns
