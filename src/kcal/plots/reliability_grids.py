"""Many reliability diagrams side by side: methods beside classes, or all classes of one method in rows."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins
from kcal.plots.reliability_panel import check_panels, draw_panel, error_text, legend_handles
from kcal.plots.style import COUNTS, plain

PANELS_A_ROW = 5


def reliability_grid(
    rows: Mapping[str, Sequence[ReliabilityBins]],
    class_names: Sequence[str],
    *,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    figure: Figure | SubFigure | None = None,
) -> NDArray[Any]:
    """Draw methods beside classes: a row of reliability diagrams for each method, a column for each class.

    Parameters
    ----------
    rows
        For each method, by name, the bins of every class, in the order of class_names.
    class_names
        Headings of the columns.
    minimum_count
        Bins with fewer samples have no bar.
    confidence
        Share of the bands that are to hold the true frequency, as in `reliability_diagram`; no bands if None.
    title
        Heading of the whole picture.
    figure
        Where to draw; a new one of fitting size if None.

    Returns
    -------
    array of Axes
        (methods, classes). The picture is ``axes[0, 0].get_figure(root=True)``.
    """
    _check_grid(rows, class_names)
    everything = [bins for row in rows.values() for bins in row]
    check_panels(everything, minimum_count=minimum_count, confidence=confidence)
    handles = legend_handles(everything, minimum_count=minimum_count, confidence=confidence)
    n_rows, n_columns = len(rows), len(class_names)
    panels = _panels_above_legend(figure, n_rows, n_columns, 1.6, handles)
    axes = panels.subplots(n_rows, n_columns, squeeze=False)  # (n_rows, n_columns); sharing makes many panels slow
    for i, (method, row) in enumerate(rows.items()):
        for j, bins in enumerate(row):
            ax = axes[i, j]
            counts_ax = draw_panel(ax, bins, minimum_count=minimum_count, confidence=confidence, marker_size=2)
            counts_ax.set_ylim(0.7, _highest(everything))
            _label_panel(ax, counts_ax, bins, last_column=j == n_columns - 1)
            ax.tick_params(labelbottom=i == n_rows - 1, labelleft=j == 0)
            if i == 0:
                ax.set_title(f"{_heading(class_names[j])}\n", fontsize=10, fontweight="bold")
        axes[i, 0].set_ylabel(plain(method, width=14), fontsize=11, fontweight="bold")
    _label_all(panels, title)
    return np.asarray(axes)


def class_reliability_grid(
    bins: Sequence[ReliabilityBins],
    class_names: Sequence[str],
    *,
    limit: int = 20,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    figure: Figure | SubFigure | None = None,
) -> NDArray[Any]:
    """Draw the reliability diagrams of all classes of one method, in rows of up to five.

    Parameters
    ----------
    bins
        The bins of every class, in the order of class_names.
    class_names
        Headings of the diagrams.
    limit
        With more classes only this many are drawn, those of the largest calibration error, worst first;
        the title then says so.
    minimum_count
        Bins with fewer samples have no bar.
    confidence
        Share of the bands that are to hold the true frequency, as in `reliability_diagram`; no bands if None.
    title
        Heading of the whole picture.
    figure
        Where to draw; a new one of fitting size if None.

    Returns
    -------
    array of Axes
        One a class that is drawn. The picture is ``axes[0].get_figure(root=True)``.
    """
    _check_grid({"the method": bins}, class_names)
    check_panels(bins, minimum_count=minimum_count, confidence=confidence)
    if isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 1:
        raise InvalidInputError(f"limit must be a whole number, at least 1; got {limit!r}.")
    chosen = range(len(bins)) if len(bins) <= limit else _worst(bins, limit)
    drawn = [bins[k] for k in chosen]
    if len(drawn) < len(bins):
        which = f"the {len(drawn)} classes of largest error, of {len(bins):,}" if len(drawn) > 1 else "the worst class"
        title = which if title is None else f"{title}: {which}"
    handles = legend_handles(drawn, minimum_count=minimum_count, confidence=confidence)
    n_columns = min(PANELS_A_ROW, len(drawn))
    n_rows = ceil(len(drawn) / n_columns)
    panels = _panels_above_legend(figure, n_rows, n_columns, 2.0, handles)
    axes = panels.subplots(n_rows, n_columns, sharey=True, squeeze=False)  # (n_rows, n_columns)
    for place, ax in enumerate(axes.flat):
        if place >= len(drawn):
            ax.set_axis_off()
            continue
        counts_ax = draw_panel(ax, drawn[place], minimum_count=minimum_count, confidence=confidence, marker_size=2)
        counts_ax.set_ylim(0.7, _highest(drawn))
        _label_panel(ax, counts_ax, drawn[place], last_column=place % n_columns == n_columns - 1)
        ax.set_title(f"{_heading(class_names[chosen[place]])}\n", fontsize=10, fontweight="bold")
        ax.tick_params(axis="x", labelbottom=place + n_columns >= len(drawn))
    _label_all(panels, title)
    return np.asarray(axes.ravel()[: len(drawn)])


def _worst(bins: Sequence[ReliabilityBins], limit: int) -> list[int]:
    """Return the places of the largest calibration errors, largest first; classes without samples come last."""
    errors = np.nan_to_num([row.calibration_error for row in bins], nan=-1.0)
    return [int(k) for k in np.argsort(-errors, kind="stable")[:limit]]


def _panels_above_legend(
    figure: Figure | SubFigure | None, n_rows: int, n_columns: int, row_height: float, handles: list[Artist]
) -> SubFigure:
    """Put the legend at the foot of a figure, a new one if None, and return the part that is left for panels."""
    width = max(1.2 + 1.5 * n_columns, 5.4)  # inches
    legend_columns = min(int(width / 2.6), len(handles))
    heights = (0.9 + row_height * n_rows, 0.2 + 0.2 * ceil(len(handles) / legend_columns))  # panels, legend
    if figure is None:
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    panels: SubFigure
    panels, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
    below.legend(handles=handles, loc="center", ncols=legend_columns, frameon=False)
    return panels


def _label_panel(ax: Axes, counts_ax: Axes, bins: ReliabilityBins, *, last_column: bool) -> None:
    """Write the error over a panel of a grid, and the counts' axis only at the right end."""
    ax.set_box_aspect(1)
    counts_ax.set_box_aspect(1)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.text(0.5, 1.02, error_text(bins, "error"), transform=ax.transAxes, ha="center", va="bottom", fontsize=9)
    counts_ax.minorticks_off()
    if last_column:
        counts_ax.set_ylabel("samples", color=COUNTS)
    else:
        counts_ax.tick_params(axis="y", right=False, labelright=False)


def _label_all(panels: SubFigure, title: str | None) -> None:
    panels.supxlabel("predicted probability of the class", fontsize=11)
    panels.supylabel("observed frequency", fontsize=11)
    if title is not None:
        panels.suptitle(title, fontsize=13)


def _heading(class_name: str) -> str:
    return plain(class_name, width=16, lines=2)


def _highest(drawn: Sequence[ReliabilityBins]) -> float:
    return max(max(int(bins.counts.max()) for bins in drawn), 10) * 2


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
