"""The command ``prepare``, the format it writes, and the splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.paper.data import iiic, isruc
from experiments.paper.data.splitting import group_parts, reserved, stratified_parts
from experiments.paper.prepared import PreparedData, new_inputs, read_prepared, write_prepared
from kcal.errors import InvalidInputError


def small(inputs: np.ndarray) -> PreparedData:
    return PreparedData(
        name="small",
        kind="signals",
        classes=("cat", "dog"),
        inputs=inputs,
        labels=np.array([0, 1, 1, 0]),
        parts=np.array([0, 0, 2, 2], np.int8),
        groups=np.array([5, 5, 6, 7]),
        calibration_share=0.25,
        oversampled=np.array([False, True, False, False]),
    )


def test_inputs_are_filled_in_place_and_read_back(tmp_path: Path) -> None:
    inputs = new_inputs(tmp_path, (4, 1, 3), np.float32)
    for row in range(4):
        inputs[row] = row
    before = (tmp_path / "inputs.npy").stat().st_ino
    write_prepared(small(inputs), tmp_path)
    data = read_prepared(tmp_path)
    assert (tmp_path / "inputs.npy").stat().st_ino == before
    np.testing.assert_array_equal(data.inputs, np.repeat(np.arange(4.0), 3).reshape(4, 1, 3))
    assert (data.calibration_share, data.classes, data.root) == (0.25, ("cat", "dog"), None)
    np.testing.assert_array_equal(data.oversampled, [False, True, False, False])
    write_prepared(replace(small(np.zeros((4, 1))), oversampled=None, calibration_share=None), tmp_path)
    assert read_prepared(tmp_path).oversampled is None
    assert read_prepared(tmp_path).calibration_share is None


def test_splits_have_the_numbers_of_the_paper() -> None:
    assert [int(reserved(n, 0.1, seed=0).sum()) for n in (50_000, 73_257)] == [5_000, 7_326]
    for n_patients in (98, 99, 100):
        parts = group_parts(np.arange(n_patients), isruc.TRAIN_PATIENTS, isruc.PATIENTS, seed=0)
        assert int((parts == 0).sum()) == 69
    parts = group_parts(np.arange(2_697), iiic.TRAIN_PATIENTS, iiic.PATIENTS, seed=0)
    assert (int((parts == 0).sum()), int((parts == 2).sum())) == (1_936, 77 + 684)


def test_splits_depend_on_the_seed_alone() -> None:
    labels = np.arange(100) % 3
    first, again, other = (stratified_parts(labels, (0.5, 0.2, 0.3), seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert [int((first[labels == 0] == part).sum()) for part in range(3)] == [17, 7, 10]
    with pytest.raises(InvalidInputError, match="sum to 1"):
        stratified_parts(labels, (0.5, 0.2), seed=0)
