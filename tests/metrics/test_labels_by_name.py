"""Labels of any kind can be evaluated once the columns are named."""

from __future__ import annotations

import numpy as np
import pytest

from kcal.errors import InvalidInputError
from kcal.metrics import evaluate

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])


def test_named_labels_count_for_their_columns() -> None:
    named = evaluate(PROBABILITIES, ["b", "c", "a"], classes=["b", "c", "a"])
    assert named == evaluate(PROBABILITIES, [0, 1, 2])
    assert evaluate(PROBABILITIES, [2, 0, 1], classes=[2, 0, 1]) == named


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        (["b", "x", "a"], ["b", "c", "a"], "got 'x' at row 1"),
        ([0, 1, 2], ["b", "c", "a"], r"labels must be in classes \(3 of them\); got 0 at row 0"),
        (["b", "c", "a"], ["b", "b", "a"], "classes must list every class once"),
    ],
)
def test_labels_that_no_column_has_are_refused(labels: list, classes: list, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        evaluate(PROBABILITIES, labels, classes=classes)
