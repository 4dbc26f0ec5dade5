"""The wealth of monitors: how the evidence against calibration grows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.plots.arguments import check_count, check_kind
from kcal.plots.style import COUNTS, GUIDE, LINES, SERIES, prepare_axes, wrap_label
from kcal.validation import check_number, shown, to_numbers

LOWEST = -4.0
"""Powers of ten below which no wealth is drawn."""


def wealth_curves(
    curves: Mapping[str, ArrayLike],
    *,
    alpha: float = 0.05,
    changes: Sequence[int] = (),
    ax: Axes | None = None,
    title: str | None = None,
) -> Axes:
    """Draw the wealth of monitors against the number of samples, the line 1/α, and where each first reached it.

    Parameters
    ----------
    curves
        The logarithm of the wealth after each sample, by name: ``path`` of the reports of a `CalibrationMonitor` or
        `DriftMonitor`, those of several updates one after another.
    alpha
        Probability of a false alarm that the monitors were made for.
    changes
        Samples after which something changed, if that is known.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.
    """
    check_kind(curves, "curves", Mapping, "a dictionary from a name to the path of the reports of a monitor")
    check_count(len(curves), "curves", "monitors")
    places = to_numbers(changes, "changes")
    if places.ndim != 1 or not np.isfinite(places).all():
        raise InvalidInputError("changes", "must be a sequence of finite numbers of samples", got=shown(changes))
    threshold = -np.log10(check_number(alpha, "alpha", minimum=0, maximum=1, exclusive=True))
    ax = prepare_axes(ax, 7.2, 4.0, title)
    highest = threshold
    for place, (name, curve) in enumerate(curves.items()):
        path = to_numbers(curve, f"curves[{name!r}]") / np.log(10)
        if path.ndim != 1 or not len(path):
            raise InvalidInputError(f"curves[{name!r}]", "must be one number per sample", got=f"shape {path.shape}")
        samples = np.arange(1, len(path) + 1)
        crossed = np.flatnonzero(path >= threshold)
        label = wrap_label(name, width=40, lines=1)
        label += f": alarm after {crossed[0] + 1:,}" if len(crossed) else ": no alarm"
        style: dict[str, Any] = {"color": SERIES[place % len(SERIES)], "linestyle": LINES[place % len(LINES)]}
        ax.plot(samples, np.maximum(path, LOWEST), linewidth=1.6, label=label, **style)
        if len(crossed):
            ax.plot(crossed[0] + 1, path[crossed[0]], "o", color=style["color"], markersize=8, zorder=4)
        highest = max(highest, float(path.max()))
    ax.axhline(threshold, color=GUIDE, linestyle="--", linewidth=1.2)
    ax.annotate(f"1/α = {1 / alpha:g}", (1.0, threshold), xycoords=("axes fraction", "data"), xytext=(4, 0),
                textcoords="offset points", va="center")  # fmt: skip
    for change in places:
        ax.axvline(change, color=COUNTS, linestyle=":", linewidth=1.5)
    ax.set_ylim(LOWEST, min(1.08 * highest + 0.5, max(4 * threshold, 12.0)))
    ax.set(xlabel="samples", ylabel="wealth, powers of ten")
    ax.grid(alpha=0.25)
    ax.legend(loc="upper left", frameon=True, framealpha=0.9)
    return ax
