"""The border: which arrays, labels, groups and weights are accepted, what the errors say, and row fingerprints."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.exceptions import DataConversionWarning

from kcal import KCal, KCalBlend
from kcal.errors import InvalidInputError
from kcal.validation import (
    check_choice,
    check_columns,
    check_flag,
    check_groups,
    check_ids,
    check_integer,
    check_labels,
    check_matrix,
    check_number,
    check_probs,
    check_seed,
    check_weights,
    collect_classes,
    computing_dtype,
    encode_labels,
    kind_of,
    row_fingerprints,
    shown,
)

steady = settings(deadline=None, derandomize=True, max_examples=80)

ROWS = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


# ---------------------------------------------------------------- matrices


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.array(ROWS), torch.float64),
        (np.array(ROWS, dtype=np.float32), torch.float32),
        (np.array(ROWS, dtype=np.float16), torch.float32),
        (np.array(ROWS, dtype=np.int32), torch.float64),
        (np.array(ROWS, dtype=np.uint8), torch.float64),
        (np.array(ROWS, dtype=object), torch.float64),
        (np.array(ROWS, dtype=np.longdouble), torch.float64),
        (ROWS, torch.float64),
        (pd.DataFrame(ROWS), torch.float64),
        (pd.DataFrame(ROWS, dtype=np.float32), torch.float32),
        (pd.DataFrame({"a": [1, 3, 5], "b": [2.0, 4.0, 6.0]}), torch.float64),
        (torch.tensor(ROWS), torch.float32),
        (torch.tensor(ROWS, dtype=torch.float64), torch.float64),
        (torch.tensor(ROWS, dtype=torch.float16), torch.float32),
        (torch.tensor(ROWS, dtype=torch.bfloat16), torch.float32),
        (torch.tensor(ROWS, dtype=torch.int64), torch.float64),
        (torch.tensor(ROWS, requires_grad=True), torch.float32),
    ],
    ids=lambda value: str(getattr(value, "dtype", type(value).__name__)),
)
def test_a_matrix_of_any_kind_becomes_a_tensor_of_the_computing_precision(given, dtype):
    checked = check_matrix(given)
    assert checked.dtype == dtype
    assert checked.tolist() == ROWS
    assert not checked.requires_grad


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
        (torch.int32, torch.float64),
        (torch.bool, torch.float64),
    ],
)
def test_half_precision_computes_in_single_and_integers_in_double(given, dtype):
    assert computing_dtype(given) == dtype


def test_a_matrix_is_not_copied_where_it_need_not_be():
    array, tensor = np.array(ROWS), torch.tensor(ROWS)
    assert np.shares_memory(check_matrix(array).numpy(), array)
    assert check_matrix(tensor).data_ptr() == tensor.data_ptr()


def test_arrays_that_torch_cannot_share_are_copied_without_a_warning():
    frozen = np.array(ROWS)
    frozen.flags.writeable = False
    for array in (frozen, np.array(ROWS)[::-1], np.array(ROWS)[:, ::-1], np.asfortranarray(ROWS)):
        assert check_matrix(array).tolist() == array.tolist()


@pytest.mark.parametrize("kind", [np.array, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize(
    ("value", "what"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")], ids=["nan", "inf", "-inf"]
)
def test_a_row_that_is_not_finite_is_named(kind, value, what):
    rows = [[1.0, 2.0], [3.0, 4.0], [5.0, value], [value, 8.0]]
    with pytest.raises(
        InvalidInputError, match=rf"^embeddings must be finite, without NaN or inf; got {what} at row 2\."
    ):
        check_matrix(kind(rows), "embeddings")


def test_opposite_infinities_do_not_cancel():
    with pytest.raises(InvalidInputError, match="infinity at row 1"):
        check_matrix(np.array([[0.0, 0.0], [np.inf, 1.0], [-np.inf, 1.0]]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_whose_squares_would_overflow_are_refused(dtype):
    assert check_matrix(np.full((3, 2), -1e18, dtype=dtype)).shape == (3, 2)
    for value in (2e18, -2e18, np.finfo(dtype).max):
        with pytest.raises(InvalidInputError, match=r"^X must have no numbers beyond 1e\+18; got a magnitude of .*e\+"):
            check_matrix(np.array([[0.0, 1.0], [value, 1.0]], dtype=dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_masked_with_the_smallest_number_are_clipped(dtype):
    rows = np.array([[0.5, np.finfo(dtype).min], [np.finfo(dtype).max, 1.0]], dtype=dtype)
    np.testing.assert_allclose(check_matrix(rows, logits=True), [[0.5, -1e15], [1e15, 1.0]])
    with pytest.raises(InvalidInputError, match="infinity at row 0"):
        check_matrix(np.array([[0.0, -np.inf]]), logits=True)


@pytest.mark.parametrize(
    "given",
    [
        np.ones(3), [1.0, 2.0], 3.0, None, np.ones((2, 2, 2)), torch.ones(3), torch.ones(2, 2, 2), torch.tensor(1.0),
        [["a", "b"]], np.eye(2) * 1j, torch.eye(2) * 1j, torch.eye(2).to_sparse(),
        np.array([[1.0, None]], dtype=object),
    ],
    ids=[
        "1-d", "list", "number", "none", "3-d", "torch 1-d", "torch 3-d", "torch 0-d",
        "words", "complex", "torch complex", "torch sparse", "missing",
    ],
)  # fmt: skip
def test_what_is_no_dense_real_matrix_is_a_value_error(given):
    with pytest.raises(ValueError):
        check_matrix(given)


def test_masked_arrays_are_refused_by_the_name_of_the_argument():
    matrix = np.ma.masked_array(np.full((2, 2), 0.5), mask=[[True, False], [False, False]])
    vector = np.ma.masked_array([1, 0], mask=[True, False])
    attempts = {
        "X": lambda: check_matrix(matrix),
        "logits": lambda: check_matrix(list(matrix), "logits"),
        "probs": lambda: check_probs(matrix),
        "y": lambda: check_labels(vector, 2),
        "labels": lambda: check_columns(vector, 2, 2),
        "groups": lambda: check_groups(vector, 2),
        "sample_weight": lambda: check_weights(vector, 2),
        "ids": lambda: check_ids(vector, 2),
        "classes": lambda: collect_classes([], vector),
    }
    for name, attempt in attempts.items():
        with pytest.raises(
            InvalidInputError, match=f"^{name} must not have masked entries; got a masked array"
        ) as raised:
            attempt()
        assert raised.value.parameter == name
    assert check_matrix(np.ma.masked_array(np.ones((2, 2)))).tolist() == [[1.0, 1.0]] * 2


@pytest.mark.filterwarnings("ignore:Sparse")
def test_every_sparse_layout_is_refused_as_sparse():
    for tensor in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        with pytest.raises(InvalidInputError, match="dense tensor of real numbers; got a sparse tensor"):
            check_matrix(tensor)


@pytest.mark.parametrize("kind", [np.ones, torch.ones], ids=["numpy", "torch"])
@pytest.mark.parametrize(("shape", "what"), [((0, 3), "0 sample"), ((3, 0), "0 feature")])
def test_an_empty_matrix_is_refused(kind, shape, what):
    with pytest.raises(InvalidInputError, match=rf"^X .*{what}"):
        check_matrix(kind(shape))


def test_another_number_of_columns_is_refused():
    assert check_matrix(np.array(ROWS), columns=2).shape == (3, 2)
    with pytest.raises(InvalidInputError, match="X has 2 features, but KCal is expecting 5 features as input"):
        check_matrix(np.array(ROWS), columns=5, owner="KCal")


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(np.array(ROWS), np.float64), (np.array(ROWS, dtype=np.float16), np.float32), (ROWS, np.float64)],
)
def test_numpy_comes_back_as_numpy(given, dtype):
    checked = check_matrix(given)
    answer = kind_of(given, checked).give_back(checked.sum(dim=1).double().requires_grad_())
    assert isinstance(answer, np.ndarray)
    assert answer.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_torch_comes_back_as_torch(dtype):
    given = torch.tensor(ROWS, dtype=dtype)
    checked = check_matrix(given)
    answer = kind_of(given, checked).give_back(checked.sum(dim=1).double().requires_grad_())
    assert isinstance(answer, torch.Tensor)
    assert answer.dtype == computing_dtype(dtype)
    assert answer.device == given.device
    assert not answer.requires_grad


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b", "a"],
        np.array(["a", "b", "a"]),
        np.array(["a", "b", "a"], dtype=object),
        pd.Series(["a", "b", "a"]),
        pd.Series(["a", "b", "a"], dtype="category"),
    ],
    ids=["list", "numpy", "object", "pandas", "category"],
)
def test_words_are_labels(labels):
    checked = check_labels(labels, 3)
    assert checked.dtype.kind == "U"
    assert checked.tolist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    "labels",
    [
        [1, 0, 2],
        (1, 0, 2),
        np.array([1, 0, 2], dtype=np.uint8),
        np.array([1.0, 0.0, 2.0]),
        torch.tensor([1, 0, 2]),
        torch.tensor([1.0, 0.0, 2.0]),
        pd.Series([1, 0, 2], index=[7, 8, 9]),
        pd.array([1, 0, 2], dtype="Int64"),
    ],
    ids=["list", "tuple", "uint8", "float", "torch", "torch float", "pandas", "nullable"],
)
def test_numbers_are_labels(labels):
    assert check_labels(labels, 3).tolist() == [1, 0, 2]


def test_truth_values_are_labels():
    assert check_labels([True, False, True], 3).tolist() == [True, False, True]


@pytest.mark.parametrize("labels", [np.array([[1], [0], [2]]), torch.tensor([[1], [0], [2]])], ids=["numpy", "torch"])
def test_a_column_of_labels_is_taken_with_a_warning(labels):
    with pytest.warns(DataConversionWarning, match="column-vector"):
        assert check_labels(labels, 3).tolist() == [1, 0, 2]


def test_labels_are_required():
    with pytest.raises(InvalidInputError, match="train_labels is required"):
        check_labels(None, 3, "train_labels")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1.0, np.nan, 2.0], "y must have no missing entries; got NaN at row 1"),
        ([1.0, 2.0, np.inf], "y must have no missing entries; got infinity at row 2"),
        (
            np.array([0, 1, None], dtype=object),
            "no missing entries; got None at row 2. Remove unlabelled samples",
        ),
        (["a", None, "b"], "y must have no missing entries; got None at row 1"),
        (pd.array([1, None, 2], dtype="Int64"), "row 1"),
        ([0, 1], "got 2 entries for 3 samples"),
        ([0, 1, 2, 3], "got 4 entries for 3 samples"),
        ([0.5, 1.5, 2.25], "continuous"),
        (np.eye(3), r"one-dimensional; got shape \(3, 3\)\. .*y.argmax\(axis=1\) converts one-hot rows"),
        (np.array(3), "one-dimensional"),
    ],
)
def test_what_cannot_be_labels_is_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        check_labels(labels, 3)


@pytest.mark.parametrize(
    "labels",
    [
        pd.Series(["a", None]),
        pd.Series(["a", None], dtype="category"),
        np.array(["a", np.nan], dtype=object),
        pd.array(["a", pd.NA], dtype="string"),
        np.array(["a", 1], dtype=object),
    ],
    ids=["pandas", "category", "nan", "NA", "mixture"],
)
def test_a_missing_word_among_labels_is_named(labels):
    with pytest.raises(InvalidInputError, match="row 1"):
        check_labels(labels, 2)


# ---------------------------------------------------------------- groups, weights, ids


@pytest.mark.parametrize(
    "groups",
    [["a", None], pd.Series(["a", None]), pd.array(["a", pd.NA], dtype="string"), np.array(["a", 1], dtype=object)],
    ids=["list", "pandas", "NA", "mixture"],
)
def test_a_missing_group_is_named(groups):
    with pytest.raises(InvalidInputError, match="row 1"):
        check_groups(groups, 2)


@pytest.mark.parametrize(("ids", "message"), [([1, 1, 2, 2, 2], "1 2 times"), (list("bbabb"), "'b' 4 times")])
def test_a_repeated_id_is_counted_itself(ids, message):
    with pytest.raises(InvalidInputError, match=f"^ids must be unique; got {message}"):
        check_ids(ids, 5)


@pytest.mark.parametrize(
    "groups",
    [["p2", "p1", "p2"], np.array([5, -3, 5]), torch.tensor([5, -3, 5]), pd.Series(["b", "a", "b"]), [1.5, 0.5, 1.5]],
    ids=["words", "numpy", "torch", "pandas", "floats"],
)
def test_groups_become_codes_that_are_equal_where_they_are(groups):
    codes = check_groups(groups, 3)
    assert codes.dtype == np.int64
    assert codes.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([1, 2], "groups must have one entry per sample; got 2 entries for 3 samples"),
        ([[1], [2], [3]], r"groups must be one-dimensional; got shape \(3, 1\)"),
        (7, "one-dimensional"),
        ([1.0, 2.0, np.nan], "groups must have no missing entries; got NaN at row 2"),
    ],
)
def test_what_cannot_be_groups_is_refused(groups, message):
    with pytest.raises(InvalidInputError, match=message):
        check_groups(groups, 3)


@pytest.mark.parametrize("weights", [[0, 2, 1], np.array([0.0, 2.0, 1.0], dtype=np.float32), torch.tensor([0, 2, 1])])
def test_weights_have_mean_one_over_the_samples_of_positive_weight(weights):
    checked = check_weights(weights, 3)
    assert checked.dtype == np.float64
    np.testing.assert_allclose(checked, [0.0, 4 / 3, 2 / 3], rtol=1e-15)


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 0.1, 7.0, 1e16, 1e300])
def test_weights_are_relative_so_that_a_common_factor_changes_nothing(scale):
    weights = np.random.default_rng(0).gamma(2.0, size=50)
    np.testing.assert_allclose(check_weights(scale * weights, 50), check_weights(weights, 50), rtol=1e-14)


@pytest.mark.parametrize("scale", [1e-320, 1e-16, 0.1, 1 / 3, 1e307])
def test_equal_weights_are_exactly_one(scale):
    assert check_weights(np.full(7, scale), 7).tolist() == [1.0] * 7
    assert check_weights(scale * np.array([0, 1, 1]), 3).tolist() == [0.0, 1.0, 1.0]


def test_weights_that_differ_by_too_much_are_refused_with_the_row():
    assert check_weights([1.0, 1e-8, 1.0], 3)[1] > 0
    message = r"^sample_weight must be 0 or within a factor of 1e\+09 of the mean .* at row 1\. Set negligible weights"
    for weights in ([1.0, 1e-300, 1.0], [1.0, 1e-10, 3.0]):
        with pytest.raises(InvalidInputError, match=message):
            check_weights(weights, 3)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -0.5, -2.0], "got -0.5 at row 1"),
        ([1.0, np.nan, 1.0], "got nan at row 1"),
        ([1.0, 1.0, np.inf], "got inf at row 2"),
        ([0.0, 0.0, 0.0], "must not be zero for every sample"),
        ([1.0, 2.0], "got 2 entries for 3 samples"),
        ([[1.0, 2.0, 3.0]], r"one-dimensional; got shape \(1, 3\)"),
        (1.0, "one-dimensional"),
    ],
)
def test_what_cannot_be_weights_is_refused(weights, message):
    with pytest.raises(InvalidInputError, match=f"^sample_weight .*{message}"):
        check_weights(weights, 3)


@pytest.mark.parametrize(
    "ids", [["x", "z", "y"], [3, 1, 2], torch.tensor([3, 1, 2])], ids=["words", "numbers", "torch"]
)
def test_ids_are_kept_as_they_come(ids):
    assert check_ids(ids, 3).tolist() == (ids if isinstance(ids, list) else ids.tolist())


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["x", "y", "x"], "ids must be unique; got 'x' 2 times"),
        ([4, 4, 4], "ids must be unique; got 4 3 times"),
        ([1, 2], "ids must have one entry per sample; got 2 entries for 3 samples"),
        ([[1, 2, 3]], "ids must be one-dimensional"),
    ],
)
def test_what_cannot_be_ids_is_refused(ids, message):
    with pytest.raises(InvalidInputError, match=message):
        check_ids(ids, 3)


# ---------------------------------------------------------------- classes


def test_classes_are_the_sorted_union_of_all_labels():
    sets = [np.array(["dog", "cat"]), np.array(["eel", "cat", "cat"])]
    assert collect_classes(sets).tolist() == ["cat", "dog", "eel"]
    assert collect_classes([np.array([3, 1]), np.array([2])]).tolist() == [1, 2, 3]


def test_given_classes_keep_their_order():
    assert collect_classes([np.array(["a"])], ["c", "a", "b"]).tolist() == ["c", "a", "b"]
    assert collect_classes([np.array([1])], range(3)).tolist() == [0, 1, 2]
    assert collect_classes([np.array([1])], torch.tensor([2, 0, 1])).tolist() == [2, 0, 1]


@pytest.mark.parametrize("classes", [[1, 2, 1], [], [["a", "b"]], 3, ["a", "a"]])
def test_classes_must_be_a_list_of_each_once(classes):
    with pytest.raises(InvalidInputError, match="classes must list every class once; got"):
        collect_classes([np.array([1])], classes)


@steady
@given(data=st.data())
def test_encoding_is_the_position_in_the_classes(data):
    values = st.integers(-50, 50) if data.draw(st.booleans()) else st.text("abcdé", max_size=4)
    classes = data.draw(st.lists(values, min_size=1, max_size=12, unique=True))
    labels = data.draw(st.lists(st.sampled_from(classes), min_size=1, max_size=30))
    codes = encode_labels(np.array(labels), np.array(classes))
    assert codes.dtype == np.int64
    assert codes.tolist() == [classes.index(label) for label in labels]


def test_numbers_are_found_whatever_their_type():
    assert encode_labels(np.array([2.0, 0.0]), np.array([0, 1, 2])).tolist() == [2, 0]
    assert encode_labels(np.array([2, 0], dtype=np.uint8), np.array([0.0, 1.0, 2.0])).tolist() == [2, 0]
    assert encode_labels(np.array([True, False]), np.array([0, 1])).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "shown", "row"),
    [
        ([0, 1, 12, 13], list(range(10)), "12", 2),
        ([0, -1], [0, 1], "-1", 1),
        ([0.0, 0.5], [0, 1], "0.5", 1),
        (["cat", "elk"], ["dog", "cat"], "'elk'", 1),
        (["cat", ""], ["dog", "cat"], "''", 1),
        (["cat", "caterpillar"], ["dog", "cat"], "'caterpillar'", 1),
        (["0", "1"], [0, 1], "'0'", 0),
        ([0, 1], ["0", "1"], "0", 0),
    ],
)
def test_an_unknown_label_is_named_with_its_row_and_the_remedy(labels, classes, shown, row):
    with pytest.raises(InvalidInputError) as raised:
        encode_labels(np.array(labels), np.array(classes), "train_labels")
    assert str(raised.value) == (
        f"train_labels must be in classes ({len(classes)} of them); got {shown} at row {row}. "
        f"Pass classes=[..., {shown}] if the class exists."
    )


def test_text_and_numbers_are_not_made_one():
    with pytest.raises(InvalidInputError, match=r"^labels must be all text or all numbers; got text in one set"):
        collect_classes([np.array([0, 1]), np.array(["a", "1"])])
    with pytest.raises(InvalidInputError, match="must be in classes"):
        encode_labels(np.array(["0", "1"]), np.array([0, 1], dtype=object))


# ---------------------------------------------------------------- options

ODD_VALUES = (None, "5", object(), {}, [5], np.array([5]), torch.tensor(5), len, 1j, float("nan"), 10**5000)


def test_every_odd_value_of_an_option_is_an_error_that_names_it():
    attempts = {
        "bins": lambda value: check_integer(value, "bins", minimum=1, maximum=9),
        "level": lambda value: check_number(value, "level", minimum=0, maximum=1),
        "kernel": lambda value: check_choice(value, "kernel", ("rbf", "laplace")),
        "adaptive": lambda value: check_flag(value, "adaptive"),
        "seed": lambda value: check_seed(value),
    }
    for name, attempt in attempts.items():
        for value in ODD_VALUES:
            with pytest.raises(InvalidInputError, match=f"^{name} must be ") as raised:
                attempt(value)
            assert raised.value.parameter == name
            assert len(raised.value.got) < 100


def test_options_are_returned_as_plain_python_values():
    assert type(check_integer(np.int32(3), "bins", minimum=1, maximum=9)) is int
    assert type(check_number(np.float32(0.5), "level", minimum=0)) is float
    assert check_flag(np.bool_(True), "adaptive") is True
    assert check_seed(2**64 - 1) == 2**64 - 1


@pytest.mark.parametrize(
    ("options", "bounds"),
    [
        ({"minimum": 0, "maximum": 1}, "between 0 and 1"),
        ({"minimum": 0, "maximum": 1, "exclusive": True}, "strictly between 0 and 1"),
        ({"minimum": 0, "exclusive": True}, "greater than 0"),
        ({"minimum": 2}, "of at least 2"),
    ],
)
def test_the_bounds_of_a_number_are_in_the_message(options, bounds):
    with pytest.raises(InvalidInputError, match=f"^level must be a number {bounds}; got -1.0"):
        check_number(-1.0, "level", **options)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.ones((2, 3)), "ndarray of shape (2, 3)"),
        (torch.ones(2), "Tensor of shape (2,)"),
        ("a" * 100, "'" + "a" * 79 + "…"),
        (10**5000, "a very long int"),
        (np.ndarray, "an object of type type"),
        (None, "None"),
    ],
    ids=["array", "tensor", "text", "integer", "type", "none"],
)
def test_values_are_shown_briefly(value, text):
    assert shown(value) == text


# ---------------------------------------------------------------- tensors that hold no plain numbers


@pytest.mark.filterwarnings("ignore:torch.quantize", "ignore:The PyTorch API of nested", "ignore:Sparse")
def test_tensors_without_plain_numbers_are_refused_everywhere_by_name():
    rows = torch.full((4, 2), 0.5)
    odd = {
        "sparse": rows.to_sparse(),
        "sparse csr": rows.to_sparse_csr(),
        "meta": rows.to("meta"),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]),
        "quantized": torch.quantize_per_tensor(rows, 0.1, 0, torch.qint8),
        "complex": rows + 1j,
        "float8": rows.to(torch.float8_e4m3fn),
    }
    for tensor in odd.values():
        for name, attempt in {
            "X": check_matrix,
            "probs": check_probs,
            "y": lambda tensor: check_labels(tensor, 4),
            "labels": lambda tensor: check_columns(tensor, 4, 2),
            "groups": lambda tensor: check_groups(tensor, 4),
            "sample_weight": lambda tensor: check_weights(tensor, 4),
            "ids": lambda tensor: check_ids(tensor, 4),
        }.items():
            with pytest.raises(InvalidInputError, match=f"^{name} must be a dense tensor of real numbers") as raised:
                attempt(tensor)
            assert raised.value.remedy


def test_negative_views_are_read_as_their_values():
    complex_rows = torch.tensor([[1 + 1j, 2 - 3j]]).conj()
    view = complex_rows.imag
    assert view.is_neg()
    assert check_matrix(view).tolist() == [[-1.0, 3.0]]
    weights = torch.tensor([1 - 2j, 1 - 4j]).conj().imag
    np.testing.assert_allclose(check_weights(weights, 2), [2 / 3, 4 / 3])


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
    prints.append(row_fingerprints(torch.from_numpy(rows)))
    prints.append(row_fingerprints(torch.from_numpy(np.asfortranarray(rows))))
    for other in prints[1:]:
        np.testing.assert_array_equal(other, prints[0])


def test_whole_numbers_have_the_fingerprints_of_their_floats():
    rows = np.array([[1, -2], [300, 4]])
    np.testing.assert_array_equal(
        row_fingerprints(check_matrix(rows)), row_fingerprints(torch.from_numpy(rows.astype(np.float32)))
    )


def test_zero_has_no_sign():
    rows = torch.tensor([[0.0, 1.0, 0.0], [-0.0, 1.0, -0.0]])
    prints = row_fingerprints(rows)
    assert prints[0] == prints[1]


def test_fingerprints_see_the_order_of_the_columns_and_their_number():
    one, swapped = row_fingerprints(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    assert one != swapped
    assert row_fingerprints(torch.tensor([[1.0, 2.0, 0.0]]))[0] != one


def test_fingerprints_of_a_small_grid_are_all_different():
    """Every row over {−1, 0, 1}: a sum that mixes too little would meet here."""
    grid = np.array(np.meshgrid(*[[-1.0, 0.0, 1.0]] * 9)).reshape(9, -1).T.astype(np.float32)
    assert len(np.unique(row_fingerprints(torch.from_numpy(grid)))) == 3**9


def test_checking_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_matrix(np.array(ROWS, dtype=np.float16))
        check_labels([0, 1, 1], 3)
        row_fingerprints(torch.tensor(ROWS, dtype=torch.float64))


def test_fingerprints_tell_numbers_apart_that_single_precision_cannot_hold():
    rows = torch.tensor([[1e200], [2e200], [-1e200], [1e-200], [2e-200], [0.0]], dtype=torch.float64)
    assert len(set(row_fingerprints(rows).tolist())) == 6
    assert row_fingerprints(rows[5:]) == row_fingerprints(torch.tensor([[-0.0]], dtype=torch.float64))


class Images(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.zeros(2)


@pytest.mark.parametrize(
    "given",
    [
        lambda: Images(),
        lambda: torch.utils.data.DataLoader(Images()),
        lambda: torch.utils.data.TensorDataset(torch.zeros(3, 2)),
        lambda: iter(torch.utils.data.DataLoader(Images())),
        lambda: (row for row in np.zeros((3, 2))),
        lambda: np.zeros((5, 3, 8, 8)),
        lambda: torch.zeros(5, 8, 8),
    ],
    ids=["dataset", "loader", "tensor dataset", "iterator", "generator", "images", "grey images"],
)
def test_what_is_no_embedding_gets_the_hint_to_extract_them(given: Any) -> None:
    hint = r"Extract the embeddings first: pass the output of the penultimate layer for each sample, an \(n, h\) array"
    for fit in (KCal(projection="identity").fit, KCalBlend().fit):
        with pytest.raises(InvalidInputError, match=rf"^X must .* {hint}"):
            fit(given(), [0, 1, 0, 1, 0])
    with pytest.raises(InvalidInputError, match=r"^logits must .* Run the network first: pass its logits"):
        KCalBlend().fit(np.zeros((5, 2)), [0, 1, 0, 1, 0], logits=given())


def test_a_dimension_above_that_of_the_embeddings_is_refused_with_both_numbers() -> None:
    rows, labels = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    training = {"train_embeddings": rows + 1.0, "train_labels": labels}
    with pytest.raises(InvalidInputError, match=r"^dimension must be at most .* of the embeddings, 4; got 5"):
        KCal(dimension=5).fit(rows, labels, **training)
