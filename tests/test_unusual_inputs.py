"""Labels, ids and classes at the edge of what can be saved; ``tests/fuzz`` has the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kcal
from kcal import KCal
from kcal.errors import FewSamplesWarning, InvalidInputError

CODES = np.arange(30) % 3
ROWS = np.eye(3)[CODES] + np.random.default_rng(0).normal(size=(30, 3))
DAYS = np.datetime64("2020-01-01") + CODES
IDS = np.array([f"-{place}" for place in range(30)], dtype=object)


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


def test_as_many_classes_as_samples_can_be_fitted() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4))
    with pytest.warns(FewSamplesWarning):  # nothing is left of a class
        fitted = KCal(projection="identity", bandwidth=1.0).fit(rows, np.arange(200))
    assert fitted.predict_proba(rows + 1).shape == (200, 200)
