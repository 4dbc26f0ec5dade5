"""Pictures as parts of a page: figures of kcal.plots as SVG within the HTML."""

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kcal.metrics import CanonicalCells, RejectionCurve, ReliabilityBins
from kcal.plots import rejection_curve, reliability_diagram, simplex_plot
from kcal.plots.style import new_axes
from kcal.plots.style import wrap_label as plain
from kcal.report.markup import escaped

# Text stays text, drawn by the browser, which knows more alphabets than one font does; same input, same bytes.
SVG_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "kcal"}


def picture(figure: Figure, description: str, *, caption: str = "") -> str:
    """Return a figure as HTML, with a description for those who cannot see it; the caption is HTML."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(), matplotlib.rc_context(SVG_SETTINGS):
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    width, height = (round(96 * inches) for inches in figure.get_size_inches())
    content = base64.b64encode(buffer.getvalue()).decode("ascii")
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return (
        f'<figure><img src="data:image/svg+xml;base64,{content}" width="{width}" height="{height}" '
        f'alt="{escaped(description)}">{below}</figure>'
    )


def confidence_picture(name: str, bins: ReliabilityBins, minimum_count: int, confidence: float, caption: str) -> str:
    """Return the reliability diagram of the top class under one method."""
    ax = reliability_diagram(
        bins,
        ax=new_axes(4.6, 3.9),
        legend=False,
        minimum_count=minimum_count,
        confidence=confidence,
        title=plain(name, width=40, lines=2),
    )
    assert isinstance(ax.figure, Figure)
    return picture(ax.figure, f"Reliability diagram of the confidence, {name}", caption=caption)


def class_picture(name: str, class_name: str, bins: ReliabilityBins, minimum_count: int, confidence: float) -> str:
    """Return the reliability diagram of one class under one method, small; the class is named beside it."""
    ax = reliability_diagram(
        bins,
        ax=_small_axes(),
        legend=False,
        minimum_count=minimum_count,
        confidence=confidence,
        title=plain(name, width=32, lines=1),
    )
    ax.set_xlabel("predicted probability")
    assert isinstance(ax.figure, Figure)
    counts_ax = ax.figure.axes[1]
    counts_ax.set_ylabel("samples")
    counts_ax.minorticks_off()
    return picture(ax.figure, f"Reliability diagram of class {class_name}, {name}")


def rejection_picture(curves: Mapping[str, RejectionCurve], minimum_count: int) -> str:
    """Return the accuracy of what is kept against what is rejected."""
    ax = rejection_curve(curves, ax=new_axes(5.4, 3.9), minimum_count=minimum_count)
    assert isinstance(ax.figure, Figure)
    return picture(ax.figure, "Accuracy of the samples that are kept, against the share that is rejected")


def simplex_picture(name: str, cells: CanonicalCells, class_names: Sequence[str], minimum_count: int) -> str:
    """Return predictions of three classes in a triangle."""
    ax = simplex_plot(
        cells,
        class_names=class_names,
        ax=new_axes(4.8, 4.8),
        minimum_count=minimum_count,
        title=plain(name, width=40, lines=1),
    )
    assert isinstance(ax.figure, Figure)
    return picture(ax.figure, f"Predictions of the three classes in a triangle, {name}")


def legend(*, minimum_count: int, confidence: float) -> str:
    """Return what the marks of reliability diagrams mean."""
    marks = (
        ("observed", "observed frequency"),
        ("gap", "gap to the mean prediction"),
        ("band", f"{100 * confidence:.6g} % confidence band"),
        ("diagonal", "perfect calibration"),
        ("dot", "samples (right axis)"),
        ("hollow", f"under {minimum_count} samples: no bar"),
    )
    items = "\n".join(f'<li><span class="mark {kind}"></span>{escaped(text)}</li>' for kind, text in marks)
    return f'<ul class="legend">\n{items}\n</ul>'


def _small_axes() -> Axes:
    """Return axes at fixed places: with as many pictures as classes, finding the best ones would take long."""
    return Figure(figsize=(3.4, 3.0)).add_axes((0.16, 0.155, 0.68, 0.745))
