"""Average ranks of methods, best first."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from kcal.metrics import AverageRanks
from kcal.plots.arguments import check_arguments, check_count
from kcal.plots.style import GAP, OBSERVED_EDGE, prepare_axes, wrap_label


def rank_plot(ranks: AverageRanks, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the average rank ± standard deviation of each method, the best at the top, with the numbers at the right.

    Parameters
    ----------
    ranks
        What `kcal.metrics.average_ranks` returns.
    ax, title
        Axes to draw on, those of a new figure of fitting height if None, and their title.
    """
    check_arguments(ranks=ranks)
    check_count(len(ranks.ranks), "ranks", "methods")
    ordered = sorted(ranks.ranks.items(), key=lambda item: item[1].mean)
    ax = prepare_axes(ax, 7.0, 1.2 + 0.42 * len(ordered), title)
    weights = ["bold" if name in ranks.best else "normal" for name, _ in ordered]
    for place, (name, rank) in enumerate(ordered):
        marker, colour = ("D", GAP) if name in ranks.best else ("o", OBSERVED_EDGE)
        style: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": 8, "capsize": 4, "elinewidth": 1.6}
        single = np.isnan(rank.std)
        spread = 0.0 if single else rank.std
        ax.errorbar(rank.mean, place, xerr=spread, zorder=3, **style)
        ax.annotate(
            f"{rank.mean:.2f}" if single else str(rank),
            (1.0, place),
            xytext=(8, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontweight=weights[place],
        )
    ax.set_yticks(range(len(ordered)), [wrap_label(name, width=32, lines=2) for name, _ in ordered])
    ax.set_ylim(len(ordered) - 0.5, -0.5)
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.8), max(right, len(ordered) + 0.2))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("average rank ± standard deviation (1 is best)")
    ax.grid(axis="x", alpha=0.25)
    for tick, weight in zip(ax.get_yticklabels(), weights, strict=True):
        tick.set_fontweight(weight)
    return ax
