"""The structure of the bandwidth curve."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from kcal.errors import InvalidInputError
from kcal.plots import bandwidth_curve


def test_the_losses_are_drawn_in_ascending_order_of_the_bandwidth():
    ax = bandwidth_curve([1.0, 0.25, 0.5], [0.4, 0.3, 0.2], 0.5)
    curve, _ = ax.lines
    assert list(curve.get_xdata()) == [0.25, 0.5, 1.0]
    assert list(curve.get_ydata()) == [0.3, 0.2, 0.4]
    assert ax.get_xscale() == "log"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("bandwidth b", "log-loss")
    ax.figure.savefig(io.BytesIO(), format="png")


def test_the_chosen_bandwidth_is_marked_and_named():
    ax = bandwidth_curve([0.25, 0.5], [0.3, 0.2], 0.4567)
    marked = ax.lines[1]
    assert list(marked.get_xdata()) == [0.4567, 0.4567]
    assert "chosen: b = 0.457" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_it_draws_on_the_axes_that_are_given():
    ax = Figure().add_subplot()
    assert bandwidth_curve([0.5], [0.3], 0.5, ax=ax, title="search") is ax
    assert ax.get_title() == "search"


@pytest.mark.parametrize(
    ("bandwidths", "losses", "chosen", "message"),
    [
        ([0.5, 1.0], [0.3], 0.5, "losses must have 2 entries, one per bandwidth; got 1"),
        ([], [], 0.5, "bandwidths must be a list of at least one number"),
        ([0.5, 0.0], [0.3, 0.2], 0.5, "bandwidths must be positive"),
        ([0.5, np.nan], [0.3, 0.2], 0.5, "bandwidths must be positive"),
        ([0.5, 1.0], [0.3, 0.2], 0.0, "chosen must be a number strictly between 0"),
        ([0.5, 1.0], [0.3, 0.2], "0.5", "chosen must be a number"),
        (None, [0.3], 0.5, "bandwidths must be an array, a tensor or a list; got None"),
        ([0.5], ["low"], 0.5, "losses must be real numbers; got text"),
        ([[0.5]], [0.3], 0.5, "bandwidths must be a list"),
        (np.ma.masked_equal([0.5, 1.0], 1.0), [0.3, 0.2], 0.5, "bandwidths must not have masked"),
    ],
)
def test_bandwidths_that_cannot_be_drawn_are_refused(bandwidths, losses, chosen, message):
    with pytest.raises(InvalidInputError, match=message):
        bandwidth_curve(bandwidths, losses, chosen)
