"""Objects that are not the expected array: an error that names the argument, never one of torch or numpy."""

from __future__ import annotations

import datetime

import numpy as np
import pytest
import scipy.sparse
import torch

import kcal
from kcal import KCal, TemperatureScaling
from kcal.errors import FewSamplesWarning, InvalidInputError
from kcal.validation import check_groups, check_ids, check_labels, check_weights, collect_classes

CODES = np.arange(30) % 3
ROWS = np.eye(3)[CODES] + np.random.default_rng(0).normal(size=(30, 3))
DAYS = np.datetime64("2020-01-01") + CODES

MATRICES = {
    "generator": (
        lambda: (row for row in ROWS),
        "type generator. (Run the network|Extract the embeddings) first",
    ),
    "iterator": (lambda: iter(ROWS.tolist()), "got an object of type list_iterator"),
    "set": (lambda: {1.0, 2.0}, "got an object of type set"),
    "mapping": (lambda: {"a": ROWS}, r"type dict. Pass np.array\(list\(X.values\(\)\)\)"),
    "nothing": (lambda: None, "must be an array, a tensor or a list; got None"),
    "meta": (lambda: torch.tensor(ROWS).to("meta"), "got a tensor on the meta device, which holds no numbers"),
    "sparse": (lambda: torch.tensor(ROWS).to_sparse(), r"got a sparse tensor .* Pass X.to_dense\(\)"),
    "complex tensor": (lambda: torch.tensor(ROWS + 1j), "got a complex tensor .* Pass X.real"),
    "complex": (lambda: ROWS + 1j, "X must be real numbers; got complex128. Complex data not supported: pass X.real"),
    "complex objects": (lambda: (ROWS + 1j).astype(object), "X must be an array of numbers"),
    "numbers as text": (lambda: ROWS.astype(str), r"got text, .* Convert it with X.astype\(float\)"),
    "text as objects": (lambda: np.full((30, 3), "a", dtype=object), "X must be real numbers; got text, 'a'"),
    "text among numbers": (lambda: np.array([[1.0, "a"]] * 30, dtype=object), "X must be real numbers; got text, 'a'"),
    "dictionaries": (lambda: np.full((30, 3), {}), "X must be an array of numbers"),
    "huge": (lambda: np.full((30, 3), 10**400), "too large"),
    "times": (lambda: np.repeat(DAYS[:, None], 3, axis=1), r"X must be real numbers; got datetime64\[D\]"),
    "sparse matrix": (lambda: scipy.sparse.csr_array(ROWS), "Sparse data was passed"),
    "sparse dictionary": (lambda: scipy.sparse.dok_array(ROWS), "Sparse data was passed"),
    "ragged": (lambda: [[1.0], [1.0, 2.0]], "^X must be an array, a tensor or a list. .*inhomogeneous"),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("make", [lambda: KCal(projection="identity"), TemperatureScaling], ids=["kcal", "ts"])
def test_what_is_no_matrix_is_refused_by_fit(name, make):
    given, message = MATRICES[name]
    with pytest.raises(InvalidInputError, match=message):
        make().fit(given(), CODES)


@pytest.mark.parametrize("name", MATRICES)
def test_what_is_no_matrix_is_refused_by_predict_proba(name):
    given, message = MATRICES[name]
    fitted = KCal(projection="identity", bandwidth=1.0).fit(ROWS, CODES)
    with pytest.raises(InvalidInputError, match=message):
        fitted.predict_proba(given())


LABELS = {
    "generator": (lambda: (code for code in CODES), r"type generator. Pass np.array\(list\(y\)\)"),
    "mapping": (lambda: dict(enumerate(CODES)), "type dict"),
    "meta": (lambda: torch.tensor(CODES).to("meta"), "meta device"),
    "sparse": (lambda: torch.tensor(CODES).to_sparse(), "sparse tensor"),
    "huge": (lambda: [10**30 + int(code) for code in CODES], r"up to 64 bits; got '10{30}'.*int.*astype\(str\)"),
    "one huge": (lambda: [10**30, *CODES[1:].tolist()], "got '10{30}'"),
    "days": (lambda: DAYS, r"got datetime64\[D\]"),
    "moments": (lambda: [datetime.datetime(2020, 1, 1 + int(code)) for code in CODES], "type datetime"),
    "spans": (lambda: CODES.astype("m8[s]"), r"got timedelta64\[s\]"),
    "complex": (lambda: CODES + 1j, "got complex128"),
    "bytes": (lambda: CODES.astype("S1"), "got .S1"),
    "wide floats": (lambda: CODES.astype(np.longdouble), "got float128"),
    "records": (lambda: CODES.astype([("a", int)]), "must be text"),
    "one-hot": (lambda: np.eye(3)[CODES], r"one-dimensional.*y.argmax\(axis=1\)"),
    "one word": (lambda: "abc", "y must be one-dimensional"),
    "ragged": (lambda: [[1], [1, 2]], "y must be an array, a tensor or a list"),
}


@pytest.mark.parametrize("name", LABELS)
def test_what_is_no_label_or_cannot_be_saved_is_refused_by_fit(name):
    given, message = LABELS[name]
    if name == "wide floats" and np.dtype(np.longdouble).itemsize <= 8:
        pytest.skip("no wide floats here")
    with pytest.raises(InvalidInputError, match=message):
        KCal(projection="identity").fit(ROWS, given())


@pytest.mark.parametrize(
    "labels",
    [CODES.astype(np.uint64) + np.uint64(2**63), CODES.astype(np.float16), CODES > 0, np.array(list("abc"))[CODES]],
    ids=["large", "half", "truth", "text"],
)
def test_what_fit_takes_as_labels_can_be_saved(labels, tmp_path):
    fitted = KCal(projection="identity", bandwidth=1.0).fit(ROWS, labels, ids=labels.astype(str).astype(object) + IDS)
    loaded = kcal.load(kcal.save(fitted, tmp_path / "model.kcal"))
    np.testing.assert_array_equal(loaded.classes_, fitted.classes_)
    np.testing.assert_array_equal(loaded.ids_, fitted.ids_)


IDS = np.array([f"-{place}" for place in range(30)], dtype=object)


@pytest.mark.parametrize(
    "given",
    [
        lambda: (code for code in CODES),
        lambda: torch.tensor(CODES).to("meta"),
        lambda: torch.tensor(CODES).to_sparse(),
        lambda: [{}] * 30,
        lambda: [[1], [1, 2]],
    ],
    ids=["generator", "meta", "sparse", "dictionaries", "ragged"],
)
@pytest.mark.parametrize("check", [check_labels, check_groups, check_weights, check_ids])
def test_no_vector_fails_with_a_foreign_error(check, given):
    with pytest.raises(InvalidInputError, match=r"^(y|groups|sample_weight|ids) must be "):
        check(given(), 30)


@pytest.mark.parametrize("weights", [CODES + 1j, DAYS, [10**400] * 30], ids=["complex", "days", "huge"])
def test_weights_are_real_numbers(weights):
    with pytest.raises(InvalidInputError, match=r"^sample_weight must be (real numbers|an array of numbers)"):
        check_weights(weights, 30)


@pytest.mark.parametrize("ids", [np.datetime64("2020-01-01") + np.arange(30), [10**30 + place for place in range(30)]])
def test_ids_that_could_not_be_saved_are_refused(ids):
    with pytest.raises(InvalidInputError, match="ids must be text, truth values or numbers of up to 64 bits"):
        check_ids(ids, 30)


@pytest.mark.parametrize("classes", [{"a", "b"}, np.unique(DAYS), [10**30, 1], (name for name in "ab")])
def test_classes_have_an_order_and_can_be_saved(classes):
    with pytest.raises(InvalidInputError, match=r"^classes must be "):
        collect_classes([np.array(["a"])], classes)


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="numpy 2 has them")
def test_strings_of_variable_length_are_text():
    words = np.array(["a", "b", "a"], dtype=np.dtypes.StringDType())
    assert check_labels(words, 3).dtype.kind == "U"


def test_as_many_classes_as_samples_cannot_be_halved():
    rows = np.random.default_rng(0).normal(size=(200, 4))
    with pytest.raises(InvalidInputError, match=r'Pass train_embeddings and train_labels, .* or projection="identity"'):
        KCal().fit(rows, np.arange(200))
    with pytest.warns(FewSamplesWarning, match=r"an accuracy of 0\.0%"):  # nothing is left of a class
        fitted = KCal(projection="identity", bandwidth=1.0).fit(rows, np.arange(200))
    assert fitted.predict_proba(rows + 1).shape == (200, 200)
