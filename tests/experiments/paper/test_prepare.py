"""The command ``prepare``, the format it writes, and the splits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from experiments.paper.__main__ import app
from experiments.paper.data import DATA_SETS, iiic, isruc
from experiments.paper.data.splitting import group_parts, reserved, stratified_parts
from experiments.paper.prepare import count_table
from experiments.paper.prepared import PreparedData, new_inputs, read_prepared, write_prepared
from kcal.errors import InvalidInputError
from paper_data_files import write_cifar10


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


def test_folder_is_incomplete_from_the_first_new_input_on(tmp_path: Path) -> None:
    write_prepared(small(np.zeros((4, 1))), tmp_path)
    new_inputs(tmp_path, (9, 1), np.float32)
    with pytest.raises(InvalidInputError, match="holds no prepared data"):
        read_prepared(tmp_path)


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


def test_table_counts_parts_classes_and_groups() -> None:
    table = count_table(small(np.zeros((4, 1, 3))))
    assert table.heading == ("samples", "train", "added to train", "validation", "pool")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["cat", "1", "0", "0", "1"],
        ["dog", "1", "1", "0", "1"],
        ["all", "2", "1", "0", "2"],
        ["groups", "1", "1", "0", "2"],
    ]


def test_table_of_many_classes_shows_the_smallest_and_the_largest() -> None:
    data = small(np.zeros((4, 1)))
    data = replace(data, classes=tuple(map(str, range(30))), groups=None, oversampled=None)
    table = count_table(data)
    assert table.heading == ("samples", "train", "validation", "pool")
    assert [[entry.text for entry in row] for row in table.rows] == [
        ["smallest class", "0", "0", "0"],
        ["largest class", "1", "0", "1"],
        ["all", "2", "0", "2"],
    ]


def test_command_prepares_and_shows_the_table(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(256, size=(60, 3072), dtype=np.uint8), np.arange(60) % 10
    write_cifar10(tmp_path / "in", pixels, labels, [f"class{k}" for k in range(10)], binary=True)
    words = ["prepare", "cifar10", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert "cifar10: 10 classes, images of shape (32, 32, 3)" in " ".join(result.stdout.split())
    assert ["samples", "train", "validation", "pool"] in lines
    assert ["all", "45", "0", "15"] in lines
    assert result.stdout.splitlines()[-1] == f"cifar10 is in {tmp_path / 'out'}"
    assert len(read_prepared(tmp_path / "out").labels) == 60
    quiet = CliRunner().invoke(app, [*words, "--quiet"])
    assert quiet.stdout.splitlines() == [f"cifar10 is in {tmp_path / 'out'}"]


@pytest.mark.parametrize("name", DATA_SETS)
def test_missing_data_are_answered_by_their_home_and_a_tree(name: str, tmp_path: Path) -> None:
    for source in (tmp_path / "nothing", tmp_path):
        result = CliRunner().invoke(app, ["prepare", name, str(source), "-o", str(tmp_path / "out")])
        assert result.exit_code == 1
        lines = result.stderr.splitlines()
        assert lines[0].startswith("error: ")
        assert f"{DATA_SETS[name].layout.title} is available from " in lines[0]
        assert "http" in lines[0]
        assert lines[1] == "The folder looks like this:"
        assert "\n".join(lines[2:]) == DATA_SETS[name].layout.tree
    assert not (tmp_path / "out").exists()


def test_unknown_name_lists_the_data_sets(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["prepare", "mnist", str(tmp_path), "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: NAME must be one of cifar10, cifar100, svhn, imagenet")
