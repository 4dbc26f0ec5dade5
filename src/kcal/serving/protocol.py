"""The Open Inference Protocol v2: its requests and responses, and tensors as JSON and as binary data.

Sizes are checked by arithmetic before anything is allocated.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from math import prod
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import HTTPException
from fastapi.concurrency import run_in_threadpool
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, WithJsonSchema

from kcal.errors import printable

NUMBERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64")
TYPES = {name: np.dtype(name.lower().replace("fp", "float")).newbyteorder("<") for name in ("BOOL", *NUMBERS)}
"""Datatypes of fixed size as types of numpy; BYTES are arrays of objects."""
VALUES = {bool, int, float}
HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON before binary data."""
LARGE_BODY = 2**17
"""Bytes, or values, above which work on them is done in a thread: other requests go on."""
MAX_MESSAGE_LENGTH = 500
Model = TypeVar("Model", bound=BaseModel)
Result = TypeVar("Result")


def bad_request(message: str) -> HTTPException:
    """Return the error for a malformed request."""
    return HTTPException(400, message)


def too_large(limit: int, what: str = "the body") -> HTTPException:
    """Return the error for a request above the limit."""
    return HTTPException(413, f"{what} must have at most {limit} bytes")


def busy(message: str, seconds: int = 1) -> HTTPException:
    """Return the error of a service that has too much to do; the client may try again after some seconds."""
    return HTTPException(503, message, {"Retry-After": str(seconds)})


def error_text(detail: Any) -> str:
    """Return the sentence of an error as it is sent: printable, and not long."""
    return printable(str(detail).encode("utf-8", "replace").decode())[:MAX_MESSAGE_LENGTH]


async def run_sized(size: int, function: Callable[..., Result], *args: Any) -> Result:
    """Call a function of so many bytes or values; in a thread if they are many."""
    return await run_in_threadpool(function, *args) if size > LARGE_BODY else function(*args)


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be printable text")
    return text


Name = Annotated[str, Field(min_length=1, max_length=256)]
PrintableName = Annotated[Name, AfterValidator(_check_printable)]
"""An identifier that a client gives: of a prediction, or of a group."""
IDS = TypeAdapter(list[PrintableName])


class Message(BaseModel):
    """A part of a request; values are not converted, and fields that are not known are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)  # defaults of a frozen type are not copied for every request


class TensorParameters(Message):
    """Parameters of a tensor."""

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    binary_data: bool | None = None
    classification: int = 0


class RequestedInput(Message):
    """An input: ``data`` are its elements in row-major order, flat or nested, unless they are binary.

    They are a list or, from gRPC, an array.
    """

    name: Name
    datatype: Annotated[str, Field(pattern="^(BOOL|U?INT(8|16|32|64)|FP(16|32|64)|BYTES)$")]
    shape: Annotated[list[Annotated[int, Field(ge=1, le=2**40)]], Field(min_length=1, max_length=16)]
    parameters: TensorParameters = TensorParameters()
    data: Annotated[Any, WithJsonSchema({"type": "array", "items": {}})] = None


class RequestedOutput(Message):
    """An output that the client asks for."""

    name: Name
    parameters: TensorParameters = TensorParameters()


class RequestParameters(Message):
    """Parameters of a request: whether default outputs are binary and have ids, and the length of explanations."""

    binary_data_output: bool = False
    return_ids: bool = False
    explanation_samples: Annotated[int, Field(ge=1, le=100)] = 5


class InferenceRequest(Message):
    """A request for inference; without ``outputs``, those that the model gives by default."""

    id: Annotated[str, Field(max_length=256)] | None = None
    inputs: Annotated[list[RequestedInput], Field(min_length=1, max_length=64)]
    outputs: Annotated[list[RequestedOutput], Field(max_length=64)] = []
    parameters: RequestParameters = RequestParameters()

    def wanted(self, default: Sequence[str]) -> dict[str, bool]:
        """Return the names of the outputs, and whether each is sent as binary data."""
        binary = self.parameters.binary_data_output
        if any(output.parameters.classification for output in self.outputs):
            raise bad_request("the classification extension is not supported; ask for the output labels")
        chosen = {output.name: output.parameters.binary_data for output in self.outputs}
        names = chosen or dict.fromkeys((*default, *(["ids"] if self.parameters.return_ids else [])))
        return {name: binary if given is None else given for name, given in names.items()}


def parse(model: type[Model], content: bytes | memoryview, max_size: int) -> Model:
    """Return JSON as a message; raise if it is too long, not valid JSON, or not such a message."""
    if len(content) > max_size:
        raise too_large(max_size, "JSON")
    return validated(model.model_validate_json, bytes(content))


def validated(validate: Callable[[Any], Result], content: Any) -> Result:
    """Return what a function of pydantic makes of content; raise if it is not valid."""
    try:
        return validate(content)
    except ValidationError as error:
        raise bad_request(describe(error.errors(include_url=False, include_context=False))) from None


def describe(errors: Sequence[Any]) -> str:
    """Return the first error of a validation: where it is, and what was expected."""
    place = ".".join(str(part) for part in errors[0]["loc"])
    return f"{place}: {errors[0]['msg']}" if place else str(errors[0]["msg"])


def split_body(body: bytes, header_length: str | None) -> tuple[memoryview, memoryview]:
    """Return the JSON of a body, as long as its header says, and the binary data after it."""
    view = memoryview(body)
    if header_length is None:
        return view, view[len(view) :]
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) < 20
    if not digits or not 0 < int(header_length) <= len(view):
        raise bad_request(f"{HEADER_LENGTH} must be an integer from 1 to the length of the body, {len(view)}")
    return view[: int(header_length)], view[int(header_length) :]


def read_tensors(inputs: Sequence[RequestedInput], binary: memoryview) -> dict[str, NDArray[Any]]:
    """Return the arrays of inputs by name; those with binary data take it from ``binary`` in their order."""
    arrays: dict[str, NDArray[Any]] = {}
    for one in inputs:
        size = one.parameters.binary_data_size
        if one.name in arrays:
            raise bad_request(f"inputs must have different names; {one.name!r} comes twice")
        if size is None:
            array = from_json(one.name, one.datatype, one.data)
            if array.size != prod(one.shape) or (array.ndim > 1 and list(array.shape) != one.shape):
                raise bad_request(f"input {one.name!r}: data must have the elements of shape {one.shape}")
            arrays[one.name] = array.reshape(one.shape)
            continue
        if size > len(binary):
            raise bad_request(f"input {one.name!r}: binary_data_size is above the {len(binary)} bytes that are left")
        arrays[one.name] = from_binary(one.name, one.datatype, one.shape, binary[:size])
        binary = binary[size:]
    if len(binary):
        raise bad_request(f"the binary data have {len(binary)} bytes more than the inputs take")
    return arrays


def read_ids(arrays: dict[str, NDArray[Any]]) -> list[str] | None:
    """Take the ids of predictions out of the inputs of a request; None if it has none."""
    if "ids" not in arrays:
        return None
    try:
        return IDS.validate_python([name.decode() for name in arrays.pop("ids").reshape(-1).tolist()])
    except (ValidationError, UnicodeDecodeError, AttributeError):
        raise bad_request("input 'ids' must be BYTES: printable UTF-8 text of 1 to 256 characters") from None


def from_json(name: str, datatype: str, data: Any) -> NDArray[Any]:
    """Return the array of nested lists, or of values in an array; raise if they are ragged, or of another type."""
    wrong = bad_request(f"input {name!r}: data must be a list, flat or nested, of values of {datatype}")
    if not isinstance(data, list | np.ndarray):
        raise wrong
    try:
        if datatype == "BYTES":
            given = np.array(data, dtype=object)
            return _objects([text if type(text) is bytes else text.encode() for text in given.flat]).reshape(
                given.shape
            )
        kind = TYPES[datatype]
        if isinstance(data, list) and not set(map(type, np.array(data, dtype=object).ravel().tolist())) <= VALUES:
            raise wrong  # one long text would give every element its size
        given = np.asarray(data)
        if given.dtype.kind not in {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[kind.kind]:
            raise wrong
        with np.errstate(over="ignore"):
            array = given.astype(kind, copy=False)
    except (ValueError, AttributeError, OverflowError):  # ragged, not text, or beyond every type
        raise wrong from None
    if kind.kind in "iu" and not np.array_equal(array, given):
        raise bad_request(f"input {name!r}: data must lie in the range of {datatype}")
    return array


def from_binary(name: str, datatype: str, shape: Sequence[int], content: memoryview) -> NDArray[Any]:
    """Return the array of binary data, without a copy where that is possible."""
    count = prod(shape)
    if datatype == "BYTES":
        return _objects(_split_strings(name, count, content)).reshape(shape)
    kind = TYPES[datatype]
    if count * kind.itemsize != len(content):
        needed = f"shape {list(shape)} of {datatype} needs {count * kind.itemsize} bytes"
        raise bad_request(f"input {name!r}: {needed}, but there are {len(content)}")
    array: NDArray[Any] = np.frombuffer(content, np.uint8 if datatype == "BOOL" else kind)
    return (array != 0 if datatype == "BOOL" else array).reshape(shape)


def _split_strings(name: str, count: int, content: memoryview) -> list[bytes]:
    """Return the elements of BYTES, each of which comes after its length in 4 bytes."""
    elements, start = list[bytes](), 0
    while start + 4 <= len(content) and len(elements) < count:
        end = start + 4 + int(struct.unpack_from("<I", content, start)[0])
        elements.append(bytes(content[start + 4 : end]))
        start = end
    if start != len(content) or len(elements) != count:
        raise bad_request(f"input {name!r}: binary data must hold {count} elements of BYTES, each after its length")
    return elements


def _objects(elements: list[bytes]) -> NDArray[Any]:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def to_binary(values: NDArray[Any]) -> bytes:
    """Return the elements of an output, numbers or text, as binary data."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, dtype="<f4").tobytes()
    encoded = [str(value).encode() for value in values.tolist()]
    return b"".join(part for text in encoded for part in (struct.pack("<I", len(text)), text))


def datatype_of(values: NDArray[Any]) -> str:
    """Return the datatype of an output."""
    return "FP32" if values.dtype.kind == "f" else "BYTES"


def encode_response(
    head: dict[str, Any], outputs: dict[str, NDArray[Any]], is_binary: dict[str, bool]
) -> tuple[bytes, list[bytes]]:
    """Return the JSON of a response, and the binary data of those outputs that are sent so."""
    entries, blobs = [], []
    for name, values in outputs.items():
        entry: dict[str, Any] = {"name": name, "datatype": datatype_of(values), "shape": list(values.shape)}
        if is_binary[name]:
            blobs.append(to_binary(values))
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            entry["data"] = (values if values.dtype.kind == "f" else values.astype(str)).reshape(-1).tolist()
        entries.append(entry)
    return json.dumps({**head, "outputs": entries}, allow_nan=False).encode(), blobs
