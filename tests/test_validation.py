"""The border: which arrays, labels, groups and weights are accepted, what errors name, and row fingerprints."""

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.exceptions import DataConversionWarning

from kcal.errors import InvalidInputError
from kcal.validation import (
    check_groups,
    check_ids,
    check_labels,
    check_matrix,
    check_weights,
    collect_classes,
    encode_labels,
    kind_of,
    row_fingerprints,
)

steady = settings(deadline=None, derandomize=True, max_examples=80)

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


# ---------------------------------------------------------------- matrices


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array(ROWS), torch.float64),
        (np.array(ROWS, dtype=np.float16), torch.float32),
        (np.array(ROWS, dtype=np.float32), torch.float32),
        (np.array(ROWS, dtype=np.uint8), torch.float64),
        (np.array(ROWS, dtype=object), torch.float64),
        (np.array(ROWS, dtype=np.longdouble), torch.float64),
        (ROWS, torch.float64),
        (pd.DataFrame(ROWS, dtype=np.float32), torch.float32),
        (pd.DataFrame({"a": [1, 3, 5], "b": [2.0, 4.0, 6.0]}), torch.float64),
        (pd.DataFrame(ROWS).astype("Float64"), torch.float64),
        (torch.tensor(ROWS, dtype=torch.float64), torch.float64),
        (torch.tensor(ROWS, dtype=torch.bfloat16), torch.float32),
        (torch.tensor(ROWS, dtype=torch.int64), torch.float64),
        (torch.tensor(ROWS, requires_grad=True), torch.float32),
    ],
    ids=lambda value: str(getattr(value, "dtype", type(value).__name__)),
)
def test_matrix_becomes_tensor_of_computing_precision_and_returns_as_its_kind(given, dtype):
    checked = check_matrix(given)
    assert checked.dtype == dtype
    assert checked.tolist() == ROWS
    assert not checked.requires_grad
    result = kind_of(given, checked).restore(checked.sum(dim=1).double().requires_grad_())
    assert isinstance(result, torch.Tensor if isinstance(given, torch.Tensor) else np.ndarray)
    assert str(result.dtype).removeprefix("torch.") == str(dtype).removeprefix("torch.")


def test_matrix_is_copied_only_where_torch_cannot_share_it():
    array, tensor, frozen = np.array(ROWS), torch.tensor(ROWS), np.array(ROWS)
    assert np.shares_memory(check_matrix(array).numpy(), array)
    assert check_matrix(tensor).data_ptr() == tensor.data_ptr()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for copied in (frozen, array[::-1], array[:, ::-1], np.asfortranarray(ROWS), array.astype(">f8")):
            assert check_matrix(copied).tolist() == copied.tolist()


@pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_first_row_that_is_not_finite_is_named(kind, value):
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, value], [-value, 8.0]]
    for logits in (False, True) if value != -np.inf else (False,):  # a logit of −∞ is masked out
        with pytest.raises(InvalidInputError, match=r"^embeddings .* at row 2\."):
            check_matrix(kind(rows), "embeddings", logits=logits)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_embeddings_raise_and_large_logits_are_clipped(dtype):
    assert check_matrix(np.full((3, 2), -1e18, dtype=dtype)).shape == (3, 2)
    for value in (2e18, -2e18, np.finfo(dtype).max):
        with pytest.raises(InvalidInputError, match=r"^X .*1e\+18"):
            check_matrix(np.array([[0.0, 1.0], [value, 1.0]], dtype=dtype))
    rows = np.array([[0.5, np.finfo(dtype).min], [np.finfo(dtype).max, 1.0]], dtype=dtype)
    np.testing.assert_allclose(check_matrix(rows, logits=True), [[0.5, -1e15], [1e15, 1.0]])


@pytest.mark.parametrize("kind", [np.ones, torch.ones], ids=["numpy", "torch"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (2, 2, 2), ()])
def test_matrix_needs_two_dimensions_and_entries(kind, shape):
    with pytest.raises(InvalidInputError, match=r"^X "):
        check_matrix(kind(shape))
    assert check_matrix(np.array(ROWS), columns=2).shape == (3, 2)
    with pytest.raises(InvalidInputError, match="X has 2 features, but KCal is expecting 5 features as input"):
        check_matrix(np.array(ROWS), columns=5, owner="KCal")


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b", "a"],
        np.array(["a", "b", "a"], dtype=object),
        pd.Series(["a", "b", "a"]),
        pd.Series(["a", "b", "a"], dtype="category"),
        [1, 0, 2],
        np.array([1, 0, 2], dtype=np.uint8),
        np.array([1.0, 0.0, 2.0]),
        torch.tensor([1, 0, 2]),
        torch.tensor([1.0, 0.0, 2.0]),
        pd.Series([1, 0, 2], index=[7, 8, 9]),
        pd.array([1, 0, 2], dtype="Int64"),
        [True, False, True],
    ],
    ids=lambda value: f"{type(value).__name__} {getattr(value, 'dtype', '')}",
)
def test_text_numbers_and_booleans_are_labels(labels):
    assert check_labels(labels, 3).tolist() == list(getattr(labels, "tolist", lambda: labels)())


def test_integers_above_two_to_the_53_stay_apart():
    large = [2**53, 2**53 + 1]
    for labels in (np.array(large), np.array(large, dtype=np.uint64), pd.array(large, dtype="Int64"), large):
        assert check_labels(labels, 2).tolist() == large
        assert collect_classes([check_labels(labels, 2), np.array([1, -1])]).tolist() == [-1, 1, *large]
        assert encode_labels(check_labels(labels, 2), np.array(large, dtype=np.uint64)).tolist() == [0, 1]
    with pytest.raises(InvalidInputError, match=r"^labels "):
        collect_classes([np.array([2**63], dtype=np.uint64), np.array([-1])])


@pytest.mark.parametrize("kind", [list, tuple, partial(np.array, dtype=object), partial(pd.Series, dtype=object)])
def test_large_integers_of_any_sequence_are_exact(kind):
    large = [2**53, 2**53 + 1, 2**63 + 1]
    assert check_ids(kind(large), 3).tolist() == large
    assert check_labels(kind(large), 3).tolist() == large
    assert collect_classes([], kind(large[::-1])).tolist() == large[::-1]
    assert check_groups(kind([*large, large[0]]), 4).tolist() == [0, 1, 2, 0]
    assert check_labels(kind([1, 2**63]), 2).dtype == np.uint64
    assert check_labels(kind([-1, 2**53 + 1]), 2).dtype == np.int64
    for wrong in ([-1, 2**63], [1, 2**64], [0.5, 2**53 + 1], [2.0**60, 2**53 + 1]):
        for check in (check_ids, check_labels, check_groups):
            with pytest.raises(InvalidInputError, match=r"^(ids|y|groups) "):
                check(kind(wrong), 2)


def test_whole_floats_beside_integers_become_integers():
    large = np.array([2**53, 2**53 + 1])
    for others in (np.array([5.0]), np.array([]), np.array([True])):
        merged = collect_classes([large, others])
        assert merged.dtype == np.int64
        assert merged.tolist() == [*others.tolist(), *large.tolist()]
        assert encode_labels(others, merged).tolist() == list(range(len(others)))
    signs = [np.array([-3.0]), np.array([2**63], dtype=np.uint64)]
    for wrong in ([large, np.array([2.0**60])], [large, np.array([0.5])], signs):
        with pytest.raises(InvalidInputError, match=r"^labels "):
            collect_classes(wrong)
    assert collect_classes([np.array([2, 4]), np.array([1.0])]).tolist() == [1, 2, 4]


def test_column_of_labels_is_taken_with_a_warning():
    for labels in (np.array([[1], [0], [2]]), torch.tensor([[1], [0], [2]])):
        with pytest.warns(DataConversionWarning, match="column-vector"):
            assert check_labels(labels, 3).tolist() == [1, 0, 2]


@pytest.mark.parametrize(
    ("labels", "place"),
    [
        (None, ""),
        ([1.0, np.nan, 2.0], "row 1"),
        ([1.0, 2.0, np.inf], "row 2"),
        (["a", None, "b"], "row 1"),
        (["a", np.nan, "b"], "row 1"),
        (["a", 1, "b"], "row 1"),
        (pd.array([1, None, 2], dtype="Int64"), "row 1"),
        (pd.array(["a", pd.NA, "b"], dtype="string"), "row 1"),
        (pd.Series(["a", None, "b"], dtype="category"), "row 1"),
        ([0, 1], "2 entries for 3 samples"),
        ([0, 1, 2, 3], "4 entries for 3 samples"),
        ([0, 0.5, 2.25], "row 1"),
        (np.eye(3), r"argmax\(axis=1\)"),
        (np.array(3), ""),
    ],
)
def test_wrong_labels_raise_with_the_row(labels, place):
    with pytest.raises(InvalidInputError, match=f"^y .*{place}"):
        check_labels(labels, 3)


# ---------------------------------------------------------------- groups, weights, ids


@pytest.mark.parametrize("weights", [[0, 2, 1], np.array([0.0, 2.0, 1.0], dtype=np.float32), torch.tensor([0, 2, 1])])
def test_weights_have_mean_one_over_positive_ones(weights):
    checked = check_weights(weights, 3)
    assert checked.dtype == np.float64
    np.testing.assert_allclose(checked, [0.0, 4 / 3, 2 / 3], rtol=1e-15)


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 1 / 3, 1e16, 1e300])
def test_weights_are_relative(scale):
    weights = np.random.default_rng(0).gamma(2.0, size=50)
    np.testing.assert_allclose(check_weights(scale * weights, 50), check_weights(weights, 50), rtol=1e-14)
    assert check_weights(np.full(7, scale), 7).tolist() == [1.0] * 7
    assert check_weights(scale * np.array([0, 1, 1]), 3).tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("weights", "place"),
    [
        ([1.0, -0.5, -2.0], "row 1"),
        ([1.0, np.nan, 1.0], "row 1"),
        ([1.0, 1.0, np.inf], "row 2"),
        ([1.0, 1e-300, 1.0], "row 1"),
        ([1.0, 1e-10, 3.0], "row 1"),
        ([0.0, 0.0, 0.0], ""),
        ([1.0, 2.0], "2 entries for 3 samples"),
        ([[1.0, 2.0, 3.0]], ""),
        (1.0, ""),
    ],
)
def test_wrong_weights_raise_with_the_row(weights, place):
    assert check_weights([1.0, 1e-8, 1.0], 3)[1] > 0
    with pytest.raises(InvalidInputError, match=f"^sample_weight .*{place}"):
        check_weights(weights, 3)


def test_ids_are_kept_and_unique():
    for ids in (["x", "z", "y"], [3, 1, 2], torch.tensor([3, 1, 2])):
        assert check_ids(ids, 3).tolist() == (ids if isinstance(ids, list) else ids.tolist())
    for wrong in (["x", "y", "x"], [4, 4, 4], [1, 2], [[1, 2, 3]], [1.0, np.nan, 2.0]):
        with pytest.raises(InvalidInputError, match=r"^ids "):
            check_ids(wrong, 3)


# ---------------------------------------------------------------- classes


def test_classes_are_the_sorted_union_of_labels_or_as_given():
    assert collect_classes([np.array(["dog", "cat"]), np.array(["eel", "cat"])]).tolist() == ["cat", "dog", "eel"]
    assert collect_classes([np.array([True]), np.array([True])]).tolist() == [False, True]
    assert collect_classes([np.array(["a"])], ["c", "a", "b"]).tolist() == ["c", "a", "b"]
    assert collect_classes([np.array([1])], torch.tensor([2, 0, 1])).tolist() == [2, 0, 1]
    for classes in ([1, 2, 1], [], [["a", "b"]], 3, ["a", "a"]):
        with pytest.raises(InvalidInputError, match=r"^classes "):
            collect_classes([np.array([1])], classes)
    with pytest.raises(InvalidInputError, match=r"^labels "):
        collect_classes([np.array([0, 1]), np.array(["a", "1"])])


@steady
@given(data=st.data())
def test_encoding_is_the_position_in_the_classes(data):
    values = st.integers(-50, 50) if data.draw(st.booleans()) else st.text("abcdé", max_size=4)
    classes = data.draw(st.lists(values, min_size=1, max_size=12, unique=True))
    labels = data.draw(st.lists(st.sampled_from(classes), min_size=1, max_size=30))
    codes = encode_labels(np.array(labels), np.array(classes))
    assert codes.dtype == np.int64
    assert codes.tolist() == [classes.index(label) for label in labels]


@pytest.mark.parametrize(
    ("labels", "classes", "shown", "row"),
    [
        ([0, 1, 12, 13], list(range(10)), "12", 2),
        ([0.0, 0.5], [0, 1], "0.5", 1),
        (["cat", "caterpillar"], ["dog", "cat"], "'caterpillar'", 1),
        (["0", "1"], [0, 1], "'0'", 0),
        ([0, 1], ["0", "1"], "0", 0),
    ],
)
def test_unknown_label_is_named_with_its_row(labels, classes, shown, row):
    with pytest.raises(InvalidInputError, match=f"^train_labels .*{shown} at row {row}"):
        encode_labels(np.array(labels), np.array(classes), "train_labels")


# ---------------------------------------------------------------- fingerprints

SINGLES = st.floats(width=32, allow_nan=False, allow_infinity=False)


@steady
@given(rows=arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(1, 6)), elements=SINGLES))
def test_rows_have_equal_fingerprints_exactly_when_they_are_equal(rows):
    prints = row_fingerprints(torch.from_numpy(rows))
    assert prints.dtype == np.uint64
    for i in range(len(rows)):
        for j in range(len(rows)):
            assert (prints[i] == prints[j]) == bool((rows[i] == rows[j]).all())


@steady
@given(rows=arrays(np.float16, (4, 3), elements=st.floats(width=16, allow_nan=False, allow_infinity=False)))
def test_fingerprints_do_not_depend_on_the_precision(rows):
    prints = [row_fingerprints(check_matrix(rows.astype(dtype))) for dtype in (np.float16, np.float32, np.float64)]
    prints.append(row_fingerprints(torch.from_numpy(np.asfortranarray(rows))))
    for other in prints[1:]:
        np.testing.assert_array_equal(other, prints[0])
    whole = np.array([[1, -2], [300, 4]])
    np.testing.assert_array_equal(row_fingerprints(check_matrix(whole)), row_fingerprints(torch.tensor(whole)))


def test_fingerprints_tell_apart_columns_and_small_grids():
    one, swapped = row_fingerprints(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert len({one, swapped, row_fingerprints(torch.tensor([[1.0, 2.0, 0.0]]))[0]}) == 3
    grid = np.array(np.meshgrid(*[[-1.0, 0.0, 1.0]] * 9)).reshape(9, -1).T.astype(np.float32)
    assert len(np.unique(row_fingerprints(torch.from_numpy(grid)))) == 3**9
    assert row_fingerprints(torch.tensor([[0.0]])) == row_fingerprints(torch.tensor([[-0.0]], dtype=torch.float64))
