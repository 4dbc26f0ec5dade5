"""The service over gRPC (``kcal[grpc]``): the Open Inference Protocol with the same models and tokens as over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from kcal.errors import InvalidInputError
from kcal.serving.protocol import InferenceRequest, bad_request, datatype_of, parse, read_ids, read_tensors, to_binary
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

    async def infer(request: Any) -> dict[str, Any]:
        model = service.get(request.model_name)
        predictor, content = model.predictor, _read_request(request, service.settings.max_json)
        arrays = read_tensors(content.inputs, memoryview(b"".join(request.raw_input_contents)))
        ids, n_samples = read_ids(arrays), content.parameters.explanation_samples
        names = list(content.wanted(predictor.default_outputs))
        values = await model.predict(predictor, predictor.check(arrays), names, ids, n_samples)
        outputs = [{"name": name, "datatype": datatype_of(one), "shape": one.shape} for name, one in values.items()]
        head = {"model_name": model.name, "model_version": "1", "id": request.id}
        return head | {"outputs": outputs, "raw_output_contents": [to_binary(one) for one in values.values()]}

    return {
        "ServerLive": live,
        "ServerReady": ready,
        "ServerMetadata": metadata,
        "ModelReady": model_ready,
        "ModelMetadata": model_metadata,
        "ModelInfer": infer,
    }


def _read_request(request: Any, max_json: int) -> InferenceRequest:
    """Return a request as one over HTTP would be: with the sizes of raw contents, or with their elements."""
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
    return parse(InferenceRequest, fields, max_json)


def _parameters(message: Any) -> dict[str, Any]:
    """Return the parameters of a message, those that are given."""
    return {pair.key: value for pair in message.parameters for _, value in pair.value.ListFields()}


def _typed_contents(given: Any) -> list[Any]:
    """Return the elements of an input that come in the field of their type."""
    elements = [list(values) for _, values in given.contents.ListFields()]
    if len(elements) != 1:
        raise bad_request(f"input {given.name!r} must have contents of one type")
    try:
        return [one.decode() if isinstance(one, bytes) else one for one in elements[0]]
    except UnicodeDecodeError:
        raise bad_request(f"input {given.name!r} must be UTF-8 text") from None


def _handler(service: Service, name: str, method: Callable[[Any], Awaitable[dict[str, Any]]]) -> Any:
    """Return a method of gRPC: check the token, parse, respond, and turn errors into status codes."""
    import grpc
    from google.protobuf.message import DecodeError

    types, scopes = message_types(), SCOPES.get(name, ANY_SCOPE)

    async def respond(content: bytes, context: Any) -> Any:
        metadata = dict(context.invocation_metadata() or ())
        kind, _, secret = str(metadata.get("authorization", "")).partition(" ")
        try:
            if scopes:
                service.check_token(secret if kind.lower() == "bearer" else "", scopes)
            return types[f"{name}Response"](**await method(types[f"{name}Request"].FromString(content)))
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request must be a {name}Request")
        except HTTPException as error:
            code = getattr(grpc.StatusCode, CODES.get(error.status_code, "INTERNAL"))
            await context.abort(code, str(error.detail))

    return grpc.unary_unary_rpc_method_handler(respond, response_serializer=types[f"{name}Response"].SerializeToString)


@asynccontextmanager
async def serve_grpc(service: Service) -> AsyncIterator[None]:
    """Serve gRPC until the block ends and all requests are answered, if the settings have a port for it."""
    settings = service.settings
    if settings.grpc_port is None:
        yield
        return
    import grpc

    handlers = {name: _handler(service, name, method) for name, method in _methods(service).items()}
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", settings.max_body)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers),))
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    try:
        server.add_insecure_port(f"{host}:{settings.grpc_port}")
    except RuntimeError as error:
        raise InvalidInputError("--grpc-port", "must be free", got=str(settings.grpc_port)) from error
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=30)
