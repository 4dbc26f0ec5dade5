"""Training of a projection: loss and learning rate at each recorded step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.plots.arguments import check_kind
from kcal.plots.style import COUNTS, OBSERVED_EDGE, prepare_axes

if TYPE_CHECKING:
    from kcal.projection import TrainingCurve


def training_curve(curve: TrainingCurve, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the mean training log-loss up to each recorded step, and the learning rate on a logarithmic right axis.

    Parameters
    ----------
    curve
        The attribute ``curve`` of a `TrainedProjection`.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.

    Returns
    -------
    Axes
        The axes of the losses; those of the learning rate lie over them.
    """
    steps, losses, rates = _check_curve(curve)
    ax = prepare_axes(ax, 6.4, 4.0, title, pad=28)
    handles = ax.plot(steps, losses, color=OBSERVED_EDGE, marker="o", markersize=4, label="log-loss")
    ax.set(xlabel="training step", ylabel="training log-loss")
    ax.grid(alpha=0.25)
    if (rates > 0).any():
        # A single step has no visible line, and its two markers may coincide.
        mark = {"marker": "s", "markersize": 10, "markerfacecolor": "none"} if len(steps) == 1 else {}
        style: dict[str, Any] = {"color": COUNTS, "linestyle": "--", "label": "learning rate (right axis)", **mark}
        rates_ax = ax.twinx()
        handles += rates_ax.plot(steps, rates, drawstyle="steps-pre", **style)
        rates_ax.set_yscale("log")
        rates_ax.set_ylabel("learning rate (log scale)", color=COUNTS)
        rates_ax.tick_params(axis="y", which="both", colors=COUNTS)
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return ax


def _check_curve(curve: Any) -> list[NDArray[np.float64]]:
    """Return steps, losses and learning rates as arrays."""
    from kcal.projection import TrainingCurve  # here, because it imports torch, which other plots do not need

    check_kind(curve, "curve", TrainingCurve, "train_projection(...).curve")
    parts = [np.asarray(part, dtype=np.float64) for part in (curve.steps, curve.losses, curve.learning_rates)]
    sizes = [len(part) for part in parts]
    if len(set(sizes)) > 1 or sizes[0] == 0:
        raise InvalidInputError(
            "curve",
            "must have a loss and a learning rate for each step, and at least one step",
            got="{} steps, {} losses and {} learning rates".format(*sizes),
        )
    return parts
