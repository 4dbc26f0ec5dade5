"""The sections of a report that show plots: figures of kcal.plots as SVG inside the HTML."""

import base64
import io
import warnings
from collections.abc import Iterable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.plots import rejection_curve, reliability_diagram, simplex_plot
from kcal.plots.style import new_axes, wrap_label
from kcal.report.contents import Contents
from kcal.report.markup import escaped, percent, section

# Text stays text, so that the browser chooses fonts for all alphabets; the fixed salt gives the same bytes every time.
SVG_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "kcal"}
PIXELS_PER_INCH = 96


def confidence_section(contents: Contents) -> str:
    """Return the reliability diagrams of the confidence."""
    text = (
        "<p>Of the samples whose top class was predicted with confidence p, is a share p correct? Where bars end on "
        "the diagonal, it is. A hatched gap above the strong line means that the confidence was too high, below it "
        f"too low. Bars use bins of equal width, calibration errors {contents.bins_text} of equal count.</p>"
    )
    pictures = []
    for method, evaluation in contents.evaluations.items():
        title, options = wrap_label(method, width=40, lines=2), _diagram_options(contents)
        ax = reliability_diagram(contents.confidence_bins[method], ax=new_axes(4.6, 3.9), title=title, **options)
        error, accuracy = percent(evaluation.expected_calibration_error), percent(evaluation.accuracy)
        caption = f"calibration error {error} %, accuracy {accuracy} %"
        pictures.append(_picture(ax, f"Reliability diagram of the confidence, {method}", caption=caption))
    return section("confidence", "Reliability of the confidence", text, legend(contents), _side_by_side(pictures))


def class_pictures(contents: Contents, k: int) -> str:
    """Return a small reliability diagram of one class for every method."""
    pictures = []
    for method, bins in contents.class_bins[k].items():
        # Axes at a fixed place: with as many pictures as classes, a layout engine would take long.
        ax = Figure(figsize=(3.4, 3.0)).add_axes((0.16, 0.155, 0.68, 0.745))
        reliability_diagram(bins, ax=ax, title=wrap_label(method, width=32, lines=1), **_diagram_options(contents))
        ax.set_xlabel("predicted probability")
        counts_ax = ax.figure.axes[1]
        counts_ax.set_ylabel("samples")
        counts_ax.minorticks_off()
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
    return section("simplex", "All three classes at once", text, _side_by_side(pictures))


def rejection_section(contents: Contents) -> str:
    """Return the accuracy under rejection."""
    text = (
        "<p>Accuracy of the remaining predictions if the least confident are rejected. The area is the mean accuracy "
        "over all rejected shares; higher is better.</p>"
    )
    ax = rejection_curve(contents.rejection, ax=new_axes(5.4, 3.9), minimum_count=contents.minimum_count)
    description = "Accuracy of the samples that are kept, against the share that is rejected"
    return section("rejection", "Accuracy under rejection", text, _picture(ax, description))


def legend(contents: Contents) -> str:
    """Return the legend of the reliability diagrams."""
    marks = (
        ("observed", "observed frequency"),
        ("gap", "gap to the mean prediction"),
        ("band", f"{100 * contents.band:.6g} % confidence band"),
        ("diagonal", "perfect calibration"),
        ("dot", "samples (right axis)"),
        ("hollow", f"under {contents.minimum_count} samples: no bar"),
    )
    items = "\n".join(f'<li><span class="mark {kind}"></span>{escaped(text)}</li>' for kind, text in marks)
    return f'<ul class="legend">\n{items}\n</ul>'


def _diagram_options(contents: Contents) -> dict[str, Any]:
    return {"legend": False, "minimum_count": contents.minimum_count, "confidence": contents.band}


def _picture(ax: Axes, description: str, *, caption: str = "") -> str:
    """Return the figure of ``ax`` as HTML with an alternative text; the caption is HTML."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context(SVG_SETTINGS):
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    width, height = (round(PIXELS_PER_INCH * inches) for inches in figure.get_size_inches())
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure><img src="data:image/svg+xml;base64,{content}" width="{width}" height="{height}" '
        f'alt="{escaped(description)}">{below}</figure>'
    )


def _side_by_side(pictures: Iterable[str]) -> str:
    """Return pictures in rows that wrap at the width of the page."""
    return '<div class="pictures">\n' + "\n".join(pictures) + "\n</div>"
