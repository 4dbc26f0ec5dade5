"""The structure of training curves, accuracy–rejection curves and ranks."""

import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.figure import Figure
from pictures import boxes_inside, legend_texts, overconfident, rendered

from kcal.errors import InvalidInputError
from kcal.metrics import accuracy_rejection, average_ranks
from kcal.metrics import AverageRank, AverageRanks
from kcal.plots import rank_plot, rejection_curve, training_curve
from kcal.plots.style import GAP, wrap_label
from kcal.projection import TrainingCurve

LEARNING = TrainingCurve((100, 200, 300), (0.9, 0.5, 0.4), (1e-2, 1e-2, 1e-3))


def test_a_training_curve_shows_losses_and_the_learning_rate_on_a_logarithmic_right_axis():
    ax = training_curve(LEARNING, title="projection")
    (losses,) = ax.lines
    assert list(losses.get_xdata()) == [100, 200, 300]
    assert list(losses.get_ydata()) == [0.9, 0.5, 0.4]
    (rates_ax,) = [other for other in ax.figure.axes if other is not ax]
    assert rates_ax.get_yscale() == "log"
    assert list(rates_ax.lines[0].get_ydata()) == [1e-2, 1e-2, 1e-3]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("training step", "training log-loss")
    assert legend_texts(ax) == ["log-loss", "learning rate (right axis)"]
    assert boxes_inside(ax.figure, [ax.title, ax.get_legend()])


def test_a_training_of_one_step_shows_two_marks_that_can_be_told_apart():
    ax = training_curve(TrainingCurve((5,), (0.4,), (1e-2,)))
    (rate,) = ax.figure.axes[1].lines
    assert rate.get_markerfacecolor() == "none"
    assert rate.get_markersize() > ax.lines[0].get_markersize()
    assert rendered(ax.figure)


def test_without_learning_rates_there_is_no_right_axis():
    ax = training_curve(TrainingCurve((1, 2), (0.4, 0.3), (0.0, 0.0)))
    assert ax.figure.axes == [ax]
    assert legend_texts(ax) == ["log-loss"]


@pytest.mark.parametrize(
    ("curve", "message"),
    [
        (TrainingCurve((), (), ()), "curve must .* at least one step; got 0 steps"),
        (TrainingCurve((1, 2), (0.3,), (0.1, 0.1)), "got 2 steps, 1 losses and 2 learning rates"),
        ([0.3, 0.2], r"curve must be training_curve_ of a KCal that trained its projection; got \[0\.3, 0\.2\]"),
        (None, "curve must be"),
    ],
)
def test_training_curves_that_cannot_be_drawn_are_refused(curve, message):
    with pytest.raises(InvalidInputError, match=message):
        training_curve(curve)


def test_rejection_curves_follow_the_accuracies_until_too_few_samples_are_kept():
    curve = accuracy_rejection(*overconfident(200, 3))
    ax = rejection_curve({"before": curve, "after": accuracy_rejection(*overconfident(200, 3, seed=1))})
    line = ax.lines[0]
    kept = np.rint((1 - curve.rejected) * 200) >= 15
    assert line.get_xdata() == pytest.approx(curve.rejected[kept])
    assert line.get_ydata() == pytest.approx(curve.accuracies[kept])
    assert 0 < (~kept).sum() < 20
    assert legend_texts(ax)[0] == f"before: area {curve.area:.4f}"
    assert ax.get_xlabel() == "samples rejected, least confident first"


def test_methods_differ_in_more_than_colour_and_no_accuracy_is_cut():
    curves = {f"m{seed}": accuracy_rejection(*overconfident(150, 3, seed=seed)) for seed in range(9)}
    ax = rejection_curve(curves)
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in ax.lines}
    markers = {line.get_marker() for line in ax.lines}
    assert len(looks) == len(markers) == 9
    low, high = ax.get_ylim()
    assert low < min(line.get_ydata().min() for line in ax.lines)
    assert high > 1
    assert rendered(ax.figure)


@pytest.mark.parametrize("n_methods", [1, 3, 9])
def test_the_legend_of_rejection_curves_hides_no_line(n_methods):
    """Lines rise to the right: a few methods' legend has room below them, that of many stands below the axes."""
    generator = np.random.default_rng(0)
    curves = {}
    for place in range(n_methods):
        confidence = generator.uniform(0.5, 1, 2000)
        right = generator.random(2000) < confidence
        curves[f"method {place}"] = accuracy_rejection(
            np.column_stack([confidence, 1 - confidence]), np.where(right, 0, 1)
        )
    ax = rejection_curve(curves)
    assert rendered(ax.figure)
    box = ax.get_legend().get_window_extent()
    for line in ax.lines:
        places = ax.transData.transform(np.column_stack(line.get_data()))
        assert not any(box.contains(x, y) for x, y in places)
    assert boxes_inside(ax.figure, [ax.get_legend(), ax.xaxis.label])
    assert not box.overlaps(ax.xaxis.label.get_window_extent())


def test_one_sample_gives_a_point_and_readable_ticks():
    ax = rejection_curve({"one": accuracy_rejection([[0.3, 0.7]], [1])})
    assert list(ax.lines[0].get_ydata()) == [1.0]
    low, high = ax.get_ylim()
    assert low < 0.98
    assert high > 1
    assert rendered(ax.figure)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ({}, "curves must have 1 to 400 methods; got 0"),
        ([1, 2], r"curves must be a dictionary .*; got \[1, 2\]"),
        (None, "curves must be a dictionary"),
        ({"a": [0.5, 0.6]}, r"curves\['a'\] must be the result of kcal\.metrics\.accuracy_rejection"),
    ],
)
def test_rejection_curves_that_cannot_be_drawn_are_refused(curves, message):
    with pytest.raises(InvalidInputError, match=message):
        rejection_curve(curves)


def test_ranks_stand_with_the_best_on_top_its_mean_and_spread():
    generator = np.random.default_rng(0)
    tasks = {
        task: {name: generator.normal(loc, size=20) for name, loc in (("worst", 2), ("best", 0), ("middle", 1))}
        for task in ("first", "second")
    }
    found = average_ranks(tasks)
    ax = rank_plot(found, title="log-loss")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["best", "middle", "worst"]
    assert ax.yaxis_inverted()
    for place, (name, bar) in enumerate(zip(("best", "middle", "worst"), ax.containers, strict=True)):
        rank = found.ranks[name]
        (mark, _, (spread,)) = bar
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (rank.mean, place)
        assert spread.get_segments()[0][:, 0] == pytest.approx([rank.mean - rank.std, rank.mean + rank.std])
        assert same_color(mark.get_color(), GAP) == (name == "best")
    assert [text.get_text() for text in ax.texts] == [str(found.ranks[name]) for name in ("best", "middle", "worst")]
    assert boxes_inside(ax.figure, [*ax.texts, *ax.get_yticklabels(), ax.title])


def test_single_ranks_have_no_spread_and_long_names_are_not_cut_off():
    ax = rank_plot(average_ranks({"task": {"a": 1.0, "a method with a very long name indeed " * 4: 2.0}}))
    assert [text.get_text() for text in ax.texts] == ["1.00", "2.00"]
    assert boxes_inside(ax.figure, ax.get_yticklabels())


def test_ranks_are_drawn_on_the_axes_that_are_given():
    ax = Figure().add_subplot()
    assert rank_plot(average_ranks({"t": {"a": 1.0}}), ax=ax) is ax


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ({"a": 1.0}, "ranks must be the result of"),
        (None, "ranks must be the result of"),
        (AverageRanks({}), "ranks must have 1 to 400 methods; got 0"),
        (AverageRanks({str(k): AverageRank(1.0, 0.0) for k in range(1000)}), "ranks must have 1 to 400"),
    ],
)
def test_ranks_that_cannot_be_drawn_are_refused(ranks, message):
    with pytest.raises(InvalidInputError, match=message):
        rank_plot(ranks)


@pytest.mark.parametrize(
    "name", ["resnet50_pretrained_on_imagenet_and_calibrated_{}", "ResNet pretrained on ImageNet, method {}"]
)
def test_long_names_that_differ_at_the_end_can_be_told_apart(name):
    for width, lines in ((14, 3), (16, 2), (19, 2), (32, 1), (40, 1)):
        shown = [wrap_label(name.format(end), width=width, lines=lines) for end in ("one", "two")]
        assert shown[0] != shown[1]
        for text in shown:
            assert len(text.splitlines()) <= lines
            assert max(map(len, text.splitlines())) <= width
    assert wrap_label("short", width=14) == "short"
