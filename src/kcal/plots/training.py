"""How a projection learned: the training loss and the learning rate, step by step."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from kcal.errors import InvalidInputError
from kcal.plots.style import COUNTS, OBSERVED_EDGE, new_axes
from kcal.projection import TrainingCurve


def training_curve(curve: TrainingCurve, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the mean training log-loss up to each noted step, and the learning rate on a logarithmic right axis.

    Parameters
    ----------
    curve
        What a `TrainedProjection` holds as ``curve``.
    ax
        Where to draw; a new figure if None.
    title
        Heading of the picture.

    Returns
    -------
    Axes
        The axes of the losses; those of the learning rate lie over them.
    """
    steps, losses, rates = _checked(curve)
    if ax is None:
        ax = new_axes(6.4, 4.0)
    ax.plot(steps, losses, color=OBSERVED_EDGE, marker="o", markersize=4)
    ax.set_xlabel("training step")
    ax.set_ylabel("training log-loss")
    ax.grid(alpha=0.25)
    handles = [Line2D([], [], color=OBSERVED_EDGE, marker="o", markersize=4, label="log-loss")]
    if (rates > 0).any():
        # A single step has no line to be seen, and its two marks may coincide.
        mark = {"marker": "s", "markersize": 10, "markerfacecolor": "none"} if len(steps) == 1 else {}
        rate_style: dict[str, Any] = {"color": COUNTS, "linestyle": "--", **mark}
        rates_ax = ax.twinx()
        rates_ax.plot(steps, rates, drawstyle="steps-pre", **rate_style)
        rates_ax.set_yscale("log")
        rates_ax.set_ylabel("learning rate (log scale)", color=COUNTS)
        rates_ax.tick_params(axis="y", which="both", colors=COUNTS)
        handles.append(Line2D([], [], label="learning rate (right axis)", **rate_style))
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    if title is not None:
        ax.set_title(title, pad=28)
    return ax


def _checked(curve: TrainingCurve) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if not isinstance(curve, TrainingCurve):
        raise InvalidInputError(
            f"curve must be a TrainingCurve, such as train_projection(...).curve; got {type(curve).__name__}."
        )
    steps, losses, rates = (
        np.asarray(part, dtype=np.float64) for part in (curve.steps, curve.losses, curve.learning_rates)
    )
    if not (len(steps) == len(losses) == len(rates)) or len(steps) == 0:
        raise InvalidInputError(
            "a training curve needs a loss and a learning rate for each step, and at least one step; "
            f"got {len(steps)} steps, {len(losses)} losses and {len(rates)} learning rates."
        )
    return steps, losses, rates
