"""The confidence bands of reliability diagrams, against scipy's Wilson interval."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import same_color
from pictures import legend_texts, rendered
from scipy.stats import binomtest

from kcal.errors import InvalidInputError
from kcal.metrics import ReliabilityBins, reliability
from kcal.plots import reliability_diagram
from kcal.plots.style import BAND


@pytest.fixture
def bins():
    """Five bins: empty, under 15 samples, never, sometimes, always."""
    return ReliabilityBins(
        counts=np.array([0, 4, 20, 50, 30]),
        mean_prediction=np.array([np.nan, 0.3, 0.5, 0.7, 0.9]),
        observed_frequency=np.array([np.nan, 0.5, 0.0, 0.62, 1.0]),
        edges=np.linspace(0, 1, 6),
        of="confidence",
        adaptive=False,
        weights=np.array([0, 4, 20, 50, 30], dtype=float),
        effective_counts=np.array([0, 4, 20, 50, 30], dtype=float),
    )


def bands(ax):
    """The upright lines of a diagram: where they stand, where they begin and end."""
    (drawn,) = [
        lines
        for lines in ax.collections
        if isinstance(lines, LineCollection) and same_color(lines.get_color()[0], BAND)
    ]
    segments = np.array(drawn.get_segments())
    return segments[:, 0, 0], segments[:, 0, 1], segments[:, 1, 1]


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_bands_are_wilsons_intervals(bins, confidence):
    low, high = bins.frequency_bands(confidence)
    assert np.isnan(low[0])
    assert np.isnan(high[0])
    for b in range(1, 5):
        hits = round(float(bins.counts[b] * bins.observed_frequency[b]))
        expected = binomtest(hits, int(bins.counts[b])).proportion_ci(confidence, method="wilson")
        assert (low[b], high[b]) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("minimum_count", [0, 15])
def test_a_band_is_drawn_at_the_mean_prediction_of_every_bar_and_nowhere_else(bins, minimum_count):
    places, begins, ends = bands(reliability_diagram(bins, minimum_count=minimum_count))
    merged = bins.merged(minimum_count)
    low, high = merged.frequency_bands(0.95)
    assert places == pytest.approx(merged.mean_prediction[1:])
    assert begins == pytest.approx(low[1:])
    assert ends == pytest.approx(high[1:])


def test_more_confidence_makes_wider_bands(bins):
    _, low, high = bands(reliability_diagram(bins, confidence=0.5))
    _, lower, higher = bands(reliability_diagram(bins, confidence=0.99))
    assert (higher - lower > high - low).all()


def test_the_legend_names_the_confidence_and_bands_can_be_left_out(bins):
    assert "99.9 % confidence band" in legend_texts(reliability_diagram(bins, confidence=0.999))
    without = reliability_diagram(bins, confidence=None)
    assert not any("band" in text for text in legend_texts(without))
    with pytest.raises(ValueError, match="not enough values"):
        bands(without)


def test_bands_of_equal_count_bins_stand_at_the_mean_prediction():
    probs = np.linspace(0.5, 0.9, 60)
    adaptive = reliability(np.column_stack([1 - probs, probs]), np.arange(60) % 2, bins=3, adaptive=True)
    middles, _, _ = bands(reliability_diagram(adaptive))
    assert middles == pytest.approx(adaptive.mean_prediction)


def test_one_sample_and_its_wide_band_can_be_drawn():
    ax = reliability_diagram(reliability([[0.3, 0.7]], [1]), minimum_count=1)
    _, low, high = bands(ax)
    assert (low[0], high[0]) == pytest.approx((0.2065, 1.0), abs=1e-4)
    assert rendered(ax.figure)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"confidence": 1.0}, "confidence must be a number strictly between 0 and 1"),
        ({"confidence": 95}, "confidence must be a number strictly between 0 and 1"),
        ({"confidence": "high"}, "confidence must be a number"),
        ({"minimum_count": -1}, "minimum_count must be an integer from 0 .*; got -1"),
        ({"minimum_count": 1.5}, "minimum_count must be an integer"),
        ({"minimum_count": 10**30}, "minimum_count must be an integer"),
        ({"ax": 5}, "ax must be matplotlib axes or None; got 5"),
        ({"title": 5}, "title must be text or None; got 5"),
        ({"legend": "yes"}, "legend must be True or False; got 'yes'"),
        ({"class_name": ["a"]}, "class_name must be text or None"),
    ],
)
def test_settings_that_mean_nothing_are_refused(bins, settings, message):
    with pytest.raises(InvalidInputError, match=message):
        reliability_diagram(bins, **settings)


def test_what_are_no_bins_is_refused_by_its_name():
    for bins in ([0.1, 0.2], None, "x", np.zeros(3)):
        with pytest.raises(
            InvalidInputError, match=r"predictions must be the result of kcal\.metrics\.reliability\(probs"
        ):
            reliability_diagram(bins)
