"""The structure of reliability diagrams: what is drawn, where, and what is left out."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import same_color, to_rgb
from matplotlib.figure import Figure
from pictures import whole

import kcal.plots
from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins, reliability
from kcal.plots import reliability_diagram, reliability_grid
from kcal.plots.style import COUNTS, GAP, GAP_FILL, OBSERVED, OBSERVED_EDGE


@pytest.fixture
def bins():
    """Four bins: empty, under 15 samples, too low, too high."""
    return ReliabilityBins(
        counts=np.array([0, 14, 15, 200]),
        mean_prediction=np.array([np.nan, 0.4, 0.6, 0.9]),
        observed_frequency=np.array([np.nan, 0.0, 0.7, 0.5]),
        edges=np.array([0, 0.25, 0.5, 0.75, 1]),
        of="confidence",
        adaptive=False,
        weights=np.array([0, 14, 15, 200], dtype=float),
        effective_counts=np.array([0, 14, 15, 200], dtype=float),
    )


def bars(ax, colour):
    return [patch for patch in ax.patches if same_color(patch.get_facecolor(), colour)]


def counts_axes(ax):
    (strip,) = ax.child_axes
    return strip


def rendered(figure):
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def test_bars_reach_the_observed_frequency_and_small_bins_are_merged(bins):
    drawn = bars(reliability_diagram(bins), OBSERVED)
    assert [bar.get_height() for bar in drawn] == pytest.approx([0.7 * 15 / 29, 0.5])
    assert [bar.get_x() for bar in drawn] == pytest.approx([0.25, 0.75])
    assert [bar.get_width() for bar in drawn] == pytest.approx([0.5, 0.25])


def test_the_gap_lies_between_observed_frequency_and_mean_prediction(bins):
    gaps = bars(reliability_diagram(bins, minimum_count=0), GAP_FILL)
    assert [(gap.get_y(), gap.get_y() + gap.get_height()) for gap in gaps] == [
        pytest.approx((0.0, 0.4)),
        pytest.approx((0.6, 0.7)),
        pytest.approx((0.5, 0.9)),
    ]
    assert all(gap.get_hatch() for gap in gaps)


def test_the_smallest_count_of_a_bar_is_a_parameter(bins):
    assert len(bars(reliability_diagram(bins, minimum_count=14), OBSERVED)) == 3
    assert len(bars(reliability_diagram(bins, minimum_count=16), OBSERVED)) == 2
    assert len(bars(reliability_diagram(bins, minimum_count=230), OBSERVED)) == 1
    assert len(bars(reliability_diagram(bins, minimum_count=0), OBSERVED)) == 3  # never the empty one


def test_every_bar_has_a_dot_at_its_mean_prediction_and_its_frequency(bins):
    ax = reliability_diagram(bins, minimum_count=0)
    (dots,) = [line for line in ax.lines if line.get_marker() == "o"]
    assert list(dots.get_xdata()) == [0.4, 0.6, 0.9]
    assert list(dots.get_ydata()) == [0.0, 0.7, 0.5]


def test_the_diagonal_is_square_whatever_the_shape_of_the_figure(bins):
    for size in ((12, 5), (4, 10), (6, 6)):
        ax = reliability_diagram(bins, ax=Figure(figsize=size, layout="constrained").add_subplot())
        ax.figure.draw_without_rendering()
        box = ax.get_window_extent()
        assert box.width == pytest.approx(box.height)


def test_probabilities_and_labels_are_cut_into_bins_of_equal_width():
    generator = np.random.default_rng(0)
    probs, labels = generator.dirichlet(np.ones(3), size=300), generator.integers(0, 3, size=300)
    for of in (None, 1):
        ax = reliability_diagram(probs, labels, of=of)
        expected = reliability_diagram(
            reliability(probs, labels, of="confidence" if of is None else of, adaptive=False)
        )
        assert ax.get_title() == expected.get_title()
        heights, same = ([bar.get_height() for bar in bars(each, OBSERVED)] for each in (ax, expected))
        assert heights == same
    with pytest.raises(InvalidInputError, match="labels must be left out if predictions are binned"):
        reliability_diagram(reliability(probs, labels), labels)
    with pytest.raises(InvalidInputError, match="of must be left out if predictions are binned"):
        reliability_diagram(reliability(probs, labels), of=1)
    with pytest.raises(InvalidInputError, match=r"predictions must be the result .* or probabilities with labels"):
        reliability_diagram(probs)
    with pytest.raises(InvalidInputError, match="probs must be"):
        reliability_diagram("x", labels)


def test_counts_of_all_bins_are_a_logarithmic_strip_below_the_diagram(bins):
    ax = reliability_diagram(bins)
    counts = counts_axes(ax)
    assert counts.get_yscale() == "log"
    assert [bar.get_height() for bar in bars(counts, COUNTS)] == [14, 15, 200]
    assert [bar.get_x() for bar in bars(counts, COUNTS)] == pytest.approx([0.25, 0.5, 0.75])
    ax.figure.draw_without_rendering()
    above, below = ax.get_window_extent(), counts.get_window_extent()
    assert below.y1 < above.y0
    assert (below.x0, below.x1) == pytest.approx((above.x0, above.x1))


def test_the_axes_say_what_they_show(bins):
    ax = reliability_diagram(bins)
    assert isinstance(ax, Axes)
    strip = counts_axes(ax)
    assert (strip.get_xlabel(), ax.get_ylabel(), strip.get_ylabel()) == ("confidence", "accuracy", "samples")
    assert ax.get_xlim() == ax.get_ylim() == (0, 1)
    assert ax.get_title() == f"confidence: calibration error {bins.calibration_error:.3f}"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "observed frequency",
        "gap to the mean prediction",
        "perfect calibration",
        "95 % confidence band",
        "samples (log scale)",
    ]


def test_a_class_is_called_by_its_name_and_dollars_are_no_mathematics():
    of_class = reliability([[0.4, 0.6]] * 20, [0] * 20, of=1)
    ax = reliability_diagram(of_class)
    assert counts_axes(ax).get_xlabel() == "predicted probability of class 1"
    assert ax.get_ylabel() == "observed frequency"
    named = reliability_diagram(of_class, class_name="$a$")
    assert counts_axes(named).get_xlabel() == r"predicted probability of \$a\$"
    assert rendered(named.figure)


def test_it_draws_on_the_axes_that_are_given(bins):
    ax = Figure().add_subplot()
    assert reliability_diagram(bins, ax=ax, title="before", legend=False) is ax
    assert ax.get_title() == "before"
    assert ax.get_legend() is None


def test_equal_count_bins_stand_at_their_mean_prediction_and_are_wide_enough_to_see():
    probs = np.concatenate([np.linspace(0.5, 0.6, 20), np.full(80, 0.999)])
    adaptive = reliability(np.column_stack([1 - probs, probs]), np.ones(100, dtype=int), bins=5, adaptive=True)
    drawn = bars(reliability_diagram(adaptive), OBSERVED)
    middles = [bar.get_x() + bar.get_width() / 2 for bar in drawn]
    assert middles == pytest.approx(adaptive.mean_prediction.tolist())
    assert all(0.008 - 1e-9 <= bar.get_width() <= 0.2 + 1e-9 for bar in drawn)


@pytest.mark.parametrize("adaptive", [True, False])
def test_no_samples_give_an_empty_diagram_that_says_so(adaptive):
    nothing = reliability([[0.5, 0.5]], [0], of=0, threshold=0.9, adaptive=adaptive)
    ax = reliability_diagram(nothing)
    assert ax.get_title() == "class 0: no samples"
    assert not bars(ax, OBSERVED)
    assert rendered(ax.figure)


@pytest.fixture
def methods():
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(3), size=600)
    labels = (probs.cumsum(axis=1) > generator.random((600, 1))).argmax(axis=1)
    return {
        name: [reliability(p, labels, bins=10, of=k) for k in range(3)]
        for name, p in (("before", probs), ("temperature scaling", probs[::-1]))
    }


def test_a_grid_has_a_row_for_each_method_and_a_column_for_each_class(methods):
    figure = whole(reliability_grid(methods, ["cat", "dog", "bird"], title="all"))
    assert isinstance(figure, Figure)
    panels = figure.axes
    counts = [counts_axes(ax) for ax in panels]
    assert len(panels) == len(counts) == 6
    assert [ax.get_title().strip() for ax in panels] == ["cat", "dog", "bird", "", "", ""]
    assert [ax.get_ylabel() for ax in panels] == ["before", "", "", "temperature\nscaling", "", ""]
    assert len({ax.get_ylim() for ax in counts}) == 1
    assert rendered(figure)


def test_each_panel_of_a_grid_shows_its_bins_and_error(methods):
    figure = whole(reliability_grid(methods, ["cat", "dog", "bird"], minimum_count=20))
    panels = figure.axes
    drawn = [bins for row in methods.values() for bins in row]
    for ax, bins in zip(panels, drawn, strict=True):
        assert len(bars(ax, OBSERVED)) == (bins.merged(20).counts > 0).sum()
        assert [text.get_text() for text in ax.texts] == [f"error {bins.calibration_error:.3f}"]


def test_a_grid_returns_its_axes_and_draws_on_the_figure_that_is_given(methods):
    figure = Figure(figsize=(8, 6), layout="constrained")
    axes = reliability_grid(methods, ["cat", "dog", "bird"], figure=figure)
    assert axes.shape == (2, 3)
    assert whole(axes) is figure
    assert len(figure.axes) == 6


def test_observed_and_gap_differ_for_every_eye():
    """In lightness, which all see, and in blue against yellow."""
    for one, other in ((OBSERVED, GAP_FILL), (OBSERVED_EDGE, GAP), (GAP, GAP_FILL)):
        difference = np.abs(np.array(to_rgb(one)) - to_rgb(other))
        assert difference.max() > 0.35


def test_a_grid_of_one_panel_and_names_in_an_array_can_be_drawn(methods):
    assert rendered(whole(reliability_grid({"one": methods["before"][:1]}, np.array(["cat"]))))


def test_a_grid_that_lacks_a_class_is_refused(methods):
    methods["before"].pop()
    with pytest.raises(InvalidInputError, match=r"rows\['before'\] must be a list of the bins of all 3 classes; got 2"):
        reliability_grid(methods, ["cat", "dog", "bird"])


@pytest.mark.parametrize(
    ("rows", "names", "message"),
    [
        ({}, ["cat"], "rows must have 1 to 400 panels; got 0"),
        (None, ["cat"], "rows must be a dictionary"),
        ({"before": []}, [], "class_names must have at least one name"),
        ({"before": []}, None, "class_names must be a list of names"),
        ({"before": []}, "cat", "class_names must be a list of names"),
        ({"before": None}, ["cat"], r"rows\['before'\] must be a list"),
        ({"before": [None]}, ["cat"], r"rows\['before'\] must be the result of kcal\.metrics\.reliability"),
    ],
)
def test_a_grid_that_cannot_be_drawn_is_refused_by_the_name_of_the_argument(rows, names, message):
    with pytest.raises(InvalidInputError, match=message):
        reliability_grid(rows, names)


def test_a_grid_of_too_many_panels_or_on_no_figure_is_refused(methods):
    with pytest.raises(InvalidInputError, match="rows must have 1 to 400 panels; got 3,000"):
        reliability_grid({str(k): methods["before"] for k in range(1000)}, ["cat", "dog", "bird"])
    with pytest.raises(InvalidInputError, match="figure must be a matplotlib figure or None"):
        reliability_grid(methods, ["cat", "dog", "bird"], figure="new")


def test_without_matplotlib_importing_the_plots_or_the_report_says_how_to_install_it():
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from kcal.errors import MissingExtraError\n"
        "for name in ('kcal.plots.reliability', 'kcal.report'):\n"
        "    try:\n        __import__(name)\n"
        "    except MissingExtraError as error:\n        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.count("pip install 'kcal[plots]'") == 2


def test_the_exported_names_are_these():
    assert kcal.plots.__all__ == [
        "bandwidth_curve",
        "class_reliability_grid",
        "explanation",
        "rank_plot",
        "rejection_curve",
        "reliability_diagram",
        "reliability_grid",
        "simplex_plot",
        "training_curve",
        "wealth_curves",
    ]
    assert all(hasattr(kcal.plots, name) for name in kcal.plots.__all__)


@pytest.mark.parametrize("name", [None, "a class with a name that is so long that it takes two lines of the figure"])
def test_everything_drawn_lies_within_the_figure(name):
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.ones(3), size=500)
    bins = reliability(probs, generator.integers(3, size=500), of="confidence" if name is None else 1)
    figure = reliability_diagram(bins, class_name=name).figure
    FigureCanvasAgg(figure).draw()
    drawn, page = figure.get_tightbbox(), figure.bbox_inches
    assert drawn.x0 >= 0
    assert drawn.y0 >= 0
    assert drawn.x1 <= page.width
    assert drawn.y1 <= page.height
