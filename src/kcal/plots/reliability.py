"""The reliability diagram of one event: observed frequency against predicted probability."""

from matplotlib.axes import Axes

from kcal.metrics import ReliabilityBins
from kcal.plots.arguments import check_text, prepare_axes
from kcal.plots.reliability_panel import check_options, draw_panel, error_text, legend_handles
from kcal.plots.style import COUNTS, wrap_label
from kcal.validation import check_flag


def reliability_diagram(
    bins: ReliabilityBins,
    *,
    ax: Axes | None = None,
    minimum_count: int = 15,
    confidence: float | None = 0.95,
    title: str | None = None,
    class_name: str | None = None,
    legend: bool = True,
) -> Axes:
    """Draw observed frequency against prediction, their gap, and counts on a logarithmic right axis.

    A bar reaches up to the observed frequency (the strong line); the hatched part is the gap to the mean prediction of
    the bin. A gap above the line means that predictions were too high, below it too low. The thin vertical line is
    Wilson's confidence interval of the frequency f of the n samples in the bin,

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),     z the normal quantile of (1 + confidence)/2:

    a gap that stays within it may be chance.

    Parameters
    ----------
    bins
        What `kcal.metrics.reliability` returns.
    ax
        Axes to draw on; a new figure if None.
    minimum_count
        Bins with fewer samples have no bar, because their gap is mostly noise; their counts are hollow dots.
    confidence
        Confidence level of the bands; no bands if None.
    title
        Title of the axes; by default the event and its calibration error (of all bins).
    class_name
        Name of the class of the bins; "class 3" and the like if None.
    legend
        Whether to draw a legend.

    Returns
    -------
    Axes
        The axes of the frequencies; those of the counts are drawn on top of them.
    """
    options = check_options([bins], "bins", minimum_count, confidence, title)
    check_text(class_name, "class_name")
    check_flag(legend, "legend")
    ax = prepare_axes(ax, 6.2, 5.0, title)
    counts_ax = draw_panel(ax, bins, options, marker_size=4)
    of_confidence = bins.of == "confidence"
    name = class_name or f"class {bins.of}"
    heading = "confidence" if of_confidence else wrap_label(name, width=34, lines=2)
    label = "confidence" if of_confidence else wrap_label(f"predicted probability of {name}", width=52, lines=2)
    ax.set_xlabel(label)
    ax.set_ylabel("accuracy" if of_confidence else "observed frequency")
    counts_ax.set_ylabel("samples in the bin (log scale)", color=COUNTS)
    if title is None:
        separator = ":\n" if len(heading) > 30 else ": "
        ax.set_title(f"{heading}{separator}{error_text(bins, 'calibration error')}")
    if legend:
        # Below the label of the axis, because bars and counts need all of the inside.
        ax.legend(
            handles=legend_handles([bins], options),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.13 - 0.08 * label.count("\n")),
            ncols=2,
            frameon=False,
        )
    return ax
