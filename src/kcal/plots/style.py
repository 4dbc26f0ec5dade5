"""Colours, markers, labels, axes and checks that all plots share."""

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.errors import InvalidInputError
from kcal.validation import shown

MAX_PANELS = 400
"""More panels, methods or curves would give a figure too large to draw."""

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
    axes = new_axes(width, height) if ax is None else ax
    if title is not None:
        axes.set_title(title, pad=pad)
    return axes


def check_kind(value: Any, name: str, kind: Any, expected: str) -> None:
    """Raise if ``value`` is not of this type."""
    if not isinstance(value, kind):
        raise InvalidInputError(name, f"must be {expected}", got=shown(value))


def check_names(names: Any, n_names: int | None = None) -> list[str]:
    """Return names as a list of text; raise if they are not a list, empty, or not ``n_names``."""
    found = list(names) if isinstance(names, Sequence) and not isinstance(names, str | bytes) else None
    found = names.tolist() if getattr(names, "ndim", 0) == 1 else found
    if not found or len(found) != (n_names or len(found)):
        expected = f"must be a list of {n_names} names, one per class" if n_names else "must be a list of names"
        raise InvalidInputError("class_names", expected, got=shown(names))
    return [str(entry) for entry in found]


def check_count(count: int, name: str, noun: str) -> None:
    """Raise if a figure would be empty, or have more of these than can be drawn."""
    if not 0 < count <= MAX_PANELS:
        raise InvalidInputError(name, f"must have 1 to {MAX_PANELS} {noun}", got=f"{count:,}")
