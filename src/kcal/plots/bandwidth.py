"""The loss against the bandwidth, with the bandwidth that was chosen."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.plots.arguments import check_numbers
from kcal.plots.style import GAP, OBSERVED_EDGE, prepare_axes
from kcal.validation import check_number

LARGEST_BANDWIDTH = 1e18


def bandwidth_curve(
    bandwidths: ArrayLike,
    losses: ArrayLike,
    chosen: float,
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the loss at each bandwidth that a search evaluated, and mark the chosen one.

    Parameters
    ----------
    bandwidths, losses
        The bandwidths, (n,), in any order, and the loss at each of them.
    chosen
        The bandwidth that the search chose.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.
    """
    widths, values = check_numbers(bandwidths, "bandwidths"), check_numbers(losses, "losses")
    if widths.shape != values.shape:
        raise InvalidInputError("losses", f"must have {len(widths)} entries, one per bandwidth", got=str(len(values)))
    if not ((widths > 0) & (widths <= LARGEST_BANDWIDTH)).all():
        raise InvalidInputError("bandwidths", "must be positive numbers", got=f"{widths.min():g} to {widths.max():g}")
    chosen = check_number(chosen, "chosen", minimum=0.0, maximum=LARGEST_BANDWIDTH, exclusive=True)
    ax = prepare_axes(ax, 6.4, 4.0, title)
    order = np.argsort(widths, kind="stable")
    ax.plot(widths[order], values[order], "o-", color=OBSERVED_EDGE, markersize=4, label="evaluated")
    ax.axvline(chosen, color=GAP, linestyle="--", linewidth=1.5, label=f"chosen: b = {chosen:.3g}")
    ax.set_xscale("log")
    label_plain_numbers(ax.xaxis)
    ax.set(xlabel="bandwidth b", ylabel="log-loss")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False)
    return ax


def label_plain_numbers(axis: Any) -> None:
    """Label 0.1, 0.2, 0.5, 1 and so on on a logarithmic axis: it often spans too few powers of ten to label these."""
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
