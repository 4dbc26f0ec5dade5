"""Panels of lines side by side: how numbers change with a size, a bandwidth or a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from kcal.plots.curves import set_log_scale
from kcal.plots.style import COUNTS, MARKERS, SERIES, wrap_label

DEFAULT_COLUMNS = 3
"""Panels per row by default; with more columns panels are smaller."""
FEW_LINES = 3
"""With more lines, panels that have the same ones share a legend below them: their own would cover the lines."""
LARGE, SMALL = (4.2, 3.2), (2.9, 2.5)
"""Width and height of a panel, in inches."""
NARROW = 4.0
"""Ratio of the ends of a logarithmic axis below which it has evenly spaced ticks."""
MARKED = 16
"""Longer lines have no markers."""


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    ``low`` and ``high`` are the ends of a band around it. A reference is dashed and has no markers; points are not
    joined; a plain line has no markers.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    reference: bool = False
    points: bool = False
    plain: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel of a figure; ``x_ticks`` are labelled values, chosen by matplotlib if empty."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    x_ticks: tuple[float, ...] = ()


def line_panels(panels: Sequence[Panel], *, columns: int | None = None) -> NDArray[Any]:
    """Draw panels of lines in a grid; return the axes, (n_rows, n_columns), those without a panel invisible.

    ``columns`` are panels per row, up to three if None. With more than three, panels are smaller, and the most frequent
    legend is shown once below them.
    """
    n_columns = min(len(panels), DEFAULT_COLUMNS) if columns is None else columns
    n_rows = -(-len(panels) // n_columns)
    small = n_columns > DEFAULT_COLUMNS
    width, height = SMALL if small else LARGE
    figure = Figure(figsize=(width * n_columns, height * n_rows), layout="constrained")
    axes: NDArray[Any] = figure.subplots(n_rows, n_columns, squeeze=False)
    sharing = _panels_of_one_legend(panels, small=small)
    for place, ax in enumerate(axes.flat):
        if place < len(panels):
            _draw_panel(ax, panels[place], legend=place not in sharing)
        else:
            ax.set_visible(False)
    if sharing:
        lines, names = axes.flat[sharing[0]].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 2 * n_columns), frameon=False)
    return axes


def _panels_of_one_legend(panels: Sequence[Panel], *, small: bool) -> list[int]:
    """Return the indices of panels that share one legend: those with the most frequent set of lines."""
    labels = [tuple(line.label for line in panel.lines) for panel in panels]
    most_frequent = max(labels, key=labels.count)
    sharing = [place for place, names in enumerate(labels) if names == most_frequent]
    shared = small or (len(sharing) == len(panels) and len(most_frequent) > FEW_LINES)
    return sharing if shared and len(sharing) > 1 else []


def _draw_panel(ax: Axes, panel: Panel, *, legend: bool) -> None:
    for number, line in enumerate(panel.lines):
        _draw_line(ax, line, number)
    for axis, logarithmic in ((ax.xaxis, panel.x_log), (ax.yaxis, panel.y_log)):
        if logarithmic:
            set_log_scale(axis)
            low, high = axis.get_view_interval()
            if high < NARROW * low:
                axis.set_major_locator(MaxNLocator(4))
    if panel.x_ticks:
        ax.set_xticks(panel.x_ticks, [f"{value:g}" for value in panel.x_ticks])
        ax.set_xticks([], minor=True)
    ax.set_title(wrap_label(panel.title, width=44), fontsize=10)
    ax.set(xlabel=panel.x_label, ylabel=panel.y_label)
    ax.grid(alpha=0.25)
    if legend and (len(panel.lines) > 1 or panel.lines[0].label):
        ax.legend(frameon=False, fontsize=8)


def _draw_line(ax: Axes, line: Line, number: int) -> None:
    colour = COUNTS if line.reference else SERIES[number % len(SERIES)]
    marked = line.points or (len(line.x) <= MARKED and not line.reference and not line.plain)
    ax.plot(
        line.x,
        line.y,
        linestyle="--" if line.reference else "none" if line.points else "-",
        color=colour,
        marker=MARKERS[number % len(MARKERS)] if marked else "",
        markersize=4,
        label=wrap_label(line.label, width=30),
    )
    if line.low is not None and line.high is not None:
        ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
