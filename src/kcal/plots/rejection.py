"""How accuracy grows as the least confident predictions are rejected."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from kcal.errors import InvalidInputError
from kcal.metrics.rejection import RejectionCurve
from kcal.plots.style import LINES, MARKERS, SERIES, new_axes, plain

FEW = 3
"""Methods whose legend has room beside the lines."""


def rejection_curve(
    curves: Mapping[str, RejectionCurve],
    *,
    ax: Axes | None = None,
    minimum_count: int = 15,
    title: str | None = None,
) -> Axes:
    """Draw the accuracy of the samples that are kept against the share that is rejected, a line for each method.

    Equal confidences are rejected together: a line that ends early has many samples of the highest confidence.

    Parameters
    ----------
    curves
        For each method, by name, what `kcal.metrics.accuracy_rejection` returns.
    ax
        Where to draw; a new figure if None.
    minimum_count
        Lines end where fewer samples are kept, because their accuracy is mostly chance.
    title
        Heading of the picture.
    """
    _check(curves)
    if ax is None:
        ax = new_axes(6.4, 4.2)
    lowest = 1.0
    for place, (name, curve) in enumerate(curves.items()):
        kept = (1 - curve.rejected) * curve.n_samples
        shown = kept >= min(minimum_count, curve.n_samples) - 0.5
        accuracies = curve.accuracies[shown]
        ax.plot(
            curve.rejected[shown],
            accuracies,
            color=SERIES[place % len(SERIES)],
            linestyle=LINES[place % len(LINES)],
            marker=MARKERS[place % len(MARKERS)],
            markersize=6,
            # Marks at even distances along the line, each method's at other places.
            markevery=(0.03 * (place % 5), 0.15) if len(accuracies) > 10 else 1,
            label=f"{plain(name, width=40, lines=1)}: area {curve.area:.4f}",
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
    if title is not None:
        ax.set_title(title)
    return ax


def _check(curves: Mapping[str, RejectionCurve]) -> None:
    if not isinstance(curves, Mapping) or len(curves) == 0:
        raise InvalidInputError(
            "curves must map at least one method's name to what accuracy_rejection(probs, labels) returns; "
            f"got {type(curves).__name__ if not isinstance(curves, Mapping) else 'none'}."
        )
    for name, curve in curves.items():
        if not isinstance(curve, RejectionCurve):
            raise InvalidInputError(
                f"the curve of {name!r} must be what accuracy_rejection(probs, labels) returns; "
                f"got {type(curve).__name__}."
            )
