"""Write tasks: everything is checked first, and stored in the least precision that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.task_files import OUT_OF_SCOPE, task_of
from kcal.benchmark.tasks import Task
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.files import check_path, write_arrays
from kcal.validation import check_groups, check_labels, check_matrix, check_number, refuse_where, shown

HALF_COLUMN_ERROR = 1e-3
"""Largest root mean squared rounding error of a column in half precision, as a share of its standard deviation."""
HALF_LOGIT_ERROR = 0.01
"""Largest rounding error of a logit in half precision; it changes a probability by at most a quarter of that."""


def write_task(
    path: str | Path,
    train: ClassifierOutputs,
    pool: ClassifierOutputs,
    *,
    calibration_share: float,
    group_calibration_share: float | None = None,
    classes: Sequence[str] | None = None,
    out_of_scope: ClassifierOutputs | None = None,
) -> Task:
    """Write a task and return what is read back; everything is checked before the file is written.

    Matrices are stored in half precision where its rounding is negligible, otherwise in single precision.

    Parameters
    ----------
    path
        NAME.npz.
    train, pool
        Embeddings, logits, labels (column indices of the logits) and optional groups of both.
    calibration_share
        Share of the pool that calibrates in each split, between 0 and 1.
    group_calibration_share
        Share of the groups that calibrate in each grouped split; ``calibration_share`` if None.
    classes
        Names of the columns of the logits; their numbers if None.
    out_of_scope
        Embeddings and logits of inputs that belong to no class.
    """
    place = check_path(path)
    if place.suffix != ".npz" or "@" in place.stem:
        raise InvalidInputError("path", "must be NAME.npz without @", got=repr(place.name))
    shares = {"calibration_share": calibration_share}
    if group_calibration_share is not None:
        shares["group_calibration_share"] = group_calibration_share
    arrays: dict[str, NDArray[Any]] = {
        name: np.array(check_number(share, name, minimum=0.0, maximum=1.0, exclusive=True))
        for name, share in shares.items()
    }
    for name, part in {"train": train, "pool": pool}.items():
        arrays |= _matrices(part, name)
        arrays |= _vectors(part, name, *arrays[f"{name}_logits"].shape)
    if out_of_scope is not None:
        arrays |= _matrices(out_of_scope, OUT_OF_SCOPE)
    if classes is not None:
        arrays["classes"], n_classes = np.asarray(classes, dtype=str), arrays["pool_logits"].shape[1]
        if arrays["classes"].shape != (n_classes,):
            expected = f"must be {n_classes} names, one per column of the logits"
            raise InvalidInputError("classes", expected, got=shown(classes))
    task = task_of(arrays, place)
    write_arrays(place, arrays)
    return task


def _matrices(part: ClassifierOutputs, name: str) -> dict[str, NDArray[Any]]:
    """Return the embeddings and logits of a part, each in the least precision that keeps them."""
    if not isinstance(part, ClassifierOutputs):
        raise InvalidInputError(name, "must be a kcal.ClassifierOutputs", got=shown(part))
    stored = {}
    for kind in ("embeddings", "logits"):
        values = getattr(part, kind)
        if values is None:
            raise InvalidInputError(f"{name}.{kind}", "must be given")
        checked = check_matrix(values, f"{name}.{kind}", logits=kind == "logits")
        matrix = checked.detach().cpu().float().numpy()
        if not np.isfinite(matrix).all():
            raise InvalidInputError(f"{name}.{kind}", "must be finite in single precision", remedy="Rescale it.")
        largest = HALF_LOGIT_ERROR if kind == "logits" else np.inf
        stored[f"{name}_{kind}"] = in_least_precision(matrix, largest_error=largest)
    return stored


def in_least_precision(values: NDArray[np.float32], *, largest_error: float = np.inf) -> NDArray[Any]:
    """Return values in half precision if that keeps every column and entry within the limits, else unchanged."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    errors = np.abs(half.astype(np.float64) - values)  # (n, n_columns); infinite beyond the range
    rounded = np.sqrt(np.mean(errors**2, axis=0))
    keeps_spread = rounded <= HALF_COLUMN_ERROR * values.astype(np.float64).std(axis=0)
    keeps_spread |= np.ptp(values, axis=0) == 0  # a constant column stays constant however it is rounded
    within = np.isfinite(errors) & (errors <= largest_error)
    return half if within.all() and keeps_spread.all() else values


def _vectors(part: ClassifierOutputs, name: str, n_samples: int, n_classes: int) -> dict[str, NDArray[Any]]:
    """Return the labels, and the groups if there are any."""
    labels = check_labels(part.labels, n_samples, f"{name}.labels")
    expected = f"must be column indices of the logits, integers from 0 to {n_classes - 1}"
    if labels.dtype.kind not in "iu":
        remedy = "Pass labels.astype(int) if they are whole numbers." if labels.dtype.kind == "f" else ""
        raise InvalidInputError(f"{name}.labels", expected, got=f"dtype {labels.dtype}", remedy=remedy)
    refuse_where((labels < 0) | (labels >= n_classes), labels, f"{name}.labels", expected)
    stored: dict[str, NDArray[Any]] = {f"{name}_labels": labels.astype(np.int32)}
    if part.groups is not None:
        check_groups(part.groups, n_samples, f"{name}.groups")
        groups = np.asarray(part.groups)
        stored[f"{name}_groups"] = groups.astype(str) if groups.dtype.kind == "O" else groups
    return stored
