"""Everything that a report shows, computed once; the sections only format it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kcal.errors import InvalidInputError
from kcal.metrics import (
    CanonicalCells,
    ClassErrors,
    Evaluation,
    RejectionCurve,
    ReliabilityBins,
    accuracy_rejection,
    canonical_cells,
    class_errors,
    evaluate,
    reliability,
)
from kcal.metrics.binning import bin_event
from kcal.metrics.predictions import Binning, Predictions, check_predictions
from kcal.plots.arguments import check_arguments, check_names
from kcal.report.markup import readable
from kcal.validation import check_integer, shown

SIMPLEX_BINS = 5  # so that cells hold enough samples
DEFAULT_CONFIDENCE = 0.95
MOST_METHODS, MOST_CLASSES = 100, 10_000
"""Bounds on what a page shows in pictures."""
MOST_INTERVALS = 1000
"""With more classes, their errors have no intervals, which would take long."""

Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Contents:
    """Results per method; the last method is the one that the report is about, the others are its baselines."""

    class_names: list[str]
    evaluations: dict[str, Evaluation]
    errors: dict[str, ClassErrors]
    confidence_bins: dict[str, ReliabilityBins]
    class_bins: dict[int, dict[str, ReliabilityBins]]  # of the classes that are shown, worst first
    rejection: dict[str, RejectionCurve]
    cells: dict[str, CanonicalCells]  # empty unless there are three classes
    weighted: bool
    minimum_count: int

    @property
    def methods(self) -> list[str]:
        """Names of all methods."""
        return list(self.evaluations)

    @property
    def evaluation(self) -> Evaluation:
        """The evaluation of the last method, whose settings are those of all."""
        return self.evaluations[self.methods[-1]]

    @property
    def class_errors(self) -> ClassErrors:
        """The errors per class of the last method."""
        return self.errors[self.methods[-1]]

    @property
    def bins_text(self) -> str:
        """The number of bins of the calibration errors."""
        return "1 bin" if self.evaluation.bins == 1 else f"{self.evaluation.bins:,} bins"

    @property
    def band(self) -> float:
        """Confidence level of the bands in reliability diagrams."""
        return self.evaluation.confidence or DEFAULT_CONFIDENCE


def compute_contents(
    probs: Any,
    labels: Any,
    *,
    class_names: Any,
    evaluations: Any,
    sample_weight: Any,
    groups: Any,
    limit: int,
    minimum_count: int,
) -> Contents:
    """Check the arguments of a report and compute what it shows."""
    check_integer(limit, "limit", minimum=1, maximum=MOST_CLASSES)
    check_arguments(minimum_count=minimum_count)
    methods = _check_methods(probs, labels, sample_weight)
    n_classes = next(iter(methods.values())).n_classes
    names = range(n_classes) if class_names is None else check_names(class_names, n_classes)

    def per_method(function: Callable[..., Result], **options: Any) -> dict[str, Result]:
        # The arrays as they were given: rows of half precision may miss a sum of 1 by more.
        return {
            readable(name): function(values, labels, sample_weight=sample_weight, **options)
            for name, values in probs.items()
        }

    given = None if evaluations is None else _check_evaluations(evaluations, methods)
    evaluated = given or per_method(evaluate, confidence=DEFAULT_CONFIDENCE, groups=groups)
    used, last = next(reversed(evaluated.values())), next(reversed(methods))
    errors = per_method(class_errors, bins=used.bins, threshold=used.threshold)
    if used.confidence is not None and n_classes <= MOST_INTERVALS:
        options = {"sample_weight": sample_weight, "confidence": used.confidence, "groups": groups}
        with_intervals = class_errors(probs[last], labels, bins=used.bins, threshold=used.threshold, **options)
        errors[readable(last)] = with_intervals
    class_binning = Binning(used.bins, adaptive=False, threshold=used.threshold)
    worst = next(reversed(errors.values())).worst(limit).tolist()
    return Contents(
        class_names=[readable(name) for name in names],
        evaluations=evaluated,
        errors=errors,
        confidence_bins=per_method(reliability, bins=used.bins, adaptive=False),
        class_bins={
            k: {readable(name): bin_event(rows, class_binning, of=k) for name, rows in methods.items()} for k in worst
        },
        rejection=per_method(accuracy_rejection),
        cells=per_method(canonical_cells, bins=SIMPLEX_BINS) if used.n_classes == 3 else {},
        weighted=sample_weight is not None,
        minimum_count=minimum_count,
    )


def _check_methods(probs: Any, labels: Any, sample_weight: Any) -> dict[Any, Predictions]:
    if not isinstance(probs, Mapping) or not 0 < len(probs) <= MOST_METHODS:
        expected = f"must map the names of 1 to {MOST_METHODS} methods to their probabilities"
        raise InvalidInputError("probs", expected, got=shown(probs))
    methods = {name: check_predictions(values, labels, sample_weight) for name, values in probs.items()}
    sizes = {predictions.n_classes for predictions in methods.values()}
    if len(sizes) > 1:
        got = f"{', '.join(map(str, sorted(sizes)))} columns"
        raise InvalidInputError("probs", "must be of the same classes for all methods", got=got)
    return methods


def _check_evaluations(evaluations: Any, methods: Mapping[Any, Predictions]) -> dict[str, Evaluation]:
    """Return the evaluation of each method; raise unless all are of these samples, with the same settings."""
    by_name = evaluations if isinstance(evaluations, Mapping) else {}
    checked = {}
    for name, predictions in methods.items():
        evaluation, shape = by_name.get(name), predictions.probs.shape
        if not isinstance(evaluation, Evaluation):
            expected = "must map every method of probs to the result of kcal.metrics.evaluate"
            raise InvalidInputError("evaluations", expected, got=f"{shown(evaluation)} for {name!r}")
        if (evaluation.n_samples, evaluation.n_classes) != shape:
            expected = f"must be of the same samples and classes as probs, {shape} for {name!r}"
            got = f"{evaluation.n_samples:,} samples of {evaluation.n_classes:,} classes"
            raise InvalidInputError("evaluations", expected, got=got)
        checked[readable(name)] = evaluation
    settings = {(entry.bins, entry.threshold, entry.clip, entry.confidence) for entry in checked.values()}
    if len(settings) > 1:
        got = f"{len(settings)} different ones"
        raise InvalidInputError("evaluations", "must be computed with the same settings", got=got)
    return checked
