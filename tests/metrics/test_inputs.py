"""What may be passed as probabilities and labels, and that errors name the row and the remedy."""

import numpy as np
import pytest
import torch

from kcal.errors import InvalidInputError
from kcal.metrics import accuracy, evaluate

PROBS = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]])


def changed(row, column, value):
    probs = PROBS.copy()
    probs[row, column] = value
    return probs


@pytest.mark.parametrize(
    ("probs", "got"),
    [
        (np.array([0.2, 1.8, 0.0]), r"1.8 at row 1. .*sigmoid"),
        (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\)"),
        (changed(1, 2, np.nan), "nan at row 1, column 2"),
        (changed(0, 1, -np.inf), "-inf at row 0, column 1"),
        (changed(1, 0, -0.1), r"-0.1 at row 1, column 0. If these are logits"),
        (changed(1, 0, 0.2), r"a sum of 1.1 at row 1. If these are logits"),
    ],
)
def test_invalid_probabilities_are_named_with_row_and_remedy(probs, got):
    with pytest.raises(InvalidInputError, match=rf"^probs must .*got {got}"):
        accuracy(probs, [0, 2, 1])


@pytest.mark.parametrize(
    ("labels", "got"),
    [
        ([0, 2], "2 entries for 3 samples"),
        ([0, 3, 1], "3 at row 1"),
        ([0, 1, -1], "-1 at row 2"),
        ([0.0, 1.0, 1.5], "1.5 at row 2"),
        (["cat", "dog", "cat"], "labels of dtype <U3"),
        (np.eye(3, dtype=int), r"shape \(3, 3\). Pass labels.argmax\(axis=1\)"),
        (np.array([0, 2**64 - 1, 0], dtype=np.uint64), "18446744073709551615 at row 1"),
    ],
)
def test_invalid_labels_are_named_with_row_and_remedy(labels, got):
    with pytest.raises(InvalidInputError, match=rf"^labels must .*got {got}"):
        accuracy(PROBS, labels)


@pytest.mark.parametrize(
    "labels", [[0.0, 2.0, 1.0], torch.tensor([0.0, 2.0, 1.0]), np.array([0.0, 2, 1], dtype=object)]
)
def test_whole_numbers_of_any_type_are_columns_as_in_fits(labels):
    assert accuracy(PROBS, labels) == accuracy(PROBS, [0, 2, 1])


def test_half_precision_rows_may_miss_1_by_their_rounding():
    probs = np.full((1, 3), 0.3345, dtype=np.float16)
    assert accuracy(probs, [0]) == 1
    with pytest.raises(InvalidInputError, match=r"sum to 1 within 0\.001"):
        accuracy(probs.astype(np.float32), [0])


@pytest.mark.parametrize("kind", [np.asarray, np.ndarray.tolist, torch.from_numpy])
def test_swapped_arguments_get_a_hint(kind):
    with pytest.raises(InvalidInputError, match="swapped"):
        evaluate(kind(np.array([0, 1, 1])), kind(np.array([[0.9, 0.1], [0.3, 0.7], [0.4, 0.6]])))


def test_several_labels_per_sample_are_not_supported():
    """As two-class columns a user would find no error: the advice must not be to normalise rows."""
    probs, matrix = np.array([[0.9, 0.2, 0.7], [0.1, 0.8, 0.6]]), np.array([[1, 0, 1], [0, 1, 1]])
    for labels, name in ((matrix, "labels"), ([0, 1], "probs")):
        with pytest.raises(InvalidInputError, match=rf"^{name} .*evaluate each label on its own column") as error:
            evaluate(probs, labels)
        assert "divide" not in str(error.value).lower()
    with pytest.raises(InvalidInputError, match="divide each row by its sum"):
        evaluate([[0.33, 0.33, 0.33], [0.5, 0.25, 0.25]], [0, 1])
    with pytest.raises(InvalidInputError, match="their softmax"):
        evaluate(3 * probs, [0, 1])


def test_columns_are_labels_beside_classes_that_are_text():
    probs = np.array([[0.9, 0.1], [0.3, 0.7], [0.6, 0.4]])
    expected = evaluate(probs, ["cat", "dog", "dog"], classes=["cat", "dog"])
    assert evaluate(probs, [0, 1, 1], classes=["cat", "dog"]).metrics == expected.metrics
    assert evaluate(probs, [1, 0, 0], classes=[1, 0]) == expected
    with pytest.raises(InvalidInputError, match=r"^labels "):
        evaluate(probs, [0, 1, 2], classes=["cat", "dog"])
