"""Outputs of a classifier in a folder: one .npy file per array, written chunk by chunk, and read as memory maps.

``outputs.json`` says how many rows and batches are complete, and from which network and batches they were computed.
Files may be longer, if a run was killed: what is beyond is overwritten by the next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from kcal.embeddings.outputs import ClassifierOutputs
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import check_path, locked_folder, write_whole

RECORD = "outputs.json"
FORMAT_VERSION = 1
ROWS_PER_COMMIT = 8_192
"""Rows after which what was written is made durable."""
Arrays = dict[str, NDArray[Any]]
"""Embeddings, logits and, if there are any, labels, by name."""


@dataclass
class Record:
    """What a folder holds: the content of ``outputs.json``."""

    format_version: int = FORMAT_VERSION
    rows: int = 0
    batches: int = 0
    first: int = 0  # rows of the first batch
    complete: bool = False  # all batches of a loader
    arrays: list[str] = field(default_factory=list)
    network: str = ""  # checksum
    digest: str = ""  # of the inputs and labels of all batches


def read_outputs(folder: str | os.PathLike[str]) -> ClassifierOutputs:
    """Return the outputs that :func:`extract` wrote to a folder; embeddings and logits stay on disk (memory maps).

    Changes of the arrays are not written to the files.
    """
    place = check_path(folder, "folder")
    record = read_record(place)
    if not record.complete:
        got = f"{place}, where extraction was stopped after {record.rows:,} rows"
        remedy = "Run extract with the same arguments to resume."
        raise InvalidInputError("folder", "must hold all outputs of a loader", got=got, remedy=remedy)
    return ClassifierOutputs(**{name: open_array(place, name, record.rows) for name in record.arrays})


def read_record(place: Path) -> Record:
    """Return the record of a folder; raise if there is none or it is damaged."""
    try:
        content = json.loads((place / RECORD).read_text())
        version = content["format_version"]
        if type(version) is int and version != FORMAT_VERSION:
            raise FileFormatError(f"{place / RECORD} has version {version}, this kcal reads {FORMAT_VERSION}.")
        record = Record(**content)
        if any(type(value) is not type(getattr(Record(), name)) for name, value in vars(record).items()):
            raise TypeError("a value has the wrong type")
        return record
    except FileNotFoundError as error:
        remedy = "Write one with kcal.extract(network, loader, to=folder)."
        raise InvalidInputError("folder", f"must hold {RECORD}", got=str(place), remedy=remedy) from error
    except FileFormatError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FileFormatError(f"{place / RECORD} is damaged: {error}") from error


def open_array(place: Path, name: str, n_rows: int) -> NDArray[Any]:
    """Return the first rows of a stored array, as a memory map whose changes stay in memory."""
    path = place / f"{name}.npy"
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    if len(array) < n_rows:
        raise FileFormatError(f"{path} is truncated: it has {len(array):,} of {n_rows:,} rows.")
    return array[:n_rows]


class OutputsWriter:
    """Appends the outputs of batches to the files of a folder; ``record`` says what it holds."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.record = read_record(place) if (place / RECORD).exists() else Record()
        self._committed = self.record.rows
        self._files: dict[str, BinaryIO] = {}
        self._empty: Arrays = {}  # arrays without rows, for their types and widths

    def check_network(self, checksum: str) -> None:
        """Raise if the outputs are of a network with another checksum; a new folder takes it."""
        self.record.network = self.record.network or checksum
        if self.record.network != checksum:
            self._raise("whose outputs are of another network, or of other weights")

    def check_first(self, arrays: Arrays) -> None:
        """Raise if the outputs of the first batch are others: those of another head, or of other code."""
        if list(arrays) != self.record.arrays:
            self._raise(f"which holds {', '.join(self.record.arrays)}, not {', '.join(arrays)}")
        for name, rows in arrays.items():
            stored = open_array(self.place, name, self.record.first)
            if stored.shape != rows.shape or not np.allclose(stored, rows, rtol=1e-3, atol=1e-4):
                self._raise(f"where the {name} of the first batch are others")

    def check_digest(self, digest: str) -> None:
        """Raise if the batches that the folder holds had other inputs or labels."""
        if digest != self.record.digest:
            self._raise(f"where the inputs or labels of the first {self.record.batches} batches were others")

    def check_count(self, n_batches: int) -> None:
        """Raise if the folder holds more batches than there are."""
        if n_batches < self.record.batches:
            self._raise(f"which holds {self.record.batches} batches, not {n_batches}")

    def append(self, arrays: Arrays, digest: str) -> None:
        """Append the rows of a batch to every array; ``digest`` is that of all batches up to it."""
        record = self.record
        if record.complete:
            self._raise(f"which is complete with {record.batches} batches")
        if not self._files:
            self._open(arrays)
        shapes = {name: rows.shape[1:] for name, rows in arrays.items()}
        if shapes != {name: rows.shape[1:] for name, rows in self._empty.items()}:
            expected, got = "must hold arrays of the same width in every batch", f"{shapes} in batch {record.batches}"
            raise InvalidInputError("batches", expected, got=got)
        for name, rows in arrays.items():
            self._files[name].write(np.ascontiguousarray(rows).data)
        n_rows = len(arrays["logits"])
        record.first = record.first or n_rows
        record.rows, record.batches, record.digest = record.rows + n_rows, record.batches + 1, digest
        if record.rows - self._committed >= ROWS_PER_COMMIT:
            self.commit(complete=False)

    def commit(self, *, complete: bool) -> None:
        """Make everything that was appended durable: first the arrays, then the record that counts their rows."""
        for name, file in self._files.items():
            end = file.tell()
            file.seek(0)
            _write_header(file, self._empty[name], self.record.rows)
            file.seek(end)
            file.flush()
            os.fsync(file.fileno())
        self.record.complete = complete
        write_whole(self.place / RECORD, json.dumps(asdict(self.record)).encode())
        self._committed = self.record.rows

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _raise(self, difference: str) -> NoReturn:
        expected = "must be a new folder, or one with outputs of the same network and loader"
        remedy = "Choose another folder, or delete this one. A loader that shuffles cannot resume."
        raise InvalidInputError("to", expected, got=f"{self.place}, {difference}", remedy=remedy)

    def _open(self, arrays: Arrays) -> None:
        """Open the files behind the last complete row; the record is written first: files belong to one."""
        self.record.arrays = list(arrays)
        if not self.record.rows:
            self.commit(complete=False)
        self._empty = {name: rows[:0] for name, rows in arrays.items()}
        for name, rows in arrays.items():
            file = self._files[name] = (self.place / f"{name}.npy").open("r+b" if self.record.rows else "w+b")
            _write_header(file, rows, self.record.rows)
            file.seek(self.record.rows * rows[:1].nbytes, os.SEEK_CUR)
            file.truncate()


@contextmanager
def outputs_writer(folder: str | os.PathLike[str]) -> Iterator[OutputsWriter]:
    """Yield the writer of a folder, which is created if need be, and locked."""
    place = check_path(folder, "to")
    with ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            foreign = [] if (place / RECORD).exists() else sorted(path.name for path in place.glob("*.npy"))
            if not foreign:
                stack.enter_context(locked_folder(place))
        except OSError as error:
            expected = "must be a folder that can be written"
            raise InvalidInputError("to", expected, got=f"{place}: {error.strerror}") from error
        if foreign:
            got = f"{place}, which holds {', '.join(foreign)}"
            raise InvalidInputError("to", "must be a new folder, or one that extract wrote", got=got)
        writer = OutputsWriter(place)
        stack.callback(writer.close)
        yield writer


def _write_header(file: BinaryIO, rows: NDArray[Any], n_rows: int) -> None:
    """Write the header of a .npy file; its length does not depend on the number of rows."""
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (n_rows, *rows.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)
