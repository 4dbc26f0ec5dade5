"""Reliability diagrams: observed frequency against predicted probability, above the counts; one event, or a grid.

The grids are of methods by classes, or of all classes of one method.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation
from numpy.typing import ArrayLike, NDArray

from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins, reliability
from kcal.metrics.predictions import Event
from kcal.plots.style import (
    BAND,
    COUNTS,
    GAP,
    GAP_FILL,
    GUIDE,
    MAX_PANELS,
    OBSERVED,
    OBSERVED_EDGE,
    check_count,
    check_kind,
    check_names,
    prepare_axes,
    wrap_label,
)
from kcal.validation import check_integer, check_number, shown

NARROWEST_BAR = 0.008
"""Bars of equal-count bins are at least this wide, so that they are visible."""
PANELS_PER_ROW = 5
STRIP = (0.0, -0.25, 1.0, 0.18)
"""Left, bottom, width and height of the axes of the counts, as fractions of the diagram."""


def reliability_diagram(
    predictions: ReliabilityBins | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    of: Event | None = None,
    ax: Axes | None = None,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    class_name: str | None = None,
    legend: bool | None = None,
) -> Axes:
    """Draw observed frequency against prediction, and their gap; below, the samples of each bin on a logarithmic axis.

    A bar reaches up to the observed frequency (the strong line); the hatched part is the gap to the mean prediction of
    the bin. A gap above the line means that predictions were too high, below it too low. The dot is at the mean
    prediction: on the diagonal, the bin is calibrated. Its vertical line is Wilson's confidence interval of the
    frequency f of the n samples in the bin,

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),     z the normal quantile of (1 + confidence)/2:

    where it reaches the diagonal, the gap may be chance.

    Parameters
    ----------
    predictions
        What `kcal.metrics.reliability` returns; or probabilities, (n_samples, n_classes), together with labels, which
        are cut into 15 bins of equal width.
    labels
        True classes as column indices, (n_samples,), if predictions are probabilities.
    of
        Event of the probabilities, as in `kcal.metrics.reliability`; "confidence" if None.
    ax
        Axes to draw on; a new figure if None.
    minimum_count
        Neighbouring bins are merged until each bar stands for at least this many samples, because the gap of fewer is
        mostly noise (`ReliabilityBins.merged`). The error in the title is that of all bins, and so are the counts.
    confidence
        Confidence level of the bands; no bands if None.
    title
        Title of the axes; by default the event and its calibration error.
    class_name
        Name of the class of the bins; "class 3" and the like if None.
    legend
        Whether to draw a legend; by default on a new figure only, because beside other axes it has no room.

    Returns
    -------
    Axes
        The axes of the frequencies; those of the counts are their ``child_axes[0]``, with the label of both.
    """
    bins = _check_bins(predictions, labels, of)
    heading, label, frequency, error = "confidence", "confidence", "accuracy", "ECE"
    if bins.of != "confidence":
        name = class_name or f"class {bins.of}"
        heading = wrap_label(name, width=34, lines=2)
        label = wrap_label(f"predicted probability of {name}", width=52, lines=2)
        frequency, error = "observed frequency", "calibration error"
    if title is None:
        separator = ":\n" if len(heading) > 30 else ": "
        title = f"{heading}{separator}{_error_text(bins, error)}"
    is_new, n_lines = ax is None, 1 + label.count("\n")
    legend = is_new if legend is None else legend
    height = 6.0 + 0.2 * (title.count("\n") + n_lines) + 0.75 * legend
    ax = prepare_axes(ax, 5.2, height, title)
    strip = _draw_panel(ax, bins, minimum_count, confidence, marker_size=4)
    ax.set_ylabel(frequency)
    strip.set(xlabel=label, ylabel="samples")
    if legend:
        _draw_legend(ax, _legend_handles(confidence), n_lines=n_lines)
    if not is_new:
        _make_room(ax, 0.25 + 0.18 * n_lines + 0.75 * legend)
    return ax


def _check_bins(predictions: Any, labels: Any, of: Any) -> ReliabilityBins:
    """Return the given bins, or those of the given probabilities and labels."""
    if isinstance(predictions, ReliabilityBins):
        for name, value in (("labels", labels), ("of", of)):
            if value is not None:
                raise InvalidInputError(name, "must be left out if predictions are binned", got=shown(value))
        return predictions
    if labels is None:
        expected = "must be the result of kcal.metrics.reliability(probs, labels), or probabilities with labels"
        raise InvalidInputError("predictions", expected, got=shown(predictions))
    return reliability(predictions, labels, of="confidence" if of is None else of)


def _draw_panel(
    ax: Axes, bins: ReliabilityBins, minimum_count: int, confidence: float | None, *, marker_size: float
) -> Axes:
    """Draw bars, gaps, bands and the diagonal, and below them the counts; return the axes of the counts."""
    merged = bins.merged(minimum_count)
    filled = merged.counts > 0
    x, width = (values[filled] for values in _bar_places(merged))
    observed, predicted = merged.observed_frequency[filled], merged.mean_prediction[filled]
    ax.bar(x, observed, width, color=OBSERVED, edgecolor="white", linewidth=0.4)
    gaps, bottom = np.abs(predicted - observed), np.minimum(observed, predicted)
    ax.bar(x, gaps, width, bottom=bottom, color=GAP_FILL, edgecolor=GAP, hatch="//////", linewidth=0.4)
    ax.hlines(observed, x - width / 2, x + width / 2, color=OBSERVED_EDGE, linewidth=2)
    ax.plot([0, 1], [0, 1], color=GUIDE, linestyle="--", linewidth=1)
    if confidence is not None:
        low, high = merged.frequency_bands(confidence)
        ax.vlines(predicted, low[filled], high[filled], color=BAND, linewidth=0.4 + marker_size / 5, zorder=3)
    if filled.any():  # without points it would lie at the origin of the figure, and the layout would make room for it
        ax.plot(predicted, observed, "o", color=BAND, markersize=marker_size, zorder=4, clip_on=False)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", anchor="N")
    return _draw_counts(ax, bins)


def _bar_places(bins: ReliabilityBins) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the center and the width of the bar of each bin.

    Equal-width bins are drawn from edge to edge. Equal-count bins can be wide where predictions are few: they are
    drawn at their mean prediction, where the gap ends on the diagonal.
    """
    widths = np.diff(bins.edges)
    if bins.adaptive:
        return bins.mean_prediction, np.clip(widths, NARROWEST_BAR, 1 / len(bins.counts))
    return (bins.edges[1:] + bins.edges[:-1]) / 2, widths


def _draw_counts(ax: Axes, bins: ReliabilityBins) -> Axes:
    """Draw the counts of all bins in a strip below the diagram, which has the ticks and the label of both."""
    strip = ax.inset_axes(STRIP, sharex=ax)
    filled = bins.counts > 0
    x, width = (values[filled] for values in _bar_places(bins))
    strip.bar(x, bins.counts[filled], width, color=COUNTS, edgecolor="white", linewidth=0.4)
    strip.set_yscale("log")
    strip.yaxis.set_major_locator(LogLocator(numticks=3))
    strip.yaxis.set_major_formatter(EngFormatter(sep=""))  # 1k, 10k, 1M fit beside a small panel
    strip.yaxis.set_minor_formatter(NullFormatter())
    strip.minorticks_off()
    strip.set_ylim(0.7, _top_of_counts([bins]))
    ax.tick_params(axis="x", labelbottom=False)
    return strip


def _draw_legend(ax: Axes, handles: list[Artist], *, n_lines: int) -> None:
    """Draw the legend below the strip of the counts, its ticks and its label of so many lines."""
    below = ScaledTranslation(0, -(26 + 13 * n_lines) / 72, ax.figure.dpi_scale_trans)  # points to inches
    place = {"bbox_to_anchor": (0.5, STRIP[1]), "bbox_transform": ax.transAxes + below}
    ax.legend(handles=handles, loc="upper center", ncols=2, frameon=False, borderaxespad=0.0, **place)


def _make_room(ax: Axes, below: float) -> None:
    """Move the lower end of a subplot up, for the strip and ``below`` inches under it; layout engines do that alone."""
    figure = ax.get_figure(root=True)
    if figure is None or figure.get_layout_engine() is not None or ax.get_subplotspec() is None:
        return
    place = ax.get_position(original=True)
    margin = below / (ax.figure.bbox.height / figure.dpi)  # as a fraction of the figure
    height = (place.y1 - max(place.y0 - 0.1, 0.0) - margin) / (1 - STRIP[1])
    if 0 < height < place.height:
        ax.set_position((place.x0, place.y1 - height, place.width, height))


def _top_of_counts(drawn: Sequence[ReliabilityBins]) -> float:
    """Return the end of an axis of counts on which all of these fit."""
    return max(10, *(int(bins.counts.max()) for bins in drawn)) * 2


def _error_text(bins: ReliabilityBins, name: str) -> str:
    """Return the calibration error of the bins, after its name."""
    return f"{name} {bins.calibration_error:.3f}" if bins.total else "no samples"


def _legend_handles(confidence: float | None) -> list[Artist]:
    """Return the entries of the legend."""
    handles: list[Artist] = [
        Patch(facecolor=OBSERVED, edgecolor=OBSERVED_EDGE, label="observed frequency"),
        Patch(facecolor=GAP_FILL, edgecolor=GAP, hatch="//////", label="gap to the mean prediction"),
        Line2D([], [], color=GUIDE, linestyle="--", linewidth=1, label="perfect calibration"),
    ]
    if confidence is not None:
        level = check_number(confidence, "confidence", minimum=0, maximum=1, exclusive=True)
        label = f"{100 * level:.6g} % confidence band"
        band: dict[str, Any] = {"marker": "|", "markersize": 11, "markeredgewidth": 1.2}
        handles.append(Line2D([], [], color=BAND, linestyle="none", label=label, **band))
    handles.append(Patch(facecolor=COUNTS, label="samples (log scale)"))
    return handles


def reliability_grid(
    rows: Mapping[str, Sequence[ReliabilityBins]],
    class_names: Sequence[str],
    *,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    figure: Figure | SubFigure | None = None,
) -> NDArray[Any]:
    """Draw a grid of reliability diagrams, one row per method and one column per class.

    Parameters
    ----------
    rows
        By name of the method, the bins of every class, in the order of class_names.
    class_names
        Titles of the columns.
    minimum_count, confidence
        As in `reliability_diagram`.
    figure, title
        Figure to draw on, a new one of fitting size if None, and its title.

    Returns
    -------
    array of Axes
        (methods, classes). The figure is ``axes[0, 0].get_figure(root=True)``.
    """
    check_kind(rows, "rows", Mapping, "a dictionary from the name of a method to the bins of each class")
    names = check_names(class_names)
    check_count(len(rows) * len(names), "rows", "panels")
    drawn = [bins for method, row in rows.items() for bins in _check_row(row, f"rows[{method!r}]", len(names))]
    panel = {"minimum_count": minimum_count, "confidence": confidence}
    axes = _draw_grid(drawn, names, len(names), figure, title, panel).reshape(len(rows), len(names))
    for ax, method in zip(axes[:, 0], rows, strict=True):
        ax.set_ylabel(wrap_label(method, width=14), fontsize=11, fontweight="bold")
    return axes


def class_reliability_grid(
    predictions: Sequence[ReliabilityBins] | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    class_names: Sequence[str] | None = None,
    limit: int = 20,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    figure: Figure | SubFigure | None = None,
) -> NDArray[Any]:
    """Draw the reliability diagrams of all classes of one method, in rows of up to five.

    Parameters
    ----------
    predictions
        The bins of every class, in the order of the classes; or probabilities, (n_samples, n_classes), together with
        labels, which are cut into 15 bins of equal width, as in `kcal.metrics.class_errors`.
    labels
        True classes as column indices, (n_samples,), if predictions are probabilities.
    class_names
        Titles of the diagrams; "class 0" and so on if None.
    limit
        With more classes only this many are drawn, those with the largest calibration error, worst first; the title
        then says so, and how large the errors of the others are.
    minimum_count, confidence, figure, title
        As in `reliability_grid`.

    Returns
    -------
    array of Axes
        One per class that is drawn. The figure is ``axes[0].get_figure(root=True)``.
    """
    check_integer(limit, "limit", minimum=1, maximum=MAX_PANELS)
    bins = _bins_of_classes(predictions, labels, class_names)
    names = [f"class {k}" for k in range(len(bins))] if class_names is None else check_names(class_names, len(bins))
    chosen = list(range(len(bins)))
    if len(bins) > limit:
        errors = np.nan_to_num([row.calibration_error for row in bins], nan=-1.0)
        order = np.argsort(-errors, kind="stable").tolist()
        chosen, largest = order[:limit], bins[order[limit]].calibration_error
        which = f"the {limit} classes of largest error" if limit > 1 else "the class of largest error"
        rest = "no samples" if np.isnan(largest) else f"errors up to {largest:.3f}"
        which += f"; the other {len(bins) - limit:,} have {rest}"
        title = which if title is None else f"{title}: {which}"
    drawn, headings = [bins[k] for k in chosen], [names[k] for k in chosen]
    panel = {"minimum_count": minimum_count, "confidence": confidence}
    return _draw_grid(drawn, headings, min(PANELS_PER_ROW, len(drawn)), figure, title, panel)


def _draw_grid(
    drawn: Sequence[ReliabilityBins],
    headings: Sequence[str],
    n_columns: int,
    figure: Figure | SubFigure | None,
    title: str | None,
    panel: dict[str, Any],
) -> NDArray[Any]:
    """Draw panels row by row, the first ones with a heading, above a legend; return their axes, (panels,)."""
    n_rows, handles, top = ceil(len(drawn) / n_columns), _legend_handles(panel["confidence"]), _top_of_counts(drawn)
    row_height = 2.1 if len(headings) < len(drawn) else 2.5
    width = max(1.2 + 1.5 * n_columns, 5.4)  # inches
    legend_columns = min(int(width / 2.6), len(handles))
    heights = (0.9 + row_height * n_rows, 0.2 + 0.2 * ceil(len(handles) / legend_columns))  # panels, legend
    if figure is None:
        figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    panels, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
    below.legend(handles=handles, loc="center", ncols=legend_columns, frameon=False)
    axes = panels.subplots(n_rows, n_columns, squeeze=False).ravel()  # not shared, which is slow for many panels
    for place, (ax, bins) in enumerate(zip(axes, drawn, strict=False)):  # ticks are labelled at the left and below only
        is_left, is_below = place % n_columns == 0, place + n_columns >= len(drawn)
        strip = _draw_panel(ax, bins, **panel, marker_size=2)
        strip.set_ylim(0.7, top)
        ax.set(xticks=[0, 0.5, 1], xticklabels=["0", ".5", "1"], yticks=[0, 0.5, 1], yticklabels=["0", ".5", "1"])
        ax.text(0.5, 1.02, _error_text(bins, "error"), transform=ax.transAxes, ha="center", va="bottom", fontsize=9)
        ax.tick_params(labelleft=is_left)
        strip.tick_params(labelleft=is_left, labelbottom=is_below)
        strip.tick_params(axis="y", labelsize=8)
        strip.yaxis.set_major_locator(LogLocator(numticks=2))
    for ax, heading in zip(axes, headings, strict=False):
        ax.set_title(f"{wrap_label(heading, width=16, lines=2)}\n", fontsize=10, fontweight="bold")
    for ax in axes[len(drawn) :]:
        ax.set_axis_off()
    panels.supxlabel("predicted probability of the class", fontsize=11)
    panels.supylabel("observed frequency", fontsize=11)
    if title is not None:
        panels.suptitle(title, fontsize=13)
    return np.asarray(axes[: len(drawn)])


def _bins_of_classes(predictions: Any, labels: Any, class_names: Any) -> Sequence[ReliabilityBins]:
    """Return the given bins of all classes, or those of the given probabilities and labels."""
    if labels is None:
        n_classes = None if class_names is None else len(check_names(class_names))
        return _check_row(predictions, "predictions", n_classes)
    if isinstance(predictions, Sequence) and any(isinstance(row, ReliabilityBins) for row in predictions):
        raise InvalidInputError("labels", "must be left out if predictions are binned", got=shown(labels))
    first = reliability(predictions, labels, of=0)  # checks both
    return [first, *(reliability(predictions, labels, of=k) for k in range(1, np.shape(predictions)[1]))]


def _check_row(row: Any, name: str, n_classes: int | None) -> Sequence[ReliabilityBins]:
    """Return the bins of all classes; raise if they are not a list, empty, or not ``n_classes``."""
    if not isinstance(row, Sequence) or len(row) != (n_classes or max(len(row), 1)):
        expected = f"must be a list of the bins of all {n_classes or ''} classes".replace("  ", " ")
        got = f"{len(row)} bins" if isinstance(row, Sequence) else shown(row)
        remedy = "Pass [reliability(probs, labels, of=k) for k in range(len(class_names))]."
        raise InvalidInputError(name, expected, got=got, remedy=remedy)
    for bins in row:
        check_kind(bins, name, ReliabilityBins, "the result of kcal.metrics.reliability(probs, labels)")
    return row
