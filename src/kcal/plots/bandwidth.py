"""The loss against the bandwidth, with the one that was chosen."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.plots.style import GAP, OBSERVED_EDGE, new_axes


def bandwidth_curve(
    bandwidths: ArrayLike,
    losses: ArrayLike,
    chosen: float,
    *,
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the loss at each bandwidth that a search looked at, and mark the chosen one.

    Parameters
    ----------
    bandwidths
        The bandwidths, in any order (a search does not visit them in ascending order).
    losses
        The loss at each of them.
    chosen
        The bandwidth that the search settled on.
    ax
        Where to draw; a new figure if None.
    title
        Heading of the picture.
    """
    lengths = np.asarray(bandwidths, dtype=np.float64)
    heights = np.asarray(losses, dtype=np.float64)
    if lengths.ndim != 1 or lengths.shape != heights.shape or lengths.shape[0] == 0:
        raise InvalidInputError(
            "bandwidths and losses must have one dimension and one loss for each bandwidth, at least one; "
            f"got shapes {lengths.shape} and {heights.shape}."
        )
    if not (lengths > 0).all() or not chosen > 0:
        raise InvalidInputError("bandwidths and the chosen one are lengths and must be above 0.")
    if ax is None:
        ax = new_axes(6.4, 4.0)
    order = np.argsort(lengths, kind="stable")
    ax.plot(lengths[order], heights[order], "o-", color=OBSERVED_EDGE, markersize=4, label="evaluated")
    ax.axvline(chosen, color=GAP, linestyle="--", linewidth=1.5, label=f"chosen: b = {chosen:.3g}")
    ax.set_xscale("log")
    _label_decades_and_halves(ax)
    ax.set_xlabel("bandwidth b")
    ax.set_ylabel("log-loss")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False)
    if title is not None:
        ax.set_title(title)
    return ax


def _label_decades_and_halves(ax: Axes) -> None:
    """Label 0.1, 0.2, 0.5, 1 and so on: bandwidths span one or two decades, too few for powers of ten."""
    ax.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
