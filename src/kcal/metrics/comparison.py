"""The best methods over repeated random splits of the data ("splits"), among those that preserve accuracy.

The KCal paper marks its tables at p = 0.01: a method preserves accuracy unless it is significantly worse than
the uncalibrated one; best are the accuracy-preserving method of the best mean and those not significantly worse.
The published marks follow a one-sided, unpaired, pooled t-test. It treats splits as independent although they
share samples; the corrected test of Nadeau and Bengio is computed too.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from kcal.errors import InvalidInputError
from kcal.metrics.significance import (
    Checked,
    SplitSummary,
    SplitValues,
    check_mapping,
    check_sizes,
    check_splits,
    corrected_p_value,
    pooled_p_value,
    summarize,
)
from kcal.validation import check_choice, check_number, shown

Better = Literal["lower", "higher"]


@dataclass(frozen=True)
class ComparisonMarks:
    """The result of one test for the methods of a comparison; p-values are nan where nothing can be tested."""

    accuracy_preserving: tuple[str, ...]  # methods whose accuracy is not significantly lower than the baseline's
    best: tuple[str, ...]  # of these, the one of the best mean, first, and those not significantly worse than it
    underlined: str | None  # the method of the best mean of all, if it does not preserve accuracy
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
        width = max(len(name) for name in [*self.summaries, "method"])
        tests = {"pooled": self.pooled} | ({"corrected": self.corrected} if self.corrected else {})
        heading = f"{'method':<{width}}  {'mean ± std':<19}  " + "  ".join(f"{name:<19}" for name in tests)
        rows = [
            f"{name:<{width}}  {summary!s:<19}  " + "  ".join(f"{_mark(name, marks):<19}" for marks in tests.values())
            for name, summary in self.summaries.items()
        ]
        explanation = (
            f"{self.better} is better; best: not significantly worse than the best mean among the methods "
            f"that are not significantly less accurate than {self.baseline} (p = {self.level:g})"
        )
        return "\n".join(line.rstrip() for line in [heading, *rows, explanation])


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
    With one split p-values are nan, and the marks follow the plain numbers.
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
    needed = [*given, baseline]
    missing = next((name for name in needed if known.get(name) is None), None)
    if missing is not None:
        expected = "must have every method in values and the baseline"
        remedy = "Pass its accuracies, or name another baseline."
        raise InvalidInputError("accuracies", expected, got=f"none of {missing!r}", remedy=remedy)
    right = {name: check_splits(known[name], f"accuracies[{name!r}]") for name in needed}
    mark = partial(_marks, given, right, baseline, better, level)
    corrected = None
    if n_calibration is not None or n_test is not None:
        corrected = mark(partial(corrected_p_value, share=check_sizes(n_calibration, n_test)))
    summaries = {name: summarize(entry) for name, entry in given.items()}
    accuracy_summaries = {name: summarize(entry) for name, entry in right.items()}
    return MethodComparison(summaries, accuracy_summaries, mark(pooled_p_value), corrected, better, baseline, level)


def _marks(
    values: Mapping[str, Checked],
    accuracies: Mapping[str, Checked],
    baseline: str,
    better: Better,
    level: float,
    test: Callable[[Checked, Checked], float],
) -> ComparisonMarks:
    """Mark the methods by a test that gives the p-value of "the first is higher"."""
    accuracy_p_values = {name: test(accuracies[baseline], accuracies[name]) for name in values}
    means = {name: summarize(entry).mean for name, entry in accuracies.items()}
    less_accurate = {
        name for name, p in accuracy_p_values.items() if _significant(p, means[baseline] > means[name], level)
    }
    preserving = [name for name in values if name not in less_accurate]
    sign = 1 if better == "lower" else -1
    badness = {name: sign * summarize(entry).mean for name, entry in values.items()}
    leader = min(badness, key=badness.__getitem__)
    if not preserving:
        return ComparisonMarks((), (), leader, accuracy_p_values, dict.fromkeys(values, float("nan")))
    best = min(preserving, key=badness.__getitem__)
    underlined = leader if badness[leader] < badness[best] else None
    p_values = {
        name: test(entry, values[best]) if better == "lower" else test(values[best], entry)
        for name, entry in values.items()
    }
    others = [
        name
        for name in preserving
        if name != best and not _significant(p_values[name], badness[name] > badness[best], level)
    ]
    return ComparisonMarks(tuple(preserving), (best, *others), underlined, accuracy_p_values, p_values)


def _significant(p_value: float, worse: bool, level: float) -> bool:
    """Whether a difference is significant; without a p-value, any difference is."""
    return worse if math.isnan(p_value) else p_value < level


def _mark(name: str, marks: ComparisonMarks) -> str:
    if name in marks.best:
        return "best"
    if name == marks.underlined:
        return "best but inaccurate"
    return "" if name in marks.accuracy_preserving else "inaccurate"
