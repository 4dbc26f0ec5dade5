"""Panels of lines side by side: how numbers move with a size, a bandwidth, a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.plots.style import COUNTS, MARKERS, SERIES, plain

WIDEST = 3
"""Panels in a row, unless told; beyond so many they are smaller."""
FEW_LINES = 3
"""Beyond so many lines, panels with the same ones share a legend below them, as small ones do: it would cover them."""
LARGE, SMALL = (4.2, 3.2), (2.9, 2.5)
"""Inches of a panel."""
NARROW = 4.0
"""Highest over lowest number of a logarithmic axis below which even steps are labelled."""
MARKED = 16
"""Points of a line that are marked, at most."""


def line_panels(panels: Sequence[Any], *, columns: int | None = None, figure: Figure | None = None) -> NDArray[Any]:
    """Draw panels of lines in a grid; returns the axes, (n_rows, n_columns), those without a panel invisible.

    Parameters
    ----------
    panels
        What to draw; each has ``title``, ``x_label``, ``y_label``, ``lines``, ``x_log`` and ``y_log``, and may have
        ``x_ticks``, where numbers are written (the axis chooses them if empty); each line has
        ``label``, ``x``, ``y``, ``spread`` (half of a band, or None), ``reference`` (dashed and without marks) and
        ``points`` (not joined), and may have ``plain`` (joined, without marks).
    columns
        Panels in a row; three at most if None. More than three are smaller, and share the legend of most of them.
    figure
        Where to draw; a new figure if None.
    """
    if not panels:
        raise InvalidInputError("line_panels needs at least one panel.")
    across = columns or min(len(panels), WIDEST)
    down = -(-len(panels) // across)
    if figure is None:
        width, height = SMALL if across > WIDEST else LARGE
        figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes: NDArray[Any] = figure.subplots(down, across, squeeze=False)
    sharing = _panels_of_one_legend(panels, small=across > WIDEST)
    for place, ax in enumerate(axes.flat):
        if place < len(panels):
            _draw_panel(ax, panels[place], legend=place not in sharing)
        else:
            ax.set_visible(False)
    if sharing:
        lines, names = axes.flat[sharing[0]].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 2 * across), frameon=False)
    return axes


def _panels_of_one_legend(panels: Sequence[Any], *, small: bool) -> list[int]:
    """Return which panels have the same lines, and need no legend each; of small ones the most with the same lines."""
    labels = [tuple(line.label for line in panel.lines) for panel in panels]
    commonest = max(labels, key=labels.count)
    sharing = [place for place, found in enumerate(labels) if found == commonest]
    shared = small or (len(sharing) == len(panels) and len(commonest) > FEW_LINES)
    return sharing if shared and len(sharing) > 1 else []


def _draw_panel(ax: Axes, panel: Any, *, legend: bool) -> None:
    for number, line in enumerate(panel.lines):
        colour = COUNTS if line.reference else SERIES[number % len(SERIES)]
        style = "--" if line.reference else "none" if line.points else "-"
        few = line.points or (len(line.x) <= MARKED and not line.reference and not getattr(line, "plain", False))
        marker = MARKERS[number % len(MARKERS)] if few else ""
        ax.plot(
            line.x,
            line.y,
            linestyle=style,
            color=colour,
            marker=marker,
            markersize=4,
            label=plain(line.label, width=30),
        )
        if line.spread is not None:
            middle, half = np.asarray(line.y), np.asarray(line.spread)
            ax.fill_between(line.x, middle - half, middle + half, color=colour, alpha=0.15, linewidth=0)
    if panel.x_log:
        ax.set_xscale("log")
        _label_in_plain_numbers(ax.xaxis, *ax.get_xlim())
    if panel.y_log:
        ax.set_yscale("log")
        _label_in_plain_numbers(ax.yaxis, *ax.get_ylim())
    ticks = getattr(panel, "x_ticks", ())
    if ticks:
        ax.set_xticks(ticks, [f"{value:g}" for value in ticks])
        ax.set_xticks([], minor=True)
    ax.set_title(plain(panel.title, width=44), fontsize=10)
    ax.set_xlabel(panel.x_label)
    ax.set_ylabel(panel.y_label)
    ax.grid(alpha=0.25)
    if legend and (len(panel.lines) > 1 or panel.lines[0].label):
        ax.legend(frameon=False, fontsize=8)


def _label_in_plain_numbers(axis: Any, low: float, high: float) -> None:
    """Label 1, 2, 5, 10 and so on, as what studies look at spans few decades; even steps where it spans less."""
    narrow = high < NARROW * low
    axis.set_major_locator(MaxNLocator(4) if narrow else LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())
