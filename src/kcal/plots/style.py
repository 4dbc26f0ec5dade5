"""Colours, markers, labels and axes that all plots share."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.plots.arguments import check_arguments

# Colours of Okabe and Ito, which people with any common colour blindness can distinguish.
OBSERVED = "#56B4E9"  # sky blue
OBSERVED_EDGE = "#0072B2"  # blue
GAP = "#D55E00"  # vermilion
GAP_FILL = "#F9D9C3"  # pale vermilion
BAND = "#000000"
COUNTS = "#4D4D4D"
GUIDE = "#000000"

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
LINES = ("-", "--", "-.", ":")
"""Methods and classes cycle through these; the lengths have no common factor, so that combinations repeat late."""


def wrap_label(name: str, *, width: int = 70, lines: int = 3) -> str:
    """Return a name broken into lines, with dollar signs escaped so that matplotlib does not read them as mathematics.

    A name that is too long is cut in the middle, because similar names often differ at the end.
    """
    text = " ".join(str(name).split())
    wrapped = textwrap.wrap(text, width)
    n_kept = lines * width - 1
    while len(wrapped) > lines:
        n_kept -= 1
        wrapped = textwrap.wrap(f"{text[: n_kept - n_kept // 2]}…{text[len(text) - n_kept // 2 :]}", width)
    return "\n".join(wrapped).replace("$", r"\$")


def new_axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure that pyplot does not know."""
    return Figure(figsize=(width, height), layout="constrained").add_subplot()


def prepare_axes(ax: Axes | None, width: float, height: float, title: str | None, *, pad: float | None = None) -> Axes:
    """Return the axes to draw on, with their title; those of a new figure of this size in inches if None."""
    check_arguments(ax=ax, title=title)
    axes = new_axes(width, height) if ax is None else ax
    if title is not None:
        axes.set_title(title, pad=pad)
    return axes
