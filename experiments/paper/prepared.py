"""A data set as the networks are trained on it: a folder of arrays and a description."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kcal.errors import InvalidInputError
from kcal.files import write_whole

PARTS = ("train", "validation", "pool")
"""Training set of the network, the part that chooses its checkpoint, and the part that is split into calibration and
test."""


@dataclass(frozen=True)
class PreparedData:
    """Inputs, labels, groups and the part of every sample.

    Attributes
    ----------
    name : str
        The data set, such as "pn2017".
    kind : str
        "images" (n, height, width, 3) uint8, "files" (n,) paths below ``root``, or "signals" and "spectrograms"
        (n, channels, …) float32.
    classes : tuple of str
        Names of the classes; labels are their indices.
    inputs : array
        Memory-mapped.
    labels : (n,) int64 array
    parts : (n,) int8 array
        Index into ``PARTS``.
    groups : (n,) int64 array, optional
        Patient or recording.
    targets : (n, n_classes) float32 array, optional
        Distribution of the experts' votes, where the data set has one; the network is then trained on it.
    calibration_share : float, optional
        Share of the pool that calibrates in the paper, where its numbers are not those of the other data sets.
    oversampled : (n,) bool array, optional
        Samples that were added to the training set so that rare classes are seen more often.
    root : str, optional
        Folder of the files.
    """

    name: str
    kind: str
    classes: tuple[str, ...]
    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    parts: NDArray[np.int8]
    groups: NDArray[np.int64] | None = None
    targets: NDArray[np.float32] | None = None
    calibration_share: float | None = None
    oversampled: NDArray[np.bool_] | None = None
    root: str | None = None

    def rows(self, part: str) -> NDArray[np.int64]:
        """Return the indices of the samples of "train", "validation" or "pool"."""
        return np.flatnonzero(self.parts == PARTS.index(part))


ARRAYS = ("inputs", "labels", "parts", "groups", "targets", "oversampled")
DESCRIPTION = "prepared.json"


def new_inputs(folder: str | Path, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros in a folder's file of inputs, to be filled piece by piece and then written.

    A data set that the folder held is no longer complete from here on.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    (target / DESCRIPTION).unlink(missing_ok=True)
    (target / "inputs.npy").unlink(missing_ok=True)
    return np.lib.format.open_memmap(target / "inputs.npy", mode="w+", dtype=np.dtype(dtype), shape=shape)


def write_prepared(data: PreparedData, folder: str | Path) -> Path:
    """Write a data set into a folder; ``prepared.json`` comes last, so that a folder with it is complete."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    description = target / DESCRIPTION
    description.unlink(missing_ok=True)
    for name in ARRAYS:
        values = getattr(data, name)
        path = target / f"{name}.npy"
        if values is None:
            path.unlink(missing_ok=True)
        elif isinstance(values, np.memmap) and Path(str(values.filename)) == path.resolve():
            values.flush()
        else:
            np.save(path, values, allow_pickle=False)
    fields = {name: getattr(data, name) for name in ("name", "kind", "classes", "calibration_share", "root")}
    write_whole(description, json.dumps(fields, indent=1).encode())
    return target


def read_prepared(folder: str | Path) -> PreparedData:
    """Read a data set that :func:`write_prepared` wrote; arrays are memory-mapped."""
    source = Path(folder)
    try:
        fields = json.loads((source / DESCRIPTION).read_text())
    except FileNotFoundError:
        raise InvalidInputError(
            "folder",
            "holds no prepared data",
            got=str(source),
            remedy="Write it with python -m experiments.paper prepare.",
        ) from None
    arrays = {
        name: np.load(source / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        for name in ARRAYS
        if (source / f"{name}.npy").exists()
    }
    return PreparedData(**{**fields, "classes": tuple(fields["classes"])}, **arrays)
