"""A file is written completely or not at all, with the mode and through the links that a user expects."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcal.errors import InvalidInputError
from kcal.files import atomic_path, check_path, write_arrays, write_whole


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_file_appears_only_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with atomic_path(path) as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".csv"
        assert temporary.exists()
        assert "table" not in temporary.name
        temporary.write_text("a")
        assert not path.exists()
    assert path.read_text() == "a"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "model"
    path.write_text("old")

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


def test_an_error_about_another_file_keeps_its_name(tmp_path: Path) -> None:
    def read_another() -> None:
        with atomic_path(tmp_path / "model"):
            (tmp_path / "another").read_text()

    with pytest.raises(FileNotFoundError) as caught:
        read_another()
    assert caught.value.filename == str(tmp_path / "another")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_a_new_file_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        path = write_whole(tmp_path / "model", b"")
    finally:
        os.umask(before)
    assert mode_of(path) == 0o666 & ~umask


def test_the_umask_of_the_process_is_never_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("umask was set"))
    write_whole(tmp_path / "model", b"")
    write_whole(tmp_path / "model", b"")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o444])
def test_an_existing_file_keeps_its_mode_and_is_never_more_open_before(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "model"
    path.write_text("old")
    path.chmod(mode)
    with atomic_path(path) as temporary:
        assert mode_of(temporary) & ~0o600 == 0
        temporary.write_text("new")
    assert mode_of(path) == mode
    assert path.read_text() == "new"


@pytest.mark.parametrize("exists", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_written(tmp_path: Path, exists: bool) -> None:
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


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    with pytest.raises(InvalidInputError, match="path must be the name of a regular file"):
        write_whole(link, b"")


def test_what_cannot_be_a_file_is_refused_by_the_name_of_the_argument(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path, "out must be the name of a file; got the folder"),
        (tmp_path / "pipe", "out must be the name of a regular file"),
        (tmp_path / "nowhere" / "model", "out must be in an existing folder"),
    ):
        with pytest.raises(InvalidInputError, match=message), atomic_path(path, name="out"):
            pass


@pytest.mark.parametrize("path", [None, b"model", "a\0b", "", 7, ["model"], "~nobody-of-this-name/model"])
def test_what_is_no_path_is_refused_by_name(path: Any) -> None:
    with pytest.raises(InvalidInputError, match="path must be"):
        check_path(path)


def test_a_long_suffix_does_not_make_the_temporary_name_too_long(tmp_path: Path) -> None:
    assert write_whole(tmp_path / f"a.{'b' * 250}", b"x").read_bytes() == b"x"


def test_arrays_are_read_by_numpy_under_their_names_and_no_others(tmp_path: Path) -> None:
    arrays = {"file": np.arange(6).reshape(2, 3), "names": np.array(["ä", "b"]), "one": np.float32(0.5)}
    write_arrays(tmp_path / "a.npz", arrays)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as stored:
        assert stored.files == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(stored[name], array, strict=isinstance(array, np.ndarray))


def test_arrays_of_objects_are_refused_and_the_old_file_stays(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "a.npz", b"old")
    with pytest.raises(ValueError, match="Object arrays cannot be saved"):
        write_arrays(path, {"a": np.zeros(2), "b": np.array([None, {}])})
    assert path.read_bytes() == b"old"
