"""Objects that are not the expected array: an error that names the argument, never one of torch or numpy."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import kcal
from kcal import KCal, TemperatureScaling
from kcal.errors import FewSamplesWarning, InvalidInputError

CODES = np.arange(30) % 3
ROWS = np.eye(3)[CODES] + np.random.default_rng(0).normal(size=(30, 3))
DAYS = np.datetime64("2020-01-01") + CODES
IDS = np.array([f"-{place}" for place in range(30)], dtype=object)

MATRICES: dict[str, Callable[[], Any]] = {
    "generator": lambda: (row for row in ROWS),
    "set": lambda: {1.0, 2.0},
    "mapping": lambda: {"a": ROWS},
    "nothing": lambda: None,
    "meta": lambda: torch.tensor(ROWS).to("meta"),
    "sparse": lambda: torch.tensor(ROWS).to_sparse(),
    "complex tensor": lambda: torch.tensor(ROWS + 1j),
    "complex": lambda: ROWS + 1j,
    "numbers as text": lambda: ROWS.astype(str),
    "numbers as text objects": lambda: ROWS.astype(str).astype(object),
    "text among numbers": lambda: np.array([[1.0, "a"]] * 30, dtype=object),
    "dictionaries": lambda: np.full((30, 3), {}),
    "huge": lambda: np.full((30, 3), 10**400),
    "times": lambda: np.repeat(DAYS[:, None], 3, axis=1),
    "sparse matrix": lambda: scipy.sparse.csr_array(ROWS),
    "ragged": lambda: [[1.0], [1.0, 2.0]],
}


@pytest.mark.parametrize("make", [lambda: KCal(projection="identity"), TemperatureScaling], ids=["kcal", "ts"])
def test_other_objects_as_rows_raise_by_name(make: Callable[[], Any]) -> None:
    fitted = make().fit(ROWS, CODES)
    for given in MATRICES.values():
        with pytest.raises(InvalidInputError, match=r"^X "):
            make().fit(given(), CODES)
        with pytest.raises(InvalidInputError, match=r"^X "):
            fitted.predict_proba(given())


VECTORS: dict[str, Callable[[], Any]] = {
    "generator": lambda: (code for code in CODES),
    "mapping": lambda: dict(enumerate(CODES)),
    "dictionaries": lambda: [{}] * 30,
    "meta": lambda: torch.tensor(CODES).to("meta"),
    "sparse": lambda: torch.tensor(CODES).to_sparse(),
    "complex": lambda: CODES + 1j,
    "days": lambda: DAYS,
    "ragged": lambda: [[1], [1, 2]],
    "word": lambda: "abc",
}
LABELS: dict[str, Callable[[], Any]] = {
    "huge": lambda: [10**30 + int(code) for code in CODES],
    "one huge": lambda: [10**30, *CODES[1:].tolist()],
    "moments": lambda: [datetime.datetime(2020, 1, 1 + int(code)) for code in CODES],
    "spans": lambda: CODES.astype("m8[s]"),
    "bytes": lambda: CODES.astype("S1"),
    "records": lambda: CODES.astype([("a", int)]),
    "one-hot": lambda: np.eye(3)[CODES],
}


@pytest.mark.parametrize("name", [*VECTORS, *LABELS])
def test_other_objects_as_labels_raise_by_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^y "):
        KCal(projection="identity").fit(ROWS, (VECTORS | LABELS)[name]())


@pytest.mark.parametrize("name", ["groups", "sample_weight", "ids"])
def test_other_objects_beside_labels_raise_by_name(name: str) -> None:
    for kind, given in VECTORS.items():
        if name != "groups" or kind not in ("days", "complex"):  # values that can be told apart serve as groups
            with pytest.raises(InvalidInputError, match=f"^{name} "):
                KCal(projection="identity").fit(ROWS, CODES, **{name: given()})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sample_weight", [10**400] * 30),
        ("ids", [10**30 + place for place in range(30)]),
        *(("classes", classes) for classes in ({0, 1, 2}, np.unique(DAYS), [10**30, 1], (code for code in range(3)))),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_numbers_that_could_not_be_saved_raise_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} "):
        KCal(projection="identity").fit(ROWS, CODES, **{name: value})


STRINGS = [np.array(["a", "b", "c"], dtype=np.dtypes.StringDType())[CODES]] if hasattr(np.dtypes, "StringDType") else []


@pytest.mark.parametrize(
    "labels",
    [
        CODES.astype(np.uint64) + np.uint64(2**63),
        CODES.astype(np.float16),
        CODES > 0,
        np.array(list("abc"))[CODES],
        *STRINGS,
    ],
    ids=lambda labels: str(labels.dtype),
)
def test_labels_that_fit_accepts_can_be_saved(labels: Any, tmp_path: Any) -> None:
    fitted = KCal(projection="identity", bandwidth=1.0).fit(ROWS, labels, ids=IDS)
    loaded = kcal.load(kcal.save(fitted, tmp_path / "model.kcal"))
    np.testing.assert_array_equal(loaded.classes_, fitted.classes_)
    np.testing.assert_array_equal(loaded.ids_, fitted.ids_)


def test_as_many_classes_as_samples_cannot_be_halved() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4))
    with pytest.raises(InvalidInputError, match="train_embeddings"):
        KCal().fit(rows, np.arange(200))
    with pytest.warns(FewSamplesWarning):  # nothing is left of a class
        fitted = KCal(projection="identity", bandwidth=1.0).fit(rows, np.arange(200))
    assert fitted.predict_proba(rows + 1).shape == (200, 200)
