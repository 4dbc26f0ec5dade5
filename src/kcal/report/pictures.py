"""The sections of a report that show plots: figures of kcal.plots as SVG inside the HTML.

The SVG is part of the page, not an image, so that its neutral colours are variables of the style sheet: pictures follow
a light or dark page, their text is found by a search, and their fonts are those of the reader.
"""

import io
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.plots import rejection_curve, reliability_diagram, simplex_plot
from kcal.plots.reliability import STRIP
from kcal.plots.style import COUNTS, GAP_FILL, OBSERVED, OBSERVED_EDGE, new_axes, wrap_label
from kcal.report.contents import Contents
from kcal.report.markup import escaped, percent, section

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
"""Colours of the plots that follow the page; the others are visible on light and on dark ones."""


def confidence_section(contents: Contents) -> str:
    """Return the reliability diagrams of the confidence."""
    text = (
        "<p>Of the samples whose top class was predicted with confidence p, is a share p correct? Where dots lie on "
        "the diagonal, it is. A hatched gap above the strong line means that the confidence was too high, below it "
        f"too low. Bars use bins of equal width, merged where they have under {contents.minimum_count:,} samples; "
        f"calibration errors use {contents.bins_text} of equal count. The strip below has the samples of each bin.</p>"
    )
    pictures = []
    for method, evaluation in contents.evaluations.items():
        title, options = wrap_label(method, width=40, lines=2), _diagram_options(contents)
        ax = reliability_diagram(contents.confidence_bins[method], ax=_square_axes(4.4), title=title, **options)
        error, accuracy = percent(evaluation.expected_calibration_error), percent(evaluation.accuracy)
        caption = f"calibration error {error} %, accuracy {accuracy} %"
        pictures.append(_picture(ax, f"Reliability diagram of the confidence, {method}", caption=caption))
    return section("confidence", "Reliability of the confidence", _illustrated(text + legend(contents), pictures))


def class_pictures(contents: Contents, k: int) -> str:
    """Return a small reliability diagram of one class for every method."""
    pictures = []
    for method, bins in contents.class_bins[k].items():
        ax = _square_axes(2.7)
        reliability_diagram(bins, ax=ax, title=wrap_label(method, width=32, lines=1), **_diagram_options(contents))
        ax.child_axes[0].set_xlabel("predicted probability")
        pictures.append(_picture(ax, f"Reliability diagram of class {contents.class_names[k]}, {method}"))
    return _side_by_side(pictures)


def simplex_section(contents: Contents) -> str:
    """Return the predictions of three classes in triangles; empty text for any other number of classes."""
    if not contents.cells:
        return ""
    text = (
        "<p>A corner is probability 1 of a class. Arrows lead from the mean prediction of the samples in a cell to "
        "the observed frequencies: the shorter, the better calibrated.</p>"
    )
    options: dict[str, Any] = {"class_names": contents.class_names, "minimum_count": contents.minimum_count}
    pictures = []
    for method, cells in contents.cells.items():
        ax = simplex_plot(cells, ax=new_axes(4.8, 4.8), title=wrap_label(method, width=40, lines=1), **options)
        pictures.append(_picture(ax, f"Predictions of the three classes in a triangle, {method}"))
    return section("simplex", "All three classes at once", _illustrated(text, pictures))


def rejection_section(contents: Contents) -> str:
    """Return the accuracy under rejection."""
    text = (
        "<p>Accuracy of the remaining predictions if the least confident are rejected. The area is the mean accuracy "
        "over all rejected shares; higher is better.</p>"
    )
    ax = rejection_curve(contents.rejection, ax=new_axes(6.4, 4.2), minimum_count=contents.minimum_count)
    description = "Accuracy of the samples that are kept, against the share that is rejected"
    return section("rejection", "Accuracy under rejection", _illustrated(text, [_picture(ax, description)]))


def legend(contents: Contents) -> str:
    """Return the legend of the reliability diagrams."""
    marks = (
        ("observed", "observed frequency"),
        ("gap", "gap to the mean prediction"),
        ("band", f"{100 * contents.band:.6g} % confidence band"),
        ("diagonal", "perfect calibration"),
        ("counts", "samples (log scale)"),
    )
    items = "\n".join(f'<li><span class="mark {kind}"></span>{escaped(text)}</li>' for kind, text in marks)
    return f'<ul class="legend">\n{items}\n</ul>'


def _diagram_options(contents: Contents) -> dict[str, Any]:
    return {"legend": False, "minimum_count": contents.minimum_count, "confidence": contents.band}


def _square_axes(size: float) -> Axes:
    """Return square axes of this size in inches with room for a title, labels and the strip of the counts.

    They are at a fixed place: with as many pictures as classes, a layout engine would take long.
    """
    left, right, top, bottom = 0.6, 0.15, 0.45, 0.5 - size * STRIP[1]
    width, height = left + size + right, bottom + size + top
    return Figure(figsize=(width, height)).add_axes((left / width, bottom / height, size / width, size / height))


def _picture(ax: Axes, description: str, *, caption: str = "") -> str:
    """Return the figure of ``ax`` as HTML with an alternative text; the caption is HTML."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    # Text stays text, so that the browser chooses fonts for all alphabets. The salt gives the same bytes every time,
    # and identifiers that differ from those of the other pictures of the page.
    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": description}
    with warnings.catch_warnings(), matplotlib.rc_context(settings):
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    width, height = (round(PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure><svg class="plot" role="img" aria-label="{escaped(description)}" width="{width}" height="{height}" '
        f"{_svg_content(buffer.getvalue().decode('utf-8'))}{below}</figure>"
    )


def _svg_content(text: str) -> str:
    """Return an SVG document from its viewBox on, in the colours of the page, without what only a file needs."""
    viewbox = re.search(r'viewBox="[^"]*"', text)
    assert viewbox is not None
    inside = re.sub(r"^.*?<svg[^>]*>|<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    inside = re.sub(r'<g id="[^"]*"', "<g", inside)  # numbered, and so not unique in a page
    inside = re.sub(r' fill="(#[0-9a-f]{6})"', r' style="fill: \1"', inside)  # of hatched areas
    themed = re.sub(r'style="[^"]*"', lambda style: re.sub(r"#[0-9a-f]{6}\b", _themed, style[0]), inside)
    return f"{viewbox[0]}>{themed}".rstrip()


def _themed(colour: re.Match[str]) -> str:
    return THEME.get(colour[0], colour[0])


def _illustrated(text: str, pictures: Sequence[str]) -> str:
    """Return text above pictures, or beside a single one where the page is wide enough."""
    if len(pictures) > 1:
        return f"{text}\n{_side_by_side(pictures)}"
    return f'<div class="beside">\n<div>{text}</div>\n{pictures[0]}\n</div>'


def _side_by_side(pictures: Iterable[str]) -> str:
    """Return pictures in rows that wrap at the width of the page."""
    return '<div class="pictures">\n' + "\n".join(pictures) + "\n</div>"
