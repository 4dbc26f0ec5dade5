"""Colours, names and empty axes that every picture shares."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every common kind of colour blindness.
OBSERVED = "#56B4E9"  # sky blue
OBSERVED_EDGE = "#0072B2"  # blue
GAP = "#D55E00"  # vermilion
GAP_FILL = "#F9D9C3"  # vermilion, pale
COUNTS = "#4D4D4D"
GUIDE = "#000000"


def plain(name: str, *, width: int = 70) -> str:
    """Return a name as it is to be read: broken into lines, and dollar signs are no mathematics."""
    return textwrap.fill(name, width).replace("$", r"\$")


def new_axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure that no global state knows."""
    return Figure(figsize=(width, height), layout="constrained").add_subplot()
