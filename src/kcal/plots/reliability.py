"""The reliability diagram of one event: observed frequency against predicted probability."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, NullFormatter
from numpy.typing import NDArray

from kcal.metrics import ReliabilityBins
from kcal.plots.arguments import check_arguments
from kcal.plots.style import BAND, COUNTS, GAP, GAP_FILL, GUIDE, OBSERVED, OBSERVED_EDGE, prepare_axes, wrap_label
from kcal.validation import check_number

NARROWEST_BAR = 0.008
"""Bars of equal-count bins are at least this wide, so that they are visible."""


@dataclass(frozen=True)
class PanelOptions:
    """Bins with fewer samples than ``minimum_count`` have no bar; ``confidence`` is the level of the bands, or None."""

    minimum_count: int
    confidence: float | None

    def __post_init__(self) -> None:
        check_arguments(minimum_count=self.minimum_count)
        if self.confidence is not None:
            check_number(self.confidence, "confidence", minimum=0.0, maximum=1.0, exclusive=True)


def reliability_diagram(
    bins: ReliabilityBins,
    *,
    ax: Axes | None = None,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    class_name: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw observed frequency against prediction, their gap, and counts on a logarithmic right axis.

    A bar reaches up to the observed frequency (the strong line); the hatched part is the gap to the mean prediction of
    the bin. A gap above the line means that predictions were too high, below it too low. The thin vertical line is
    Wilson's confidence interval of the frequency f of the n samples in the bin,

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),     z the normal quantile of (1 + confidence)/2:

    a gap that stays within it may be chance.

    Parameters
    ----------
    bins
        What `kcal.metrics.reliability` returns.
    ax
        Axes to draw on; a new figure if None.
    minimum_count
        Bins with fewer samples have no bar, because their gap is mostly noise; their counts are hollow dots.
    confidence
        Confidence level of the bands; no bands if None.
    title
        Title of the axes; by default the event and its calibration error (of all bins).
    class_name
        Name of the class of the bins; "class 3" and the like if None.
    legend
        Whether to draw a legend.

    Returns
    -------
    Axes
        The axes of the frequencies; those of the counts are drawn on top of them.
    """
    check_arguments(bins=bins, class_name=class_name, legend=legend)
    options = PanelOptions(minimum_count, confidence)
    ax = prepare_axes(ax, 6.2, 5.0, title)
    counts_ax = draw_panel(ax, bins, options, marker_size=4)
    counts_ax.set_ylabel("samples in the bin (log scale)", color=COUNTS)
    heading, label, frequency = "confidence", "confidence", "accuracy"
    if bins.of != "confidence":
        name = class_name or f"class {bins.of}"
        heading = wrap_label(name, width=34, lines=2)
        label = wrap_label(f"predicted probability of {name}", width=52, lines=2)
        frequency = "observed frequency"
    ax.set(xlabel=label, ylabel=frequency)
    if title is None:
        separator = ":\n" if len(heading) > 30 else ": "
        ax.set_title(f"{heading}{separator}{error_text(bins, 'calibration error')}")
    if legend:
        below = (0.5, -0.13 - 0.08 * label.count("\n"))  # the label of the axis: bars and counts need all of the inside
        handles = legend_handles([bins], options)
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=below, ncols=2, frameon=False)
    return ax


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


def _bar_places(bins: ReliabilityBins) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the center and the width of the bar of each bin.

    Equal-width bins are drawn from edge to edge. Equal-count bins can be wide where predictions are few: they are
    drawn at their mean prediction, where the gap ends on the diagonal.
    """
    widths = np.diff(bins.edges)
    if bins.adaptive:
        return bins.mean_prediction, np.clip(widths, NARROWEST_BAR, 1 / len(bins.counts))
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
    counts_ax.yaxis.set_major_formatter(EngFormatter(sep=""))  # 1k, 10k, 1M fit beside a small panel
    counts_ax.yaxis.set_minor_formatter(NullFormatter())
    counts_ax.set_ylim(0.7, top_of_counts([bins]))
    counts_ax.tick_params(axis="y", colors=COUNTS)
    return counts_ax


def top_of_counts(drawn: Sequence[ReliabilityBins]) -> float:
    """Return the end of an axis of counts on which all of these fit."""
    return max(10, *(int(bins.counts.max()) for bins in drawn)) * 2


def error_text(bins: ReliabilityBins, name: str) -> str:
    """Return the calibration error of the bins, after its name."""
    return f"{name} {bins.calibration_error:.3f}" if bins.total else "no samples"


def legend_handles(drawn: Sequence[ReliabilityBins], options: PanelOptions) -> list[Artist]:
    """Return the entries of the legend; hollow dots only if there are any."""
    dot: dict[str, Any] = {"color": COUNTS, "linewidth": 0.7, "marker": "o", "markersize": 4}
    handles: list[Artist] = [
        Patch(facecolor=OBSERVED, edgecolor=OBSERVED_EDGE, label="observed frequency"),
        Patch(facecolor=GAP_FILL, edgecolor=GAP, hatch="//////", label="gap to the mean prediction"),
    ]
    if options.confidence is not None:
        label = f"{100 * options.confidence:.6g} % confidence band"
        band: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 1.2}
        handles.append(Line2D([], [], color=BAND, linestyle="none", label=label, **band))
    handles.append(Line2D([], [], color=GUIDE, linestyle="--", linewidth=1, label="perfect calibration"))
    handles.append(Line2D([], [], label="samples (right axis)", **dot))
    if any(((bins.counts > 0) & (bins.counts < options.minimum_count)).any() for bins in drawn):
        label = f"under {options.minimum_count} samples: no bar"
        handles.append(Line2D([], [], markerfacecolor="white", label=label, **dot))
    return handles
