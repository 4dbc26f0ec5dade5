"""Coverage of confidence intervals where the true values are known: python -m experiments.coverage.

The true distribution of a row of group g is softmax(z + u_g), u_g a normal effect of its group. Its mean over groups,
p(z), is the calibrated prediction; predictions are p(z), or p(z)^1.5 normalised, which is overconfident.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas
import typer
from numpy.typing import NDArray
from rich.console import Console
from scipy.special import softmax

from kcal.files import atomic_path
from kcal.metrics import METRICS, class_errors, confidence_interval, evaluate
from kcal.progress import show_progress

Array = NDArray[np.float64]

EFFECTS_AVERAGED = 64
POPULATION = 40_000
LABELS_PER_ROW = 30
ROUNDING = 1e-9
OTHER_ERRORS = (
    "top_label_calibration_error",
    "marginal_calibration_error",
    "canonical_calibration_error",
    "smooth_calibration_error",
    "kde_calibration_error",
    "debiased_squared_calibration_error",
)


class Problem(NamedTuple):
    """A distribution of data sets."""

    rows: int
    classes: int
    balanced: bool
    groups: int  # 0: rows are independent
    effect: float  # standard deviation of the effect of a group on each logit
    power: float  # predictions are p^power; 1: calibrated


class DataSet(NamedTuple):
    """Rows of a problem, with the probabilities that labels have given the predictions."""

    probs: Array  # (n, K)
    true: Array  # (n, K)
    labels: NDArray[np.intp]
    groups: NDArray[np.intp] | None


def problems() -> Iterator[Problem]:
    """Yield all combinations; an effect needs groups."""
    for rows, classes, balanced, power in product((200, 1000, 5000), (2, 6, 20), (True, False), (1.0, 1.5)):
        yield Problem(rows, classes, balanced, 0, 0.0, power)
        for groups, effect in product((8, 100), (0.0, 0.5)):
            yield Problem(rows, classes, balanced, groups, effect, power)


def draw(problem: Problem, generator: np.random.Generator) -> DataSet:
    """Draw a data set."""
    n, n_classes = problem.rows, problem.classes
    base = np.ones(n_classes) if problem.balanced else 0.6 ** np.arange(n_classes)
    logits = np.log(np.maximum(generator.dirichlet(2 * base / base.sum(), n), 1e-6))
    groups = generator.integers(problem.groups, size=n) if problem.groups else None
    true = rates = softmax(logits, axis=1)
    if problem.effect:
        effects = problem.effect * generator.normal(size=(EFFECTS_AVERAGED, n_classes))
        effects -= effects.mean(axis=0)
        true = np.mean([softmax(logits + effect, axis=1) for effect in effects], axis=0)
        own = effects[generator.integers(EFFECTS_AVERAGED, size=problem.groups)]
        rates = softmax(logits + own[groups], axis=1)
    probs = true**problem.power
    return DataSet(probs / probs.sum(axis=1, keepdims=True), true, draw_labels(rates, generator), groups)


def draw_labels(rates: Array, generator: np.random.Generator) -> NDArray[np.intp]:
    """Draw one label per row from its probabilities."""
    return np.asarray((generator.random(len(rates))[:, None] > rates.cumsum(axis=1)[:, :-1]).sum(axis=1))


def true_errors(data: DataSet) -> dict[str, Any]:
    """Return the binned errors over the same bins if every frequency were what it is on average."""
    n_classes = data.probs.shape[1]
    top = data.probs.argmax(axis=1)
    rows = np.arange(len(top))
    truth: dict[str, Any] = {}
    for prefix, adaptive in (("", True), ("static_", False)):
        expected = _binned(data.probs[rows, top], data.true[rows, top], 0.0, adaptive)
        truth[f"{prefix}expected_calibration_error"] = expected
        columns = zip(data.probs.T, data.true.T, strict=True)
        errors = [_binned(p, q, max(0.01, 1 / n_classes), adaptive) for p, q in columns]
        truth[f"{prefix}classwise_calibration_error"] = float(np.nanmean(errors))
        if adaptive:
            truth["class_errors"] = np.array(errors)
    return truth


def _binned(predictions: Array, rates: Array, threshold: float, adaptive: bool, bins: int = 20) -> float:
    kept = np.flatnonzero(predictions >= threshold)
    if len(kept) == 0:
        return float("nan")
    order = kept[np.argsort(predictions[kept])]
    gaps = rates[order] - predictions[order]
    if adaptive:
        sizes = [len(kept) // bins + (b >= bins - len(kept) % bins) for b in range(bins)]
        cuts = np.cumsum(sizes)[:-1]
    else:
        cuts = np.searchsorted(predictions[order], np.arange(1, bins) / bins, "right")
    return float(sum(abs(part.sum()) for part in np.split(gaps, cuts)) / len(kept))


def true_scores(problem: Problem, generator: np.random.Generator) -> dict[str, float]:
    """Return the means of the scores in a large population."""
    data = draw(problem._replace(rows=POPULATION), generator)
    top = data.probs.argmax(axis=1)
    rows = np.arange(len(top))
    confidence, right = data.probs[rows, top], data.true[rows, top]
    squares = (data.probs**2).sum(axis=1) - 2 * (data.probs * data.true).sum(axis=1) + 1
    return {
        "accuracy": float(right.mean()),
        "top_label_brier_loss": float((right * (1 - confidence) ** 2 + (1 - right) * confidence**2).mean()),
        "multiclass_brier_loss": float(squares.mean() / problem.classes),
        "negative_log_likelihood": float(-(data.true * np.log(data.probs)).sum(axis=1).mean()),
    }


def cover(problem: Problem, data_sets: int, resamples: int) -> dict[str, float]:
    """Return the fraction of 95 % intervals that contain the true value, by metric."""
    generator = np.random.default_rng([round(10 * float(value)) for value in problem])
    scores = true_scores(problem, generator)
    hits: dict[str, list[float]] = {}
    for number in range(data_sets):
        data = draw(problem, generator)
        options: dict[str, Any] = {"confidence": 0.95, "resamples": resamples, "groups": data.groups, "seed": number}
        truth = true_errors(data)
        of_classes = truth.pop("class_errors")
        intervals = evaluate(data.probs, data.labels, protocol="paper", **options).intervals
        for name, value in (truth | scores).items():
            low, high = intervals[name]
            hits.setdefault(name, []).append(_contains(low, high, value))
        bins: dict[str, Any] = {"bins": 20, "adaptive": True, "threshold": "max"}
        errors = class_errors(data.probs, data.labels, **bins, **options)
        inside = _contains(errors.low, errors.high, of_classes)
        hits.setdefault("class_errors", []).append(float(inside[np.isfinite(of_classes)].mean()))
    return {name: float(np.mean(values)) for name, values in hits.items()}


def cover_any(problem: Problem, data_sets: int, resamples: int) -> dict[str, float]:
    """Return the same for errors that only `confidence_interval` covers, with half of the data sets and resamples.

    Their true values are those of many labels per row.
    """
    generator = np.random.default_rng([round(10 * float(value)) for value in problem])
    hits: dict[str, list[float]] = {}
    for number in range(max(data_sets // 2, 1)):
        data = draw(problem, generator)
        often = np.repeat(np.arange(problem.rows), LABELS_PER_ROW)
        labels = draw_labels(data.true[often], generator)
        for name in OTHER_ERRORS:
            truth = 0.0 if problem.power == 1 else METRICS[name](data.probs[often], labels)
            options: dict[str, Any] = {"resamples": max(resamples // 2, 20), "groups": data.groups, "seed": number}
            low, high = confidence_interval(METRICS[name], data.probs, data.labels, **options)
            hits.setdefault(name, []).append(_contains(low, high, truth))
    return {name: float(np.mean(values)) for name, values in hits.items()}


def _contains(low: Any, high: Any, value: Any) -> Any:
    return (low - ROUNDING <= value) & (value <= high + ROUNDING)


def other_problems() -> Iterator[Problem]:
    """Yield problems for the errors that take long."""
    for power, (groups, effect) in product((1.0, 1.5), ((0, 0.0), (8, 0.0), (8, 0.5), (30, 0.5))):
        yield Problem(400, 3, True, groups, effect, power)


def main(
    out: Annotated[Path, typer.Option("--out", "-o", help="Write coverage.csv there; a second run goes on.")],
    data_sets: Annotated[int, typer.Option(min=1, help="Data sets per problem.")] = 40,
    resamples: Annotated[int, typer.Option(min=20, help="Resamples per interval.")] = 100,
) -> None:
    """Measure how many 95 % intervals contain the true value."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / "coverage.csv"
    found = pandas.read_csv(path) if path.exists() else pandas.DataFrame(columns=[*Problem._fields, "metric"])
    done = set(found[[*Problem._fields]].itertuples(index=False, name=None))
    work = [(cover, problem) for problem in problems()] + [(cover_any, problem) for problem in other_problems()]
    with show_progress(False) as report:
        for number, (measure, problem) in enumerate(work, 1):
            if tuple(problem) not in done:
                coverage = measure(problem, data_sets, resamples)
                rows = [{**problem._asdict(), "metric": name, "coverage": value} for name, value in coverage.items()]
                found = pandas.concat([found, pandas.DataFrame(rows)]) if len(found) else pandas.DataFrame(rows)
                with atomic_path(path) as temporary:
                    found.to_csv(temporary, index=False, float_format="%.4g")
            report("coverage: problems", number, len(work))
    Console().print(summary(found).round(1).to_string())


def summary(found: pandas.DataFrame) -> pandas.DataFrame:
    """Return mean and least coverage, in percent, of each metric, by groups and by whether the true error is 0."""
    kinds = np.where(found["groups"] == 0, "rows", np.where(found["effect"] == 0, "groups", "groups with effects"))
    named = found.assign(data=kinds, error=np.where(found["power"] == 1, "0", "not 0"))
    table = 100 * named.groupby(["metric", "data", "error"])["coverage"].agg(["mean", "min"])
    return table.unstack(["data", "error"]).swaplevel(0, 2, axis=1).sort_index(axis=1)


if __name__ == "__main__":
    typer.run(main)
