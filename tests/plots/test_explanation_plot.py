"""The structure of a drawn explanation: bars by class that sum to the probabilities, log-odds, images."""

from __future__ import annotations

from typing import Any

import matplotlib.image
import numpy as np
import pytest
from drawn_figures import boxes_inside, legend_texts, rendered
from matplotlib.container import BarContainer

from kcal import KCal, KCalBlend
from kcal.calibrators import Explanation
from kcal.errors import InvalidInputError
from kcal.plots import explanation as draw
from synthetic import Problem

IMAGES = np.random.default_rng(0).integers(0, 256, (240, 6, 5)).astype(np.uint8)


@pytest.fixture(scope="module")
def explained(problem: Problem) -> Explanation:
    """Six classes, two samples for each prediction."""
    model = KCal(projection="identity", smoothing=0.05).fit(
        problem.embeddings, problem.labels + 3 * (np.arange(240) % 2 == 0), ids=[f"patient ${i}" for i in range(240)]
    )
    return model.explain(problem.test_embeddings[:9], k=2)


@pytest.fixture(scope="module")
def blended(problem: Problem) -> Explanation:
    blend = KCalBlend().fit(problem.embeddings, problem.labels, logits=problem.logits)
    return blend.explain(problem.test_embeddings[:9], k=3, logits=problem.test_logits[:9])


def widths(ax: Any) -> np.ndarray:
    """Widths of the bars, (classes, rows)."""
    found = [part for part in ax.containers if isinstance(part, BarContainer)]
    return np.array([[patch.get_width() for patch in part] for part in found])


def test_bars_of_a_colour_sum_to_the_probability_of_a_class(explained: Explanation) -> None:
    ax = draw(explained, 4, title="why")
    order = np.argsort(-explained.probabilities[4])
    bars = widths(ax)
    assert bars.shape == (5, 4)  # four classes and the others; two samples, other samples, smoothing
    sums = bars.sum(axis=1)
    np.testing.assert_allclose(sums[:4], explained.probabilities[4, order[:4]], rtol=1e-12)
    assert sums[4] == pytest.approx(explained.probabilities[4, order[4:]].sum())
    assert (explained.probabilities[4, order[4:]] > 0.001).all()
    np.testing.assert_allclose(bars[:, :2].sum(axis=0), explained.shares[4], rtol=1e-12)
    names = [text.get_text() for text in ax.get_yticklabels()]
    ids, labels, distances = explained.ids[4], explained.labels[4], explained.distances[4]
    expected = [f"{i}: {k}, distance {d:.3g}" for i, k, d in zip(ids, labels, distances, strict=True)]
    assert names == [*(name.replace("$", r"\$") for name in expected), "other samples", "smoothing"]
    assert legend_texts(ax)[0] == f"{explained.classes[order[0]]}: {explained.probabilities[4].max():.4f}"
    assert legend_texts(ax)[-1] == f"other classes: {sums[4]:.4f}"
    figure = ax.get_figure(root=True)
    assert boxes_inside(figure, [ax.get_legend(), *ax.get_yticklabels(), *ax.texts])


def log_odds_axes(explanation: Explanation, row: int = 0) -> Any:
    return draw(explanation, row).get_figure(root=True).get_axes()[1]


def test_log_odds_of_a_blend_are_bars_to_both_sides(blended: Explanation) -> None:
    contributions = np.array(list(blended.log_odds.values()))
    row = int(contributions.min(axis=0).argmin())
    ax = log_odds_axes(blended, row)
    (bars,) = widths(ax)
    np.testing.assert_allclose(bars, contributions[:, row])
    assert [text.get_text() for text in ax.get_yticklabels()] == list(blended.log_odds)
    assert len({bar.get_facecolor() for bar in ax.patches}) == 2
    assert f"{contributions[:, row].sum():+.2f}" in ax.get_title()
    low, high = ax.get_xlim()
    assert low < bars.min() < bars.max() < high
    assert rendered(ax.get_figure(root=True))


def test_a_contribution_without_bound_reaches_the_edge(blended: Explanation) -> None:
    first = blended[0]
    first.log_odds["similar samples"][0] = np.inf  # a copy
    ax = log_odds_axes(first)
    (bars,) = widths(ax)
    assert bars[-1] == pytest.approx(ax.get_xlim()[1])
    assert rendered(ax.get_figure(root=True))


def test_images_are_those_of_the_query_and_of_the_samples(blended: Explanation) -> None:
    axes = draw(blended, 2, IMAGES, query=IMAGES[7] / 255).get_figure(root=True).get_axes()
    assert len(axes) == 2 + 1 + 3
    shown = [matplotlib.image.AxesImage.get_array(ax.images[0]) for ax in axes[2:]]
    np.testing.assert_array_equal(shown[0], IMAGES[7] / 255)
    for found, row in zip(shown[1:], blended.rows[2], strict=True):
        np.testing.assert_array_equal(found, IMAGES[row])
    titles = [ax.get_title() for ax in axes[2:]]
    names = [f"{i}\n{k}" for i, k in zip(blended.ids[2], blended.labels[2], strict=True)]
    assert titles == ["to explain", *names]
    assert boxes_inside(axes[0].get_figure(root=True), [ax.title for ax in axes[2:]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row": 9}, "row must be an integer from 0 to 8; got 9"),
        ({"images": IMAGES[:3]}, r"images must have an image for each row .*; got 3"),
        ({"images": IMAGES[0]}, "images must be an array of images"),
        ({"images": np.full((240, 2, 2), np.nan)}, "images must be of shape"),
        ({"images": np.zeros((240, 2, 2, 2))}, "images must be of shape"),
        ({"query": IMAGES}, "query must be of shape"),
    ],
)
def test_what_cannot_be_drawn_is_refused(blended: Explanation, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        draw(blended, **options)
