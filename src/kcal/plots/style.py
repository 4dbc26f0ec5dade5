"""Colours, marks, names and empty axes that every picture shares."""

import textwrap

from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart with every common kind of colour blindness.
OBSERVED = "#56B4E9"  # sky blue
OBSERVED_EDGE = "#0072B2"  # blue
GAP = "#D55E00"  # vermilion
GAP_FILL = "#F9D9C3"  # vermilion, pale
BAND = "#000000"
COUNTS = "#4D4D4D"
GUIDE = "#000000"

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<")
LINES = ("-", "--", "-.", ":")
"""Methods and classes take these in turn; their lengths share no factor, so that no pair comes back soon."""


def plain(name: str, *, width: int = 70, lines: int = 3) -> str:
    """Return a name as it is to be read: broken into lines, dollar signs no mathematics.

    One that is too long is cut in the middle: its end is what tells it from its like.
    """
    text = " ".join(str(name).split())
    shown = textwrap.wrap(text, width)
    kept = lines * width - 1
    while len(shown) > lines:
        kept -= 1
        shown = textwrap.wrap(f"{text[: kept - kept // 2]}…{text[len(text) - kept // 2 :]}", width)
    return "\n".join(shown).replace("$", r"\$")


def new_axes(width: float, height: float) -> Axes:
    """Return the axes of a new figure that no global state knows."""
    return Figure(figsize=(width, height), layout="constrained").add_subplot()
