"""Predicted probabilities of three classes in a triangle, with arrows to the observed frequencies."""

from collections.abc import Sequence
from math import ceil, sqrt
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.metrics import CanonicalCells
from kcal.plots.style import MARKERS, SERIES, check_kind, check_names, prepare_axes, wrap_label
from kcal.validation import check_integer

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, sqrt(3) / 2]])  # of the first, second and third class
POINTS = 2000  # at most, because more could not be distinguished
SHORT_LABEL = 20  # characters; with longer labels the legend has one column
CLASS_COLOURS = (SERIES[0], SERIES[4], SERIES[2])


def simplex_plot(
    cells: CanonicalCells,
    *,
    class_names: Sequence[str] | None = None,
    ax: Axes | None = None,
    minimum_count: int = 15,
    title: str | None = None,
) -> Axes:
    """Draw predictions of three classes in a triangle, with arrows to the observed frequencies.

    A corner is probability 1 of a class, the center of the triangle is one third each. Points are samples, marked by
    their true class. An arrow leads from the mean prediction of the samples in a cell to the class frequencies among
    them: the shorter, the better calibrated.

    Parameters
    ----------
    cells
        What `kcal.metrics.canonical_cells` returns for three classes; ``bins=5`` leaves enough samples in a cell.
    class_names
        Names of the three classes; "class 0" and so on if None.
    minimum_count
        Cells with fewer samples have no arrow, because it would be mostly noise.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.
    """
    check_kind(cells, "cells", CanonicalCells, "the result of kcal.metrics.canonical_cells(probs, labels, bins=5)")
    check_integer(minimum_count, "minimum_count", minimum=0, maximum=10**12)
    if cells.probs.shape[1] != 3:
        remedy = "Draw a reliability diagram per class for any other number."
        raise InvalidInputError("cells", "must be of three classes", got=str(cells.probs.shape[1]), remedy=remedy)
    names = [f"class {k}" for k in range(3)] if class_names is None else check_names(class_names, 3)
    ax = prepare_axes(ax, 6.4, 6.2, title)
    _draw_triangle(ax, cells.bins)
    handles = _draw_points(ax, cells.probs, cells.labels, names)
    handles += _draw_arrows(ax, cells, minimum_count)
    _name_corners(ax, names)
    longest = max(len(line) for handle in handles for line in str(handle.get_label()).splitlines())
    columns = 2 if longest <= SHORT_LABEL else 1  # a wide legend would leave the triangle no room
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns, frameon=False)
    return ax


def _draw_triangle(ax: Axes, bins: int) -> None:
    # The limits leave room for the names at the corners.
    ax.set_aspect("equal")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set(xlim=(-0.04, 1.04), ylim=(-0.12, sqrt(3) / 2 + 0.12))
    for k in range(3):
        first, second = (k + 1) % 3, (k + 2) % 3
        for share in np.arange(1, bins) / bins:  # lines of equal probability of class k
            ends = np.zeros((2, 3))
            ends[:, k], ends[0, first], ends[1, second] = share, 1 - share, 1 - share
            ax.plot(*(ends @ CORNERS).T, color="#B0B0B0", linewidth=0.6, zorder=1)
    ax.plot(*CORNERS[[0, 1, 2, 0]].T, color="black", linewidth=1.2, zorder=2)


def _draw_points(ax: Axes, probs: NDArray[np.floating], labels: NDArray[np.intp], names: list[str]) -> list[Line2D]:
    """Draw a part of the samples, marked by true class; return the entries of the legend."""
    every = ceil(len(probs) / POINTS)
    places, true = probs[::every] @ CORNERS, labels[::every]
    size = 4 if len(places) > 300 else 6
    handles = []
    for k, name in enumerate(names):
        style: dict[str, Any] = {"color": CLASS_COLOURS[k], "marker": MARKERS[k], "linestyle": "none"}
        of_class = places[true == k]
        ax.plot(*of_class.T, markersize=size, markeredgewidth=0, alpha=0.45, zorder=3, clip_on=False, **style)
        label = wrap_label(f"truly {name}", width=36, lines=1)
        handles.append(Line2D([], [], markersize=7, label=label, **style))
    if every > 1:
        handles.append(Line2D([], [], linestyle="none", label=f"one sample of {every} is drawn"))
    return handles


def _draw_arrows(ax: Axes, cells: CanonicalCells, minimum_count: int) -> list[Line2D]:
    """Draw the arrows of the cells with enough samples; return their entry of the legend if there are any."""
    enough = cells.counts >= max(minimum_count, 1)
    if not enough.any():
        return []
    tails, heads = cells.mean_prediction[enough], cells.observed_frequency[enough]
    starts, moves = tails @ CORNERS, (heads - tails) @ CORNERS
    ax.quiver(
        *starts.T, *moves.T, angles="xy", scale_units="xy", scale=1, width=0.007, headwidth=4, headlength=4.5,
        headaxislength=4.2, minlength=0.1, color="black", edgecolor="white", linewidth=0.6, zorder=4,
    )  # fmt: skip
    arrow: dict[str, Any] = {"marker": r"$\rightarrow$", "markersize": 14, "markeredgewidth": 0.2}
    return [Line2D([], [], color="black", linestyle="none", label="predicted → observed", **arrow)]


def _name_corners(ax: Axes, names: list[str]) -> None:
    places = ((-8, -6, "left", "top"), (8, -6, "right", "top"), (0, 6, "center", "bottom"))
    for k, (name, (x, y, horizontal, vertical)) in enumerate(zip(names, places, strict=True)):
        style: dict[str, Any] = {"ha": horizontal, "va": vertical, "fontsize": 11, "fontweight": "bold"}
        text = wrap_label(name, width=19, lines=2)
        ax.annotate(text, tuple(CORNERS[k]), xytext=(x, y), textcoords="offset points", **style)
