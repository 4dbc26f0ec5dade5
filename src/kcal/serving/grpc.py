"""The service over gRPC (``kcal[grpc]``): the Open Inference Protocol with the same models and tokens as over HTTP."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException
from numpy.typing import NDArray

from kcal.serving.protocol import (
    LARGE_BODY,
    InferenceRequest,
    bad_request,
    datatype_of,
    error_text,
    read_tensors,
    run_sized,
    to_binary,
    too_large,
    validated,
)
from kcal.serving.service import ANY_SCOPE, Service

PROTOCOL = Path(__file__).with_name("inference.textproto")
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
    422: "FAILED_PRECONDITION",
    503: "UNAVAILABLE",
}
PART = re.compile(rb"([\x0a\x12\x1a\x22\x2a\x32\x3a])([\x80-\xff]{0,4}[\x00-\x7f])")
"""Field and length of a part of a ModelInferRequest, whose fields 1 to 7 are all sent with a length."""
RAW_CONTENTS = b"\x3a"
MAX_PARTS, MAX_PARAMETERS, CHUNK = 256, 64, 2**16
CONTENTS = {
    "bool": "bool", "int": "int32", "int64": "int64", "uint": "uint32", "uint64": "uint64",
    "fp32": "float32", "fp64": "float64", "bytes": "object",
}  # fmt: skip
"""Types of numpy of the typed contents of an input."""
SCOPES = {"ModelInfer": ("predict",), "ServerLive": (), "ServerReady": ()}
"""Scopes of which a token needs one; methods that are not named need any token, and those with none need no token."""


@cache
def message_types() -> dict[str, Any]:
    """Return the classes of the protocol's messages, from a pool of their own: others may define the same."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    file = text_format.Parse(PROTOCOL.read_text(encoding="utf-8"), descriptor_pb2.FileDescriptorProto())
    found = message_factory.GetMessages([file], descriptor_pool.DescriptorPool())
    return {name.removeprefix("inference."): kind for name, kind in found.items()}


def _methods(service: Service) -> dict[str, Callable[[Any], Awaitable[dict[str, Any]]]]:
    """Return the methods of the protocol, from a request to the fields of its response."""

    async def live(_: Any) -> dict[str, Any]:
        return {"live": True}

    async def ready(_: Any) -> dict[str, Any]:
        return {"ready": service.is_ready}

    async def model_ready(request: Any) -> dict[str, Any]:
        return {"ready": request.name in service.models}

    async def metadata(_: Any) -> dict[str, Any]:
        return {"name": "kcal", "version": package_version("kcal"), "extensions": []}

    async def model_metadata(request: Any) -> dict[str, Any]:
        found = service.get(request.name).metadata()
        return {name: value for name, value in found.items() if name != "parameters"}

    async def model_config(request: Any) -> dict[str, Any]:
        found = service.get(request.name).metadata()
        parameters = [{"key": key, "value": {"string_value": text}} for key, text in found["parameters"].items()]
        return {"config": {"name": found["name"], "platform": found["platform"], "parameters": parameters}}

    async def infer(request: Any) -> dict[str, Any]:
        model = service.get(request.model_name)
        return await model.infer(request.ByteSize(), partial(_read_request, request), _encode)

    return {
        "ServerLive": live,
        "ServerReady": ready,
        "ServerMetadata": metadata,
        "ModelReady": model_ready,
        "ModelMetadata": model_metadata,
        "ModelConfig": model_config,
        "ModelInfer": infer,
    }


def _check_parts(content: bytes, limit: int) -> None:
    """Raise if a ModelInferRequest has too many parts, or too many bytes that are not raw contents.

    It comes before the message is read, which takes forty times the size of many small parts.
    """
    place = n_bytes = 0
    for _ in range(MAX_PARTS):
        if place == len(content):
            return
        part = PART.match(content, place)
        if part is None:
            raise bad_request("the request must be a ModelInferRequest")
        length = sum((byte & 127) << 7 * power for power, byte in enumerate(part[2]))
        n_bytes += 0 if part[1] == RAW_CONTENTS else length
        if n_bytes > limit:
            raise too_large(limit, "a request without its raw contents")
        place = part.end() + length
    raise bad_request(f"the request must have less than {MAX_PARTS} parts")


def _read_request(request: Any) -> tuple[InferenceRequest, dict[str, NDArray[Any]]]:
    """Return a request as one over HTTP would be, and its arrays, of raw or of typed contents."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise bad_request(f"raw_input_contents must have {len(request.inputs)} entries; got {len(raw)}")
    inputs = [
        {"name": one.name, "datatype": one.datatype, "shape": list(one.shape)}
        | ({"parameters": {"binary_data_size": len(raw[place])}} if raw else {"data": _typed_contents(one)})
        for place, one in enumerate(request.inputs)
    ]
    outputs = [{"name": one.name, "parameters": _parameters(one)} for one in request.outputs]
    fields = {"id": request.id, "inputs": inputs, "outputs": outputs, "parameters": _parameters(request)}
    content = validated(InferenceRequest.model_validate, fields)
    return content, read_tensors(content.inputs, memoryview(b"".join(raw)))


def _parameters(message: Any) -> dict[str, Any]:
    """Return the parameters of a message, those that are given."""
    if len(message.parameters) > MAX_PARAMETERS:
        raise bad_request(f"there must be at most {MAX_PARAMETERS} parameters")
    return {pair.key: value for pair in message.parameters for _, value in pair.value.ListFields()}


def _typed_contents(given: Any) -> NDArray[Any]:
    """Return the elements of an input that come in the field of their type."""
    contents = given.contents.ListFields()
    if len(contents) != 1:
        raise bad_request(f"input {given.name!r} must have contents of one type")
    [(field, values)] = contents
    array = np.empty(len(values), dtype=CONTENTS[field.name.removesuffix("_contents")])
    for start in range(0, len(array), CHUNK):  # between two chunks, other threads go on
        array[start : start + CHUNK] = values[start : start + CHUNK]
    return array


def _encode(head: dict[str, Any], values: dict[str, NDArray[Any]], _: dict[str, bool]) -> dict[str, Any]:
    """Return the fields of a response; all outputs are sent as binary data."""
    outputs = [{"name": name, "datatype": datatype_of(one), "shape": one.shape} for name, one in values.items()]
    return head | {"outputs": outputs, "raw_output_contents": [to_binary(one) for one in values.values()]}


def _handler(service: Service, name: str, method: Callable[[Any], Awaitable[dict[str, Any]]]) -> Any:
    """Return a method of gRPC: check the token, read, respond, count, and turn errors into status codes.

    For gRPC it takes a stream of requests, and reads one: other methods are called when the request is in memory.
    Probes, which need no token, read none.
    """
    import grpc
    from google.protobuf.message import DecodeError

    types, scopes, max_json = message_types(), SCOPES.get(name, ANY_SCOPE), service.settings.max_json
    request_type, response_type = types[f"{name}Request"], types[f"{name}Response"]

    def read(content: Any) -> Any:
        if name == "ModelInfer":
            _check_parts(content, max_json)
        elif len(content) > LARGE_BODY:
            raise too_large(LARGE_BODY)
        try:
            return request_type.FromString(content)
        except DecodeError:
            raise bad_request(f"the request must be a {name}Request") from None

    async def respond(content: Any) -> Any:
        content = b"" if content is grpc.aio.EOF else content
        try:
            service.count_bytes(len(content), len(content))
            return response_type(**await method(await run_sized(len(content), read, content)))
        finally:
            service.n_bytes -= len(content)

    async def handle(_: Any, context: Any) -> Any:
        start, status, text, response = time.perf_counter(), "UNKNOWN", "", None
        kind, _, secret = str(dict(context.invocation_metadata() or ()).get("authorization", "")).partition(" ")
        try:
            if scopes:
                service.check_token(secret if kind.lower() == "bearer" else "", scopes)
            response, status = await respond(await context.read() if scopes else b""), "OK"
        except HTTPException as error:
            status, text = CODES.get(error.status_code, "INTERNAL"), error_text(error.detail)
        except asyncio.CancelledError:
            status = "CANCELLED"
            raise
        finally:
            service.metrics.count_request(name, status, start)
        if response is None:
            await context.abort(grpc.StatusCode[status], text)
        return response

    return grpc.stream_unary_rpc_method_handler(handle, response_serializer=response_type.SerializeToString)


@asynccontextmanager
async def serve_grpc(service: Service) -> AsyncIterator[None]:
    """Serve gRPC until the block ends and all requests are answered, if the settings have a port for it."""
    settings = service.settings
    if settings.grpc_port is None:
        yield
        return
    import grpc

    handlers = {name: _handler(service, name, method) for name, method in _methods(service).items()}
    options = {
        "grpc.max_receive_message_length": settings.max_body,
        "grpc.compression_enabled_algorithms_bitset": 1,  # none: a message of a megabyte may expand to one of gigabytes
        "grpc.so_reuseport": 0,  # a port that is taken is not shared
    }
    server = grpc.aio.server(options=list(options.items()))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    server.add_insecure_port(f"{host}:{settings.grpc_port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=30)
