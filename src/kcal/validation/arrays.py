"""Conversion of arrays, tensors, data frames and lists to numpy."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AnySet
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from kcal.errors import InvalidInputError

if TYPE_CHECKING:
    import torch

_READABLE = {
    *("float16", "bfloat16", "float32", "float64", "bool"),
    *("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
}
_CONVERSION_ERRORS = (ValueError, TypeError, RuntimeError, OverflowError, AttributeError, NotImplementedError)


class NotNumbersError(InvalidInputError, TypeError):
    """Raise for an entry that is not a number: a TypeError too, which scikit-learn's own checks look for."""


def is_tensor(values: Any) -> TypeGuard[torch.Tensor]:
    """Return whether ``values`` is a torch tensor, without importing torch."""
    torch_module = sys.modules.get("torch")
    return torch_module is not None and isinstance(values, torch_module.Tensor)


def to_array(values: Any, name: str) -> NDArray[Any]:
    """Return a sequence, array, tensor or pandas object as a numpy array (bfloat16 as float32)."""
    _require_array_like(values, name)
    try:
        if is_tensor(values):
            values = plain_tensor(values, name).cpu()
            values = values.float() if str(values.dtype) == "torch.bfloat16" else values
            return np.asarray(values.numpy())
        if isinstance(values, list | tuple) and any(isinstance(value, str) for value in values):
            values = np.array(values, dtype=object)  # otherwise numpy converts every entry to text
        array = np.asarray(values)
        if array.dtype.kind == "O" and hasattr(values, "to_numpy"):
            array = _nullable_numbers(values, array)
    except InvalidInputError:
        raise
    except _CONVERSION_ERRORS as error:
        raise InvalidInputError(name, "must be an array, a tensor or a list", remedy=_sentence(error)) from error
    if array.dtype.kind in "Mm" and np.isnat(array).any():
        row = int(np.argwhere(np.isnat(array))[0][0])
        raise InvalidInputError(name, "must have no missing times", got=f"NaT at row {row}")
    if array.dtype.kind == "T":  # numpy strings of variable length
        array = array.astype(object)
    if array.dtype.kind == "O" and array.size and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    return array


def plain_tensor(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Return a detached tensor whose memory holds its values; raise if it has none that can be read."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    layout = str(tensor.layout).removeprefix("torch.")
    problems = (
        (tensor.is_nested, "a nested tensor", "Give every row the same length and stack them."),
        (tensor.is_meta, "a tensor on the meta device, which holds no numbers", "Compute it on a real device."),
        (layout != "strided", f"a sparse tensor ({layout})", f"Pass {name}.to_dense()."),
        (tensor.is_quantized, f"a quantized tensor ({dtype})", f"Pass {name}.dequantize()."),
        (tensor.is_complex(), f"a complex tensor ({dtype})", f"Pass {name}.real."),
        (dtype not in _READABLE, f"a tensor of dtype {dtype}", f"Pass {name}.float()."),
    )
    for applies, got, remedy in problems:
        if applies:
            raise InvalidInputError(name, "must be a dense tensor of real numbers", got=got, remedy=remedy)
    return tensor.detach().resolve_conj().resolve_neg()


def to_numbers(values: Any, name: str) -> NDArray[np.floating[Any]]:
    """Return an array of real numbers in float32 or float64; integers and truth values become float64."""
    if hasattr(values, "toarray"):
        got = f"{type(values).__name__}. Sparse data was passed"
        raise NotNumbersError(name, "must be a dense array of numbers", got=got, remedy=f"Pass {name}.toarray().")
    array = to_array(values, name)
    _refuse_text_and_times(array, name)
    if array.dtype in (np.float32, np.float64):
        return array
    try:
        return array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    except TypeError as error:
        raise NotNumbersError(name, "must be an array of numbers", remedy=_sentence(error)) from error
    except (ValueError, OverflowError) as error:
        raise InvalidInputError(name, "must be an array of numbers", remedy=_sentence(error)) from error


def require_vector(array: NDArray[Any], n_samples: int, name: str, *, remedy: str = "") -> None:
    """Raise if an array is not one-dimensional with one entry per sample."""
    if array.ndim != 1:
        raise InvalidInputError(name, "must be one-dimensional", got=f"shape {array.shape}", remedy=remedy)
    if len(array) != n_samples:
        got = f"{len(array)} entries for {n_samples} samples (inconsistent numbers of samples)"
        raise InvalidInputError(name, "must have one entry per sample", got=got)


def refuse_where(condition: NDArray[np.bool_], array: NDArray[Any], name: str, expected: str, remedy: str = "") -> None:
    """Raise if a condition holds for any entry of a vector; the message shows the first of them."""
    if condition.any():
        row = int(np.argmax(condition))
        raise InvalidInputError(name, expected, got=f"{array[row]} at row {row}", remedy=remedy)


def _require_array_like(values: Any, name: str) -> None:
    """Raise for None, for what has no order or can be read only once, and for masked arrays."""
    parts = values if isinstance(values, list | tuple) else (values,)
    if any(isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part) for part in parts):
        remedy = "Fill them or remove their samples."
        raise InvalidInputError(name, "must not have masked entries", got="a masked array", remedy=remedy)
    if is_tensor(values) or hasattr(values, "shape"):  # some sparse matrices are mappings too
        return
    unordered = isinstance(values, Iterator | AnySet | Mapping)
    if values is None or unordered or callable(values):
        got = "None" if values is None else f"an object of type {type(values).__name__}"
        entries = f"{name}.values()" if isinstance(values, Mapping) else name
        remedy = f"Pass np.array(list({entries}))." if unordered else ""
        raise InvalidInputError(name, "must be an array, a tensor or a list", got=got, remedy=remedy)


def _nullable_numbers(values: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Return the numbers of pandas' nullable columns, missing ones as nan; ``array`` if they are not numbers."""
    dtypes = np.ravel(np.asarray(getattr(values, "dtypes", getattr(values, "dtype", None)), dtype=object))
    if not len(dtypes) or any(getattr(dtype, "kind", "O") not in "biuf" for dtype in dtypes):
        return array
    common = np.result_type(*(getattr(dtype, "numpy_dtype", dtype) for dtype in dtypes))
    if not np.any(values.isna()):
        return np.asarray(values.to_numpy(dtype=common))
    return np.asarray(values.to_numpy(dtype=common if common.kind == "f" else np.float64, na_value=np.nan))


def _refuse_text_and_times(array: NDArray[Any], name: str) -> None:
    """Raise unless the entries are real numbers; text that reads as numbers is refused too."""
    kind = array.dtype.kind
    if kind in "biuf":
        return
    got = str(array.dtype)
    if kind in "USO":
        text = next((value for value in array.flat if isinstance(value, str | bytes)), None)
        if text is None:
            return
        got, remedy = f"text, {str(text)[:60]!r}", f"Convert it with {name}.astype(float), or leave such columns out."
    elif kind == "c":
        remedy = f"Complex data not supported: pass {name}.real, or real and imaginary parts side by side."
    else:
        remedy = "Convert it to numbers."
    raise InvalidInputError(name, "must be real numbers", got=got, remedy=remedy)


def _sentence(error: Exception) -> str:
    """Return the message of a foreign error, shortened to one sentence."""
    text = " ".join(str(error).split())[:200]
    return text if text.endswith(".") else f"{text}."
