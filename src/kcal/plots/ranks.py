"""Average ranks of methods, the best on top."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from kcal.errors import InvalidInputError
from kcal.metrics.ranks import AverageRanks
from kcal.plots.style import GAP, OBSERVED_EDGE, new_axes, plain


def rank_plot(ranks: AverageRanks, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the average rank ± standard deviation of each method, the best on top; the figures stand at the right.

    Parameters
    ----------
    ranks
        What `kcal.metrics.average_ranks` returns.
    ax
        Where to draw; a new figure, as high as the methods need, if None.
    title
        Heading of the picture.
    """
    if not isinstance(ranks, AverageRanks) or len(ranks.ranks) == 0:
        raise InvalidInputError(
            "ranks must be what average_ranks(...) returns, with at least one method; "
            f"got {type(ranks).__name__}{'' if not isinstance(ranks, AverageRanks) else ' with none'}."
        )
    ordered = sorted(ranks.ranks.items(), key=lambda item: item[1].mean)
    if ax is None:
        ax = new_axes(7.0, 1.2 + 0.42 * len(ordered))
    best = set(ranks.best)
    for place, (name, rank) in enumerate(ordered):
        colour, marker = (GAP, "D") if name in best else (OBSERVED_EDGE, "o")
        spread = 0.0 if np.isnan(rank.std) else rank.std
        ax.errorbar(
            rank.mean, place, xerr=spread, fmt=marker, color=colour, markersize=8, capsize=4, elinewidth=1.6, zorder=3
        )
        ax.annotate(
            f"{rank.mean:.2f}" if np.isnan(rank.std) else str(rank),
            (1.0, place),
            xytext=(8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontweight="bold" if name in best else "normal",
        )
    ax.set_yticks(range(len(ordered)), [plain(name, width=32, lines=2) for name, _ in ordered])
    ax.set_ylim(len(ordered) - 0.5, -0.5)
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.8), max(right, len(ordered) + 0.2))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("average rank ± standard deviation (1 is best)")
    ax.grid(axis="x", alpha=0.25)
    for tick, (name, _) in zip(ax.get_yticklabels(), ordered, strict=True):
        tick.set_fontweight("bold" if name in best else "normal")
    if title is not None:
        ax.set_title(title)
    return ax
