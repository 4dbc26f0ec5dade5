"""What a fitted calibrator keeps of its samples, beside the support, so that updates can follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.base import decode_classes, encode_classes
from kcal.calibrators.model_state import Stored, StoredModel, Tensors, custom, tensor
from kcal.calibrators.online.rows import SampleRows
from kcal.errors import FileFormatError
from kcal.kernels import SortedSupport
from kcal.validation import to_array


def _write_names(names: NDArray[Any] | None) -> tuple[Any, Tensors]:
    return None if names is None else encode_classes(names), {}


def _read_names(stored: Stored, name: str) -> NDArray[Any] | None:
    values = stored.values[name]
    return None if values is None else decode_classes(values)


def _write_scores(scores: torch.Tensor | None) -> tuple[None, Tensors]:
    return None, {} if scores is None else {"values": scores}


def _read_scores(stored: Stored, name: str) -> torch.Tensor | None:
    key = f"{name}.values"
    if key not in stored.tensors:
        return None
    return stored.tensor(key, ("support", "classes"), stored.tensors[key].dtype)


@dataclass(frozen=True, eq=False, kw_only=True)
class SampleRecords(StoredModel):
    """One entry per sample, in the order of the fit."""

    fingerprints: torch.Tensor = tensor("support", dtype=torch.int64)
    log_lengths: torch.Tensor = tensor("support")  # of the embeddings
    log_weights: torch.Tensor | None = tensor("support", optional=True)  # as given; growing with half-lives
    group_codes: torch.Tensor | None = tensor("support", dtype=torch.int64, optional=True)
    group_names: NDArray[Any] | None = custom(_write_names, _read_names, None)
    scores: torch.Tensor | None = custom(_write_scores, _read_scores, None)  # of a blend: the logits, as given
    n_updates: int
    next_id: int
    clock: int = 0

    def check(self, n_support: int) -> None:
        """Raise if the records do not fit a support of so many samples."""
        codes, names = self.group_codes, self.group_names
        n_groups = 0 if names is None else len(names)
        valid = len(self.fingerprints) == n_support and (codes is None) == (names is None)
        if codes is not None and valid:
            valid = 0 <= int(codes.min()) <= int(codes.max()) < n_groups
        if not valid or min(self.n_updates, self.next_id, self.clock) < 0:
            raise FileFormatError("the stored records of the samples do not fit the support.")


def log_given_weights(sample_weight: Any, rows: NDArray[np.int64]) -> torch.Tensor | None:
    """Return the logarithms of checked weights, of some rows; None without weights."""
    if sample_weight is None:
        return None
    weights = to_array(sample_weight, "sample_weight").astype(np.float64)[rows]
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(weights))


def named_groups(groups: Any) -> NDArray[Any]:
    """Return checked groups as text, numbers or truth values."""
    names = to_array(groups, "groups")
    return names if names.dtype.kind in "biufU" else names.astype(str)


def logged_rows(
    records: SampleRecords, supports: Sequence[SortedSupport], classes: NDArray[Any], ids: NDArray[Any]
) -> SampleRows:
    """Return the samples of a fit as the first rows of a log."""
    first, n = supports[0], len(supports[0])
    columns: dict[str, NDArray[Any]] = {
        f"points.{place}": support.in_original_order(support.points).cpu().numpy()
        for place, support in enumerate(supports)
    }
    columns["codes"] = first.in_original_order(first.codes).cpu().numpy()
    columns["fingerprints"] = records.fingerprints.numpy().view(np.uint64)
    columns["log_lengths"] = records.log_lengths.numpy()
    columns["log_weights"] = np.zeros(n) if records.log_weights is None else records.log_weights.numpy()
    if records.scores is not None:
        columns["scores"] = records.scores.numpy()
    groups = None
    if records.group_codes is not None and records.group_names is not None:
        groups, columns["groups"] = tuple(records.group_names.tolist()), records.group_codes.numpy()
    return SampleRows(
        columns={name: column.copy() for name, column in columns.items()},
        ids=ids.tolist(),
        n_rows=n,
        classes=classes,
        labels=tuple(classes.tolist()),
        groups=groups,
        n_updates=records.n_updates,
        next_id=records.next_id,
        clock=records.clock,
    )


def records_of(rows: SampleRows) -> SampleRecords:
    """Return the records of the samples of a view."""
    names = rows.group_names()
    group_names, group_codes = (None, None) if names is None else np.unique(names, return_inverse=True)
    return SampleRecords(
        fingerprints=torch.from_numpy(rows.column("fingerprints").view(np.int64).copy()),
        log_lengths=torch.from_numpy(rows.column("log_lengths").copy()),
        log_weights=torch.from_numpy(rows.column("log_weights").copy()),
        group_codes=None if group_codes is None else torch.from_numpy(group_codes.reshape(-1).astype(np.int64)),
        group_names=group_names,
        scores=torch.from_numpy(rows.column("scores").copy()) if "scores" in rows.columns else None,
        n_updates=rows.n_updates,
        next_id=rows.next_id,
        clock=rows.clock,
    )
