"""PhysioNet 2017: recordings in WFDB format and in one archive, cut into segments."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from experiments.paper.data import DATA_SETS, pn2017
from experiments.paper.prepared import PreparedData, read_prepared
from paper_data_files import write_wfdb

CODES = "N" * 16 + "A" * 4 + "O" * 8 + "~" * 4
LENGTHS = [2_714, 3_000, 3_001, 6_001, 9_000, 9_001, 9_000, 7_000] * 4
RECORDS = [f"A{number:05d}" for number in range(1, 33)]


def signals() -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.integers(-900, 900, size=length).astype(np.int16) for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pn") / "training2017"
    folder.mkdir()
    for name, signal in zip(RECORDS, signals(), strict=True):
        write_wfdb(folder, name, signal)
    lines = "".join(f"{name},{code}\n" for name, code in zip(RECORDS, CODES, strict=True))
    (folder / "REFERENCE.csv").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def prepared(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    out = tmp_path_factory.mktemp("out")
    DATA_SETS["pn2017"].prepare(folder.parent, out, seed=1, show=False)
    return read_prepared(out)


def test_segments_outside_training_are_those_of_the_paper(prepared: PreparedData) -> None:
    assert prepared.groups is not None
    for group, (signal, code) in enumerate(zip(signals(), CODES, strict=True)):
        rows = np.flatnonzero(prepared.groups == group)
        starts = range(0, len(signal) - 3_000, 3_000)
        if not len(starts):
            assert not len(rows)
        elif prepared.parts[rows[0]] != 0:
            scaled = (signal - signal.mean()) / signal.std()
            expected = [scaled[start : start + 3_000] for start in starts]
            np.testing.assert_allclose(prepared.inputs[rows, 0], expected, atol=1e-5)
        assert (prepared.labels[rows] == "NAO~".index(code)).all()


def test_recordings_stay_together_in_the_shares_of_their_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [100, 40, 60, 20])
    parts = pn2017.stratified_parts(labels, pn2017.SHARES, seed=0)
    for label, size in enumerate((100, 40, 60, 20)):
        counts = np.bincount(parts[labels == label], minlength=3)
        np.testing.assert_array_equal(counts, np.array([0.65, 0.10, 0.25]) * size)


def test_rare_classes_are_oversampled_in_training_only(prepared: PreparedData) -> None:
    assert prepared.oversampled is not None
    is_train = prepared.parts == 0
    assert not prepared.oversampled[~is_train].any()
    natural = np.bincount(prepared.labels[is_train & ~prepared.oversampled])
    factors = np.rint(natural.max() / natural)
    assert factors.max() > 1
    sizes = np.bincount(prepared.labels[is_train])
    assert not prepared.oversampled[prepared.labels == 0].any()
    # A recording of 3,001 samples has room for a single start, so that a class may stay below its multiple.
    assert (sizes <= natural * factors).all()
    assert (sizes[factors > 1] > natural[factors > 1]).all()


def test_archive_gives_the_same_as_the_folder(prepared: PreparedData, tmp_path: Path) -> None:
    differences = np.diff(np.concatenate(signals()), prepend=np.int16(0))
    arrays = {"length": np.array(LENGTHS, np.int32), "record": RECORDS, "label": list(CODES)}
    np.savez(tmp_path / "all.npz", signal_differences=differences, **arrays)
    DATA_SETS["pn2017"].prepare(tmp_path / "all.npz", tmp_path / "out", seed=1, show=False)
    data = read_prepared(tmp_path / "out")
    for name in ("inputs", "labels", "parts", "groups", "oversampled"):
        np.testing.assert_array_equal(getattr(data, name), getattr(prepared, name))
