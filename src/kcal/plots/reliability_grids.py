"""Many reliability diagrams in one figure: methods by classes, or all classes of one method."""

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
from kcal.plots.arguments import KINDS, check_arguments, check_count, check_kind, check_names
from kcal.plots.reliability import PanelOptions, draw_panel, error_text, legend_handles, top_of_counts
from kcal.plots.style import COUNTS, wrap_label
from kcal.validation import shown

PANELS_PER_ROW = 5


def reliability_grid(
    rows: Mapping[str, Sequence[ReliabilityBins]],
    class_names: Sequence[str],
    *,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    figure: Figure | SubFigure | None = None,
) -> NDArray[Any]:
    """Draw a grid of reliability diagrams, one row per method and one column per class.

    Parameters
    ----------
    rows
        By name of the method, the bins of every class, in the order of class_names.
    class_names
        Titles of the columns.
    minimum_count, confidence
        As in `reliability_diagram`.
    figure, title
        Figure to draw on, a new one of fitting size if None, and its title.

    Returns
    -------
    array of Axes
        (methods, classes). The figure is ``axes[0, 0].get_figure(root=True)``.
    """
    check_kind(rows, "rows", Mapping, "a dictionary from the name of a method to the bins of each class")
    check_arguments(figure=figure, title=title)
    names = check_names(class_names)
    check_count(len(rows) * len(names), "rows", "panels")
    drawn = [bins for method, row in rows.items() for bins in _check_row(row, f"rows[{method!r}]", len(names))]
    options, top = PanelOptions(minimum_count, confidence), top_of_counts(drawn)
    panels = _panels_above_legend(figure, len(rows), len(names), 1.6, legend_handles(drawn, options))
    axes = panels.subplots(len(rows), len(names), squeeze=False)  # not shared, which is slow for many panels
    for (i, j), ax in np.ndenumerate(axes):
        _draw_cell(ax, drawn[i * len(names) + j], options, top, last_column=j == len(names) - 1)
        ax.tick_params(labelbottom=i == len(rows) - 1, labelleft=j == 0)
        if i == 0:
            _set_heading(ax, names[j])
    for ax, method in zip(axes[:, 0], rows, strict=True):
        ax.set_ylabel(wrap_label(method, width=14), fontsize=11, fontweight="bold")
    _label_figure(panels, title)
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
        Titles of the diagrams.
    limit
        With more classes only this many are drawn, those with the largest calibration error, worst first; the title
        then says so.
    minimum_count, confidence, figure, title
        As in `reliability_grid`.

    Returns
    -------
    array of Axes
        One per class that is drawn. The figure is ``axes[0].get_figure(root=True)``.
    """
    check_arguments(limit=limit, figure=figure, title=title)
    names = check_names(class_names)
    _check_row(bins, "bins", len(names))
    options = PanelOptions(minimum_count, confidence)
    chosen = range(len(bins)) if len(bins) <= limit else _worst(bins, limit)
    drawn = [bins[k] for k in chosen]
    if len(drawn) < len(bins):
        which = f"the {len(drawn)} classes of largest error, of {len(bins):,}" if len(drawn) > 1 else "the worst class"
        title = which if title is None else f"{title}: {which}"
    n_columns = min(PANELS_PER_ROW, len(drawn))
    n_rows = ceil(len(drawn) / n_columns)
    panels = _panels_above_legend(figure, n_rows, n_columns, 2.0, legend_handles(drawn, options))
    axes = panels.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
    for place, (ax, k) in enumerate(zip(axes, chosen, strict=False)):
        _draw_cell(ax, bins[k], options, top_of_counts(drawn), last_column=place % n_columns == n_columns - 1)
        _set_heading(ax, names[k])
        ax.tick_params(axis="x", labelbottom=place + n_columns >= len(drawn))
    for ax in axes[len(drawn) :]:
        ax.set_axis_off()
    _label_figure(panels, title)
    return np.asarray(axes[: len(drawn)])


def _worst(bins: Sequence[ReliabilityBins], limit: int) -> list[int]:
    """Return the indices of the largest calibration errors, largest first; classes without samples come last."""
    errors = np.nan_to_num([row.calibration_error for row in bins], nan=-1.0)
    return [int(k) for k in np.argsort(-errors, kind="stable")[:limit]]


def _panels_above_legend(
    figure: Figure | SubFigure | None, n_rows: int, n_columns: int, row_height: float, handles: list[Artist]
) -> SubFigure:
    """Draw the legend at the bottom of a figure, a new one if None, and return the part for the panels."""
    width = max(1.2 + 1.5 * n_columns, 5.4)  # inches
    legend_columns = min(int(width / 2.6), len(handles))
    heights = (0.9 + row_height * n_rows, 0.2 + 0.2 * ceil(len(handles) / legend_columns))  # panels, legend
    if figure is None:
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    panels: SubFigure
    panels, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
    below.legend(handles=handles, loc="center", ncols=legend_columns, frameon=False)
    return panels


def _draw_cell(ax: Axes, bins: ReliabilityBins, options: PanelOptions, top: float, *, last_column: bool) -> None:
    """Draw one panel of a grid with its error above it; only the last column labels the axis of the counts."""
    counts_ax = draw_panel(ax, bins, options, marker_size=2)
    counts_ax.set_ylim(0.7, top)
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


def _set_heading(ax: Axes, class_name: str) -> None:
    ax.set_title(f"{wrap_label(class_name, width=16, lines=2)}\n", fontsize=10, fontweight="bold")


def _label_figure(panels: SubFigure, title: str | None) -> None:
    panels.supxlabel("predicted probability of the class", fontsize=11)
    panels.supylabel("observed frequency", fontsize=11)
    if title is not None:
        panels.suptitle(title, fontsize=13)


def _check_row(row: Any, name: str, n_classes: int) -> Sequence[ReliabilityBins]:
    if not isinstance(row, Sequence) or len(row) != n_classes:
        expected = f"must be a list of the bins of all {n_classes} classes"
        got = f"{len(row)} bins" if isinstance(row, Sequence) else shown(row)
        remedy = "Pass [reliability(probs, labels, of=k) for k in range(len(class_names))]."
        raise InvalidInputError(name, expected, got=got, remedy=remedy)
    for bins in row:
        check_kind(bins, name, *KINDS["bins"])
    return row
