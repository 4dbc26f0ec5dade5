"""One panel of a reliability diagram: bars, gaps, bands and counts, and the legend that explains them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter
from numpy.typing import NDArray

from kcal.metrics import ReliabilityBins
from kcal.plots.arguments import check_minimum_count, check_result, check_text
from kcal.plots.style import BAND, COUNTS, GAP, GAP_FILL, GUIDE, OBSERVED, OBSERVED_EDGE
from kcal.validation import check_number

NARROWEST_BAR = 0.008
"""Bars of equal-count bins are at least this wide, so that they are visible."""


@dataclass(frozen=True)
class PanelOptions:
    """Bins with fewer samples than ``minimum_count`` have no bar; ``confidence`` is the level of the bands, or None."""

    minimum_count: int
    confidence: float | None


def draw_panel(ax: Axes, bins: ReliabilityBins, options: PanelOptions, *, marker_size: float) -> Axes:
    """Draw bars, gaps, bands, the diagonal and the counts; return the axes of the counts."""
    drawn = bins.counts >= max(options.minimum_count, 1)
    centers, widths = _bar_places(bins)
    x, width = centers[drawn], widths[drawn]
    observed, predicted = bins.observed_frequency[drawn], bins.mean_prediction[drawn]
    ax.bar(x, observed, width, color=OBSERVED, edgecolor="white", linewidth=0.4)
    gaps, bottom = np.abs(predicted - observed), np.minimum(observed, predicted)
    ax.bar(x, gaps, width, bottom=bottom, color=GAP_FILL, edgecolor=GAP, hatch="//////", linewidth=0.4)
    ax.hlines(observed, x - width / 2, x + width / 2, color=OBSERVED_EDGE, linewidth=2)
    if options.confidence is not None:
        low, high = bins.frequency_bands(options.confidence)
        ax.vlines(x, low[drawn], high[drawn], color=BAND, linewidth=0.4 + marker_size / 5, zorder=3)
    ax.plot([0, 1], [0, 1], color=GUIDE, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return _draw_counts(ax, bins, centers, drawn, marker_size=marker_size)


def error_text(bins: ReliabilityBins, name: str) -> str:
    """Return the calibration error of the bins, after its name."""
    return f"{name} {bins.calibration_error:.3f}" if bins.total else "no samples"


def legend_handles(drawn: Sequence[ReliabilityBins], options: PanelOptions) -> list[Artist]:
    """Return the entries of the legend; hollow dots only if there are any."""
    handles: list[Artist] = [
        Patch(facecolor=OBSERVED, edgecolor=OBSERVED_EDGE, label="observed frequency"),
        Patch(facecolor=GAP_FILL, edgecolor=GAP, hatch="//////", label="gap to the mean prediction"),
        Line2D([], [], color=GUIDE, linestyle="--", linewidth=1, label="perfect calibration"),
        Line2D([], [], color=COUNTS, linewidth=0.7, marker="o", markersize=4, label="samples (right axis)"),
    ]
    if options.confidence is not None:
        band = Line2D([], [], color=BAND, linestyle="none", marker="|", markersize=11, markeredgewidth=1.2)
        band.set_label(f"{100 * options.confidence:.6g} % confidence band")
        handles.insert(2, band)
    if any(((bins.counts > 0) & (bins.counts < options.minimum_count)).any() for bins in drawn):
        hollow = Line2D([], [], color=COUNTS, linewidth=0.7, marker="o", markersize=4, markerfacecolor="white")
        hollow.set_label(f"under {options.minimum_count} samples: no bar")
        handles.append(hollow)
    return handles


def check_options(drawn: Sequence[Any], name: str, minimum_count: Any, confidence: Any, title: Any) -> PanelOptions:
    """Check the arguments that all reliability plots share and return the options; ``name`` is that of the bins."""
    for bins in drawn:
        check_result(bins, ReliabilityBins, name, "the result of kcal.metrics.reliability(probs, labels)")
    check_text(title, "title")
    if confidence is not None:
        check_number(confidence, "confidence", minimum=0.0, maximum=1.0, exclusive=True)
    return PanelOptions(check_minimum_count(minimum_count), confidence)


def _bar_places(bins: ReliabilityBins) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the center and the width of the bar of each bin.

    Equal-width bins are drawn from edge to edge. Equal-count bins can be wide where predictions are few: they are
    drawn at their mean prediction, where the gap ends on the diagonal.
    """
    widths = np.diff(bins.edges)
    if bins.adaptive:
        return bins.mean_prediction, np.clip(widths, NARROWEST_BAR, 1 / bins.counts.shape[0])
    return (bins.edges[1:] + bins.edges[:-1]) / 2, widths


def _draw_counts(
    ax: Axes, bins: ReliabilityBins, centers: NDArray[np.float64], drawn: NDArray[np.bool_], *, marker_size: float
) -> Axes:
    """Draw the counts on a logarithmic right axis, hollow where a bin has no bar."""
    counts_ax = ax.twinx()
    filled = bins.counts > 0
    style: dict[str, Any] = {"color": COUNTS, "marker": "o", "markersize": marker_size}
    counts_ax.plot(centers[filled], bins.counts[filled], linewidth=0.7, markerfacecolor="white", **style)
    counts_ax.plot(centers[drawn], bins.counts[drawn], linestyle="none", **style)
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
