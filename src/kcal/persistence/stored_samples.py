"""Samples of a calibration store as arrays, and arrays as the values that its table holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from kcal.validation import check_ids, check_labels, check_matrix

LARGEST_INTEGER = 2**63 - 1


@dataclass(frozen=True, eq=False)
class StoredSamples:
    """Samples of a store: the outputs with their ids, groups and weights, and what the store adds."""

    outputs: ClassifierOutputs
    rows: NDArray[np.int64]
    times: NDArray[np.float64]
    versions: NDArray[Any] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)


def as_samples(records: Sequence[tuple[Any, ...]]) -> StoredSamples:
    """Return records of the table as arrays."""
    if not records:
        raise InvalidInputError("store", "must hold samples with labels", got="none")
    rows, ids, embeddings, logits, labels, groups, weights, times, versions = zip(*records, strict=True)
    outputs = ClassifierOutputs(
        embeddings=_matrix(embeddings),
        logits=_matrix(logits),
        labels=labels_of(labels),
        groups=None if groups[0] is None else np.array(groups),
        weights=None if set(weights) == {1.0} else np.array(weights),
        ids=np.array(ids),
    )
    return StoredSamples(outputs, np.array(rows, dtype=np.int64), np.array(times), np.array(versions))


def labels_of(labels: Sequence[Any]) -> NDArray[Any] | None:
    """Return labels as an array: of objects if some are missing, which are None; None if all of them are."""
    missing = sum(label is None for label in labels)
    return None if missing == len(labels) else np.array(labels, dtype=object if missing else None)


def _matrix(blobs: Sequence[bytes | None]) -> NDArray[np.float32] | None:
    present = [blob for blob in blobs if blob is not None]
    if len(present) < len(blobs):
        return None
    return np.frombuffer(b"".join(present), dtype="<f4").reshape(len(present), -1).astype(np.float32)


def matrix_of(values: Any, name: str, *, logits: bool) -> NDArray[np.float32]:
    """Return a checked matrix in single precision, as it is stored."""
    checked = check_matrix(values, name, logits=logits).detach().cpu().float().numpy()
    return np.ascontiguousarray(checked, dtype="<f4")


def plain_ids(ids: Any, n_samples: int) -> list[Any]:
    """Return ids as Python's text or integers, which SQLite can hold."""
    checked = check_ids(ids, n_samples)
    if checked.dtype.kind == "f" and (checked % 1 != 0).any():
        raise InvalidInputError("ids", "must be text or integers", got=str(checked[checked % 1 != 0][0]))
    names = checked.tolist() if checked.dtype.kind == "U" else [int(name) for name in checked.tolist()]
    unusual = next((name for name in names if isinstance(name, int) and abs(name) > LARGEST_INTEGER), None)
    if unusual is not None:
        raise InvalidInputError("ids", "must be text or integers below 2**63", got=str(unusual))
    return list(names)


def plain_labels(labels: Any, n_samples: int) -> list[Any]:
    """Return labels as Python's text or numbers; truth values become 0 and 1."""
    checked = check_labels(labels, n_samples, "labels")
    return list((checked.astype(np.int64) if checked.dtype.kind == "b" else checked).tolist())
