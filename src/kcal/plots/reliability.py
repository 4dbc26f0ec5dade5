"""The reliability diagram of one event: what was observed beside what was predicted."""

from matplotlib.axes import Axes

from kcal.metrics import ReliabilityBins
from kcal.plots.reliability_panel import check_panels, draw_panel, error_text, legend_handles
from kcal.plots.style import COUNTS, new_axes, plain


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

    A bar reaches up to the observed frequency (the strong line); the hatched part is the gap to the mean
    prediction of the bin. Above the line the predictions were too high, below it too low. The thin upright line is
    Wilson's confidence interval of the frequency f of the bin's n samples,

        (f + z²/2n ± z·√(f·(1 − f)/n + z²/4n²)) / (1 + z²/n),     z the normal quantile of (1 + confidence)/2:

    a gap that stays within it may be chance.

    Parameters
    ----------
    bins
        What `kcal.metrics.reliability` returns.
    ax
        Where to draw; a new figure if None.
    minimum_count
        Bins with fewer samples have no bar, because their gap is mostly chance; their counts are hollow dots.
    confidence
        Share of the bands that are to hold the true frequency; no bands if None.
    title
        Heading of the picture; the default names the event and its calibration error (of all bins).
    class_name
        What to call the class of the bins; "class 3" and the like if None.
    legend
        Whether to explain the marks.

    Returns
    -------
    Axes
        The axes of the frequencies; those of the counts are drawn on top of them.
    """
    check_panels([bins], minimum_count=minimum_count, confidence=confidence)
    if ax is None:
        ax = new_axes(6.2, 5.0)
    counts_ax = draw_panel(ax, bins, minimum_count=minimum_count, confidence=confidence, marker_size=4)
    of_confidence = bins.of == "confidence"
    name = class_name or f"class {bins.of}"
    heading = "confidence" if of_confidence else plain(name, width=34, lines=2)
    label = "confidence" if of_confidence else plain(f"predicted probability of {name}", width=52, lines=2)
    ax.set_xlabel(label)
    ax.set_ylabel("accuracy" if of_confidence else "observed frequency")
    counts_ax.set_ylabel("samples in the bin (log scale)", color=COUNTS)
    between = ":\n" if len(heading) > 30 else ": "
    ax.set_title(title if title is not None else f"{heading}{between}{error_text(bins, 'calibration error')}")
    if legend:
        # Below the label of the axis, because bars and counts need all of the inside.
        ax.legend(
            handles=legend_handles([bins], minimum_count=minimum_count, confidence=confidence),
            loc="upper center",
            bbox_to_anchor=(0.5, -0.13 - 0.08 * label.count("\n")),
            ncols=2,
            frameon=False,
        )
    return ax
