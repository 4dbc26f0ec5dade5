"""Tensors of the Open Inference Protocol: numpy arrays from JSON and from binary data, and back.

Sizes are checked by arithmetic before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.deployment.service.errors import bad_request

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""Datatypes of fixed size that numpy has."""
BYTES, BF16 = "BYTES", "BF16"
"""Text or bytes of any length; and the upper half of a single-precision number, which numpy does not have."""
DATATYPES = (*NUMPY_TYPES, BF16, BYTES)
MOST_DIMENSIONS = 16
LARGEST_SIZE = 2**40
"""Largest product of the sizes above 0: numpy has no shape of 2**63 bytes, not even of an empty array."""
LENGTH_BYTES = 4
"""Binary data of BYTES have the length of each element before it, in so many bytes."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A named array of a request or a response; BYTES are an array of objects of type bytes."""

    name: str
    datatype: str
    array: NDArray[Any]


def check_shape(shape: Any, name: str) -> tuple[int, ...]:
    """Return the shape of a tensor; raise if it is not a list of a few sizes, or too large even without its zeros."""
    valid = isinstance(shape, list) and 1 <= len(shape) <= MOST_DIMENSIONS
    valid = valid and all(type(size) is int and 0 <= size <= LARGEST_SIZE for size in shape)
    if not valid or prod(size or 1 for size in shape) > LARGEST_SIZE:
        expected = f"1 to {MOST_DIMENSIONS} integers, 0 or more, with a product of at most {LARGEST_SIZE}"
        raise bad_request(f"input {name!r}: shape must be a list of {expected}")
    return tuple(shape)


def check_datatype(datatype: Any, name: str) -> str:
    """Return the datatype of a tensor; raise if the protocol has none of this name."""
    if not isinstance(datatype, str) or datatype not in DATATYPES:
        raise bad_request(f"input {name!r}: datatype must be one of {', '.join(DATATYPES)}")
    return datatype


def decode_binary(name: str, datatype: str, shape: Sequence[int], data: memoryview) -> NDArray[Any]:
    """Return the array of binary data, without a copy where the datatype is one of numpy's."""
    count = prod(shape)
    if datatype == BYTES:
        return _decode_strings(name, count, data).reshape(shape)
    size = 2 if datatype == BF16 else NUMPY_TYPES[datatype].itemsize
    if count * size != len(data):
        raise bad_request(
            f"input {name!r}: shape {list(shape)} of {datatype} needs {count * size} bytes, but binary_data_size is "
            f"{len(data)}"
        )
    if datatype == BF16:
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    array: NDArray[Any] = np.frombuffer(data, dtype=np.uint8 if datatype == "BOOL" else NUMPY_TYPES[datatype])
    return (array != 0 if datatype == "BOOL" else array).reshape(shape)


def _decode_strings(name: str, count: int, data: memoryview) -> NDArray[Any]:
    wrong = bad_request(f"input {name!r}: binary data must hold {count} elements of BYTES, each after its length")
    if count * LENGTH_BYTES > len(data):
        raise wrong
    elements, start = np.empty(count, dtype=object), 0
    for place in range(count):
        first = start + LENGTH_BYTES
        if first > len(data):
            raise wrong
        start = first + int(struct.unpack_from("<I", data, start)[0])
        if start > len(data):
            raise wrong
        elements[place] = bytes(data[first:start])
    if start != len(data):
        raise wrong
    return elements


def decode_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> NDArray[Any]:
    """Return the array of JSON data, flat or nested as the shape says."""
    values = _flatten(name, shape, data)
    kinds = set(map(type, values))
    if datatype == BYTES:
        if not kinds <= {str}:
            raise bad_request(f"input {name!r}: data of BYTES must be text")
        elements = np.empty(len(values), dtype=object)
        elements[:] = [_to_bytes(name, value) for value in values]
        return elements.reshape(shape)
    allowed = {bool} if datatype == "BOOL" else {int} if datatype[0] in "UI" else {int, float}
    if not kinds <= allowed:
        raise bad_request(f"input {name!r}: data of {datatype} must be {_kind_name(datatype)}")
    return _to_numbers(name, datatype, values).reshape(shape)


def _to_numbers(name: str, datatype: str, values: list[Any]) -> NDArray[Any]:
    out_of_range = bad_request(f"input {name!r}: data must lie in the range of {datatype}")
    try:
        if datatype == BF16:
            return round_to_bfloat16(np.array(values, dtype=np.float64).astype(np.float32))
        kind = NUMPY_TYPES[datatype]
        if kind.kind != "f":
            if kind.kind != "b" and values and not _holds(kind, values):
                raise out_of_range
            return np.array(values, dtype=kind)
        wide = np.array(values, dtype=np.float64)
    except OverflowError:
        raise out_of_range from None
    if len(wide) and float(np.abs(wide).max()) > float(np.finfo(kind).max):
        raise out_of_range
    return wide.astype(kind)


def _holds(kind: np.dtype[Any], values: list[int]) -> bool:
    """Return whether integers lie in the range of a type; before numpy 2, those that do not would be wrapped."""
    limits = np.iinfo(kind)
    return bool(limits.min <= min(values) and max(values) <= limits.max)


def round_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return single-precision numbers cut to the 16 bits that BF16 has, as tritonclient cuts them."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _kind_name(datatype: str) -> str:
    return "true or false" if datatype == "BOOL" else "integers" if datatype[0] in "UI" else "numbers"


def _to_bytes(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        raise bad_request(f"input {name!r}: text must be valid Unicode") from None


def _flatten(name: str, shape: Sequence[int], data: Any) -> list[Any]:
    """Return the elements of JSON data in row-major order; raise if they are not those of the shape."""
    wrong = bad_request(
        f"input {name!r}: data must be a list with the elements of shape {list(shape)}, flat or nested as the shape is"
    )
    if not isinstance(data, list):
        raise wrong
    values: list[Any] = data
    if data and isinstance(data[0], list):
        if len(data) != shape[0]:
            raise wrong
        for size in shape[1:]:
            if not all(isinstance(row, list) and len(row) == size for row in values):
                raise wrong
            values = [value for row in values for value in row]
    if len(values) != prod(shape):
        raise wrong
    return values


def nested_shape(values: Any) -> tuple[int, ...]:
    """Return the shape that nested lists have along their first elements; the decoder checks the others."""
    shape: list[int] = []
    while isinstance(values, list) and len(shape) < MOST_DIMENSIONS:
        shape.append(len(values))
        values = values[0] if values else None
    return tuple(shape)


def encode_json(tensor: Tensor) -> list[Any]:
    """Return the elements of an output as a flat list for JSON."""
    if tensor.datatype == BYTES:
        return [element.decode("utf-8", "replace") for element in tensor.array.reshape(-1)]
    values: list[Any] = tensor.array.reshape(-1).tolist()
    return values


def encode_binary(tensor: Tensor) -> bytes:
    """Return the elements of an output as binary data."""
    if tensor.datatype == BYTES:
        return b"".join(
            part for element in tensor.array.reshape(-1) for part in (struct.pack("<I", len(element)), element)
        )
    if tensor.datatype == BF16:
        return (np.ascontiguousarray(tensor.array, dtype="<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(tensor.array, dtype=NUMPY_TYPES[tensor.datatype]).tobytes()


def text_tensor(name: str, texts: Sequence[str]) -> Tensor:
    """Return a tensor of BYTES, (n,), of texts."""
    array = np.empty(len(texts), dtype=object)
    array[:] = [text.encode("utf-8", "replace") for text in texts]
    return Tensor(name, BYTES, array)


def to_texts(tensor: Tensor, n_rows: int) -> list[str]:
    """Return the elements of a tensor of BYTES, (n,) or (n, 1), as text."""
    if tensor.datatype != BYTES or tensor.array.size != n_rows or tensor.array.shape[0] != n_rows:
        raise bad_request(f"input {tensor.name!r} must be BYTES of shape [{n_rows}]")
    try:
        return [element.decode() for element in tensor.array.reshape(-1)]
    except UnicodeDecodeError:
        raise bad_request(f"input {tensor.name!r} must be UTF-8 text") from None
