"""The structure of the curves that a fitted KCal keeps of its search and its training."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from pictures import rendered

from kcal import KCal
from kcal.errors import InvalidInputError
from kcal.kernels import BandwidthCurve
from kcal.plots import bandwidth_curve, training_curve


def curve(chosen=0.5):
    return BandwidthCurve(np.array([0.25, 0.5, 1.0]), np.array([0.3, 0.2, 0.4]), chosen, 0.2, at_edge=False)


@pytest.fixture(scope="module")
def embeddings():
    generator = np.random.default_rng(0)
    labels = np.arange(60) % 2
    return generator.normal(size=(60, 3)) + labels[:, None], labels


def test_the_losses_are_drawn_over_the_bandwidths():
    ax = bandwidth_curve(curve())
    drawn, _ = ax.lines
    assert list(drawn.get_xdata()) == [0.25, 0.5, 1.0]
    assert list(drawn.get_ydata()) == [0.3, 0.2, 0.4]
    assert ax.get_xscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("bandwidth b", "log-loss")
    assert rendered(ax.figure)


def test_the_chosen_bandwidth_is_marked_and_named():
    ax = bandwidth_curve(curve(0.4567))
    marked = ax.lines[1]
    assert list(marked.get_xdata()) == [0.4567, 0.4567]
    assert "chosen: b = 0.457" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_it_draws_on_the_axes_that_are_given():
    ax = Figure().add_subplot()
    assert bandwidth_curve(curve(), ax=ax, title="search") is ax
    assert ax.get_title() == "search"


def test_the_curves_of_a_fitted_calibrator_are_drawn(embeddings, short_trainings):
    fitted = KCal(projection="identity").fit(*embeddings)
    drawn = bandwidth_curve(fitted.bandwidth_curve_).lines[0]
    np.testing.assert_array_equal(drawn.get_xdata(), fitted.bandwidth_curve_.bandwidths)
    others = {"train_embeddings": embeddings[0] + 0.1, "train_labels": embeddings[1]}
    trained = KCal(projection="linear", progress=False).fit(*embeddings, **others)
    assert list(training_curve(trained.training_curve_).lines[0].get_xdata()) == list(trained.training_curve_.steps)


def test_a_calibrator_that_searched_or_trained_nothing_has_no_curve_to_draw(embeddings):
    fitted = KCal(projection="identity", bandwidth=0.5).fit(*embeddings)
    with pytest.raises(InvalidInputError, match="curve must be bandwidth_curve_ of a KCal that searched its bandwidth"):
        bandwidth_curve(fitted.bandwidth_curve_)
    with pytest.raises(InvalidInputError, match="curve must be training_curve_ of a KCal that trained its projection"):
        training_curve(fitted.training_curve_)
