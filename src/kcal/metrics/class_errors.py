"""The calibration error of every class, with counts, over- and underconfidence."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kcal.metrics.binning import sort_classes
from kcal.metrics.predictions import Threshold, check_binning, check_predictions
from kcal.validation import check_integer, collect_classes

MOST_CLASSES = 10**9

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False)
class ClassErrors:
    """One entry per class, in the order of the columns; errors are nan for a class without rows."""

    classes: NDArray[Any]  # labels of the columns
    positives: NDArray[np.intp]  # samples of the class, whatever their probability
    counts: NDArray[np.intp]  # rows whose probability of the class reaches the threshold
    mean_prediction: NDArray[np.float64]  # mean probability of the class over those rows
    frequency: NDArray[np.float64]  # fraction of those rows that are of the class
    error: NDArray[np.float64]  # Σ_b (n_b / n)·|gap_b|, the sum of the next two
    overconfidence: NDArray[np.float64]  # the part from bins whose predictions are too high
    underconfidence: NDArray[np.float64]  # the part from bins whose predictions are too low
    threshold: float  # the smallest probability that is binned

    @property
    def signed_error(self) -> NDArray[np.float64]:
        """Frequency minus mean prediction: negative where the predictions are too high."""
        return self.frequency - self.mean_prediction

    @property
    def mean(self) -> float:
        """The class-wise calibration error: the mean over the classes that have rows."""
        return float(np.nanmean(self.error)) if np.isfinite(self.error).any() else float("nan")

    def worst(self, n: int = 10) -> NDArray[np.intp]:
        """Return the columns of the n classes with the largest errors, worst first; classes without rows come last."""
        check_integer(n, "n", minimum=0, maximum=MOST_CLASSES)
        return np.argsort(-np.nan_to_num(self.error, nan=-1.0), kind="stable")[:n]

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row per class."""
        import pandas

        names = ("positives", "counts", "mean_prediction", "frequency", "error", "signed_error")
        columns = {name: getattr(self, name) for name in (*names, "overconfidence", "underconfidence")}
        return pandas.DataFrame(columns, index=pandas.Index(self.classes, name="class"))

    def __str__(self) -> str:
        width = min(max(len(str(name)) for name in [*self.classes, "class"]), 60)
        heading = f"{'class':<{width}}  {'samples':>8}  {'rows':>8}  {'prediction':>10}  {'frequency':>9}  {'error':>7}"
        rows = [
            f"{str(self.classes[k])[:width]:<{width}}  {self.positives[k]:>8,}  {self.counts[k]:>8,}  "
            f"{self.mean_prediction[k]:>10.4f}  {self.frequency[k]:>9.4f}  {self.error[k]:>7.4f}"
            for k in self.worst(20)
        ]
        left = len(self.classes) - len(rows)
        more = [f"and {left:,} more"] if left else []
        summary = f"mean error {self.mean:.4f} over probabilities of at least {self.threshold:.4g}, worst classes first"
        return "\n".join([heading, *rows, *more, summary])


def class_errors(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    classes: ArrayLike | None = None,
    bins: int = 20,
    adaptive: bool = True,
    threshold: Threshold = "max",
    sample_weight: ArrayLike | None = None,
) -> ClassErrors:
    """Calibration error of each class, whose mean is `classwise_calibration_error`.

    Parameters
    ----------
    probs, bins, adaptive, threshold, sample_weight
        As in `classwise_calibration_error`.
    labels
        True classes, (n_samples,): column indices of probs, or any labels if ``classes`` names the columns.
    classes
        The label of every column, like ``classes_`` of a calibrator.
    """
    predictions = check_predictions(probs, labels, sample_weight, classes)
    binning = check_binning(predictions.n_classes, bins, adaptive, threshold)
    names = np.arange(predictions.n_classes) if classes is None else collect_classes([], classes)
    ordered = enumerate(sort_classes(predictions, threshold=binning.threshold))
    binned = [values.bin(binning, of=k) for k, values in ordered]
    return ClassErrors(
        classes=names,
        positives=np.bincount(predictions.labels, minlength=predictions.n_classes),
        counts=np.array([part.total for part in binned]),
        mean_prediction=np.array([part.mean_of(part.mean_prediction) for part in binned]),
        frequency=np.array([part.mean_of(part.observed_frequency) for part in binned]),
        error=np.array([part.calibration_error for part in binned]),
        overconfidence=np.array([part.overconfidence for part in binned]),
        underconfidence=np.array([part.underconfidence for part in binned]),
        threshold=binning.threshold,
    )
