"""Everything that a report shows, computed once: the sections only tell it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
from kcal.report.markup import readable

SIMPLEX_BINS = 5  # so that cells hold enough samples


@dataclass(frozen=True, eq=False)
class Contents:
    """The last method is the one that is judged; those before it are what it is compared with."""

    class_names: list[str]
    labels: NDArray[np.intp]
    probabilities: dict[str, NDArray[Any]]
    evaluations: dict[str, Evaluation]
    errors: dict[str, ClassErrors]
    confidence_bins: dict[str, ReliabilityBins]
    class_bins: dict[int, dict[str, ReliabilityBins]]  # of the classes that are shown, worst first
    rejection: dict[str, RejectionCurve]
    cells: dict[str, CanonicalCells]  # of three classes; otherwise empty
    weighted: bool

    @property
    def judged(self) -> str:
        """The method that the report is about."""
        return list(self.probabilities)[-1]

    @property
    def evaluation(self) -> Evaluation:
        """Its metrics."""
        return self.evaluations[self.judged]

    @property
    def positives(self) -> NDArray[np.intp]:
        """Samples of each class."""
        return self.errors[self.judged].positives


def gather(
    probabilities: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    class_names: Sequence[object] | None,
    evaluations: Mapping[str, Evaluation] | None,
    sample_weight: ArrayLike | None,
    limit: int,
) -> Contents:
    """Compute what a report shows."""
    if not isinstance(probabilities, Mapping) or not probabilities:
        raise InvalidInputError("probabilities must map the name of a method to its probabilities, for at least one.")
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise InvalidInputError(f"limit must be a whole number, at least 1; got {limit!r}.")
    if evaluations is None:
        evaluations = {
            name: evaluate(probs, labels, sample_weight=sample_weight, confidence=0.95)
            for name, probs in probabilities.items()
        }
    _check_alike(probabilities, evaluations)
    by_name = {readable(name): np.asarray(probs) for name, probs in probabilities.items()}
    found = {readable(name): evaluations[name] for name in probabilities}
    any_one = next(iter(found.values()))
    names = list(range(any_one.n_classes)) if class_names is None else list(class_names)
    if len(names) != any_one.n_classes:
        raise InvalidInputError(f"class_names must name all {any_one.n_classes} classes; got {len(names)}.")
    errors = {
        name: class_errors(probs, labels, bins=any_one.bins, threshold=any_one.threshold, sample_weight=sample_weight)
        for name, probs in by_name.items()
    }
    codes = np.asarray(labels).astype(np.intp)
    shown = [int(k) for k in errors[list(by_name)[-1]].worst(limit)]
    return Contents(
        class_names=[readable(name) for name in names],
        labels=codes,
        probabilities=by_name,
        evaluations=found,
        errors=errors,
        confidence_bins={
            name: reliability(probs, codes, bins=any_one.bins, adaptive=False, sample_weight=sample_weight)
            for name, probs in by_name.items()
        },
        class_bins={
            k: {name: _bins_of_class(probs, codes, k, any_one, sample_weight) for name, probs in by_name.items()}
            for k in shown
        },
        rejection={
            name: accuracy_rejection(probs, codes, sample_weight=sample_weight) for name, probs in by_name.items()
        },
        cells={
            name: canonical_cells(probs, codes, bins=SIMPLEX_BINS, sample_weight=sample_weight)
            for name, probs in by_name.items()
            if any_one.n_classes == 3
        },
        weighted=sample_weight is not None,
    )


def _bins_of_class(
    probs: NDArray[Any], labels: NDArray[np.intp], k: int, settings: Evaluation, sample_weight: ArrayLike | None
) -> ReliabilityBins:
    """Bin one class against all others, so that not every class is checked again."""
    column = np.clip(probs[:, k].astype(np.float64), 0.0, 1.0)
    return reliability(
        np.stack([1 - column, column], axis=1),
        (labels == k).astype(np.intp),
        of=1,
        bins=settings.bins,
        adaptive=False,
        threshold=settings.threshold,
        sample_weight=sample_weight,
    )


def _check_alike(probabilities: Mapping[str, ArrayLike], evaluations: Mapping[str, Evaluation]) -> None:
    missing = [name for name in probabilities if name not in evaluations]
    if missing:
        raise InvalidInputError(f"evaluations must hold every method of probabilities; {missing[0]!r} is missing.")
    for name, probs in probabilities.items():
        found, shape = evaluations[name], np.shape(probs)
        if shape != (found.n_samples, found.n_classes):
            raise InvalidInputError(
                f"the evaluation of {name!r} must be of its probabilities: {found.n_samples:,} samples of "
                f"{found.n_classes:,} classes are not of shape {shape}."
            )
    settings = {
        (found.n_samples, found.n_classes, found.bins, found.threshold, found.clip, found.confidence)
        for found in (evaluations[name] for name in probabilities)
    }
    if len(settings) > 1:
        raise InvalidInputError(
            "all methods must be evaluated on the same samples and classes with the same settings; got "
            f"{len(settings)} different ones."
        )
