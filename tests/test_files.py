"""A file is written completely or not at all, with the mode and through the links that a user expects."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcal.errors import InvalidInputError
from kcal.files import (
    array_names,
    atomic_path,
    check_path,
    read_array,
    with_mark,
    without_mark,
    write_arrays,
    write_whole,
)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with atomic_path(path) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".csv"
        assert "table" not in temporary.name
        temporary.write_text("a")
        assert not path.exists()
    assert path.read_text() == "a"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = write_whole(tmp_path / "model", b"old")

    def fail() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("new")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    if isinstance(caught.value, OSError):
        assert caught.value.filename == str(path)


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = write_whole(tmp_path / "model", b"")
    finally:
        os.umask(before)
    assert mode_of(path) == 0o666 & ~umask


@pytest.mark.parametrize("mode", [0o600, 0o755, 0o444])
def test_existing_file_keeps_its_mode_and_is_never_more_open_before(tmp_path: Path, mode: int) -> None:
    path = write_whole(tmp_path / "model", b"old")
    path.chmod(mode)
    with atomic_path(path) as temporary:
        assert mode_of(temporary) & ~0o600 == 0
        temporary.write_text("new")
    assert mode_of(path) == mode
    assert path.read_text() == "new"


def test_who_reads_the_old_file_reads_it_to_its_end(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "model", b"old")
    with path.open("rb") as reader:
        write_whole(path, b"new")
        assert reader.read() == b"old"


@pytest.mark.parametrize("exists", [True, False])
def test_symbolic_link_stays_and_its_target_is_written(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "model", tmp_path / "link"
    if exists:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert list(folder.iterdir()) == [target]


def test_paths_that_cannot_be_files_raise_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "link", tmp_path / "nowhere" / "model"):
        with pytest.raises(InvalidInputError, match=r"^out must be"), atomic_path(path, name="out"):
            pass


@pytest.mark.parametrize("path", [None, b"model", "a\0b", "", 7, ["model"], "~nobody-of-this-name/model"])
def test_wrong_path_raises_by_name(path: Any) -> None:
    with pytest.raises(InvalidInputError, match="path must be"):
        check_path(path)


def test_arrays_come_back_under_their_names(tmp_path: Path) -> None:
    arrays = {"file": np.arange(6).reshape(2, 3), "names": np.array(["ä", "b"]), "one": np.float32(0.5)}
    write_arrays(tmp_path / "a.npz", arrays)
    assert array_names(tmp_path / "a.npz") == tuple(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(read_array(tmp_path / "a.npz", name), array)
    np.save(tmp_path / "a.npy", arrays["file"])
    np.testing.assert_array_equal(read_array(tmp_path / "a.npy"), arrays["file"], strict=True)


def test_arrays_of_objects_raise_and_the_old_file_stays(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "a.npz", b"old")
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_arrays(path, {"a": np.zeros(2), "b": np.array([None, {}])})
    assert path.read_bytes() == b"old"


def test_cells_that_spreadsheets_would_run_are_marked_and_read_back() -> None:
    for text in ("=1+1", "'=1", "-3", "@a", "plain", "'plain", "", "\tx"):
        assert not with_mark(text).startswith(("=", "+", "-", "@", "\t"))
        assert without_mark(with_mark(text)) == text
