"""The file of a benchmark task, NAME.npz: reading its arrays and checking each.

    train_embeddings (n, h), train_logits (n, K), train_labels (n,)     outputs on the network's training data
    pool_embeddings, pool_logits, pool_labels                           outputs on unseen samples
    calibration_share                                                   share of the pool that calibrates in a split
    train_groups, pool_groups, classes                                  optional
    out_of_scope_embeddings, out_of_scope_logits                        optional: outputs for inputs of no class

Companions beside it, NAME@focal.npz, NAME@mmce.npz and NAME@smooth.npz, hold ``pool_logits`` of a network that was
trained with another loss, and may hold ``pool_labels``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from kcal.calibrators import ClassifierOutputs
from kcal.errors import FileFormatError

READ_ERRORS = (OSError, ValueError, EOFError, BadZipFile, zlib.error, NotImplementedError, RuntimeError, struct.error)
"""What numpy and zipfile raise for damaged files, depending on which byte is wrong."""
OUT_OF_SCOPE = "out_of_scope"


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file by name."""
    try:
        with path.open("rb") as stream:
            if not is_zipfile(stream):
                raise ValueError("it is not a zip archive, as npz files are")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        others = [name for name, values in arrays.items() if not isinstance(values, np.ndarray)]
        if others:
            raise ValueError(f"{others[0]} is not an array")
        return arrays
    except FileNotFoundError:
        raise FileFormatError(f"{path} does not exist.") from None
    except READ_ERRORS as error:
        raise FileFormatError(f"{path} is not an npz file of arrays, or is damaged ({error}).") from error


class TaskArrays:
    """The arrays of a task's file; every method returns one part of the task, checked.

    Raises
    ------
    FileFormatError
        From every method; the message begins with the name of the file.
    """

    def __init__(self, arrays: Mapping[str, NDArray[Any]], file: str) -> None:
        self.arrays = arrays
        self.file = file

    def part(self, part: str) -> ClassifierOutputs:
        """Return the outputs on "train" or "pool"."""
        missing = [name for kind in ("embeddings", "logits", "labels") if (name := f"{part}_{kind}") not in self.arrays]
        if missing:
            raise self.error(f"{', '.join(missing)} missing; a task needs them. It has {', '.join(self.arrays)}.")
        embeddings, logits = self.matrix(f"{part}_embeddings"), self.matrix(f"{part}_logits")
        labels, groups = self.arrays[f"{part}_labels"], self.arrays.get(f"{part}_groups")
        n_samples, n_classes = logits.shape
        self._check_rows(part, embeddings, logits)
        for kind, vector in (("labels", labels), ("groups", groups)):
            if vector is not None and vector.shape != (n_samples,):
                raise self.error(f"{part}_{kind} must have one entry per row, {n_samples:,}; got shape {vector.shape}.")
        if labels.dtype.kind not in "iu" or not ((labels >= 0) & (labels < n_classes)).all():
            raise self.error(f"{part}_labels must be columns of the logits, integers from 0 to {n_classes - 1}.")
        return ClassifierOutputs(embeddings, logits, labels.astype(np.int64), groups)

    def check_parts_match(self, train: ClassifierOutputs, pool: ClassifierOutputs) -> None:
        """Raise if the training data and the pool differ in columns or in having groups, or the pool is too small."""
        for kind in ("embeddings", "logits"):
            widths = [getattr(part, kind).shape[1] for part in (train, pool)]
            if widths[0] != widths[1]:
                raise self.error(f"train and pool {kind} have {widths[0]} and {widths[1]} columns.")
        if (train.groups is None) != (pool.groups is None):
            raise self.error("groups are given for only one of train and pool; give both or none.")
        if len(pool.labels) < 2:
            raise self.error("the pool has 1 sample; to calibrate and to test it needs at least 2.")

    def calibration_share(self) -> float:
        """Return the share of the pool that calibrates."""
        share = self.arrays.get("calibration_share")
        if share is None:
            raise self.error("calibration_share is missing: the share of the pool to calibrate with.")
        if share.shape != () or share.dtype.kind != "f" or not 0 < float(share) < 1:
            raise self.error(f"calibration_share must be a number between 0 and 1; got {share!r}.")
        return float(share)

    def classes(self, n_classes: int) -> tuple[str, ...]:
        """Return the names of the columns of the logits; their numbers if the file has none."""
        names = self.arrays.get("classes", np.arange(n_classes))
        if names.shape != (n_classes,):
            raise self.error(f"classes must name all {n_classes} columns of the logits; got shape {names.shape}.")
        return tuple(str(name) for name in names.tolist())

    def out_of_scope(self, pool: ClassifierOutputs) -> ClassifierOutputs | None:
        """Return the outputs for inputs of no class, if the file has any."""
        names = [f"{OUT_OF_SCOPE}_{kind}" for kind in ("embeddings", "logits")]
        given = [name for name in names if name in self.arrays]
        if not given:
            return None
        if len(given) == 1:
            raise self.error(f"{given[0]} is given alone; give embeddings and logits, or neither.")
        embeddings, logits = (self.matrix(name) for name in names)
        for name, values, expected in zip(names, (embeddings, logits), (pool.embeddings, pool.logits), strict=True):
            if values.shape[1] != expected.shape[1]:
                raise self.error(
                    f"{name} has {values.shape[1]} columns, but those of the pool have {expected.shape[1]}."
                )
        self._check_rows(OUT_OF_SCOPE, embeddings, logits)
        return ClassifierOutputs(embeddings, logits)

    def companion_logits(self, pool: ClassifierOutputs) -> NDArray[np.float32]:
        """Return the logits of a companion's file, for the rows of the pool."""
        if "pool_logits" not in self.arrays:
            raise self.error("pool_logits is missing; a companion needs it.")
        logits = self.matrix("pool_logits")
        if logits.shape != pool.logits.shape:
            raise self.error(
                f"pool_logits must have the rows and classes of the task, {pool.logits.shape}; got {logits.shape}."
            )
        if "pool_labels" in self.arrays and not np.array_equal(self.arrays["pool_labels"], pool.labels):
            raise self.error("pool_labels differ from those of the task: other rows, or another order.")
        return logits

    def matrix(self, name: str) -> NDArray[np.float32]:
        """Return a matrix of finite numbers in single precision."""
        values = self.arrays[name]
        if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
            raise self.error(f"{name} must be a matrix of floats; got shape {values.shape}, dtype {values.dtype}.")
        with np.errstate(over="ignore"):
            single = values.astype(np.float32)
        finite = np.isfinite(single).all(axis=1)
        if not finite.all():
            raise self.error(f"{name} must be finite in single precision; row {int(np.argmin(finite))} is not.")
        return single

    def error(self, message: str) -> FileFormatError:
        """Return an error that names the file."""
        return FileFormatError(f"{self.file}: {message}")

    def _check_rows(self, part: str, embeddings: NDArray[np.float32], logits: NDArray[np.float32]) -> None:
        if len(embeddings) != len(logits):
            raise self.error(f"{part}_embeddings has {len(embeddings):,} rows, but {part}_logits has {len(logits):,}.")
