"""What may come in as probabilities and labels, and what the errors say."""

import numpy as np
import pytest
import torch

from kcal.errors import InvalidInputError
from kcal.metrics.predictions import check_predictions

GOOD = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]])
LABELS = np.array([0, 2, 1])


def changed(row, column, value):
    probs = GOOD.copy()
    probs[row, column] = value
    return probs


def test_good_arrays_come_back_without_a_copy():
    checked = check_predictions(GOOD, LABELS)
    assert checked.probs is GOOD
    assert checked.labels is LABELS
    assert (checked.n_samples, checked.n_classes) == (3, 3)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (np.array([0.2, 1.8]), r"probabilities of the second class, from 0 to 1; got 1.8 at row 1. .* their sigmoid"),
        (np.array([0.2, np.nan]), "probs must be finite; got nan at row 1"),
        (np.zeros((2, 2, 2)), r"probs must be a matrix \(n_samples, n_classes\), or .* got shape \(2, 2, 2\)"),
        (np.zeros((0, 3)), r"^probs must have a row"),
        (np.ones((3, 0)), "a column for each class"),
        (np.array([["a", "b"]]), "probs must be real numbers; got text, 'a'"),
        (np.array([[1j, 0]]), r"^probs .* Complex data not supported"),
        ([[0.5, 0.5], [1.0]], r"^probs .* inhomogeneous shape"),
        (changed(1, 2, np.nan), "probs must be finite; got nan at row 1, column 2"),
        (changed(2, 0, np.inf), "probs must be finite; got inf at row 2, column 0"),
        (changed(0, 1, -np.inf), "probs must be finite; got -inf at row 0, column 1"),
        (changed(1, 0, -0.1), r"must not be negative; got -0.1 at row 1, column 0. If these are logits"),
        (changed(1, 0, 0.2), r"sum to 1 within 0.001; got a sum of 1.1 at row 1. If these are logits"),
        (GOOD * 0.9, "a sum of 0.9 at row 0"),
        (np.array([[4.0, 2.0, 1.0]]), "If these are logits, pass their softmax"),
        (np.array([[np.inf, -np.inf, 0.0]]), "got inf at row 0, column 0"),
    ],
)
def test_bad_probabilities_are_refused_with_the_row_and_the_remedy(probs, message):
    with pytest.raises(InvalidInputError, match=message):
        check_predictions(probs, np.zeros(len(probs), dtype=int))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 2], "labels must have one entry per sample; got 2 entries for 3 samples"),
        ([0, 3, 1], "column indices of probs, 0 to 2; got 3 at row 1"),
        ([0, 1, -1], "column indices of probs, 0 to 2; got -1 at row 2"),
        ([0.0, 1.0, 2.0], r"got dtype float64. Pass labels.astype\(int\)"),
        ([True, False, True], r"0 to 2; got truth values, which are labels of two .* Pass labels.astype\(int\)"),
        (["cat", "dog", "cat"], "got dtype <U3. Pass the column index of each label"),
        (np.eye(3, dtype=int), r"got shape \(3, 3\). Pass labels.argmax\(axis=1\) of one-hot rows"),
        ([[0], [1], [2]], r"got shape \(3, 1\). Pass labels.ravel\(\)"),
        (np.array([0, 2**64 - 1, 0], dtype=np.uint64), "got 18446744073709551615 at row 1"),
    ],
)
def test_bad_labels_are_refused_with_the_row_and_the_remedy(labels, message):
    with pytest.raises(InvalidInputError, match=message):
        check_predictions(GOOD, labels)


def test_lists_and_whole_numbers_are_accepted():
    checked = check_predictions([[1, 0], [0, 1]], [1, 0])
    assert checked.probs.dtype == np.float64
    assert checked.correct.tolist() == [False, False]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_tensors_that_carry_gradients_are_accepted(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20, 10, generator=generator, requires_grad=True)
    probs = torch.softmax(logits, dim=1).to(dtype)
    checked = check_predictions(probs, torch.arange(20) % 10)
    assert checked.probs.dtype == (np.float64 if dtype == torch.float64 else np.float32)
    np.testing.assert_allclose(checked.probs, probs.detach().double().numpy())


def test_half_precision_rows_may_miss_one_by_their_rounding():
    probs = np.full((1, 3), 0.3345, dtype=np.float16)
    assert check_predictions(probs, [0]).probs.dtype == np.float32
    with pytest.raises(InvalidInputError, match=r"sum to 1 within 0\.001"):
        check_predictions(probs.astype(np.float32), [0])


def test_unsigned_labels_become_indices():
    assert check_predictions(GOOD, LABELS.astype(np.uint8)).labels.dtype == np.intp
