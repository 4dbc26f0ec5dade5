"""The structure of the figure of three classes in a triangle."""

import numpy as np
import pytest
from drawn_figures import boxes_inside, legend_texts, overconfident, rendered
from matplotlib.quiver import Quiver

from kcal.metrics import canonical_cells
from kcal.plots import simplex_plot
from kcal.plots.simplex import CORNERS

NAMES = ["healthy", "seizure", "periodic discharge"]


def clouds(ax):
    """The samples of each class."""
    return [line for line in ax.lines if line.get_linestyle() == "None"]


def arrows(ax):
    return [quiver for quiver in ax.collections if isinstance(quiver, Quiver)]


def test_samples_lie_where_their_probabilities_say_by_true_class():
    probs = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    ax = simplex_plot(canonical_cells(probs, [0, 1, 2, 0], bins=5), class_names=NAMES)
    first, second, third = clouds(ax)
    assert np.column_stack(first.get_data()) == pytest.approx(np.array([CORNERS[0], [0.5, 0.0]]))
    assert np.column_stack(second.get_data()) == pytest.approx(CORNERS[[1]])
    assert np.column_stack(third.get_data()) == pytest.approx(CORNERS[[2]])
    assert len({(cloud.get_color(), cloud.get_marker()) for cloud in (first, second, third)}) == 3
    assert [text.get_text() for text in ax.texts] == NAMES


def test_arrows_lead_from_mean_prediction_to_observed_frequency():
    probs = np.concatenate([np.tile([0.7, 0.25, 0.05], (20, 1)), np.tile([0.05, 0.05, 0.9], (14, 1))])
    labels = np.array([0] * 10 + [1] * 10 + [2] * 14)
    ax = simplex_plot(canonical_cells(probs, labels, bins=5))
    (drawn,) = arrows(ax)
    assert drawn.get_offsets() == pytest.approx(np.array([[0.7, 0.25, 0.05]]) @ CORNERS)  # the cell of 14 has none
    move = (np.array([0.5, 0.5, 0.0]) - [0.7, 0.25, 0.05]) @ CORNERS
    assert (drawn.U[0], drawn.V[0]) == pytest.approx(tuple(move))
    assert len(arrows(simplex_plot(canonical_cells(probs, labels, bins=5), minimum_count=14))[0].U) == 2


def test_too_few_samples_have_no_arrow_and_no_legend_entry():
    ax = simplex_plot(canonical_cells([[0.2, 0.3, 0.5]], [2], bins=5))
    assert arrows(ax) == []
    assert legend_texts(ax) == ["truly class 0", "truly class 1", "truly class 2"]
    assert rendered(ax.figure)


def test_many_samples_are_thinned_and_the_legend_says_so():
    probs, labels = overconfident(5000, 3)
    ax = simplex_plot(canonical_cells(probs, labels, bins=5), class_names=NAMES, title="before")
    assert sum(len(cloud.get_xdata()) for cloud in clouds(ax)) == 1667
    assert "one sample of 3 is drawn" in legend_texts(ax)
    assert "predicted → observed" in legend_texts(ax)
    assert boxes_inside(ax.figure, [ax.title, ax.get_legend(), *ax.texts])
