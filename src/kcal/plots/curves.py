"""Curves of bandwidths, training, rejection and the wealth of monitors, and average ranks of methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter
from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.metrics import AverageRanks, RejectionCurve, SubgroupEvaluation
from kcal.plots.style import (
    COUNTS,
    GAP,
    GUIDE,
    LINES,
    MARKERS,
    OBSERVED_EDGE,
    SERIES,
    check_count,
    check_kind,
    prepare_axes,
    wrap_label,
)
from kcal.validation import check_integer, check_number, shown, to_numbers

if TYPE_CHECKING:
    from kcal.kernels import BandwidthCurve
    from kcal.projection import TrainingCurve

REJECTION = "the result of kcal.metrics.accuracy_rejection(probs, labels)"
MIN_LOG_WEALTH = -4.0
"""Powers of ten below which no wealth is drawn."""
FEW_METHODS = 3
"""Number of methods whose legend has room inside the axes."""


def bandwidth_curve(curve: BandwidthCurve, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the loss at each bandwidth that a search evaluated, and mark the chosen one.

    Parameters
    ----------
    curve
        The attribute ``bandwidth_curve_`` of a fitted `KCal`; it is None if the bandwidth was not searched.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.
    """
    from kcal.kernels import BandwidthCurve  # here, because it imports torch, which other plots do not need

    check_kind(curve, "curve", BandwidthCurve, "bandwidth_curve_ of a KCal that searched its bandwidth")
    ax = prepare_axes(ax, 6.4, 4.0, title)
    ax.plot(curve.bandwidths, curve.losses, "o-", color=OBSERVED_EDGE, markersize=4, label="evaluated")
    chosen = f"chosen: b = {curve.bandwidth:.3g}"
    ax.axvline(curve.bandwidth, color=GAP, linestyle="--", linewidth=1.5, label=chosen)
    set_log_scale(ax.xaxis)
    ax.set(xlabel="bandwidth b", ylabel="log-loss")
    ax.grid(alpha=0.25)
    ax.legend(frameon=False)
    return ax


def set_log_scale(axis: Any) -> None:
    """Make an axis logarithmic, labelled 0.1, 0.2, 0.5, 1 and so on: it often spans too few powers of ten for these."""
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    axis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def training_curve(curve: TrainingCurve, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the mean training log-loss up to each recorded step, and the learning rate on a logarithmic right axis.

    Parameters
    ----------
    curve
        The attribute ``training_curve_`` of a fitted `KCal`, which is None if nothing was trained, or ``curve`` of a
        `TrainedProjection`.
    ax, title
        Axes to draw on, those of a new figure if None, and their title.

    Returns
    -------
    Axes
        The axes of the losses; those of the learning rate lie over them.
    """
    from kcal.projection import TrainingCurve  # here, because it imports torch, which other plots do not need

    check_kind(curve, "curve", TrainingCurve, "training_curve_ of a KCal that trained its projection")
    steps, losses, rates = (
        np.asarray(part, dtype=np.float64) for part in (curve.steps, curve.losses, curve.learning_rates)
    )
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
    check_kind(curves, "curves", Mapping, f"a dictionary from the name of a method to {REJECTION}")
    check_count(len(curves), "curves", "methods")
    for name, curve in curves.items():
        check_kind(curve, f"curves[{name!r}]", RejectionCurve, REJECTION)
    check_integer(minimum_count, "minimum_count", minimum=0, maximum=10**12)
    ax = prepare_axes(ax, 6.4, 4.2, title)
    lowest = min(_draw_curve(ax, *named, minimum_count, place) for place, named in enumerate(curves.items()))
    span = max(1 - lowest, 0.02)
    ax.set(xlim=(0, 1), ylim=(1 - 1.08 * span, 1 + 0.05 * span))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set(xlabel="samples rejected, least confident first", ylabel="accuracy of the rest")
    ax.grid(alpha=0.25)
    if len(curves) <= FEW_METHODS:
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


def rank_plot(ranks: AverageRanks, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw the average rank ± standard deviation of each method, the best at the top, with the numbers at the right.

    Parameters
    ----------
    ranks
        What `kcal.metrics.average_ranks` returns.
    ax, title
        Axes to draw on, those of a new figure of fitting height if None, and their title.
    """
    check_kind(ranks, "ranks", AverageRanks, "the result of kcal.metrics.average_ranks(...)")
    check_count(len(ranks.ranks), "ranks", "methods")
    ordered = sorted(ranks.ranks.items(), key=lambda item: item[1].mean)
    ax = prepare_axes(ax, 7.0, 1.2 + 0.42 * len(ordered), title)
    ax.set_yticks(range(len(ordered)), [wrap_label(name, width=32, lines=2) for name, _ in ordered])
    for place, (name, rank) in enumerate(ordered):
        marker, colour, weight = ("D", GAP, "bold") if name in ranks.best else ("o", OBSERVED_EDGE, "normal")
        style: dict[str, Any] = {"fmt": marker, "color": colour, "markersize": 8, "capsize": 4, "elinewidth": 1.6}
        ax.errorbar(rank.mean, place, xerr=np.nan_to_num(rank.std), zorder=3, **style)
        text = f"{rank.mean:.2f}" if np.isnan(rank.std) else str(rank)
        at_right: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        ax.annotate(text, (1.0, place), xytext=(8, 0), va="center", fontweight=weight, **at_right)
        ax.get_yticklabels()[place].set_fontweight(weight)
    ax.set_ylim(len(ordered) - 0.5, -0.5)
    left, right = ax.get_xlim()
    ax.set_xlim(min(left, 0.8), max(right, len(ordered) + 0.2))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("average rank ± standard deviation (1 is best)")
    ax.grid(axis="x", alpha=0.25)
    return ax


def subgroup_plot(subgroups: SubgroupEvaluation, *, ax: Axes | None = None, title: str | None = None) -> Axes:
    """Draw accuracy and mean confidence of each subgroup, joined by their gap, with the ECE and its interval.

    The gap is in colour where the confidence is too high or too low beyond chance; a star marks subgroups that differ
    from the others.

    Parameters
    ----------
    subgroups
        What `kcal.metrics.evaluate` returns with ``by``.
    ax, title
        Axes to draw on, those of a new figure of fitting height if None, and their title.
    """
    check_kind(subgroups, "subgroups", SubgroupEvaluation, "the result of kcal.metrics.evaluate(probs, labels, by=...)")
    check_count(len(subgroups.names), "subgroups", "subgroups")
    places, names = range(len(subgroups.names)), [wrap_label(name, width=28, lines=1) for name in subgroups.names]
    ax = prepare_axes(ax, 7.6, 1.4 + 0.38 * len(names), title, pad=28)
    colours = [GAP if direction else COUNTS for direction in subgroups.direction]
    ax.hlines(places, subgroups.accuracy, subgroups.mean_confidence, color=colours, linewidth=4, alpha=0.6)
    ax.plot(subgroups.accuracy, places, "o", color=OBSERVED_EDGE, markersize=8, label="accuracy")
    style: dict[str, Any] = {"markerfacecolor": "white", "color": GAP, "markersize": 7, "label": "mean confidence"}
    ax.plot(subgroups.mean_confidence, places, "D", **style)
    ends = zip(places, subgroups.error, subgroups.low, subgroups.high, strict=True)
    texts = [(place, f"{100 * error:.2f} [{100 * low:.2f}, {100 * high:.2f}]") for place, error, low, high in ends]
    for place, text in [(-0.8, "ECE, %"), *texts]:
        at_right: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        ax.annotate(text, (1.0, place), xytext=(8, 0), va="center", **at_right)
    marks = [" *" if differs else "" for differs in subgroups.differs]
    ax.set_yticks(
        places, [f"{name} ({n:,}){mark}" for name, n, mark in zip(names, subgroups.counts, marks, strict=True)]
    )
    ax.set_ylim(len(names) - 0.5, -0.5)
    note = "   (* differs from the other samples)" if any(marks) else ""
    ax.set(xlabel=f"accuracy and mean confidence{note}", ylabel=wrap_label(subgroups.by, width=40, lines=1))
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.grid(axis="x", alpha=0.25)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return ax


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
        ax.plot(samples, np.maximum(path, MIN_LOG_WEALTH), linewidth=1.6, label=label, **style)
        if len(crossed):
            ax.plot(crossed[0] + 1, path[crossed[0]], "o", color=style["color"], markersize=8, zorder=4)
        highest = max(highest, float(path.max()))
    ax.axhline(threshold, color=GUIDE, linestyle="--", linewidth=1.2)
    ax.annotate(f"1/α = {1 / alpha:g}", (1.0, threshold), xycoords=("axes fraction", "data"), xytext=(4, 0),
                textcoords="offset points", va="center")  # fmt: skip
    for change in places:
        ax.axvline(change, color=COUNTS, linestyle=":", linewidth=1.5)
    ax.set_ylim(MIN_LOG_WEALTH, min(1.08 * highest + 0.5, max(4 * threshold, 12.0)))
    ax.set(xlabel="samples", ylabel="wealth, powers of ten")
    ax.grid(alpha=0.25)
    ax.legend(loc="upper left", frameon=True, framealpha=0.9)
    return ax
