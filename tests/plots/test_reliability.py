"""Reliability diagrams and their grids: what is drawn, where, and what is left out."""

import os
import subprocess
import sys

import numpy as np
import pytest
from drawn_figures import bars, boxes_inside, legend_texts, overconfident, rendered, whole
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from scipy.stats import binomtest

from kcal.metrics import ReliabilityBins, class_errors, reliability
from kcal.plots import class_reliability_grid, reliability_diagram, reliability_grid
from kcal.plots.style import BAND, COUNTS, GAP_FILL, OBSERVED

LONG = "acute exacerbation of a chronic disease, unspecified, withaverylongwordthathasnospaceatall " * 3


@pytest.fixture
def bins():
    """Five bins: empty, under 15 samples, never, too low, too high."""
    counts = np.array([0, 14, 15, 20, 200])
    return ReliabilityBins(
        counts=counts,
        mean_prediction=np.array([np.nan, 0.3, 0.5, 0.6, 0.9]),
        observed_frequency=np.array([np.nan, 0.5, 0.0, 0.7, 0.5]),
        edges=np.linspace(0, 1, 6),
        of="confidence",
        adaptive=False,
        weights=counts.astype(float),
        effective_counts=counts.astype(float),
    )


def bands(ax):
    """Where the vertical lines of a diagram stand, begin and end."""
    lines = [each for each in ax.collections if isinstance(each, LineCollection)]
    (drawn,) = [each for each in lines if same_color(each.get_color()[0], BAND)]
    segments = np.array(drawn.get_segments())
    return segments[:, 0, 0], segments[:, 0, 1], segments[:, 1, 1]


def bins_of(n_classes, n_samples=400):
    probs, labels = overconfident(n_samples, n_classes)
    return [reliability(probs, labels, of=k, bins=5) for k in range(n_classes)]


def test_bars_gaps_and_dots_of_merged_bins(bins):
    ax = reliability_diagram(bins)
    drawn = bars(ax, OBSERVED)
    assert [bar.get_height() for bar in drawn] == pytest.approx([7 / 29, 0.7, 0.5])
    assert [bar.get_x() for bar in drawn] == pytest.approx([0.2, 0.6, 0.8])
    assert [bar.get_width() for bar in drawn] == pytest.approx([0.4, 0.2, 0.2])
    predicted = [(14 * 0.3 + 15 * 0.5) / 29, 0.6, 0.9]
    for gap, bar, mean in zip(bars(ax, GAP_FILL), drawn, predicted, strict=True):
        ends = sorted((bar.get_height(), mean))
        assert [gap.get_y(), gap.get_y() + gap.get_height()] == pytest.approx(ends)
        assert gap.get_hatch()
    (dots,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert list(dots.get_xdata()) == pytest.approx(predicted)
    assert [len(bars(reliability_diagram(bins, minimum_count=n), OBSERVED)) for n in (0, 14, 16, 500)] == [4, 4, 3, 1]


def test_counts_of_all_bins_are_a_logarithmic_strip_below_the_diagram(bins):
    ax = reliability_diagram(bins)
    (strip,) = ax.child_axes
    assert strip.get_yscale() == "log"
    assert [bar.get_height() for bar in bars(strip, COUNTS)] == [14, 15, 20, 200]
    ax.figure.draw_without_rendering()
    above, below = ax.get_window_extent(), strip.get_window_extent()
    assert below.y1 < above.y0
    assert (below.x0, below.x1) == pytest.approx((above.x0, above.x1))
    assert above.width == pytest.approx(above.height)


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_bands_are_wilson_intervals_at_the_mean_predictions(bins, confidence):
    places, low, high = bands(reliability_diagram(bins, confidence=confidence, minimum_count=0))
    assert places == pytest.approx(bins.mean_prediction[1:])
    for b in range(1, 5):
        hits = round(float(bins.counts[b] * bins.observed_frequency[b]))
        expected = binomtest(hits, int(bins.counts[b])).proportion_ci(confidence, method="wilson")
        assert (low[b - 1], high[b - 1]) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert not any("band" in text for text in legend_texts(reliability_diagram(bins, confidence=None)))


def test_equal_count_bars_stand_at_mean_prediction():
    probs = np.concatenate([np.linspace(0.5, 0.6, 20), np.full(80, 0.999)])
    adaptive = reliability(np.column_stack([1 - probs, probs]), np.ones(100, dtype=int), bins=5, adaptive=True)
    ax = reliability_diagram(adaptive)
    drawn = bars(ax, OBSERVED)
    assert [bar.get_x() + bar.get_width() / 2 for bar in drawn] == pytest.approx(adaptive.mean_prediction.tolist())
    assert all(0.008 - 1e-9 <= bar.get_width() <= 0.2 + 1e-9 for bar in drawn)
    assert bands(ax)[0] == pytest.approx(adaptive.mean_prediction)


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_samples_give_an_empty_diagram_that_says_so(adaptive):
    ax = reliability_diagram(reliability([[0.5, 0.5]], [0], of=0, threshold=0.9, adaptive=adaptive))
    assert ax.get_title() == "class 0: no samples"
    assert not bars(ax, OBSERVED)
    assert rendered(ax.figure)


@pytest.mark.parametrize("name", [None, LONG])
def test_everything_drawn_lies_within_the_figure(name):
    ax = reliability_diagram(bins_of(2)[1], class_name=name, minimum_count=200)
    label, legend = ax.child_axes[0].xaxis.label, ax.get_legend()
    assert boxes_inside(ax.figure, [ax.title, label, legend])
    assert legend.get_window_extent().y1 <= label.get_window_extent().y0 + 8  # the frame of the legend is empty


def test_grid_has_a_row_per_method_and_a_column_per_class():
    methods = {"before": bins_of(3), "temperature scaling": bins_of(3)[::-1]}
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = reliability_grid(methods, np.array(["cat", "dog", "bird"]), minimum_count=20, title="all", figure=figure)
    assert axes.shape == (2, 3)
    assert whole(axes) is figure
    assert [ax.get_title().strip() for ax in axes.flat] == ["cat", "dog", "bird", "", "", ""]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["before", "temperature\nscaling"]
    assert len({ax.child_axes[0].get_ylim() for ax in axes.flat}) == 1
    for ax, of_panel in zip(axes.flat, [bins for row in methods.values() for bins in row], strict=True):
        assert len(bars(ax, OBSERVED)) == (of_panel.merged(20).counts > 0).sum()
        assert [text.get_text() for text in ax.texts] == [f"error {of_panel.calibration_error:.3f}"]
    assert rendered(figure)


def test_worst_of_many_classes_are_drawn_and_the_title_says_so():
    probs, labels = overconfident(300, 3)
    bins = [*bins_of(29, n_samples=300), reliability(probs, labels, of=0, threshold=1.0)]
    axes = class_reliability_grid(bins, limit=6, title="uncalibrated")
    errors = [-1 if np.isnan(each.calibration_error) else each.calibration_error for each in bins]
    assert [ax.get_title().strip() for ax in axes] == [f"class {k}" for k in np.argsort(-np.array(errors))[:6]]
    which = f"the 6 classes of largest error; the other 24 have errors up to {sorted(errors)[-7]:.3f}"
    assert whole(axes).subfigs[0].get_suptitle() == f"uncalibrated: {which}"
    (only,) = class_reliability_grid(bins[-1:], class_names=["a"])
    assert [text.get_text() for text in only.texts] == ["no samples"]


@pytest.mark.parametrize("legend", [True, False])
def test_diagrams_on_given_subplots_are_not_cut(legend):
    figure = Figure(figsize=(9, 5))
    for ax in figure.subplots(1, 2):
        reliability_diagram(*overconfident(400, 3), ax=ax, legend=legend)
        (strip,) = ax.child_axes
        artists = [ax.title, strip.xaxis.label, *strip.get_xticklabels(), *([ax.get_legend()] if legend else [])]
        assert boxes_inside(figure, artists)


def test_class_grid_bins_probabilities_as_class_errors_does():
    probs, labels = overconfident(400, 3)
    axes = class_reliability_grid(probs, labels, class_names=[LONG, "$x$", LONG])
    expected = class_errors(probs, labels).error
    assert [ax.texts[0].get_text() for ax in axes] == [f"error {error:.3f}" for error in expected]
    headings = [ax.get_title().strip() for ax in axes]
    assert "…" in headings[0]
    assert headings[0].endswith(LONG.split()[-1][-10:])  # names that begin alike differ
    assert headings[1] == r"\$x\$"
    assert boxes_inside(whole(axes), [ax.title for ax in axes])


def test_missing_matplotlib_names_the_extra():
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from kcal.errors import MissingExtraError\n"
        "for code in ('import kcal.plots', 'from kcal.report import write_report'):\n"
        "    try:\n        exec(code)\n"
        "    except MissingExtraError as error:\n        print(error)\n"
        "import kcal.report.html\n"  # the templates need no matplotlib
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.count("pip install 'kcal[plots]'") == 2
