"""Accuracy against the share of predictions that is rejected, least confident first."""

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from kcal.errors import InvalidInputError
from kcal.metrics.rejection import RejectionCurve
from kcal.plots.arguments import check_minimum_count, check_panel_count, check_result, prepare_axes
from kcal.plots.style import LINES, MARKERS, SERIES, wrap_label
from kcal.validation import shown

SOURCE = "the result of kcal.metrics.accuracy_rejection(probs, labels)"
FEW = 3
"""Number of methods whose legend has room inside the axes."""


def rejection_curve(
    curves: Mapping[str, RejectionCurve],
    *,
    ax: Axes | None = None,
    minimum_count: int = 15,
    title: str | None = None,
) -> Axes:
    """Draw the accuracy of the kept samples against the rejected share, one line per method.

    Equal confidences are rejected together: a line that ends early has many samples of the highest confidence.

    Parameters
    ----------
    curves
        What `kcal.metrics.accuracy_rejection` returns, by name of the method.
    ax
        Axes to draw on; a new figure if None.
    minimum_count
        Lines end where fewer samples are kept, because their accuracy is mostly noise.
    title
        Title of the axes.
    """
    _check_curves(curves)
    check_minimum_count(minimum_count)
    ax = prepare_axes(ax, 6.4, 4.2, title)
    lowest = 1.0
    for place, (name, curve) in enumerate(curves.items()):
        kept = (1 - curve.rejected) * curve.n_samples
        visible = kept >= min(minimum_count, curve.n_samples) - 0.5
        accuracies = curve.accuracies[visible]
        ax.plot(
            curve.rejected[visible],
            accuracies,
            color=SERIES[place % len(SERIES)],
            linestyle=LINES[place % len(LINES)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=6,
            # Markers at equal distances along the line, shifted from method to method.
            markevery=(0.03 * (place % 5), 0.15) if len(accuracies) > 10 else 1,
            label=f"{wrap_label(name, width=40, lines=1)}: area {curve.area:.4f}",
        )
        lowest = min(lowest, float(accuracies.min()))
    ax.set_xlim(0, 1)
    span = max(1 - lowest, 0.02)
    ax.set_ylim(1 - 1.08 * span, 1 + 0.05 * span)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("samples rejected, least confident first")
    ax.set_ylabel("accuracy of the rest")
    ax.grid(alpha=0.25)
    if len(curves) <= FEW:
        ax.legend(loc="lower right", frameon=True, framealpha=0.9)
    else:  # a long legend would hide the lines
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    return ax


def _check_curves(curves: Any) -> None:
    if not isinstance(curves, Mapping) or len(curves) == 0:
        raise InvalidInputError(
            "curves",
            f"must map at least one method's name to {SOURCE}",
            got=shown(curves),
        )
    check_panel_count(len(curves), "curves")
    for name, curve in curves.items():
        check_result(curve, RejectionCurve, f"curves[{name!r}]", SOURCE)
