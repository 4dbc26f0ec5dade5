"""Outputs of a classifier in a folder: one .npy file per array, written chunk by chunk, and read as memory maps.

``outputs.json`` says how many rows and batches are complete, and from which network and batches they were computed.
Files may be longer, if a run was killed: what is beyond is overwritten by the next.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
RESUME_REMEDY = "Choose another folder, or delete this one. A loader that shuffles cannot resume."
Arrays = dict[str, NDArray[Any]]
"""Embeddings, logits and, if there are any, labels, by name."""
FIELDS = {
    "format_version": int,
    "rows": int,
    "batches": int,
    "first": int,
    "complete": bool,
    "arrays": list,
    "network": str,
    "digest": str,
}
"""Types of the fields of the record."""


def read_outputs(folder: str | os.PathLike[str]) -> ClassifierOutputs:
    """Return the outputs that :func:`extract` wrote to a folder; embeddings and logits stay on disk (memory maps).

    Changes of the arrays are not written to the files.
    """
    place = check_path(folder, "folder")
    record = read_record(place)
    if not record["complete"]:
        expected = "must hold all outputs of a loader"
        got = f"{place}, where extraction was stopped after {record['rows']:,} rows"
        raise InvalidInputError("folder", expected, got=got, remedy="Run extract with the same arguments to resume.")
    return ClassifierOutputs(**{name: open_array(place, name, record["rows"]) for name in record["arrays"]})


def read_record(place: Path) -> dict[str, Any]:
    """Return the record of a folder; raise if there is none or it is damaged."""
    try:
        record = json.loads((place / RECORD).read_text())
    except FileNotFoundError as error:
        remedy = "Write one with kcal.extract(network, loader, to=folder)."
        raise InvalidInputError("folder", f"must hold {RECORD}", got=str(place), remedy=remedy) from error
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{place / RECORD} cannot be read: {error}") from error
    version = record.get("format_version") if isinstance(record, dict) else None
    if isinstance(version, int) and version != FORMAT_VERSION:
        raise FileFormatError(f"{place / RECORD} has version {version}, this kcal reads {FORMAT_VERSION}.")
    if version is None or any(type(record.get(name)) is not kind for name, kind in FIELDS.items()):
        raise FileFormatError(f"{place / RECORD} is damaged.")
    fields: dict[str, Any] = record
    return fields


def open_array(place: Path, name: str, n_rows: int) -> NDArray[Any]:
    """Return the first rows of a stored array, as a memory map whose changes stay in memory."""
    path = place / f"{name}.npy"
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    if len(array) < n_rows:
        raise FileFormatError(f"{path} is truncated: it has {len(array):,} of {n_rows:,} rows.")
    rows: NDArray[Any] = array[:n_rows]
    return rows


class OutputsWriter:
    """Appends the outputs of batches to the files of a folder.

    Attributes
    ----------
    rows, batches : int
        What the folder holds.
    first : int
        Rows of its first batch.
    complete : bool
        Whether it holds all batches of a loader.
    arrays : list of str
        Names of the arrays.
    network : str
        Checksum of the network that the outputs are of.
    digest : str
        Digest of the inputs and labels of all batches.
    """

    def __init__(self, place: Path) -> None:
        self.place = place
        record = read_record(place) if (place / RECORD).exists() else {}
        self.rows: int = record.get("rows", 0)
        self.batches: int = record.get("batches", 0)
        self.first: int = record.get("first", 0)
        self.complete: bool = record.get("complete", False)
        self.arrays: list[str] = record.get("arrays", [])
        self.network: str = record.get("network", "")
        self.digest: str = record.get("digest", "")
        self._committed = self.rows
        self._files: dict[str, BinaryIO] = {}
        self._empty: dict[str, NDArray[Any]] = {}  # arrays without rows, for their types and widths

    def check_network(self, checksum: str) -> None:
        """Raise if the outputs are of a network with another checksum; a new folder takes it."""
        self.network = self.network or checksum
        if self.network != checksum:
            self._refuse("whose outputs are of another network, or of other weights")

    def check_first(self, arrays: Arrays) -> None:
        """Raise if the outputs of the first batch are others: those of another head, or of other code."""
        if list(arrays) != self.arrays:
            self._refuse(f"which holds {', '.join(self.arrays)}, not {', '.join(arrays)}")
        for name, rows in arrays.items():
            stored = open_array(self.place, name, self.first)
            if stored.shape != rows.shape or not np.allclose(stored, rows, rtol=1e-3, atol=1e-4):
                self._refuse(f"where the {name} of the first batch are others")

    def check_digest(self, digest: str) -> None:
        """Raise if the batches that the folder holds had other inputs or labels."""
        if digest != self.digest:
            self._refuse(f"where the inputs or labels of the first {self.batches} batches were others")

    def check_count(self, n_batches: int) -> None:
        """Raise if the folder holds more batches than there are."""
        if n_batches < self.batches:
            self._refuse(f"which holds {self.batches} batches, not {n_batches}")

    def append(self, arrays: Arrays, digest: str) -> None:
        """Append the rows of a batch to every array; ``digest`` is that of all batches up to it."""
        if self.complete:
            self._refuse(f"which is complete with {self.batches} batches")
        if not self._files:
            self._open(arrays)
        shapes = {name: rows.shape[1:] for name, rows in arrays.items()}
        if shapes != {name: rows.shape[1:] for name, rows in self._empty.items()}:
            expected, got = "must hold arrays of the same width in every batch", f"{shapes} in batch {self.batches}"
            raise InvalidInputError("batches", expected, got=got)
        for name, rows in arrays.items():
            self._files[name].write(np.ascontiguousarray(rows).data)
        self.first = self.first or len(arrays["logits"])
        self.rows, self.batches, self.digest = self.rows + len(arrays["logits"]), self.batches + 1, digest
        if self.rows - self._committed >= ROWS_PER_COMMIT:
            self.commit(complete=False)

    def commit(self, *, complete: bool) -> None:
        """Make everything that was appended durable: first the arrays, then the record that counts their rows."""
        for name, file in self._files.items():
            end = file.tell()
            file.seek(0)
            _write_header(file, self._empty[name], self.rows)
            file.seek(end)
            file.flush()
            os.fsync(file.fileno())
        record = {
            "format_version": FORMAT_VERSION,
            "rows": self.rows,
            "batches": self.batches,
            "first": self.first,
            "complete": complete,
            "arrays": self.arrays,
            "network": self.network,
            "digest": self.digest,
        }
        write_whole(self.place / RECORD, json.dumps(record).encode())
        self._committed = self.rows

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()

    def _refuse(self, difference: str) -> NoReturn:
        expected = "must be a new folder, or one with outputs of the same network and loader"
        raise InvalidInputError("to", expected, got=f"{self.place}, {difference}", remedy=RESUME_REMEDY)

    def _open(self, arrays: Arrays) -> None:
        """Open the files behind the last complete row; the record is written first, so that files belong to one."""
        self.arrays = list(arrays)
        if not self.rows:
            self.commit(complete=False)
        self._empty = {name: rows[:0] for name, rows in arrays.items()}
        for name, rows in arrays.items():
            file = self._files[name] = (self.place / f"{name}.npy").open("r+b" if self.rows else "w+b")
            _write_header(file, rows, self.rows)
            file.seek(self.rows * rows[:1].nbytes, os.SEEK_CUR)
            file.truncate()


@contextmanager
def outputs_writer(folder: str | os.PathLike[str]) -> Iterator[OutputsWriter]:
    """Yield the writer of a folder, which is created if need be, and locked."""
    place = check_path(folder, "to")
    if place.exists() and not place.is_dir():
        raise InvalidInputError("to", "must be a folder", got=f"the file {place}")
    with ExitStack() as stack:
        try:
            place.mkdir(parents=True, exist_ok=True)
            foreign = [] if (place / RECORD).exists() else [path.name for path in place.glob("*.npy")]
            if not foreign:
                stack.enter_context(locked_folder(place))
        except OSError as error:
            got = f"{place}: {error.strerror}"
            raise InvalidInputError("to", "must be a folder that can be written", got=got) from error
        if foreign:
            got = f"{place}, which holds {', '.join(sorted(foreign))}"
            raise InvalidInputError("to", "must be a new folder, or one that extract wrote", got=got)
        writer = OutputsWriter(place)
        try:
            yield writer
        finally:
            writer.close()


def _write_header(file: BinaryIO, rows: NDArray[Any], n_rows: int) -> None:
    """Write the header of a .npy file; its length does not depend on the number of rows."""
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (n_rows, *rows.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)
