"""Figures of kcal.plots as SVG inside HTML.

The SVG is part of the document, not an image. Its neutral colours are variables of the style sheet: figures follow a
light or dark theme, their text is found by a search, and their fonts are those of the reader.
"""

import io
import re
import warnings
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.plots.reliability import STRIP
from kcal.plots.style import COUNTS, GAP_FILL, OBSERVED, OBSERVED_EDGE
from kcal.report.html import Markup

PIXELS_PER_INCH = 96
THEME = {
    "#000000": "var(--text)",
    "#ffffff": "var(--back)",
    "#cccccc": "var(--line)",
    "#b0b0b0": "var(--line)",
    COUNTS.lower(): "var(--counts)",
    OBSERVED.lower(): "var(--bar)",
    OBSERVED_EDGE.lower(): "var(--strong)",
    GAP_FILL.lower(): "var(--gap)",
}
"""Colours that follow the theme; the others are visible on light and on dark backgrounds."""


def inline_svg(ax: Axes, description: str) -> Markup:
    """Return the figure of ``ax`` as an SVG element in the colours of the style sheet.

    Parameters
    ----------
    ax : Axes
        Any axes of the figure.
    description : str
        Alternative text; the figures of one document need different ones, which their identifiers are derived from.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    # Text stays text, and the browser chooses fonts for all alphabets. The salt gives the same bytes every time.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": description}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    width, height = (round(PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    start = Markup('<svg class="plot" role="img" aria-label="{}" width="{}" height="{}" ')
    return start.format(description, width, height) + Markup(_svg_content(buffer.getvalue().decode("utf-8")))


def _svg_content(text: str) -> str:
    """Return an SVG document from its viewBox on, in the colours of the theme, without what only a file needs."""
    viewbox = re.search(r'viewBox="[^"]*"', text)
    assert viewbox is not None
    inside = re.sub(r"^.*?<svg[^>]*>|<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    inside = re.sub(r'<g id="[^"]*"', "<g", inside)  # numbered, and so not unique in a document
    inside = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', inside)  # of hatched areas
    themed = re.sub(r'style="[^"]*"', lambda style: re.sub(r"#[0-9a-f]{6}\b", _themed, style[0]), inside)
    return f"{viewbox[0]}>{themed}".rstrip()


def _themed(colour: re.Match[str]) -> str:
    return THEME.get(colour[0], colour[0])


def square_axes(size: float) -> Axes:
    """Return square axes of this size in inches with room for a title, labels and the strip of the counts.

    They are at a fixed place: with as many figures as classes, a layout engine would take long.
    """
    left, right, top, bottom = 0.6, 0.15, 0.45, 0.5 - size * STRIP[1]
    width, height = left + size + right, bottom + size + top
    return Figure(figsize=(width, height)).add_axes((left / width, bottom / height, size / width, size / height))
