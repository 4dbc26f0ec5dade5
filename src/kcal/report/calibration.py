"""The calibration report: the results of every method, the verdict, and the tables and figures that are shown."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.files import check_path, write_whole
from kcal.metrics import (
    CanonicalCells,
    ClassErrors,
    Evaluation,
    RejectionCurve,
    ReliabilityBins,
    SubgroupEvaluation,
    accuracy_rejection,
    canonical_cells,
    class_errors,
    evaluate,
    reliability,
)
from kcal.metrics.binning import bin_event
from kcal.metrics.predictions import Binning, Predictions, check_predictions
from kcal.metrics.resampling import DEFAULT_CONFIDENCE, Interval, wilson_interval
from kcal.plots import rejection_curve, reliability_diagram, simplex_plot, subgroup_plot
from kcal.plots.style import check_kind, check_names, new_axes, wrap_label
from kcal.report.figures import inline_svg, square_axes
from kcal.report.html import Markup, count, name, points, readable, render
from kcal.validation import check_integer, shown

FILE_NAME = "report.html"
SIMPLEX_BINS = 5  # few, for enough samples in a cell
MAX_METHODS, MAX_CLASSES = 100, 10_000
"""Bounds on what a report shows in figures."""
MAX_INTERVALS = 1000
"""With more classes, their errors have no intervals, which would take long."""
ROWS_SHOWN = 20
"""Further rows of a table of classes are folded."""
CLASSES_NAMED = 5
MAX_SUBGROUPS_DRAWN = 60


def write_report(
    folder: str | os.PathLike[str], probs: Mapping[str, ArrayLike] | ArrayLike, labels: ArrayLike, **options: Any
) -> Path:
    """Write `render_report` as report.html into a folder, which is made if it does not exist; return the file.

    Parameters
    ----------
    folder
        The folder; an existing report is replaced.
    probs, labels, **options
        As in `render_report`.
    """
    place = check_path(folder, "folder")
    if place.exists() and not place.is_dir():
        raise InvalidInputError("folder", "must be the name of a folder", got=f"{place}, which is not a folder")
    text = render_report(probs, labels, **options)
    place.mkdir(parents=True, exist_ok=True)
    return write_whole(place / FILE_NAME, text.encode("utf-8"))


def render_report(
    probs: Mapping[str, ArrayLike] | ArrayLike,
    labels: ArrayLike,
    *,
    class_names: Sequence[object] | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    by: ArrayLike | SubgroupEvaluation | None = None,
    sources: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    limit: int = 20,
    minimum_count: int = 15,
    title: str = "Calibration report",
) -> str:
    """Return a self-contained HTML report about probabilities: a verdict, metrics, reliability, worst classes first.

    Parameters
    ----------
    probs
        Probabilities, (n_samples, n_classes), or those of each method by name. The last method is the one that the
        report is about; the others are its baselines, like the uncalibrated network.
    labels
        True classes as column indices, (n_samples,).
    class_names
        Names of the classes; their numbers if None.
    evaluations
        What `kcal.metrics.evaluate` returns, by method; computed with 95 % intervals if None. Its bins and threshold
        are used for the whole report.
    sample_weight
        Relative importance of each sample, (n_samples,), as passed to `evaluate`.
    groups
        Group of each sample, (n_samples,), as passed to `evaluate`: intervals resample whole groups.
    by
        Subgroup of each sample, (n_samples,), or what `evaluate` returned for them: adds a section about the subgroups
        of the last method.
    sources, settings
        Further lines for the sections "Data" and "Settings": text by term.
    limit
        Number of classes to show in figures, worst first; the report names the others.
    minimum_count
        Neighbouring bins are merged up to this many samples; cells and ends of curves with fewer are not drawn.
    title
        Title of the report.
    """
    check_integer(minimum_count, "minimum_count", minimum=0, maximum=10**12)
    check_integer(limit, "limit", minimum=1, maximum=MAX_CLASSES)
    for term, value in (("sources", sources), ("settings", settings)):
        check_kind(value, term, Mapping | None, "a dictionary from terms to text, or None")
    probs = probs if isinstance(probs, Mapping) else {"model": probs}
    n_classes = _check_methods(probs, labels, sample_weight)
    names = range(n_classes) if class_names is None else check_names(class_names, n_classes)
    methods = _compute_results(probs, labels, evaluations, sample_weight, groups)
    used = methods[-1].evaluation
    of_rows: dict[str, Any] = {"sample_weight": sample_weight, "groups": groups, "bins": used.bins}
    of_rows |= {} if used.confidence is None else {"confidence": used.confidence}
    subgroups = by if isinstance(by, SubgroupEvaluation) else None
    if by is not None and not isinstance(by, SubgroupEvaluation):
        subgroups = evaluate(probs[[*probs][-1]], labels, by=by, protocol=used.protocol, **of_rows)
    report = Report([readable(label) for label in names], methods, limit, minimum_count, subgroups)
    return render(
        "report.html",
        title=title,
        report=report,
        figures=Figures(report),
        sources={"samples": count(used.n_samples), "classes": count(used.n_classes), **(sources or {})},
        settings=_settings(report, weighted=sample_weight is not None) | dict(settings or {}) | _versions(),
        max_intervals=MAX_INTERVALS,
        rows_shown=ROWS_SHOWN,
    )


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What the report shows of one method."""

    name: str
    predictions: Predictions
    evaluation: Evaluation
    errors: ClassErrors
    bins: ReliabilityBins  # of the confidence
    rejection: RejectionCurve
    cells: CanonicalCells | None  # of three classes

    @property
    def mean_confidence(self) -> float:
        """Mean probability of the top class."""
        return self.bins.mean_of(self.bins.mean_prediction)

    @property
    def judgement(self) -> str:
        """What mean confidence, accuracy and calibration error mean together."""
        interval = self.evaluation.intervals.get("accuracy")
        if interval is None:
            weights = self.predictions.row_weights
            effective = float(weights.sum() ** 2 / np.sum(weights**2))
            interval = Interval(*map(float, wilson_interval(self.evaluation.accuracy, effective, DEFAULT_CONFIDENCE)))
        if self.mean_confidence > interval.high:
            return "overconfident"
        if self.mean_confidence < interval.low:
            return "underconfident"
        error = self.evaluation.intervals.get("expected_calibration_error")
        return "calibrated" if error is None or error.low <= 0 else "mixed"


class Column(NamedTuple):
    """A column of a table: its heading, its cells, and whether these are numbers."""

    heading: str
    cells: list[Any]
    number: bool = True


@dataclass(frozen=True, eq=False)
class Report:
    """Results of all methods; the last is the one that the report is about, the others are its baselines."""

    class_names: list[str]
    methods: list[MethodResult]
    limit: int
    minimum_count: int
    subgroups: SubgroupEvaluation | None = None  # of the last method

    @property
    def last(self) -> MethodResult:
        """The method that the report is about."""
        return self.methods[-1]

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation of the last method, whose settings are those of all."""
        return self.last.evaluation

    @property
    def band(self) -> float:
        """Confidence level of the bands in reliability diagrams."""
        return self.evaluation.confidence or DEFAULT_CONFIDENCE

    @property
    def verdict(self) -> str:
        """The judgement of the last method; if it is calibrated as a whole, what is not: "subgroups" or "classes"."""
        if self.last.judgement == "calibrated" and self.suspect_subgroups:
            return "subgroups"
        interval = self.evaluation.intervals.get("classwise_calibration_error")
        if self.last.judgement == "calibrated" and interval is not None and interval.low > 0:
            return "classes"
        return self.last.judgement

    @property
    def calibration_errors(self) -> list[float]:
        """Calibration error of the first and the last method, debiased if that is known."""
        key = "expected_calibration_error"
        evaluations = (self.methods[0].evaluation, self.evaluation)
        return [evaluation.debiased.get(key, evaluation.metrics[key]) for evaluation in evaluations]

    @property
    def worst(self) -> list[int]:
        """Classes by calibration error, the largest first."""
        return [int(k) for k in self.last.errors.worst(len(self.class_names))]

    @property
    def suspects(self) -> list[int]:
        """Classes to look at: of errors beyond chance, or the worst if that is not known."""
        errors = self.last.errors
        if errors.beyond_chance is None or errors.debiased is None:
            return [k for k in self.worst[:CLASSES_NAMED] if np.isfinite(errors.error[k])]
        found = np.flatnonzero(errors.beyond_chance)
        sizes = np.fmax(errors.debiased, np.abs(errors.signed_error))[found]
        return [int(k) for k in found[np.argsort(-sizes, kind="stable")]]

    @property
    def suspect_subgroups(self) -> list[tuple[Any, str]]:
        """Names of the subgroups whose confidence is too high or too low beyond chance, with which of the two."""
        found = self.subgroups
        pairs = () if found is None else zip(found.names, found.direction, strict=True)
        return [pair for pair in pairs if pair[1]]

    @property
    def metrics_table(self) -> list[Column]:
        """Metrics of every method with their intervals, the best in bold."""
        metrics, evaluations = [*self.evaluation.definitions.values()], [one.evaluation for one in self.methods]
        beside = [metric.format_beside([one.metrics[metric.name] for one in evaluations]) for metric in metrics]
        columns = [Column("metric", [metric.labelled(metric.description) for metric in metrics], number=False)]
        for method, texts in zip(self.methods, zip(*beside, strict=True), strict=True):
            strong, debiased = Markup("<strong>{}</strong>"), method.evaluation.debiased
            columns.append(Column(method.name, [strong.format(text) if is_best else text for text, is_best in texts]))
            if self.evaluation.confidence is not None:
                known = [metric.format(debiased[metric.name]) if metric.name in debiased else "" for metric in metrics]
                ends = [method.evaluation.intervals.get(metric.name, ()) for metric in metrics]
                pairs = [", ".join(map(metric.format, pair)) for metric, pair in zip(metrics, ends, strict=True)]
                columns.append(Column("debiased", known))
                columns.append(Column(f"{100 * self.band:.6g} % interval", [pair and f"[{pair}]" for pair in pairs]))
        return columns

    @property
    def has_errors_above_intervals(self) -> bool:
        """Whether a calibration error is larger than its own interval, which is mostly chance."""
        return any(
            method.evaluation.metrics[key] > method.evaluation.intervals[key].high
            for method in self.methods
            for key in method.evaluation.debiased
        )

    @property
    def class_table(self) -> list[Column]:
        """Calibration errors of all classes, the largest first."""
        errors, order, several = self.last.errors, self.worst, len(self.methods) > 1
        columns = [
            Column("class", [name(self.class_names[k]) for k in order], number=False),
            Column("samples", [count(errors.positives[k]) for k in order]),
        ]
        for method in self.methods:
            heading = f"error, %, {method.name}" if several else "error, %"
            columns.append(_percentages(heading, method.errors.error[order]))
        if errors.debiased is not None and errors.low is not None and errors.high is not None:
            columns.append(_percentages("debiased, %", errors.debiased[order]))
            columns.append(_intervals(self.band, errors.low[order], errors.high[order]))
        columns += [
            _percentages("mean prediction, %", errors.mean_prediction[order]),
            _percentages("frequency, %", errors.frequency[order]),
        ]
        return [*columns, Column("predictions are", [self.signed_error(k) for k in order], number=False)]

    @property
    def subgroup_table(self) -> list[Column]:
        """Accuracy, mean confidence and ECE of each subgroup of the last method."""
        found = self.subgroups
        assert found is not None
        columns = [
            Column(found.by, [name(label) for label in found.names], number=False),
            Column("samples", [count(n) for n in found.counts]),
            _percentages("accuracy, %", found.accuracy),
            _percentages("mean confidence, %", found.mean_confidence),
            _percentages("ECE, %", found.error),
        ]
        if found.has_intervals:
            columns.append(_percentages("debiased, %", found.debiased))
            columns.append(_intervals(found.confidence, found.low, found.high))
        differs = ["yes" if one else "" for one in found.differs]
        columns.append(Column("confidence is", list(found.direction), number=False))
        return [*columns, Column("gap differs from the rest", differs, number=False)]

    @property
    def count_table(self) -> list[Column]:
        """Samples of each class, most first."""
        counts = self.last.errors.positives
        order = np.argsort(-counts, kind="stable")
        return [
            Column("class", [name(self.class_names[k]) for k in order], number=False),
            Column("samples", [count(counts[k]) for k in order]),
            _percentages("share, %", counts[order] / self.evaluation.n_samples),
        ]

    def signed_error(self, k: int) -> str:
        """Return in words by how many percentage points the predictions of a class are too high or too low."""
        text = points(self.last.errors.signed_error[k])
        if not text.strip("-0."):
            return "right on average"
        return text if text == "–" else f"too {'high' if text[0] == '-' else 'low'} by {text.strip('-')} points"


def _percentages(heading: str, values: Any) -> Column:
    return Column(heading, [points(value) for value in values])


def _intervals(level: float, low: Any, high: Any) -> Column:
    ends = zip(low, high, strict=True)
    return Column(f"{100 * level:.6g} % interval, %", [f"[{points(start)}, {points(end)}]" for start, end in ends])


class Figures:
    """The figures of a report as SVG."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._options: dict[str, Any] = {"minimum_count": report.minimum_count}

    @property
    def verdict(self) -> Markup:
        """The reliability diagram of the confidence of the last method."""
        method = self._report.last
        return self._diagram(method.bins, method, 4.4, f"Reliability diagram of {method.name}")

    @property
    def confidence(self) -> list[Markup]:
        """The reliability diagram of the confidence of every method."""
        title = "Reliability diagram of the confidence, {}"
        return [self._diagram(method.bins, method, 4.4, title.format(method.name)) for method in self._report.methods]

    def of_class(self, k: int) -> list[Markup]:
        """Return a small reliability diagram of one class for every method."""
        used, label = self._report.evaluation, self._report.class_names[k]
        binning = Binning(used.bins, adaptive=False, threshold=used.threshold)
        title = f"Reliability diagram of class {label}, {{}}"
        return [
            self._diagram(bin_event(method.predictions, binning, of=k), method, 2.7, title.format(method.name))
            for method in self._report.methods
        ]

    @property
    def simplex(self) -> list[Markup]:
        """The predictions of three classes in a triangle, for every method; empty for any other number of classes."""
        figures = []
        for method in self._report.methods:
            if method.cells is not None:
                ax = new_axes(4.8, 4.8)
                title = wrap_label(method.name, width=40, lines=1)
                simplex_plot(method.cells, ax=ax, title=title, class_names=self._report.class_names, **self._options)
                figures.append(inline_svg(ax, f"Predictions of the three classes in a triangle, {method.name}"))
        return figures

    @property
    def subgroups(self) -> Markup | None:
        """Accuracy and mean confidence of each subgroup; none if there are too many to draw."""
        found = self._report.subgroups
        if found is None or len(found.names) > MAX_SUBGROUPS_DRAWN:
            return None
        return inline_svg(subgroup_plot(found), f"Accuracy and mean confidence of each {found.by}")

    @property
    def rejection(self) -> Markup:
        """The accuracy under rejection of every method."""
        curves = {method.name: method.rejection for method in self._report.methods}
        ax = rejection_curve(curves, ax=new_axes(6.4, 4.2), **self._options)
        return inline_svg(ax, "Accuracy of the samples that are kept, against the share that is rejected")

    def _diagram(self, bins: ReliabilityBins, method: MethodResult, size: float, description: str) -> Markup:
        title = wrap_label(method.name, width=round(11 * size), lines=1)
        ax = square_axes(size)
        reliability_diagram(bins, ax=ax, title=title, legend=False, confidence=self._report.band, **self._options)
        if size < 4:  # no room for the name of the class
            ax.child_axes[0].set_xlabel("confidence" if bins.of == "confidence" else "predicted probability")
        return inline_svg(ax, description)


def _compute_results(
    probs: Mapping[str, ArrayLike], labels: ArrayLike, evaluations: Any, sample_weight: Any, groups: Any
) -> list[MethodResult]:
    """Compute what the report shows; the errors of classes have intervals for the last method only."""
    of_rows = {"sample_weight": sample_weight}
    if evaluations is None:
        intervals = {"confidence": DEFAULT_CONFIDENCE, "groups": groups}
        evaluations = {method: evaluate(values, labels, **intervals, **of_rows) for method, values in probs.items()}
    results: list[MethodResult] = []
    for method, values in probs.items():
        predictions = check_predictions(values, labels, sample_weight)
        used = _check_evaluation(evaluations, method, predictions.probs.shape)
        options: dict[str, Any] = {"bins": used.bins, "adaptive": used.adaptive, "threshold": used.threshold, **of_rows}
        if len(results) == len(probs) - 1 and used.confidence is not None and used.n_classes <= MAX_INTERVALS:
            options |= {"confidence": used.confidence, "groups": groups}
        cells = canonical_cells(values, labels, bins=SIMPLEX_BINS, **of_rows) if used.n_classes == 3 else None
        results.append(
            MethodResult(
                name=readable(method),
                predictions=predictions,
                evaluation=used,
                errors=class_errors(values, labels, **options),
                bins=reliability(values, labels, bins=used.bins, adaptive=False, **of_rows),
                rejection=accuracy_rejection(values, labels, **of_rows),
                cells=cells,
            )
        )
    entries = (result.evaluation for result in results)
    used_settings = {(entry.settings, entry.protocol, entry.confidence) for entry in entries}
    if len(used_settings) > 1:
        got = f"{len(used_settings)} different ones"
        raise InvalidInputError("evaluations", "must be computed with the same settings", got=got)
    return results


def _check_methods(probs: Mapping[str, Any], labels: Any, sample_weight: Any) -> int:
    """Return the number of classes; raise unless all methods have probabilities of them."""
    if not 0 < len(probs) <= MAX_METHODS:
        expected = f"must have the probabilities of 1 to {MAX_METHODS} methods"
        raise InvalidInputError("probs", expected, got=shown(probs))
    sizes = {check_predictions(values, labels, sample_weight).n_classes for values in probs.values()}
    if len(sizes) > 1:
        got = f"{', '.join(map(str, sorted(sizes)))} columns"
        raise InvalidInputError("probs", "must be of the same classes for all methods", got=got)
    return sizes.pop()


def _check_evaluation(evaluations: Any, method: str, shape: tuple[int, ...]) -> Evaluation:
    """Return the evaluation of a method; raise unless it is one of samples and classes of this shape."""
    found = evaluations.get(method) if isinstance(evaluations, Mapping) else None
    if isinstance(found, Evaluation) and (found.n_samples, found.n_classes) == shape:
        return found
    got = f"{shown(evaluations)}, without one of the {shape[0]:,} samples and {shape[1]:,} classes of {method!r}"
    raise InvalidInputError("evaluations", "must map every method of probs to the result of evaluate", got=got)


def _settings(report: Report, *, weighted: bool) -> dict[str, str]:
    used = report.evaluation
    return {
        "metrics": used.settings,
        "confidence of the intervals": "no intervals" if used.confidence is None else f"{used.confidence:g}",
        "confidence of the bands": f"{report.band:g}, Wilson’s interval of the observed frequency",
        "samples that a bar needs": f"{report.minimum_count:,}; neighbouring bins with fewer are merged",
        "weights": "used" if weighted else "none",
    }


def _versions() -> dict[str, str]:
    return {package: version(package) for package in ("kcal", "numpy", "matplotlib")} | {
        "Python": platform.python_version()
    }
