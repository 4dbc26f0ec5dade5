"""Outputs of a classifier in a folder: one .npy file per array, written chunk by chunk, and read as memory maps.

``outputs.json`` says how many rows and batches are complete, and from which network and batches they were computed.
Files may be longer, if a run was killed: what is beyond is overwritten by the next.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.embeddings.networks import tensor_bytes
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
    """Appends the outputs of batches to the files of a folder; batches that it holds already must be the same."""

    def __init__(self, place: Path, network: str) -> None:
        self.place = place
        self.record = read_record(place) if (place / RECORD).exists() else Record()
        self._held, self._committed = self.record.batches, self.record.rows
        self._n_batches, self._digest = 0, ""  # of the batches so far
        self._files: dict[str, BinaryIO] = {}
        self._empty: Arrays = {}  # arrays without rows, for their types and widths
        self.record.network = self.record.network or network
        if self.record.network != network:
            self._raise("whose outputs are of another network, or of other weights")

    def add(self, batch: Any, read: Callable[[], Arrays]) -> None:
        """Append the outputs of the next batch, which ``read`` returns, unless the folder holds them.

        Of what it holds, inputs and labels are compared, and the outputs of the first batch: another head, or other
        code, gives others.
        """
        self._digest, self._n_batches = chained_digest(self._digest, batch), self._n_batches + 1
        if self._n_batches > self._held:
            self._append(read())
        elif self._n_batches == 1:
            self._check_first(read())
        if self._n_batches == self._held and self._digest != self.record.digest:
            self._raise(f"where the inputs or labels of the first {self._held} batches were others")

    def finish(self) -> None:
        """Mark the folder as complete; raise if it holds more batches than there are."""
        if self._n_batches < self._held:
            self._raise(f"which holds {self._held} batches, not {self._n_batches}")
        if not self.record.complete:
            self._commit(complete=True)

    def close(self) -> None:
        """Make durable what was appended, and close the files."""
        try:
            if self.record.rows > self._committed:
                self._commit(complete=False)
        finally:
            for file in self._files.values():
                file.close()

    def _check_first(self, arrays: Arrays) -> None:
        if list(arrays) != self.record.arrays:
            self._raise(f"which holds {', '.join(self.record.arrays)}, not {', '.join(arrays)}")
        for name, rows in arrays.items():
            stored = open_array(self.place, name, self.record.first)
            if stored.shape != rows.shape or not np.allclose(stored, rows, rtol=1e-3, atol=1e-4):
                self._raise(f"where the {name} of the first batch are others")

    def _append(self, arrays: Arrays) -> None:
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
        record.rows, record.batches, record.digest = record.rows + n_rows, record.batches + 1, self._digest
        if record.rows - self._committed >= ROWS_PER_COMMIT:
            self._commit(complete=False)

    def _commit(self, *, complete: bool) -> None:
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

    def _raise(self, difference: str) -> NoReturn:
        expected = "must be a new folder, or one with outputs of the same network and loader"
        remedy = "Choose another folder, or delete this one. A loader that shuffles cannot resume."
        raise InvalidInputError("to", expected, got=f"{self.place}, {difference}", remedy=remedy)

    def _open(self, arrays: Arrays) -> None:
        """Open the files behind the last complete row; the record is written first: files belong to one."""
        self.record.arrays = list(arrays)
        if not self.record.rows:
            self._commit(complete=False)
        self._empty = {name: rows[:0] for name, rows in arrays.items()}
        for name, rows in arrays.items():
            file = self._files[name] = (self.place / f"{name}.npy").open("r+b" if self.record.rows else "w+b")
            _write_header(file, rows, self.record.rows)
            file.seek(self.record.rows * rows[:1].nbytes, os.SEEK_CUR)
            file.truncate()


@contextmanager
def outputs_writer(folder: str | os.PathLike[str], network: str) -> Iterator[OutputsWriter]:
    """Yield the writer of a folder, created if need be and locked, for outputs of the network with a checksum."""
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
        writer = stack.enter_context(closing(OutputsWriter(place, network)))
        yield writer
        writer.finish()


def _write_header(file: BinaryIO, rows: NDArray[Any], n_rows: int) -> None:
    """Write the header of a .npy file; its length does not depend on the number of rows."""
    header = {"descr": rows.dtype.str, "fortran_order": False, "shape": (n_rows, *rows.shape[1:])}
    np.lib.format.write_array_header_1_0(file, header)


def chained_digest(before: str, batch: Any) -> str:
    """Return the digest of a batch and of all batches before it, whose digest is ``before``.

    Tensors, arrays, texts and numbers count, in containers of any depth; of other objects only the type.
    """
    digest = hashlib.blake2b(before.encode(), digest_size=16)
    for part in _content(batch):
        digest.update(part)
    return digest.hexdigest()


def _content(value: Any) -> Iterator[Any]:
    """Yield the bytes that a value is made of, each after its type and size."""
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)} ".encode()
        yield tensor_bytes(value)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype.str} {value.shape} ".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif isinstance(value, Mapping | tuple | list | np.ndarray):
        yield f"{'mapping' if isinstance(value, Mapping) else 'sequence'} {len(value)} ".encode()
        for part in chain.from_iterable(value.items()) if isinstance(value, Mapping) else value:
            yield from _content(part)
    else:
        text = repr(value) if isinstance(value, str | bytes | int | float | complex | np.generic | None) else ""
        yield f"{type(value).__qualname__} {len(text)} {text} ".encode()
