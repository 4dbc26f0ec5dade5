"""The one table of metrics: name, title, unit and direction of each, for tables, reports and intervals.

To add a metric, write its function of ``(probs, labels, *, sample_weight=None)`` in a file of its own and add one line
to ``METRICS``; the contract in ``tests/metrics/test_registry.py`` then runs on it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any, Literal, SupportsFloat

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
    brier_score,
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

    name: str  # key in the tables, and attribute of an Evaluation
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


def _error(function: Callable[..., SupportsFloat], title: str, description: str, name: str | None = None) -> Metric:
    return Metric(name or _unwrapped(function).__name__, title, description, "%", "lower", function, "error")


def _unwrapped(function: Callable[..., SupportsFloat]) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


_accuracy = Metric("accuracy", "accuracy", "accuracy", "%", "higher", accuracy)
_log_loss = Metric("negative_log_likelihood", "log-loss", "log-loss", "", "lower", negative_log_likelihood)
_top_brier = Metric(
    "top_label_brier_loss", "top-class Brier", "Brier score, top class", "%", "lower", top_label_brier_loss
)
_mean_brier = Metric("multiclass_brier_loss", "Brier / K", "Brier score / K", "%", "lower", multiclass_brier_loss)
_paper_ece = partial(expected_calibration_error, bins=20, adaptive=True)
_paper_cece = partial(classwise_calibration_error, bins=20, adaptive=True, threshold="max")
_cece_min = partial(_paper_cece, threshold="min")
_static_ece, _static_cece = partial(_paper_ece, adaptive=False), partial(_paper_cece, adaptive=False)
_squared = debiased_squared_calibration_error
_kernel = partial(kernel_calibration_error, resamples=0)


def _by_name(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


PROTOCOLS: dict[str, dict[str, Metric]] = {
    "standard": _by_name(
        _accuracy,
        _error(expected_calibration_error, "ECE", "ECE"),
        _error(classwise_calibration_error, "class-wise ECE", "class-wise ECE"),
        _error(smooth_calibration_error, "smooth ECE", "smooth ECE"),
        Metric("brier_score", "Brier score", "Brier score", "", "lower", brier_score),
        _log_loss,
    ),
    "paper": _by_name(
        _accuracy,
        _error(_paper_ece, "paper ECE", "paper ECE, equal-count bins"),
        _error(_paper_cece, "paper CECE", "paper CECE, equal-count bins"),
        _error(_static_ece, "paper static ECE", "paper ECE, equal-width bins", "static_expected_calibration_error"),
        _error(_static_cece, "paper static CECE", "paper CECE, equal-width bins", "static_classwise_calibration_error"),
        _top_brier,
        _mean_brier,
        _log_loss,
    ),
}
"""The metrics of an `Evaluation` by protocol and name.

"standard" is what most papers and libraries report, "paper" what the KCal paper does: a name whose definition differs
there has another title.
"""

METRICS: dict[str, Metric] = PROTOCOLS["standard"] | _by_name(
    _top_brier,
    _mean_brier,
    _error(top_label_calibration_error, "top-label CE", "top-label calibration error"),
    _error(marginal_calibration_error, "marginal CE", "marginal calibration error"),
    _error(canonical_calibration_error, "canonical", "canonical calibration error"),
    _error(kde_calibration_error, "KDE-ECE", "kernel density calibration error"),
    Metric(_squared.__name__, "ECE²", "debiased squared ECE", "", "lower", _squared, "squared error"),
    Metric("kernel_calibration_error", "SKCE", "squared kernel error", "", "lower", _kernel, "squared error"),
    Metric("accuracy_rejection_area", "AUARC", "area under accuracy–rejection", "%", "higher", accuracy_rejection_area),
)
"""All metrics by the name of their function, with its defaults; those of the standard protocol first."""

MAIN_METRICS = [metric for name, metric in PROTOCOLS["standard"].items() if name != "smooth_calibration_error"]
"""The columns of a table that compares methods: the smooth ECE says what the ECE does."""

PAPER_METRICS: dict[str, Metric] = PROTOCOLS["paper"] | _by_name(
    _error(_cece_min, "paper CECE min", "paper CECE, threshold min(0.01, 1/K)", "classwise_calibration_error_min")
)
"""The metrics of the KCal paper, under the names that benchmark results store."""


def kind_of_metric(metric: Callable[..., SupportsFloat]) -> Kind:
    """Return the kind of a metric of the table, or of ``functools.partial`` of one; "score" for any other function."""
    if isinstance(metric, Metric):
        return metric.kind
    function = _unwrapped(metric)
    return next((known.kind for known in METRICS.values() if _unwrapped(known.function) is function), "score")
