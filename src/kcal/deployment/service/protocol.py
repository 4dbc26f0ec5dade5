"""Requests and responses of the Open Inference Protocol v2, as JSON and with the extension for binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from kcal.deployment.service.errors import bad_request, too_large
from kcal.deployment.service.tensors import (
    Tensor,
    check_datatype,
    check_shape,
    decode_binary,
    decode_json,
    encode_binary,
    encode_json,
)

HEADER_LENGTH = "inference-header-content-length"
"""Header with the length of the JSON before binary data."""
MOST_TENSORS = 64
LONGEST_NAME = 256


@dataclass(frozen=True, eq=False)
class InferenceRequest:
    """A checked request; without ``outputs``, those that the model gives by default."""

    id: str | None
    inputs: Mapping[str, Tensor]
    outputs: tuple[tuple[str, bool], ...]  # names, and whether as binary data
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_binary: bool = False  # outputs that are not named
    returns_ids: bool = False  # with the outputs by default


def parse_json(content: bytes | memoryview, limit: int) -> Any:
    """Return the content of JSON text; raise if it is no JSON, has NaN or Infinity, or is longer than ``limit``."""
    if len(content) > limit:
        raise too_large("JSON", limit)
    try:
        return json.loads(str(content, "utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise bad_request("the JSON must be UTF-8 text") from None
    except RecursionError:
        raise bad_request("the JSON is nested too deeply") from None
    except ValueError as error:  # the decoder's, or that of an integer with thousands of digits
        reason = str(error) if isinstance(error, json.JSONDecodeError) else "it has a number that is not allowed"
        raise bad_request(f"the body must be JSON: {reason}") from None


def _refuse_constant(name: str) -> NoReturn:
    raise json.JSONDecodeError(f"{name} is no JSON", "", 0)


def parse_object(content: bytes | memoryview, limit: int) -> dict[str, Any]:
    """Return the content of a JSON object."""
    parsed = parse_json(content, limit)
    if not isinstance(parsed, dict):
        raise bad_request("the body must be a JSON object")
    return parsed


def parse_request(body: bytes, n_json: int, json_limit: int) -> InferenceRequest:
    """Return the request of a body, which begins with ``n_json`` bytes of JSON."""
    view = memoryview(body)
    content = parse_object(view[:n_json], json_limit)
    parameters = _parameters(content, "the request")
    inputs = _entries(content, "inputs")
    if not inputs:
        raise bad_request("inputs must be a list with at least one tensor")
    is_binary = _flag(parameters, "binary_data_output")
    return InferenceRequest(
        id=_id(content),
        inputs=_tensors(inputs, view[n_json:]),
        outputs=_outputs(_entries(content, "outputs"), is_binary),
        parameters=parameters,
        is_binary=is_binary,
        returns_ids=_flag(parameters, "return_ids"),
    )


def json_length(headers: Mapping[str, str], n_bytes: int) -> int:
    """Return how many bytes of a body are JSON: as many as its header says, or all."""
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return n_bytes
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 0 < int(text) <= n_bytes):
        raise bad_request(
            f"Inference-Header-Content-Length must be an integer from 1 to the length of the body, {n_bytes}"
        )
    return int(text)


def _id(content: Mapping[str, Any]) -> str | None:
    name = content.get("id")
    if name is not None and not (isinstance(name, str) and len(name) <= LONGEST_NAME):
        raise bad_request(f"id must be text of at most {LONGEST_NAME} characters")
    return name


def _entries(content: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of tensors under ``key``; none if it is missing."""
    entries = content.get(key)
    if entries is None:
        return []
    if not isinstance(entries, list) or len(entries) > MOST_TENSORS:
        raise bad_request(f"{key} must be a list of at most {MOST_TENSORS} tensors")
    names = set()
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise bad_request(f"each of the {key} must be an object with a name")
        if name in names:
            raise bad_request(f"{key} must have different names; {name!r} comes twice")
        names.add(name)
    return entries


def _parameters(entry: Mapping[str, Any], owner: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise bad_request(f"parameters of {owner} must be an object")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise bad_request(f"parameter {name} must be true or false")
    return value


def _tensors(entries: Sequence[Mapping[str, Any]], binary: memoryview) -> dict[str, Tensor]:
    """Return the inputs by name; those with binary data take it from ``binary`` in their order."""
    tensors, start = {}, 0
    for entry in entries:
        name = entry["name"]
        shape, datatype = check_shape(entry.get("shape"), name), check_datatype(entry.get("datatype"), name)
        size = _parameters(entry, f"input {name!r}").get("binary_data_size")
        if size is None:
            if "data" not in entry:
                raise bad_request(f"input {name!r} must have data, or the parameter binary_data_size")
            array = decode_json(name, datatype, shape, entry["data"])
        else:
            left = len(binary) - start
            if type(size) is not int or not 0 <= size <= left:
                raise bad_request(f"input {name!r}: binary_data_size must be from 0 to the {left} bytes that are left")
            array = decode_binary(name, datatype, shape, binary[start : start + size])
            start += size
        tensors[name] = Tensor(name, datatype, array)
    if start != len(binary):
        raise bad_request(f"the binary data have {len(binary) - start} bytes more than the inputs take")
    return tensors


def _outputs(entries: Sequence[Mapping[str, Any]], is_binary: bool) -> tuple[tuple[str, bool], ...]:
    outputs = []
    for entry in entries:
        name = entry["name"]
        parameters = _parameters(entry, f"output {name!r}")
        if parameters.get("classification"):
            raise bad_request(f"output {name!r}: the classification extension is not supported; ask for labels")
        outputs.append((name, _flag(parameters, "binary_data", is_binary)))
    return tuple(outputs)


def encode_response(head: Mapping[str, Any], outputs: Sequence[tuple[Tensor, bool]]) -> tuple[bytes, int | None]:
    """Return the body of a response, and the length of its JSON if binary data follow it.

    ``head`` has the model's name and version and the id of the request; each output is binary or not.
    """
    entries, blobs = [], []
    for tensor, is_binary in outputs:
        entry: dict[str, Any] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": list(tensor.array.shape),
        }
        if is_binary:
            blobs.append(encode_binary(tensor))
            entry["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            entry["data"] = encode_json(tensor)
        entries.append(entry)
    text = json.dumps({**head, "outputs": entries}, allow_nan=False).encode()
    return (b"".join([text, *blobs]), len(text)) if blobs else (text, None)
