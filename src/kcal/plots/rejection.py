"""Accuracy against the share of predictions that is rejected, least confident first."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from kcal.metrics import RejectionCurve
from kcal.plots.arguments import check_arguments, check_count, check_kind
from kcal.plots.style import LINES, MARKERS, SERIES, prepare_axes, wrap_label

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
    minimum_count
        Lines end where fewer samples are kept, because their accuracy is mostly noise.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.
    """
    check_kind(curves, "curves", Mapping, f"a dictionary from the name of a method to {SOURCE}")
    check_count(len(curves), "curves", "methods")
    for name, curve in curves.items():
        check_kind(curve, f"curves[{name!r}]", RejectionCurve, SOURCE)
    check_arguments(minimum_count=minimum_count)
    ax = prepare_axes(ax, 6.4, 4.2, title)
    lowest = min(_draw_curve(ax, *named, minimum_count, place) for place, named in enumerate(curves.items()))
    span = max(1 - lowest, 0.02)
    ax.set(xlim=(0, 1), ylim=(1 - 1.08 * span, 1 + 0.05 * span))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set(xlabel="samples rejected, least confident first", ylabel="accuracy of the rest")
    ax.grid(alpha=0.25)
    if len(curves) <= FEW:
        ax.legend(loc="lower right", frameon=True, framealpha=0.9)
    else:  # a long legend would hide the lines
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
    return ax


def _draw_curve(ax: Axes, name: str, curve: RejectionCurve, minimum_count: int, place: int) -> float:
    """Draw one line; return its lowest accuracy."""
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
    return float(accuracies.min())
