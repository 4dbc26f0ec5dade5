"""A calibration store whose file was damaged raises, or gives exactly the samples that were put in."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcal import CalibrationStore, ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError


def outputs(n: int, seed: int = 0) -> ClassifierOutputs:
    generator = np.random.default_rng(seed)
    return ClassifierOutputs(
        generator.normal(size=(n, 24)),
        generator.normal(size=(n, 3)),
        generator.choice(["normal", "seizure", "discharge"], n),
        groups=generator.integers(0, 9, n),
        weights=generator.uniform(1, 2, n),
        ids=[f"{seed}-{row}" for row in range(n)],
    )


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A closed store that has seen every kind of change, with pages that are free."""
    path = tmp_path_factory.mktemp("store") / "store.db"
    with CalibrationStore(path, version="network 1") as store:
        ids = store.append(outputs(200))
        store.append(outputs(3, seed=1), times=[0.0, -0.0, 1e9])
        store.correct(ids[:5], ["other"] * 5)
        store.delete(ids[40:80])
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
    return path.read_bytes()


def everything(path: Path) -> list[Any]:
    """All that a reader gets of a store."""
    with CalibrationStore(path) as store:
        samples = store.samples(labelled=False)
        _, rows, versions, deleted, last = store.changes()
        counts = [store.count_by_version(), store.ids(), deleted, rows.tolist(), versions, last]
        known = store.versions_of(["0-1", "0-50", "1-2"])
        return [*(np.asarray(array).tolist() for array in vars(samples).values()), *counts, known]


def is_noticed(path: Path, damaged: bytes, expected: list[Any]) -> bool:
    """Return whether opening or reading a damaged file raises; assert that otherwise it reads as before."""
    path.write_bytes(damaged)
    try:
        found = everything(path)
    except FileFormatError as error:
        return str(path) in str(error)
    finally:
        for file in path.parent.iterdir():
            file.unlink()
    assert found == expected
    return False


def test_flipped_bit_never_gives_other_samples(content: bytes, tmp_path: Path) -> None:
    path, generator = tmp_path / "store.db", np.random.default_rng(0)
    path.write_bytes(content)
    expected = everything(path)
    header = np.arange(8 * 100)
    noticed = 0
    for bit in np.r_[generator.choice(8 * len(content), 300, replace=False), header].tolist():
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        noticed += is_noticed(path, bytes(damaged), expected)
    assert noticed > 200


def test_truncated_file_never_gives_fewer_samples(content: bytes, tmp_path: Path) -> None:
    path, generator = tmp_path / "store.db", np.random.default_rng(1)
    path.write_bytes(content)
    expected = everything(path)
    pages = np.arange(0, len(content), 4096)
    for end in np.r_[generator.choice(len(content), 100, replace=False), pages, 1, 99, 100].tolist():
        assert is_noticed(path, content[:end], expected)


STATEMENTS = [
    "DELETE FROM samples WHERE row = 100",
    "DELETE FROM samples WHERE row >= 200",
    "DELETE FROM changes WHERE number > 240",
    "DELETE FROM changes WHERE number = 7",
    "UPDATE changes SET row = 90 WHERE number = 7",
    "UPDATE samples SET row = 1000 WHERE row = 100",
    "UPDATE samples SET embedding = (SELECT embedding FROM samples WHERE row = 101) WHERE row = 100",
    "UPDATE samples SET label = 'seizure '",
    "DELETE FROM samples",
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_lost_and_replaced_rows_raise(content: bytes, tmp_path: Path, statement: str) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as database:
        triggers = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
        for _, sql in triggers:
            database.execute(sql)
        database.commit()
    with pytest.raises(FileFormatError, match=r"store\.db is damaged.*Restore it from a backup"):
        CalibrationStore(path)


def test_damage_while_a_store_is_open_raises_where_the_sample_is_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with CalibrationStore(path) as store:
        with closing(sqlite3.connect(path)) as database:
            database.execute("UPDATE samples SET weight = 7 WHERE id = '0-3'")
            database.commit()
        for read in (
            store.samples,
            store.changes,
            lambda: store.correct(["0-3"], ["x"]),
        ):
            with pytest.raises(FileFormatError, match="checksum of the sample in row 4 does not match"):
                read()


def test_store_of_the_first_format_says_how_to_take_its_samples_along(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 1")
    with pytest.raises(FileFormatError, match=r"format 1;.* new store"):
        CalibrationStore(path)


@pytest.mark.parametrize("name", [":memory:", "", "file:ward.db", "file::memory:?cache=shared", "./:memory:"])
def test_name_that_is_not_a_file_on_disk_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInputError, match="path must be the name of a file"):
        CalibrationStore(name)
    assert list(tmp_path.iterdir()) == []
