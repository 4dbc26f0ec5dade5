"""The structure of the grid of all classes of one method."""

from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from pictures import bars, boxes_inside, overconfident, rendered, whole

from kcal.errors import InvalidInputError
from kcal.metrics import class_errors, reliability
from kcal.plots import class_reliability_grid, reliability_diagram, reliability_grid
from kcal.plots.style import OBSERVED

LONG = "acute exacerbation of a chronic disease, unspecified, withaverylongwordthathasnospaceatall " * 3


def bins_of(n_classes, n_samples=400):
    probs, labels = overconfident(n_samples, n_classes)
    return [reliability(probs, labels, of=k, bins=5) for k in range(n_classes)]


def panels_of(figure):
    """The panels that show something."""
    return [ax for ax in figure.axes if ax.get_yscale() == "linear" and ax.axison]


def headings(figure):
    return [ax.get_title().strip() for ax in panels_of(figure)]


def suptitle(figure):
    return figure.subfigs[0].get_suptitle()


@pytest.mark.parametrize(("n_classes", "shape"), [(2, (1, 2)), (6, (2, 5))])
def test_classes_keep_their_order_in_rows_of_five(n_classes, shape):
    figure = whole(
        class_reliability_grid(bins_of(n_classes), class_names=[f"c{k}" for k in range(n_classes)], title="before")
    )
    assert isinstance(figure, Figure)
    assert headings(figure) == [f"c{k}" for k in range(n_classes)]
    grid = panels_of(figure)[0].get_subplotspec().get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    assert suptitle(figure) == "before"


def test_each_panel_shows_the_bars_and_the_error_of_its_class():
    bins = bins_of(3)
    for ax, of_class in zip(panels_of(whole(class_reliability_grid(bins, class_names=list("abc")))), bins, strict=True):
        assert len(bars(ax, OBSERVED)) == (of_class.merged(15).counts > 0).sum()
        assert [text.get_text() for text in ax.texts] == [f"error {of_class.calibration_error:.3f}"]


def test_of_too_many_classes_the_worst_are_shown_and_the_title_says_so():
    bins = bins_of(30, n_samples=300)
    figure = whole(class_reliability_grid(bins, class_names=[str(k) for k in range(30)], limit=6, title="uncalibrated"))
    errors = [of_class.calibration_error for of_class in bins]
    assert headings(figure) == [str(k) for k in sorted(range(30), key=lambda k: -errors[k])[:6]]
    seventh = sorted(errors)[-7]
    which = f"the 6 classes of largest error; the other 24 have errors up to {seventh:.3f}"
    assert suptitle(figure) == f"uncalibrated: {which}"


def test_probabilities_and_labels_are_binned_as_class_errors_are():
    probs, labels = overconfident(400, 3)
    figure = whole(class_reliability_grid(probs, labels))
    assert headings(figure) == ["class 0", "class 1", "class 2"]
    expected = class_errors(probs, labels, adaptive=False).error
    assert [ax.texts[0].get_text() for ax in panels_of(figure)] == [f"error {error:.3f}" for error in expected]
    with pytest.raises(InvalidInputError, match="labels must be left out"):
        class_reliability_grid(bins_of(3), labels)
    with pytest.raises(InvalidInputError, match="class_names must have 3 names"):
        class_reliability_grid(probs, labels, class_names=["a"])


def test_classes_without_samples_come_last_and_say_so():
    probs, labels = overconfident(100, 2)
    nothing = reliability(probs, labels, of=0, threshold=1.0)
    assert nothing.total == 0
    figure = whole(class_reliability_grid([nothing, *bins_of(3)], class_names=list("abcd"), limit=3))
    assert "a" not in headings(figure)
    assert suptitle(figure) == "the 3 classes of largest error; the other 1 have no samples"
    only = whole(class_reliability_grid([nothing], class_names=["a"]))
    assert [text.get_text() for text in panels_of(only)[0].texts] == ["no samples"]
    assert rendered(only)


def test_long_names_are_cut_in_the_middle_and_stay_within_the_picture():
    figure = whole(class_reliability_grid(bins_of(3), class_names=[LONG, "$x$", LONG]))
    shown = headings(figure)
    assert "…" in shown[0]
    assert shown[0].endswith(LONG.split()[-1][-10:])  # names that begin alike can be told apart
    assert shown[0].count("\n") == 1
    assert shown[1] == r"\$x\$"
    assert boxes_inside(figure, [ax.title for ax in panels_of(figure)])


def test_nothing_of_a_diagram_with_a_long_name_is_cut():
    ax = reliability_diagram(bins_of(2)[1], class_name=LONG, minimum_count=200)
    shown = ax.child_axes[0].xaxis.label
    assert boxes_inside(ax.figure, [ax.title, shown, ax.get_legend()])
    label, legend = shown.get_window_extent(), ax.get_legend().get_window_extent()
    assert legend.y1 <= label.y0 + 8  # the frame of the legend is empty at its edge


@pytest.mark.parametrize("limit", [0, 2.5, True, None, "3", 10**9])
def test_a_limit_that_is_no_number_of_classes_is_refused(limit):
    with pytest.raises(InvalidInputError, match="limit must be an integer from 1 to 400"):
        class_reliability_grid(bins_of(2), class_names=["a", "b"], limit=limit)


def test_names_and_bins_must_be_as_many():
    with pytest.raises(InvalidInputError, match="predictions must be a list of the bins of all 3 classes; got 2 bins"):
        class_reliability_grid(bins_of(2), class_names=["a", "b", "c"])
    with pytest.raises(InvalidInputError, match="class_names must have at least one name"):
        class_reliability_grid([], class_names=[])


def test_a_panel_without_samples_does_not_move_the_others() -> None:
    generator = np.random.default_rng(0)
    probs = generator.dirichlet([1, 1, 1], 300)
    labels = generator.integers(3, size=300)
    rare = probs * [1, 1, 0.01]
    rare /= rare.sum(axis=1, keepdims=True)

    def panels(second: np.ndarray) -> list[tuple[float, ...]]:
        rows = {
            name: [reliability(rows, labels, of=k, bins=10, adaptive=False, threshold="max") for k in range(3)]
            for name, rows in {"a": probs, "b": second}.items()
        }
        axes = reliability_grid(rows, ["x", "y", "z"])
        axes[0, 0].get_figure(root=True).savefig(BytesIO())
        return [ax.get_position().bounds for ax in axes.ravel()]

    np.testing.assert_allclose(panels(rare), panels(probs), atol=0.02)
