"""Writing probabilities and arrays as npz, npy, parquet or csv; a file is there whole or not at all."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import typer
from numpy.typing import NDArray

from kcal.cli.arrays_in import SUFFIXES
from kcal.cli.tables_in import require_pyarrow
from kcal.errors import InvalidInputError
from kcal.persistence import write_whole

PROBABILITY_COLUMN = "p_"
"""Before the name of a class, so that no class can be mistaken for another column."""

MODEL_SUFFIXES = (".kcal", ".safetensors")
"""What a model file may be called: it is a safetensors file with a header of kcal's."""


@dataclass(frozen=True)
class Predictions:
    """Probabilities (n, n_classes), the most probable class of each row, and what else is known of the rows."""

    probabilities: NDArray[Any] = field(repr=False)
    classes: NDArray[Any]
    ids: NDArray[Any] | None = field(default=None, repr=False)
    id_column: str = "id"
    evidence: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    @property
    def prediction(self) -> NDArray[Any]:
        """The most probable class of each row."""
        best: NDArray[Any] = self.classes[self.probabilities.argmax(axis=1)]
        return best


def refuse_to_replace(out: Path, *inputs: Path | None) -> None:
    """Refuse to write over a file that is read."""
    for path in inputs:
        if path is not None and path.exists() and out.exists() and out.samefile(path):
            raise InvalidInputError(f"{out} is also read here, and would be lost; give the output another name.")


@contextmanager
def named_output(path: Path) -> Iterator[None]:
    """Tell of a failure to write by the name that the user typed, never by that of a temporary file."""
    try:
        yield
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be written: {error.strerror or error}. Choose another folder or name."
        ) from error


def check_writable(path: Path, suffixes: tuple[str, ...] = (), *, option: str = "--out") -> None:
    """Refuse early what could not be written after long work; ``option`` is what the user typed the name with."""
    with named_output(path):
        if path.is_dir() or (path.exists() and not path.is_file()):
            raise InvalidInputError(f"{path} is not a file; give the name of one with {option}.")
        check_name(path, suffixes, option=option)
        if not path.parent.is_dir():
            raise InvalidInputError(f"{path} cannot be written: {path.parent} is not a folder; make it first.")
        handle, probe = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        Path(probe).unlink()


def check_name(path: Path, suffixes: tuple[str, ...], *, option: str = "--out") -> None:
    """Refuse a name that does not end as it must; any may with no suffixes."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise typer.BadParameter(
            f"{option} must be a name that ends in {', '.join(suffixes)}; got {str(path)!r}. "
            f"Try {str(path.with_suffix(suffixes[0]))!r}."
        )


def check_predictions_file(path: Path, *, evidence: bool) -> None:
    """Refuse early a file that probabilities cannot be written to."""
    check_writable(path, SUFFIXES)
    if path.suffix.lower() in (".csv", ".parquet"):
        require_pyarrow()
    if path.suffix.lower() == ".npy" and evidence:
        raise typer.BadParameter(
            f"--evidence is of no use with {str(path)!r}: npy holds nothing but the probabilities. Use npz, parquet or "
            "csv."
        )


def write_predictions(path: Path, predictions: Predictions) -> Path:
    """Write predictions in the format that the suffix names; npy holds nothing but the probabilities."""
    suffix = path.suffix.lower()
    if suffix == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, predictions.probabilities, allow_pickle=False)
        return write_whole(path, buffer.getvalue())
    if suffix == ".npz":
        return write_arrays(path, _by_key(predictions))
    return write_table(path, _by_column(predictions))


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write arrays by name to a compressed npz file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return write_whole(path, buffer.getvalue())


def write_table(path: Path, columns: Mapping[str, NDArray[Any]]) -> Path:
    """Write columns by name to a parquet or csv file."""
    pyarrow = require_pyarrow()
    table = pyarrow.table(dict(columns))
    sink = pyarrow.BufferOutputStream()
    if path.suffix.lower() == ".csv":
        pyarrow.csv.write_csv(table, sink)
    else:
        pyarrow.parquet.write_table(table, sink)
    return write_whole(path, sink.getvalue().to_pybytes())


def _by_key(predictions: Predictions) -> dict[str, NDArray[Any]]:
    arrays = {
        "ids": predictions.ids,
        "prediction": predictions.prediction,
        "probabilities": predictions.probabilities,
        "classes": predictions.classes,
        **predictions.evidence,
    }
    return {key: array for key, array in arrays.items() if array is not None}


def _by_column(predictions: Predictions) -> dict[str, NDArray[Any]]:
    columns = {"prediction": predictions.prediction}
    for index, label in enumerate(predictions.classes.tolist()):
        columns[f"{PROBABILITY_COLUMN}{label}"] = predictions.probabilities[:, index]
    columns |= predictions.evidence
    if predictions.ids is None:
        return columns
    return {"id" if predictions.id_column in columns else predictions.id_column: predictions.ids, **columns}
