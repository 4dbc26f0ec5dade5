"""The one table of metrics: name, title, unit and direction of each, for tables, reports and intervals.

To add a metric, write its function of ``(probs, labels, *, sample_weight=None)`` in a file of its own and add one line
to ``METRICS``; the contract in ``tests/metrics/test_registry.py`` then runs on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Literal, SupportsFloat

from numpy.typing import ArrayLike

from kcal.metrics.calibration import (
    canonical_calibration_error,
    classwise_calibration_error,
    debiased_squared_calibration_error,
    expected_calibration_error,
    marginal_calibration_error,
    top_label_calibration_error,
)
from kcal.metrics.kernel_errors import kde_calibration_error, kernel_calibration_error, smooth_calibration_error
from kcal.metrics.scores import (
    accuracy,
    accuracy_rejection_area,
    multiclass_brier_loss,
    negative_log_likelihood,
    top_label_brier_loss,
)

Direction = Literal["lower", "higher"]
Kind = Literal["score", "error", "squared error"]


@dataclass(frozen=True)
class Metric:
    """A metric of probabilities and labels.

    ``kind`` decides how intervals are computed. "score": a mean over the samples; "error": a calibration error, which
    grows with the gaps between prediction and outcome; "squared error": one that grows with their squares.
    """

    name: str  # key in METRICS, and attribute of an Evaluation
    title: str  # short, for the heading of a column
    description: str  # full name, for a row of a table
    unit: Literal["%", ""]  # "%": shown times 100
    direction: Direction  # which values are better
    function: Callable[..., SupportsFloat]  # of (probs, labels, *, sample_weight=None)
    kind: Kind = "score"

    def __call__(self, probs: ArrayLike, labels: ArrayLike, *, sample_weight: ArrayLike | None = None) -> float:
        """Compute the metric."""
        return float(self.function(probs, labels, sample_weight=sample_weight))

    @property
    def scale(self) -> int:
        """The factor of shown values: 100 for a percentage."""
        return 100 if self.unit == "%" else 1

    @property
    def arrow(self) -> str:
        """An arrow in the direction of better values."""
        return "↑" if self.direction == "higher" else "↓"

    def labelled(self, text: str) -> str:
        """Return a text, such as the title, with the unit and the arrow: "ECE, % ↓"."""
        return f"{text}, {self.unit} {self.arrow}" if self.unit else f"{text} {self.arrow}"

    def format(self, value: float) -> str:
        """Return a value as tables show it: percentages with 2 decimals, others with 4, a dash if undefined."""
        if not isfinite(value):
            return "–"
        return f"{self.scale * value:.{2 if self.unit == '%' else 4}f}"

    def format_beside(self, values: Sequence[float]) -> list[tuple[str, bool]]:
        """Return values of several methods as tables show them, each with whether none looks better."""
        finite = [value for value in values if isfinite(value)]
        choose = max if self.direction == "higher" else min
        best = self.format(choose(finite)) if finite and len(values) > 1 else None
        return [(text, text == best) for text in map(self.format, values)]


def _error(name: str, title: str, description: str, function: Callable[..., SupportsFloat]) -> Metric:
    return Metric(name, title, description, "%", "lower", function, "error")


_static_ece = partial(expected_calibration_error, adaptive=False)
_static_cece = partial(classwise_calibration_error, adaptive=False)
_cece_min = partial(classwise_calibration_error, threshold="min")
_kernel = partial(kernel_calibration_error, resamples=0)
_squared = debiased_squared_calibration_error

_ALL = (
    Metric("accuracy", "accuracy", "accuracy", "%", "higher", accuracy),
    _error("expected_calibration_error", "ECE", "expected calibration error", expected_calibration_error),
    _error("classwise_calibration_error", "CECE", "class-wise calibration error", classwise_calibration_error),
    _error("static_expected_calibration_error", "static ECE", "ECE, equal-width bins", _static_ece),
    _error("static_classwise_calibration_error", "static CECE", "CECE, equal-width bins", _static_cece),
    Metric("top_label_brier_loss", "Brier", "Brier loss, top class", "%", "lower", top_label_brier_loss),
    Metric("multiclass_brier_loss", "Brier / K", "Brier loss, mean over classes", "%", "lower", multiclass_brier_loss),
    Metric("negative_log_likelihood", "NLL", "negative log-likelihood", "", "lower", negative_log_likelihood),
    _error("classwise_calibration_error_min", "CECE min", "CECE, threshold min(0.01, 1/K)", _cece_min),
    _error("top_label_calibration_error", "top-label CE", "top-label calibration error", top_label_calibration_error),
    _error("marginal_calibration_error", "marginal CE", "marginal calibration error", marginal_calibration_error),
    _error("canonical_calibration_error", "canonical", "canonical calibration error", canonical_calibration_error),
    _error("smooth_calibration_error", "smooth ECE", "smooth calibration error", smooth_calibration_error),
    _error("kde_calibration_error", "KDE-ECE", "kernel density calibration error", kde_calibration_error),
    Metric(_squared.__name__, "ECE²", "debiased squared ECE", "", "lower", _squared, "squared error"),
    Metric("kernel_calibration_error", "SKCE", "squared kernel error", "", "lower", _kernel, "squared error"),
    Metric("accuracy_rejection_area", "AUARC", "area under accuracy–rejection", "%", "higher", accuracy_rejection_area),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""All metrics by name, those of an ``Evaluation`` first."""


def kind_of_metric(metric: Callable[..., SupportsFloat]) -> Kind:
    """Return the kind of a metric of the table, or of ``functools.partial`` of one; "score" for any other function."""
    if isinstance(metric, Metric):
        return metric.kind
    function = _unwrapped(metric)
    return next((known.kind for known in _ALL if _unwrapped(known.function) is function), "score")


def _unwrapped(function: Callable[..., SupportsFloat]) -> Callable[..., SupportsFloat]:
    while isinstance(function, partial):
        function = function.func
    return function
