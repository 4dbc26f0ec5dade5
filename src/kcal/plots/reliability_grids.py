"""Many reliability diagrams in one figure: methods by classes, or all classes of one method."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogLocator
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins, reliability
from kcal.plots.arguments import KINDS, check_arguments, check_count, check_kind, check_names
from kcal.plots.reliability import PanelOptions, draw_panel, error_text, legend_handles, top_of_counts
from kcal.plots.style import wrap_label
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
    panels = _panels_above_legend(figure, len(rows), len(names), 2.1, legend_handles(options))
    axes = panels.subplots(len(rows), len(names), squeeze=False)  # not shared, which is slow for many panels
    for (i, j), ax in np.ndenumerate(axes):
        _draw_cell(ax, drawn[i * len(names) + j], options, top, left=j == 0, below=i == len(rows) - 1)
        if i == 0:
            _set_heading(ax, names[j])
    for ax, method in zip(axes[:, 0], rows, strict=True):
        ax.set_ylabel(wrap_label(method, width=14), fontsize=11, fontweight="bold")
    _label_figure(panels, title)
    return np.asarray(axes)


def class_reliability_grid(
    predictions: Sequence[ReliabilityBins] | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    class_names: Sequence[str] | None = None,
    limit: int = 20,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    figure: Figure | SubFigure | None = None,
) -> NDArray[Any]:
    """Draw the reliability diagrams of all classes of one method, in rows of up to five.

    Parameters
    ----------
    predictions
        The bins of every class, in the order of the classes; or probabilities, (n_samples, n_classes), together with
        labels, which are cut into 20 bins of equal width, those of at least max(0.01, 1/K) as in
        `kcal.metrics.class_errors`.
    labels
        True classes as column indices, (n_samples,), if predictions are probabilities.
    class_names
        Titles of the diagrams; "class 0" and so on if None.
    limit
        With more classes only this many are drawn, those with the largest calibration error, worst first; the title
        then says so, and how large the errors of the others are.
    minimum_count, confidence, figure, title
        As in `reliability_grid`.

    Returns
    -------
    array of Axes
        One per class that is drawn. The figure is ``axes[0].get_figure(root=True)``.
    """
    check_arguments(limit=limit, figure=figure, title=title)
    bins = _bins_of_classes(predictions, labels, class_names)
    names = [f"class {k}" for k in range(len(bins))] if class_names is None else check_names(class_names, len(bins))
    options = PanelOptions(minimum_count, confidence)
    chosen = range(len(bins)) if len(bins) <= limit else _worst(bins, limit)
    drawn = [bins[k] for k in chosen]
    if len(drawn) < len(bins):
        which = _which_are_drawn(bins, len(drawn))
        title = which if title is None else f"{title}: {which}"
    n_columns = min(PANELS_PER_ROW, len(drawn))
    n_rows = ceil(len(drawn) / n_columns)
    panels = _panels_above_legend(figure, n_rows, n_columns, 2.5, legend_handles(options))
    axes = panels.subplots(n_rows, n_columns, sharey=True, squeeze=False).ravel()
    for place, (ax, k) in enumerate(zip(axes, chosen, strict=False)):
        edges = {"left": place % n_columns == 0, "below": place + n_columns >= len(drawn)}
        _draw_cell(ax, bins[k], options, top_of_counts(drawn), **edges)
        _set_heading(ax, names[k])
    for ax in axes[len(drawn) :]:
        ax.set_axis_off()
    _label_figure(panels, title)
    return np.asarray(axes[: len(drawn)])


def _worst(bins: Sequence[ReliabilityBins], limit: int) -> list[int]:
    """Return the indices of the largest calibration errors, largest first; classes without samples come last."""
    errors = np.nan_to_num([row.calibration_error for row in bins], nan=-1.0)
    return [int(k) for k in np.argsort(-errors, kind="stable")[:limit]]


def _which_are_drawn(bins: Sequence[ReliabilityBins], n_drawn: int) -> str:
    """Return which classes a grid shows, and what it leaves out."""
    which = f"the {n_drawn} classes of largest error" if n_drawn > 1 else "the class of largest error"
    largest = bins[_worst(bins, n_drawn + 1)[-1]].calibration_error
    left = f"the other {len(bins) - n_drawn:,} have "
    return f"{which}; {left}" + ("no samples" if np.isnan(largest) else f"errors up to {largest:.3f}")


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


def _draw_cell(ax: Axes, bins: ReliabilityBins, options: PanelOptions, top: float, *, left: bool, below: bool) -> None:
    """Draw one panel of a grid with its error above it; ticks are labelled at the left and below the grid only."""
    strip = draw_panel(ax, bins, options, marker_size=2)
    strip.set_ylim(0.7, top)
    ax.set_xticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.set_yticks([0, 0.5, 1], ["0", ".5", "1"])
    ax.text(0.5, 1.02, error_text(bins, "error"), transform=ax.transAxes, ha="center", va="bottom", fontsize=9)
    ax.tick_params(labelleft=left)
    strip.tick_params(labelleft=left, labelbottom=below)
    strip.tick_params(axis="y", labelsize=8)
    strip.yaxis.set_major_locator(LogLocator(numticks=2))


def _set_heading(ax: Axes, class_name: str) -> None:
    ax.set_title(f"{wrap_label(class_name, width=16, lines=2)}\n", fontsize=10, fontweight="bold")


def _label_figure(panels: SubFigure, title: str | None) -> None:
    panels.supxlabel("predicted probability of the class", fontsize=11)
    panels.supylabel("observed frequency", fontsize=11)
    if title is not None:
        panels.suptitle(title, fontsize=13)


def _bins_of_classes(predictions: Any, labels: Any, class_names: Any) -> Sequence[ReliabilityBins]:
    """Return the given bins of all classes, or those of the given probabilities and labels."""
    if labels is None:
        n_classes = None if class_names is None else len(check_names(class_names))
        return _check_row(predictions, "predictions", n_classes)
    if isinstance(predictions, Sequence) and any(isinstance(row, ReliabilityBins) for row in predictions):
        raise InvalidInputError("labels", "must be left out if predictions are binned", got=shown(labels))
    first = reliability(predictions, labels, of=0, adaptive=False, threshold="max")  # checks both
    n_classes = np.shape(predictions)[1]
    others = (reliability(predictions, labels, of=k, adaptive=False, threshold="max") for k in range(1, n_classes))
    return [first, *others]


def _check_row(row: Any, name: str, n_classes: int | None) -> Sequence[ReliabilityBins]:
    """Return the bins of all classes; raise if they are not a list, if there are none, or not ``n_classes``."""
    if not isinstance(row, Sequence) or len(row) != (n_classes or max(len(row), 1)):
        expected = f"must be a list of the bins of all {n_classes or ''} classes".replace("  ", " ")
        got = f"{len(row)} bins" if isinstance(row, Sequence) else shown(row)
        remedy = "Pass [reliability(probs, labels, of=k) for k in range(len(class_names))]."
        raise InvalidInputError(name, expected, got=got, remedy=remedy)
    for bins in row:
        check_kind(bins, name, *KINDS["bins"])
    return row
