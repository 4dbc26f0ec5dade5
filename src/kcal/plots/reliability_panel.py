"""One panel of a reliability diagram: bars, gaps, bands and counts, and the legend that explains them."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins
from kcal.metrics.resampling import check_confidence
from kcal.plots.style import BAND, COUNTS, GAP, GAP_FILL, GUIDE, OBSERVED, OBSERVED_EDGE

# Equal-count bins can be too narrow to see: a bar is at least this wide.
NARROWEST_BAR = 0.008


def draw_panel(
    ax: Axes, bins: ReliabilityBins, *, minimum_count: int, confidence: float | None, marker_size: float
) -> Axes:
    """Draw bars, gaps, bands, the diagonal and the counts; return the axes of the counts."""
    shown = bins.counts >= max(minimum_count, 1)
    middles, widths = _bar_places(bins)
    middles_shown, widths_shown = middles[shown], widths[shown]
    observed, predicted = bins.observed_frequency[shown], bins.mean_prediction[shown]
    ax.bar(middles_shown, observed, widths_shown, color=OBSERVED, edgecolor="white", linewidth=0.4)
    ax.bar(
        middles_shown,
        np.abs(predicted - observed),
        widths_shown,
        bottom=np.minimum(observed, predicted),
        color=GAP_FILL,
        edgecolor=GAP,
        hatch="//////",
        linewidth=0.4,
    )
    left, right = middles_shown - widths_shown / 2, middles_shown + widths_shown / 2
    ax.hlines(observed, left, right, color=OBSERVED_EDGE, linewidth=2)
    if confidence is not None:
        low, high = bins.frequency_bands(confidence)
        ax.vlines(middles_shown, low[shown], high[shown], color=BAND, linewidth=0.4 + marker_size / 5, zorder=3)
    ax.plot([0, 1], [0, 1], color=GUIDE, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return _draw_counts(ax, bins, middles, shown, marker_size=marker_size)


def error_text(bins: ReliabilityBins, name: str) -> str:
    """Return the calibration error of the bins with what to call it."""
    return f"{name} {bins.calibration_error:.3f}" if bins.total else "no samples"


def legend_handles(drawn: Sequence[ReliabilityBins], *, minimum_count: int, confidence: float | None) -> list[Artist]:
    """Explain the marks; hollow dots only where there are any."""
    handles: list[Artist] = [
        Patch(facecolor=OBSERVED, edgecolor=OBSERVED_EDGE, label="observed frequency"),
        Patch(facecolor=GAP_FILL, edgecolor=GAP, hatch="//////", label="gap to the mean prediction"),
        Line2D([], [], color=GUIDE, linestyle="--", linewidth=1, label="perfect calibration"),
        Line2D([], [], color=COUNTS, linewidth=0.7, marker="o", markersize=4, label="samples (right axis)"),
    ]
    if confidence is not None:
        band = Line2D([], [], color=BAND, linestyle="none", marker="|", markersize=11, markeredgewidth=1.2)
        band.set_label(f"{100 * confidence:.6g} % confidence band")
        handles.insert(2, band)
    if any(((bins.counts > 0) & (bins.counts < minimum_count)).any() for bins in drawn):
        hollow = Line2D([], [], color=COUNTS, linewidth=0.7, marker="o", markersize=4, markerfacecolor="white")
        hollow.set_label(f"under {minimum_count} samples: no bar")
        handles.append(hollow)
    return handles


def check_panels(drawn: Sequence[object], *, minimum_count: int, confidence: float | None) -> None:
    """Check what reliability pictures are given."""
    for bins in drawn:
        if not isinstance(bins, ReliabilityBins):
            raise InvalidInputError(
                f"bins must be what kcal.metrics.reliability(probs, labels, ...) returns; got {type(bins).__name__}."
            )
    if isinstance(minimum_count, bool) or not isinstance(minimum_count, int | np.integer) or minimum_count < 0:
        raise InvalidInputError(f"minimum_count must be a whole number, at least 0; got {minimum_count!r}.")
    if confidence is not None:
        check_confidence(confidence)


def _bar_places(bins: ReliabilityBins) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the middle and the width of each bin's bar.

    Equal-width bins are drawn from edge to edge. Equal-count bins can be wide where predictions are few:
    they stand at their mean prediction, where the gap ends on the diagonal.
    """
    widths = np.diff(bins.edges)
    if bins.adaptive:
        return bins.mean_prediction, np.clip(widths, NARROWEST_BAR, 1 / bins.counts.shape[0])
    return (bins.edges[1:] + bins.edges[:-1]) / 2, widths


def _draw_counts(
    ax: Axes,
    bins: ReliabilityBins,
    middles: NDArray[np.float64],
    shown: NDArray[np.bool_],
    *,
    marker_size: float,
) -> Axes:
    """Draw the counts on a logarithmic right axis; hollow where the bin has no bar."""
    counts_ax = ax.twinx()
    filled = bins.counts > 0
    counts_ax.plot(
        middles[filled],
        bins.counts[filled],
        color=COUNTS,
        linewidth=0.7,
        marker="o",
        markersize=marker_size,
        markerfacecolor="white",
    )
    counts_ax.plot(
        middles[shown],
        bins.counts[shown],
        color=COUNTS,
        linestyle="none",
        marker="o",
        markersize=marker_size,
    )
    counts_ax.set_yscale("log")
    counts_ax.yaxis.set_major_formatter(FuncFormatter(_short_number))
    counts_ax.yaxis.set_minor_formatter(NullFormatter())
    counts_ax.set_ylim(0.7, max(int(bins.counts.max()), 10) * 2)
    counts_ax.tick_params(axis="y", colors=COUNTS)
    return counts_ax


def _short_number(value: float, _: int) -> str:
    """Return 100, 1k, 10k, 1M, which fit beside a small panel."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
