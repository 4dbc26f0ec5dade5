"""Arguments that callers get wrong: scalars, arrays and tensors of every unusual kind, made anew for every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch

Maker = Callable[[Any], Any]

SCALARS: dict[str, Maker] = {
    "none": lambda given: None,
    "text": lambda given: "text",
    "escape": lambda given: "\x1b[31mred",
    "bytes": lambda given: b"bytes",
    "object": lambda given: object(),
    "function": lambda given: len,
    "dictionary": lambda given: {"a": 1},
    "set": lambda given: {1, 2, 3},
    "generator": lambda given: (number for number in (1, 2, 3)),
    "true": lambda given: True,
    "minus one": lambda given: -1,
    "zero": lambda given: 0,
    "five": lambda given: 5,
    "half": lambda given: 0.5,
    "nan": lambda given: float("nan"),
    "infinity": lambda given: float("inf"),
    "1e300": lambda given: 1e300,
    "billion": lambda given: 10**9,
    "10**30": lambda given: 10**30,
    "complex": lambda given: 1 + 2j,
    "numpy integer": lambda given: np.int8(3),
    "zero-dimensional": lambda given: np.array(3.0),
    "empty list": lambda given: [],
    "list of none": lambda given: [None, None],
    "pair": lambda given: (0.1, 0.2),
}

ARRAYS: dict[str, Maker] = {
    "ragged": lambda given: [[1.0, 2.0], [3.0]],
    "no rows": lambda given: np.asarray(given)[:0],
    "one row fewer": lambda given: np.asarray(given)[:-1],
    "one row": lambda given: np.asarray(given)[:1],
    "nan inside": lambda given: _with(given, np.nan),
    "infinity inside": lambda given: _with(given, np.inf),
    "1e300 inside": lambda given: _with(given, 1e300),
    "negative inside": lambda given: _with(given, -3),
    "none inside": lambda given: _with(given, None, dtype=object),
    "text": lambda given: np.asarray(given).astype(str),
    "complex": lambda given: np.asarray(given).astype(complex),
    "times": lambda given: np.asarray(given).astype("datetime64[s]"),
    "records": lambda given: np.zeros(len(given), dtype=[("a", float)]),
    "masked": lambda given: np.ma.masked_array(given, mask=_mask(given)),
    "sparse matrix": lambda given: scipy.sparse.csr_matrix(np.atleast_2d(np.asarray(given))),
    "sparse tensor": lambda given: torch.as_tensor(np.asarray(given)).to_sparse(),
    "complex tensor": lambda given: torch.as_tensor(np.asarray(given)).to(torch.complex64),
    "other columns": lambda given: np.asarray(given)[..., :-1],
    "missing in pandas": lambda given: _series(given),
    "tuples": lambda given: pd.Series([(place, 1) for place in range(len(given))]),
    "objects": lambda given: np.array([object()] * len(given), dtype=object),
    "huge": lambda given: np.full(np.shape(given), 1e17),
    "tiny": lambda given: np.full(np.shape(given), 1e-300),
}

EQUIVALENTS: dict[str, Maker] = {
    "list": lambda given: np.asarray(given).tolist(),
    "fortran order": lambda given: np.asfortranarray(given),
    "reversed view": lambda given: np.asarray(given)[::-1].copy()[::-1],
    "read only": lambda given: _read_only(given),
    "tensor": lambda given: torch.as_tensor(np.asarray(given)),
    "tensor that requires a gradient": lambda given: _with_gradient(given),
    "strided tensor": lambda given: _strided(given),
    "negated view": lambda given: _negated_view(given),
    "pandas": lambda given: _frame(given),
    "unmasked masked array": lambda given: np.ma.masked_array(given),
    "big endian": lambda given: np.asarray(given).astype(np.asarray(given).dtype.newbyteorder(">")),
}
"""Other ways to pass the same numbers: the answer must be the same, or an error must name the argument."""


def _with(given: Any, value: Any, dtype: Any = None) -> Any:
    array = np.array(given, dtype=dtype or float)
    array.flat[1] = value
    return array


def _mask(given: Any) -> Any:
    mask = np.zeros(np.shape(given), dtype=bool)
    mask.flat[1] = True
    return mask


def _series(given: Any) -> Any:
    frame = _frame(given).astype("Float64")
    frame.iloc[1] = pd.NA
    return frame


def _frame(given: Any) -> Any:
    array = np.asarray(given)
    return pd.DataFrame(array) if array.ndim == 2 else pd.Series(array)


def _read_only(given: Any) -> Any:
    array = np.array(given)
    array.flags.writeable = False
    return array


def _with_gradient(given: Any) -> Any:
    tensor = torch.as_tensor(np.array(given))
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def _strided(given: Any) -> Any:
    array = np.asarray(given)
    return torch.as_tensor(np.repeat(array, 2, axis=0))[::2]


def _negated_view(given: Any) -> Any:
    """Return a tensor whose numbers are stored negated, behind torch's lazy negative bit."""
    array = np.asarray(given)
    if array.dtype.kind != "f":
        return torch.as_tensor(array)
    return torch.complex(torch.zeros(array.shape, dtype=torch.float64), torch.as_tensor(-array)).conj().imag
