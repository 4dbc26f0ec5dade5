"""Curves of training, bandwidths, rejection and wealth, and ranks: what is drawn, and where."""

import numpy as np
import pytest
from drawn_figures import boxes_inside, legend_texts, overconfident, rendered
from matplotlib.colors import same_color

from kcal.kernels import BandwidthCurve
from kcal.metrics import accuracy_rejection, average_ranks, evaluate
from kcal.plots import (
    bandwidth_curve,
    rank_plot,
    rejection_curve,
    subgroup_plot,
    training_curve,
    wealth_curves,
)
from kcal.plots.style import GAP
from kcal.projection import TrainingCurve


def test_training_curve_has_losses_and_learning_rates():
    ax = training_curve(TrainingCurve((100, 200, 300), (0.9, 0.5, 0.4), (1e-2, 1e-2, 1e-3)), title="projection")
    assert ax.lines[0].get_xydata().tolist() == [[100, 0.9], [200, 0.5], [300, 0.4]]
    (rates_ax,) = [other for other in ax.figure.axes if other is not ax]
    assert rates_ax.get_yscale() == "log"
    assert list(rates_ax.lines[0].get_ydata()) == [1e-2, 1e-2, 1e-3]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("training step", "training log-loss")
    assert boxes_inside(ax.figure, [ax.title, ax.get_legend()])


def test_bandwidth_curve_has_losses_and_marks_the_chosen_bandwidth():
    curve = BandwidthCurve(np.array([0.25, 0.5, 1.0]), np.array([0.3, 0.2, 0.4]), 0.4567, 0.2, at_edge=False)
    ax = bandwidth_curve(curve)
    assert ax.lines[0].get_xydata().tolist() == [[0.25, 0.3], [0.5, 0.2], [1.0, 0.4]]
    assert list(ax.lines[1].get_xdata()) == [0.4567, 0.4567]
    assert "chosen: b = 0.457" in legend_texts(ax)
    assert (ax.get_xscale(), ax.get_xlabel(), ax.get_ylabel()) == ("log", "bandwidth b", "log-loss")
    assert rendered(ax.figure)


def test_rejection_curves_end_where_too_few_samples_are_kept():
    curve = accuracy_rejection(*overconfident(200, 3))
    ax = rejection_curve({"before": curve})
    kept = np.rint((1 - curve.rejected) * 200) >= 15
    assert 0 < (~kept).sum() < 20
    assert ax.lines[0].get_xydata() == pytest.approx(np.column_stack([curve.rejected, curve.accuracies])[kept])
    assert legend_texts(ax) == [f"before: area {curve.area:.4f}"]
    ax = rejection_curve({"one": accuracy_rejection([[0.3, 0.7]], [1])})
    assert list(ax.lines[0].get_ydata()) == [1.0]
    assert ax.get_ylim()[0] < 0.98
    assert rendered(ax.figure)


@pytest.mark.parametrize("n_methods", [1, 3, 9])
def test_rejection_curves_differ_in_more_than_colour_and_no_line_is_hidden(n_methods):
    generator = np.random.default_rng(0)
    curves = {}
    for place in range(n_methods):
        confidence = generator.uniform(0.5, 1, 2000)
        labels = (generator.random(2000) >= confidence).astype(int)
        curves[f"method {place}"] = accuracy_rejection(np.column_stack([confidence, 1 - confidence]), labels)
    ax = rejection_curve(curves)
    assert rendered(ax.figure)
    assert len({line.get_marker() for line in ax.lines}) == n_methods
    box = ax.get_legend().get_window_extent()
    for line in ax.lines:
        assert ax.get_ylim()[0] < line.get_ydata().min()
        assert not any(box.contains(x, y) for x, y in ax.transData.transform(line.get_xydata()))
    assert boxes_inside(ax.figure, [ax.get_legend(), ax.xaxis.label])
    assert not box.overlaps(ax.xaxis.label.get_window_extent())


def test_rank_plot_has_the_best_on_top_with_mean_and_spread():
    generator = np.random.default_rng(0)
    names = ("worst", "best", "a method with a very long name indeed " * 4)
    found = average_ranks(
        {
            task: {name: generator.normal(mean, size=20) for name, mean in zip(names, (2, 0, 1), strict=True)}
            for task in ("first", "second")
        }
    )
    ax = rank_plot(found, title="log-loss")
    ordered = [names[k] for k in (1, 2, 0)]
    assert ax.yaxis_inverted()
    for place, (name, bar) in enumerate(zip(ordered, ax.containers, strict=True)):
        rank, (mark, _, (spread,)) = found.ranks[name], bar
        assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (rank.mean, place)
        assert spread.get_segments()[0][:, 0] == pytest.approx([rank.mean - rank.std, rank.mean + rank.std])
        assert same_color(mark.get_color(), GAP) == (name == "best")
    assert [text.get_text() for text in ax.texts] == [str(found.ranks[name]) for name in ordered]
    assert boxes_inside(ax.figure, [*ax.texts, *ax.get_yticklabels(), ax.title])
    single = rank_plot(average_ranks({"task": {"a": 1.0, "b": 2.0}}))
    assert [text.get_text() for text in single.texts] == ["1.00", "2.00"]


def test_wealth_curves_mark_alarms_threshold_and_changes():
    paths = {"with labels": np.linspace(0, np.log(1e3), 50), "without": np.zeros(30)}
    ax = wealth_curves(paths, alpha=0.01, changes=[20], title="A stream")
    lines = {line.get_label(): line for line in ax.get_lines()}
    assert lines["with labels: alarm after 34"].get_xydata()[-1] == pytest.approx([50, 3])
    assert "without: no alarm" in lines
    assert [int(line.get_xdata()[0]) for line in ax.get_lines() if line.get_marker() == "o"] == [34]
    assert any(line.get_linestyle() == "--" and set(line.get_ydata()) == {2.0} for line in ax.get_lines())
    assert any(line.get_linestyle() == ":" and line.get_xdata()[0] == 20 for line in ax.get_lines())


@pytest.mark.parametrize("n_subgroups", [1, 4, 30])
def test_subgroups_have_accuracy_confidence_and_interval(n_subgroups):
    probs, labels = overconfident(900, 3)
    found = evaluate(probs, labels, by=np.arange(900) % n_subgroups, resamples=20)
    ax = subgroup_plot(found, title="sites")
    accuracies, confidences = ax.lines
    np.testing.assert_array_equal(accuracies.get_xdata(), found.accuracy)
    np.testing.assert_array_equal(confidences.get_xdata(), found.mean_confidence)
    texts = [text.get_text() for text in ax.texts]
    low, high = 100 * found.low[0], 100 * found.high[0]
    assert texts[1] == f"{100 * found.error[0]:.2f} [{low:.2f}, {high:.2f}]"
    assert ax.get_yticklabels()[0].get_text().startswith(f"0 ({found.counts[0]})")
    assert boxes_inside(ax.figure, [ax.title, ax.get_legend(), ax.xaxis.label, *ax.texts, *ax.get_yticklabels()])


def test_subgroups_that_are_alike_have_ticks_that_differ():
    probs, labels = np.tile([0.9, 0.1], (1000, 1)), np.arange(1000) % 10 == 0
    ax = subgroup_plot(evaluate(probs, labels, by=np.arange(1000) < 505, resamples=20))
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert len(set(ticks)) == len(ticks)
