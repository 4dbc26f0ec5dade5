"""Checks of matrices: embeddings and logits as tensors, probabilities as numpy arrays; fingerprints of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError
from kcal.validation.arrays import is_tensor, plain_tensor, refuse_where, to_array, to_numbers

if TYPE_CHECKING:
    import torch

ALMOST_ZERO = 1e-12
"""Probabilities are never smaller than this inside a logarithm."""
LARGEST = 1e18
"""Larger magnitudes are refused: their squares, and sums of these, must stay far from overflow in float32."""
LARGEST_LOGIT = 1e15
"""Logits are clipped to this magnitude: masks such as ``finfo(float32).min`` are common, and change nothing more."""

SUM_TOLERANCE = 1e-3
"""By how much the sum of probabilities may differ from 1."""
HALF_PRECISION_SUM_TOLERANCE = 1e-2
"""Half precision rounds every entry by up to 1 part in 500 (bfloat16), so that its rows miss a sum of 1 by more."""

EXTRACT = "Extract the embeddings first: pass the output of the penultimate layer for each sample, an (n, h) array."
NOT_FINITE = "Remove such rows, or correct what computed them."

FINGERPRINT_ROWS = 4096
"""Rows of which fingerprints are computed at once: they take several times the memory of the rows."""
_FINGERPRINT_SEED = 0x6B63616C


@dataclass(frozen=True)
class ArrayKind:
    """The kind of array that a caller passed, so that the result can be of the same kind."""

    is_torch: bool
    device: torch.device
    dtype: torch.dtype

    def give_back(self, tensor: torch.Tensor) -> Any:
        """Return ``tensor`` as the kind of array that came in (numpy or torch, same device, same precision)."""
        tensor = tensor.detach().to(dtype=self.dtype)
        return tensor.to(self.device) if self.is_torch else tensor.cpu().numpy()


def computing_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision to compute in: half precision computes in float32, integers in float64."""
    import torch

    return torch.float32 if dtype in (torch.float16, torch.bfloat16, torch.float32) else torch.float64


def check_matrix(
    values: Any, name: str = "X", *, columns: int | None = None, owner: str = "", logits: bool = False
) -> torch.Tensor:
    """Return ``values`` (n, h) as a finite float tensor, without a copy where none is needed.

    ``columns`` is the number of columns that ``owner``, a calibrator, expects. Finite logits of any size are accepted,
    and clipped to ±1e15; one-dimensional ones, of a classifier with two classes, become a column (see
    :func:`check_scores`) unless more columns are expected.
    """
    what = "Run the network first: pass its logits, (n, n_classes)." if logits else EXTRACT
    if isinstance(values, Iterator) or _loads_samples(values):
        got = f"an object of type {type(values).__name__}"
        raise InvalidInputError(name, "must be an array, a tensor or a list", got=got, remedy=what)
    tensor = plain_tensor(values, name) if is_tensor(values) else _tensor_from_array_like(values, name)
    if tensor.ndim == 1 and logits and columns in (None, 1):
        tensor = tensor[:, None]
    if tensor.ndim != 2:
        expected, got = "must have two dimensions (samples, features)", f"shape {tuple(tensor.shape)}"
        reshape = f"Reshape your data: {name}.reshape(1, -1) is one sample, {name}.reshape(-1, 1) one feature."
        raise InvalidInputError(name, expected, got=got, remedy=what if tensor.ndim > 2 else reshape)
    for count, noun in zip(tensor.shape, ("sample", "feature"), strict=True):
        if count == 0:
            got = f"0 {noun}(s) (shape={tuple(tensor.shape)}) while a minimum of 1 is required"
            raise InvalidInputError(name, "must not be empty", got=got)
    if columns is not None and tensor.shape[1] != columns:
        expected = f"has {tensor.shape[1]} features, but {owner or 'this'} is expecting {columns} features as input"
        raise InvalidInputError(name, expected)
    return _bounded(tensor.to(computing_dtype(tensor.dtype)), name, logits=logits)


def check_scores(values: Any, checked: torch.Tensor, representation: str, name: str = "X") -> torch.Tensor:
    """Return logits or probabilities with one column per class, (n, n_classes); raise if probabilities are none.

    Of the second of two classes one column suffices: a logit z is its log-odds, [0, z], a probability p is [1 − p, p].
    ``checked`` is what :func:`check_matrix` made of ``values``.
    """
    if representation == "probabilities":
        probs = checked.cpu().numpy()
        if probs.shape[1] == 1:
            _require_shares(probs[:, 0], name)
            return _of_both(checked, representation)
        row = _first_improper(probs, _sum_tolerance(values))
        if row is not None:
            raise InvalidInputError(
                name,
                'must hold probabilities that sum to 1 if the representation is "probabilities"',
                got=f"row {row}, which sums to {probs[row].sum():.4g}, with smallest entry {probs[row].min():.4g}",
                remedy='If these are logits, set the representation to "logits".',
            )
    return _of_both(checked, representation)


def unchecked_logits(logits: torch.Tensor, representation: str) -> torch.Tensor:
    """Return logits, (n, n_columns) or (n,), as :func:`check_matrix` and :func:`check_scores`, without their checks."""
    import torch

    # Not clamp: of two of them in double precision the ONNX exporter makes a graph that cannot be loaded.
    rows = torch.nn.functional.hardtanh(logits.to(computing_dtype(logits.dtype)), -LARGEST_LOGIT, LARGEST_LOGIT)
    return _of_both(rows[:, None] if rows.ndim == 1 else rows, representation)


def _of_both(column: torch.Tensor, representation: str) -> torch.Tensor:
    import torch

    if column.shape[1] != 1:
        return column
    first = torch.zeros_like(column) if representation == "logits" else 1 - column
    return torch.cat([first, column], dim=1)


def kind_of(values: Any, checked: torch.Tensor) -> ArrayKind:
    """Return the kind of array of ``values``; ``checked`` is what :func:`check_matrix` made of them."""
    return ArrayKind(is_tensor(values), checked.device, checked.dtype)


def check_probs(probs: Any, name: str = "probs", *, n_classes: int | None = None) -> NDArray[np.floating[Any]]:
    """Return probabilities (n_samples, n_classes), whose rows sum to 1, as float32 or float64.

    One-dimensional ones, or a single column, are those of the second of two classes: p becomes [1 − p, p]. Where the
    classes are known to be more, this is an error.
    """
    array = to_array(probs, name)
    if array.ndim == 1 and n_classes not in (None, 2):
        expected = f"must be a matrix (n_samples, {n_classes})"
        raise InvalidInputError(name, expected, got=f"shape {array.shape}", remedy="One row is [[…]].")
    if array.ndim not in (1, 2):
        expected = "must be a matrix (n_samples, n_classes), or (n_samples,) for the second of two classes"
        raise InvalidInputError(name, expected, got=f"shape {array.shape}")
    given, array = array, to_numbers(array, name)
    if array.shape[0] == 0:
        raise InvalidInputError(name, "must have at least one row", got="none")
    if array.ndim == 1 or array.shape[1] == 1:
        shares = array.reshape(-1)
        _require_shares(shares, name)
        return np.column_stack([1 - shares, shares])
    if array.shape[1] == 0:
        raise InvalidInputError(name, "must have a column for each class", got="0")
    _require_distributions(array, name, _sum_tolerance(probs, given))
    return array


def row_fingerprints(matrix: torch.Tensor) -> NDArray[np.uint64]:
    """Return a 64-bit fingerprint per row; equal rows agree whatever their precision, others practically never."""
    starts = range(0, len(matrix), FINGERPRINT_ROWS)
    parts = [_fingerprints(matrix[start : start + FINGERPRINT_ROWS].detach().cpu()) for start in starts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _fingerprints(exact: torch.Tensor) -> NDArray[np.uint64]:
    import torch

    values = exact.to(torch.float32).numpy() + np.float32(0.0)  # −0.0 becomes 0.0
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    if exact.dtype == torch.float64:  # numbers that underflow in single precision contribute their own bits
        wide = np.ascontiguousarray(exact.numpy())
        beyond = np.isinf(values) | ((values == 0) & (wide != 0))
        bits[beyond] = wide[beyond].view(np.uint64)
    mixed = (bits + np.uint64(0x9E3779B97F4A7C15)) * _fingerprint_multipliers(exact.shape[1])
    mixed ^= mixed >> np.uint64(29)
    result: NDArray[np.uint64] = (mixed * np.uint64(0xBF58476D1CE4E5B9)).sum(axis=1, dtype=np.uint64)
    return result


@lru_cache(maxsize=16)
def _fingerprint_multipliers(columns: int) -> NDArray[np.uint64]:
    generator = np.random.default_rng([_FINGERPRINT_SEED, columns])
    return generator.integers(1, 2**63, size=columns, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def _tensor_from_array_like(values: Any, name: str) -> torch.Tensor:
    import torch

    array = to_numbers(values, name)
    if not array.flags.writeable or any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))  # torch can only share writable memory in native order
    return torch.from_numpy(array)


def _bounded(tensor: torch.Tensor, name: str, *, logits: bool) -> torch.Tensor:
    """Return the tensor, clipped if it holds logits; raise if an entry is not finite or too large."""
    import torch

    lowest, highest = (float(end) for end in torch.aminmax(tensor))  # NaN if there is any
    bound = LARGEST_LOGIT if logits else LARGEST
    if -bound <= lowest <= highest <= bound:
        return tensor
    if -inf < lowest <= highest < inf:
        if logits:
            return tensor.clamp(-bound, bound)
        got = f"a magnitude of {max(-lowest, highest):.3g}"
        raise InvalidInputError(name, f"must have no numbers beyond {LARGEST:g}", got=got, remedy="Scale it down.")
    row = int((~torch.isfinite(tensor)).any(dim=1).nonzero()[0])
    got = f"{'NaN' if bool(torch.isnan(tensor[row]).any()) else 'infinity'} at row {row}"
    raise InvalidInputError(name, "must be finite, without NaN or inf", got=got, remedy=NOT_FINITE)


def _require_shares(column: NDArray[np.floating[Any]], name: str) -> None:
    """Raise on the first entry of a vector that is not a probability."""
    refuse_where(~np.isfinite(column), column, name, "must be finite", NOT_FINITE)
    expected = "must be probabilities of the second class, from 0 to 1"
    refuse_where((column < 0) | (column > 1), column, name, expected, "If these are logits, pass their sigmoid.")


def _loads_samples(values: Any) -> bool:
    """Return whether ``values`` is a Dataset or DataLoader of torch, without importing torch."""
    return any(kind.__module__.startswith("torch.utils.data") for kind in type(values).__mro__)


def _require_distributions(probs: NDArray[np.floating[Any]], name: str, tolerance: float) -> None:
    """Raise on the first row that is not a probability vector."""
    row = _first_improper(probs, tolerance)
    if row is None:
        return
    column = int(np.argmax(~np.isfinite(probs[row])))
    if not np.isfinite(probs[row, column]):
        got = f"{probs[row, column]} at row {row}, column {column}"
        raise InvalidInputError(name, "must be finite", got=got, remedy=NOT_FINITE)
    column = int(np.argmin(probs[row]))
    if probs[row, column] < 0:
        got = f"{probs[row, column]:.6g} at row {row}, column {column}"
        remedy = "If these are logits, pass their softmax."
        raise InvalidInputError(name, "must not be negative", got=got, remedy=remedy)
    got = f"a sum of {probs[row].sum(dtype=np.float64):.6g} at row {row}"
    expected = f"must have rows that sum to 1 within {tolerance:g}"
    remedy = "If these are logits, pass their softmax; if they are rounded or columns are missing, pass all classes "
    raise InvalidInputError(name, expected, got=got, remedy=f"{remedy}and divide each row by its sum.")


def _first_improper(probs: NDArray[np.floating[Any]], tolerance: float) -> int | None:
    """Return the first row that is not a probability vector; nan and infinity show in a row's sum."""
    with np.errstate(invalid="ignore", over="ignore"):
        near_one = np.abs(np.einsum("ij->i", probs, dtype=np.float64) - 1) <= tolerance  # faster than sum(axis=1)
        if near_one.all() and probs.min() >= 0:
            return None
        return int(np.argmin(near_one & (probs.min(axis=1) >= 0)))


def _sum_tolerance(*values: Any) -> float:
    """Return by how much the sums of rows may differ from 1, in the precision that they were given in."""
    is_half = any(str(getattr(given, "dtype", "")).endswith("float16") for given in values)
    return HALF_PRECISION_SUM_TOLERANCE if is_half else SUM_TOLERANCE
