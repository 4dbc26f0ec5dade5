"""Plots as parts of a page: figures of kcal.plots as SVG inside the HTML."""

import base64
import io
import warnings
from collections.abc import Iterable
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.metrics import ReliabilityBins
from kcal.plots import rejection_curve, reliability_diagram, simplex_plot
from kcal.plots.style import new_axes, wrap_label
from kcal.report.contents import Contents
from kcal.report.markup import escaped

# Text stays text, so that the browser chooses fonts for all alphabets; the fixed salt gives the same bytes every time.
SVG_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "kcal"}
PIXELS_PER_INCH = 96


def picture(ax: Axes, description: str, *, caption: str = "") -> str:
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


def side_by_side(pictures: Iterable[str]) -> str:
    """Return pictures in rows that wrap at the width of the page."""
    return '<div class="pictures">\n' + "\n".join(pictures) + "\n</div>"


def confidence_picture(contents: Contents, method: str, caption: str) -> str:
    """Return the reliability diagram of the confidence of one method."""
    title = wrap_label(method, width=40, lines=2)
    ax = _diagram(contents, contents.confidence_bins[method], new_axes(4.6, 3.9), title)
    return picture(ax, f"Reliability diagram of the confidence, {method}", caption=caption)


def class_picture(contents: Contents, k: int, method: str) -> str:
    """Return a small reliability diagram of one class and one method."""
    # Axes at a fixed place: with as many pictures as classes, a layout engine would take long.
    ax = Figure(figsize=(3.4, 3.0)).add_axes((0.16, 0.155, 0.68, 0.745))
    _diagram(contents, contents.class_bins[k][method], ax, wrap_label(method, width=32, lines=1))
    ax.set_xlabel("predicted probability")
    counts_ax = ax.figure.axes[1]
    counts_ax.set_ylabel("samples")
    counts_ax.minorticks_off()
    return picture(ax, f"Reliability diagram of class {contents.class_names[k]}, {method}")


def _diagram(contents: Contents, bins: ReliabilityBins, ax: Axes, title: str) -> Axes:
    count, confidence = contents.minimum_count, contents.band
    return reliability_diagram(bins, ax=ax, legend=False, minimum_count=count, confidence=confidence, title=title)


def rejection_picture(contents: Contents) -> str:
    """Return the accuracy of the kept samples against the rejected share."""
    ax = rejection_curve(contents.rejection, ax=new_axes(5.4, 3.9), minimum_count=contents.minimum_count)
    return picture(ax, "Accuracy of the samples that are kept, against the share that is rejected")


def simplex_picture(contents: Contents, method: str) -> str:
    """Return the predictions of three classes in a triangle."""
    ax = simplex_plot(
        contents.cells[method],
        class_names=contents.class_names,
        ax=new_axes(4.8, 4.8),
        minimum_count=contents.minimum_count,
        title=wrap_label(method, width=40, lines=1),
    )
    return picture(ax, f"Predictions of the three classes in a triangle, {method}")


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
