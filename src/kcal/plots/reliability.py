"""Reliability diagrams: what was observed beside what was predicted, one alone or methods beside classes."""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins
from kcal.plots.style import COUNTS, GAP, GAP_FILL, GUIDE, OBSERVED, OBSERVED_EDGE, new_axes, plain

# Equal-count bins can be too narrow to see: a bar is at least this wide.
NARROWEST_BAR = 0.008


def reliability_diagram(
    bins: ReliabilityBins,
    *,
    ax: Axes | None = None,
    minimum_count: int = 15,
    title: str | None = None,
    class_name: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw observed frequency against prediction, their gap, and counts on a logarithmic right axis.

    A bar reaches up to the observed frequency (the strong line); the hatched part is the gap to the mean
    prediction of the bin. Above the line the predictions were too high, below it too low.

    Parameters
    ----------
    bins
        What `kcal.metrics.reliability` returns.
    ax
        Where to draw; a new figure if None.
    minimum_count
        Bins with fewer samples have no bar, because their gap is mostly chance; their counts are hollow dots.
    title
        Heading of the picture; the default names the event and its calibration error (of all bins).
    class_name
        What to call the class of the bins; "class 3" and the like if None.
    legend
        Whether to explain the marks.

    Returns
    -------
    Axes
        The axes of the frequencies; those of the counts are drawn on top of them.
    """
    if ax is None:
        ax = new_axes(5.6, 4.8)
    counts_ax = _draw_panel(ax, bins, minimum_count, marker_size=4)
    confidence = bins.of == "confidence"
    event = "confidence" if confidence else plain(class_name or f"class {bins.of}")
    ax.set_xlabel("confidence" if confidence else f"predicted probability of {event}")
    ax.set_ylabel("accuracy" if confidence else "observed frequency")
    counts_ax.set_ylabel("samples in the bin (log scale)", color=COUNTS)
    ax.set_title(title if title is not None else f"{event}: {_error_text(bins, 'calibration error')}")
    if legend:
        # Below the label of the axis, because bars and counts need all of the inside.
        ax.legend(
            handles=_legend_handles([bins], minimum_count),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.12),
            ncols=2,
            frameon=False,
        )
    return ax


def reliability_grid(
    rows: Mapping[str, Sequence[ReliabilityBins]],
    class_names: Sequence[str],
    *,
    minimum_count: int = 15,
    title: str | None = None,
) -> Figure:
    """Draw methods beside classes: a row of reliability diagrams for each method, a column for each class.

    Parameters
    ----------
    rows
        For each method, by name, the bins of every class, in the order of class_names.
    class_names
        Headings of the columns.
    minimum_count
        Bins with fewer samples have no bar.
    title
        Heading of the whole picture.
    """
    _check_grid(rows, class_names)
    n_rows, n_columns = len(rows), len(class_names)
    everything = [bins for row in rows.values() for bins in row]
    handles = _legend_handles(everything, minimum_count)
    width = max(1.2 + 1.5 * n_columns, 5.4)  # inches
    legend_columns = min(int(width / 2.6), len(handles))
    heights = (0.9 + 1.6 * n_rows, 0.2 + 0.2 * ceil(len(handles) / legend_columns))  # panels, legend
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    panels, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
    axes = panels.subplots(n_rows, n_columns, sharex=True, sharey=True, squeeze=False)  # (n_rows, n_columns)
    highest = max(int(bins.counts.max()) for bins in everything)
    for i, (method, row) in enumerate(rows.items()):
        for j, bins in enumerate(row):
            ax = axes[i, j]
            counts_ax = _draw_panel(ax, bins, minimum_count, marker_size=2)
            counts_ax.set_ylim(0.7, max(highest, 10) * 2)
            _draw_panel_labels(ax, counts_ax, bins, last_column=j == n_columns - 1)
            if i == 0:
                ax.set_title(f"{plain(class_names[j], width=14)}\n", fontsize=11, fontweight="bold")
        axes[i, 0].set_ylabel(plain(method, width=14), fontsize=11, fontweight="bold")
    panels.supxlabel("predicted probability of the class", fontsize=11)
    panels.supylabel("observed frequency", fontsize=11)
    below.legend(handles=handles, loc="center", ncols=legend_columns, frameon=False)
    if title is not None:
        panels.suptitle(title, fontsize=13)
    return figure


def _draw_panel(ax: Axes, bins: ReliabilityBins, minimum_count: int, *, marker_size: float) -> Axes:
    """Draw bars, gaps, the diagonal and the counts; return the axes of the counts."""
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
    ax.hlines(
        observed,
        middles_shown - widths_shown / 2,
        middles_shown + widths_shown / 2,
        color=OBSERVED_EDGE,
        linewidth=2,
    )
    ax.plot([0, 1], [0, 1], color=GUIDE, linestyle="--", linewidth=1)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    return _draw_counts(ax, bins, middles, shown, marker_size=marker_size)


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
    counts_ax.set_ylim(0.7, max(int(bins.counts.max()), 10) * 2)
    counts_ax.tick_params(axis="y", colors=COUNTS)
    return counts_ax


def _draw_panel_labels(ax: Axes, counts_ax: Axes, bins: ReliabilityBins, *, last_column: bool) -> None:
    """Write the error over a panel of a grid, and the counts' axis only at the right end."""
    ax.set_box_aspect(1)
    counts_ax.set_box_aspect(1)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.text(
        0.5,
        1.02,
        _error_text(bins, "error"),
        transform=ax.transAxes,
        ha="center",
        va="bottom",
        fontsize=9,
    )
    counts_ax.minorticks_off()
    if last_column:
        counts_ax.set_ylabel("samples", color=COUNTS)
    else:
        counts_ax.tick_params(axis="y", right=False, labelright=False)


def _error_text(bins: ReliabilityBins, name: str) -> str:
    return f"{name} {bins.calibration_error:.3f}" if bins.total else "no samples"


def _legend_handles(drawn: Sequence[ReliabilityBins], minimum_count: int) -> list[Artist]:
    """Explain the marks; hollow dots only where there are any."""
    handles: list[Artist] = [
        Patch(facecolor=OBSERVED, edgecolor=OBSERVED_EDGE, label="observed frequency"),
        Patch(facecolor=GAP_FILL, edgecolor=GAP, hatch="//////", label="gap to the mean prediction"),
        Line2D([], [], color=GUIDE, linestyle="--", linewidth=1, label="perfect calibration"),
        Line2D([], [], color=COUNTS, linewidth=0.7, marker="o", markersize=4, label="samples (right axis)"),
    ]
    if any(((bins.counts > 0) & (bins.counts < minimum_count)).any() for bins in drawn):
        handles.append(
            Line2D(
                [],
                [],
                color=COUNTS,
                linewidth=0.7,
                marker="o",
                markersize=4,
                markerfacecolor="white",
                label=f"under {minimum_count} samples: no bar",
            )
        )
    return handles


def _check_grid(rows: Mapping[str, Sequence[ReliabilityBins]], class_names: Sequence[str]) -> None:
    if len(rows) == 0 or len(class_names) == 0:
        raise InvalidInputError(
            f"a grid needs at least one method and one class; got {len(rows)} and {len(class_names)}."
        )
    for method, row in rows.items():
        if len(row) != len(class_names):
            raise InvalidInputError(
                f"each method needs the bins of all {len(class_names)} classes; {method!r} has {len(row)}. "
                "Pass [reliability(probs, labels, of=k) for k in range(len(class_names))]."
            )
