"""Pickles are read without running them."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.paper.data.pickles import read_pickle
from kcal.errors import FileFormatError
from paper_data_files import python2_pickle

PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6)


def test_pickle_of_python_2_is_read_with_its_text_as_latin1(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    path.write_bytes(python2_pickle({"data": PIXELS, "labels": [3, -1], "name": "café"}))
    assert pickle.loads(path.read_bytes(), encoding="latin1")["labels"] == [3, -1]  # the file is what it claims
    content = read_pickle(path)
    np.testing.assert_array_equal(content["data"], PIXELS)
    assert (content["labels"], content["name"]) == ([3, -1], "café")


class Command:
    """Runs a command when an ordinary unpickler reads it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("nested", [False, True])
def test_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int, nested: bool) -> None:
    canary, path = tmp_path / "canary", tmp_path / "batch"
    attack = Command(os.mkdir, str(canary))
    path.write_bytes(pickle.dumps({"data": [PIXELS.tolist(), attack]} if nested else attack, protocol))
    with pytest.raises(FileFormatError, match=r"batch: the pickle asks to run \w+\.mkdir, .*nothing was run"):
        read_pickle(path)
    assert not canary.exists()
    pickle.loads(path.read_bytes())
    assert canary.exists()  # an ordinary unpickler would have run it


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "numpy\nload",
        "numpy\nmemmap",
        "_codecs\nencode",
        "copyreg\n_reconstructor",
        "numpy\nndarray.tofile",
    ],
)
def test_every_other_name_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(b"\x80\x02c" + name.encode() + b"\n(U\x011tR.")
    with pytest.raises(FileFormatError, match="nothing was run"):
        read_pickle(path)


RECONSTRUCT = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n"
ARRAY = RECONSTRUCT + b"(cnumpy\nndarray\n(K\x00tU\x01btR"
NUMBERS = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
HUGE = b"J" + struct.pack("<i", 2**31 - 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RECONSTRUCT + b"(cnumpy\ndtype\n(K\x00tU\x01btR.", "something other than an array"),
        (b"\x80\x02cnumpy\nndarray\n((" + HUGE + HUGE + b"ttR.", "not callable"),
        (b"\x80\x02cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.", "type 'O8', not of numbers"),
        (b"\x80\x02cnumpy\ndtype\n(U\x04V999K\x00K\x01tR.", "type 'V999', not of numbers"),
        (ARRAY + b"(K\x01(" + HUGE + HUGE + b"t" + NUMBERS + b"\x89U\x011tb.", "cannot reshape"),
        (ARRAY + b"(K\x01(K\x01t" + NUMBERS + b"\x89](Netb.", "something other than numbers"),
        (b"\x80\x02cnumpy\ndtype\n}U\x08__call__U\x01xsb.", "changes the meaning of a name"),
    ],
)
def test_names_of_an_array_do_nothing_else(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "batch"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=f"batch: it is not a readable pickle .*{message}"):
        read_pickle(path)
