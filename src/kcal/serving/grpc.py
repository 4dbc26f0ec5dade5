"""The service over gRPC (``kcal[grpc]``): the Open Inference Protocol with the same models and tokens as over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

from fastapi import HTTPException

from kcal.errors import InvalidInputError
from kcal.serving.protocol import (
    InferenceRequest,
    bad_request,
    datatype_of,
    parse,
    read_ids,
    read_tensors,
    to_binary,
)
from kcal.serving.service import ANY_SCOPE, Service

PROTOCOL = Path(__file__).with_name("inference.proto")
CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    422: "FAILED_PRECONDITION",
    503: "UNAVAILABLE",
}


@cache
def message_types() -> dict[str, Any]:
    """Return the classes of the messages of inference.proto, from a pool of their own: others may define the same."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="kcal/inference.proto", package="inference", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto.Type
    for name, fields in re.findall(r"message (\w+) \{(.*?)\}", PROTOCOL.read_text(encoding="utf-8"), re.DOTALL):
        message = file.message_type.add(name=name)
        for label, kind, field, number in re.findall(r"(repeated |optional |)(\w+) (\w+) = (\d+);", fields):
            entry = message.field.add(name=field, number=int(number), label=3 if label == "repeated " else 1)
            if kind[0].isupper():
                entry.type, entry.type_name = kinds.Value("TYPE_MESSAGE"), f".inference.{kind}"
            else:
                entry.type = kinds.Value(f"TYPE_{kind.upper()}")
            if label == "optional ":  # whether it is given is known by a choice of its own
                entry.proto3_optional, entry.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(find(f"inference.{name}")) for name in names}


class Methods:
    """The methods of the protocol, from a request to the fields of its response."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def ServerLive(self, _: Any) -> dict[str, Any]:  # noqa: N802, D102
        return {"live": True}

    async def ServerReady(self, _: Any) -> dict[str, Any]:  # noqa: N802, D102
        return {"ready": self.service.is_ready}

    async def ModelReady(self, request: Any) -> dict[str, Any]:  # noqa: N802, D102
        return {"ready": request.name in self.service.models}

    async def ServerMetadata(self, _: Any) -> dict[str, Any]:  # noqa: N802, D102
        return {"name": "kcal", "version": package_version("kcal"), "extensions": []}

    async def ModelMetadata(self, request: Any) -> dict[str, Any]:  # noqa: N802, D102
        metadata = self.service.get(request.name).metadata()
        return {name: value for name, value in metadata.items() if name != "parameters"}

    async def ModelInfer(self, request: Any) -> dict[str, Any]:  # noqa: N802, D102
        model = self.service.get(request.model_name)
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
        content = parse(InferenceRequest, fields, self.service.settings.max_json)
        arrays = read_tensors(content.inputs, memoryview(b"".join(raw)))
        ids = read_ids(arrays)
        names = [name for name, _ in content.wanted(model.predictor.default_outputs)]
        answer = await model.predict(arrays, names, ids=ids, n_samples=content.parameters.explanation_samples)
        values = {name: answer.output(name) for name in names}
        return {
            "model_name": model.name,
            "model_version": "1",
            "id": request.id,
            "outputs": [
                {"name": name, "datatype": datatype_of(array), "shape": array.shape} for name, array in values.items()
            ],
            "raw_output_contents": [to_binary(array) for array in values.values()],
        }


SCOPES = {"ModelInfer": ("predict",), "ServerLive": (), "ServerReady": ()}
"""Scopes of which a token needs one; methods that are not named need any token, and those with none need no token."""


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


def _handler(service: Service, name: str, method: Callable[[Any], Any]) -> Any:
    """Return a method of gRPC: check the token, answer, and turn errors into status codes."""
    import grpc

    types = message_types()

    async def answer(request: Any, context: Any) -> Any:
        metadata = dict(context.invocation_metadata() or ())
        kind, _, secret = str(metadata.get("authorization", "")).partition(" ")
        try:
            scopes = SCOPES.get(name, ANY_SCOPE)
            if scopes:
                service.check_token(secret if kind.lower() == "bearer" else "", scopes)
            return types[f"{name}Response"](**await method(request))
        except HTTPException as error:
            code = getattr(grpc.StatusCode, CODES.get(error.status_code, "INTERNAL"))
            await context.abort(code, str(error.detail))

    serializers = (types[f"{name}Request"].FromString, types[f"{name}Response"].SerializeToString)
    return grpc.unary_unary_rpc_method_handler(answer, *serializers)


@asynccontextmanager
async def serve_grpc(service: Service) -> AsyncIterator[None]:
    """Serve gRPC until the block ends and all requests are answered, if the settings have a port for it."""
    settings = service.settings
    if settings.grpc_port is None:
        yield
        return
    import grpc

    methods = Methods(service)
    names = [name.removesuffix("Request") for name in message_types() if name.endswith("Request")]
    handlers = {name: _handler(service, name, getattr(methods, name)) for name in names}
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
