"""The service over HTTP: the routes of FastAPI, who may use them, limits of bodies, and the server."""

import asyncio
import errno
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from importlib.metadata import version as package_version
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBasic, HTTPBearer, SecurityScopes
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kcal.errors import InvalidInputError
from kcal.serving.dashboard import render_dashboard, style_policy
from kcal.serving.grpc import serve_grpc
from kcal.serving.learning import FeedbackRecords
from kcal.serving.predictor import Arrays, Predictor
from kcal.serving.protocol import (
    HEADER_LENGTH,
    InferenceRequest,
    PrintableName,
    describe,
    encode_response,
    error_text,
    parse,
    read_tensors,
    run_sized,
    split_body,
    too_large,
)
from kcal.serving.service import ANY_SCOPE, ServedModel, Service, Settings

EXTENSIONS = ["binary_tensor_data", "model_repository", "parameters"]
LOCAL_ADDRESS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d*)?", re.ASCII | re.IGNORECASE)
"""Hosts of requests without tokens: a web page must not reach the service through a name of its own."""
BODY_SECONDS, GRACE_SECONDS, KEEP_ALIVE_SECONDS = 20, 30, 65
"""How long the next part of a body may take, less than what a shutdown waits; and how long idle connections stay."""
SECURITY_HEADERS = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


# Who may do what


class Access(HTTPBearer):
    """Tokens and scopes; a browser that reads sends the token as a password."""

    basic = HTTPBasic(auto_error=False)

    async def __call__(self, request: Request, scopes: SecurityScopes) -> None:  # type: ignore[override]
        """Raise unless the request shows a token with one of the scopes."""
        origin, is_reading = request.headers.get("origin"), request.method == "GET"
        if not is_reading and origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise HTTPException(403, "requests from web pages of another origin are rejected")
        service: Service = request.app.state.service
        if service.tokens is None:
            return
        bearer = await super().__call__(request)
        basic = await self.basic(request) if is_reading and bearer is None else None
        secret = bearer.credentials if bearer else basic.password if basic else ""
        service.check_token(secret, scopes.scopes, 'Basic realm="kcal"' if is_reading else "Bearer")


ACCESS = Access(auto_error=False)


def needs(*scopes: str) -> list[Any]:
    """Return the dependencies of a route for tokens with one of the scopes."""
    return [Security(ACCESS, scopes=scopes)]


async def the_service(request: Request) -> Service:
    """Return the service of a request."""
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(the_service)]


async def the_model(service: Served, name: str) -> ServedModel:
    """Return the model of an endpoint."""
    return service.get(name)


Model = Annotated[ServedModel, Depends(the_model)]


# Bodies


class PredictRequest(BaseModel):
    """A plain request; further fields are the inputs of the model, as nested lists with one row per prediction."""

    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, list[Any]]

    model: str | None = None
    ids: list[PrintableName] | None = None
    evidence: bool | None = None
    explain: bool = False
    explanation_samples: Annotated[int, Field(ge=1, le=100)] = 5


class Rejection(BaseModel):
    """Why a request is rejected."""

    error: str


REJECTIONS: dict[int | str, Any] = {status: {"model": Rejection} for status in (400, 401, 403, 404, 408, 413, 422, 503)}


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a JSON body, for OpenAPI."""
    schema = {"$id": model.__name__, **model.model_json_schema()}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_body(request: Request, service: Served) -> bytes:
    """Return the body, after the request was authorized."""
    limit, length = service.settings.max_body, request.headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > limit:
        raise too_large(limit)
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "the body must not be compressed")
    try:
        return await request.body()
    except ClientDisconnect:
        raise HTTPException(400, "the client left before its body was complete") from None


Body = Annotated[bytes, Depends(read_body)]


# Endpoints of one model

models = APIRouter()


@models.post("/infer", dependencies=needs("predict"), openapi_extra=json_body(InferenceRequest))
async def infer(request: Request, service: Served, model: Model, body: Body) -> Response:
    """Predict; the body is JSON, with binary tensors after it if the header says how long the JSON is."""
    length = request.headers.get(HEADER_LENGTH)

    def read() -> tuple[InferenceRequest, dict[str, Any]]:
        text, binary = split_body(body, length)
        content = parse(InferenceRequest, text, service.settings.max_json)
        return content, read_tensors(content.inputs, binary)

    text, blobs = await model.infer(len(body), read, encode_response)
    if not blobs:
        return Response(text, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(b"".join([text, *blobs]), headers=headers, media_type="application/octet-stream")


@models.post("/feedback", dependencies=needs("feedback"), openapi_extra=json_body(FeedbackRecords))
async def feedback(service: Served, model: Model, body: Body) -> dict[str, Any]:
    """Accept labels, corrections and erasures; they are on disk before the response."""
    if model.learner is None:
        raise HTTPException(409, "the service has no store for feedback; start it with --store")
    records = (await run_sized(len(body), parse, FeedbackRecords, body, service.settings.max_json)).root
    done = await run_in_threadpool(model.learner.give, records)
    results = [{"id": record.id, "status": status} for record, status in zip(records, done, strict=True)]
    return {"model_name": model.name, "accepted": len(results), "learns": not model.learner.reason, "results": results}


@models.post("/monitors/reset", dependencies=needs("admin"))
def reset_monitors(model: Model) -> dict[str, str]:
    """End the alarms of a model: its monitors begin again."""
    model.record.reset_monitors()
    model.record.save(model.predictor)
    return {"model_name": model.name, "model_version": "1"}


@models.get("/ready", dependencies=needs(*ANY_SCOPE))
async def model_ready(model: Model) -> dict[str, Any]:
    """Return whether a model is served."""
    return {"name": model.name, "ready": True}


@models.get("", dependencies=needs(*ANY_SCOPE))
async def model_metadata(model: Model) -> dict[str, Any]:
    """Return inputs, outputs and classes of a model."""
    return model.metadata()


# Endpoints of the service

service_routes = APIRouter()


@service_routes.post("/predict", dependencies=needs("predict"), openapi_extra=json_body(PredictRequest))
async def predict(service: Served, body: Body) -> Response:
    """Predict from plain JSON."""

    def read() -> tuple[PredictRequest, ServedModel, Predictor, Arrays]:
        content = parse(PredictRequest, body, service.settings.max_json)
        model = service.get(content.model)
        predictor = model.predictor
        return content, model, predictor, predictor.read_lists(content.__pydantic_extra__)

    content, model, predictor, arrays = await run_sized(len(body), read)
    has_evidence = predictor.calibrator.tags.has_evidence if content.evidence is None else content.evidence
    chosen = {"evidence": has_evidence, "explanation": content.explain}
    outputs = ["ids", "labels", "probabilities", *(name for name, is_chosen in chosen.items() if is_chosen)]
    values = await model.predict(predictor, arrays, outputs, content.ids, content.explanation_samples)
    found = {name: one.tolist() for name, one in values.items()}
    if content.explain:
        found["explanation"] = [json.loads(text) for text in found["explanation"]]
    return JSONResponse({"model": model.name, "classes": predictor.classes.tolist(), **found})


@service_routes.get("/healthz")
@service_routes.get("/v2/health/live")
async def live() -> dict[str, bool]:
    """Return that the service runs."""
    return {"live": True}


@service_routes.get("/readyz")
@service_routes.get("/v2/health/ready")
async def ready(service: Served, response: Response) -> dict[str, bool]:
    """Return whether all models are loaded; status 503 if not."""
    response.status_code = 200 if service.is_ready else 503
    return {"ready": service.is_ready}


@service_routes.get("/v2", dependencies=needs(*ANY_SCOPE))
async def server_metadata() -> dict[str, Any]:
    """Return name and version of the server."""
    return {"name": "kcal", "version": package_version("kcal"), "extensions": EXTENSIONS}


@service_routes.get("/v2/models", dependencies=needs(*ANY_SCOPE))
async def list_models(service: Served) -> dict[str, list[str]]:
    """Return the names of the models."""
    return {"models": sorted(service.models)}


@service_routes.post("/v2/repository/index", dependencies=needs(*ANY_SCOPE))
async def repository_index(service: Served) -> list[dict[str, str]]:
    """Return the state of every model, as Triton's extension of repositories does."""
    failed = dict.fromkeys(service.errors, ("UNAVAILABLE", "the file cannot be loaded"))
    states = sorted((failed | dict.fromkeys(service.models, ("READY", ""))).items())
    return [{"name": name, "version": "1", "state": state, "reason": reason} for name, (state, reason) in states]


@service_routes.get("/metrics", dependencies=needs("metrics"))
def metrics(service: Served) -> Response:
    """Return all metrics in the format of Prometheus."""
    return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@service_routes.get("/", dependencies=needs("admin"), response_class=HTMLResponse)
def dashboard(
    service: Served,
    model: str | None = None,
    label: Annotated[str | None, Query(alias="class")] = None,
    refresh: str | None = None,
) -> Response:
    """Show the dashboard."""
    text = render_dashboard(service, model, label, refresh)
    return HTMLResponse(text, headers={"Content-Security-Policy": style_policy(text)})


# The application


async def _error_response(request: Request, error: Exception) -> Response:
    """Return the response to a rejected request: one sentence, as clients of the protocol expect it."""
    if isinstance(error, RequestValidationError):
        error = HTTPException(400, describe(error.errors()))
    assert isinstance(error, StarletteHTTPException)
    return JSONResponse({"error": error_text(error.detail)}, error.status_code, error.headers)


class Guard:
    """The outermost layer: the host of requests, limits of bodies, headers for browsers, and counts of requests."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, n_bytes, is_complete, app = time.perf_counter(), 500, 0, False, self.app
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope  # the server drops the body
        if self.service.tokens is None and not LOCAL_ADDRESS.fullmatch(Headers(scope=scope).get("host", "")):
            app = JSONResponse({"error": "the header Host must be 127.0.0.1 or localhost; others need tokens"}, 400)

        async def receive_limited() -> Message:
            nonlocal n_bytes, is_complete
            try:
                async with asyncio.timeout(None if is_complete else BODY_SECONDS):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"nothing of the body has come for {BODY_SECONDS} seconds") from None
            is_complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            n_bytes += size
            self.service.count_bytes(size, n_bytes)
            return message

        async def send_protected(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in SECURITY_HEADERS if one[0] not in present)]
            await send(message)

        try:
            await app(inner, receive_limited, send_protected)
        finally:
            self.service.n_bytes -= n_bytes
            self.service.metrics.count_request(getattr(inner.get("route"), "name", "other"), str(status), start)


def make_app(service: Service) -> FastAPI:
    """Return the ASGI application of a service whose models are loaded."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(service.run())
        try:
            async with serve_grpc(service):
                yield
        finally:
            service.stop()
            await running

    app = FastAPI(
        title="kcal",
        version=package_version("kcal"),
        lifespan=lifespan,
        responses=REJECTIONS,
        docs_url=None,  # its pages load scripts from other hosts; /openapi.json stays
        redoc_url=None,
    )
    app.router.redirect_slashes = False
    app.state.service = service
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/1"):
        app.include_router(models, prefix=prefix)
    app.include_router(service_routes)
    for kind in (StarletteHTTPException, RequestValidationError):
        app.add_exception_handler(kind, _error_response)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    app.add_middleware(Guard, service=service)
    return app


# The server


class Server(uvicorn.Server):
    """A server that ends with exit code 0.

    Parameters
    ----------
    service : Service
        The models, which are loaded before the server runs, and the options.
    """

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            make_app(service),
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            http="h11",  # bounds the headers of a request, which httptools does not
            ws="none",
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop at a signal; uvicorn's own would end the process by the signal after the last response."""
        self.force_exit, self.should_exit = self.should_exit, True


def serve(settings: Settings, on_started: Callable[[str], None] | None = None) -> bool:
    """Serve until SIGTERM or SIGINT; requests in flight are answered before this returns.

    ``on_started`` is called with the address when the models are loaded; clients that come earlier wait. The result
    tells whether a thread still searches for bandwidths or weights. It cannot be interrupted, and nothing is lost with
    it: a process that does not want to wait for it ends by ``os._exit``.
    """
    service = Service(settings)
    server = Server(service)
    if settings.grpc_port is not None:
        listen(settings.host, settings.grpc_port, "--grpc-port").close()  # raises if it is taken
    with closing(listen(settings.host, settings.port)) as listener, server.capture_signals(), service:
        if on_started is not None and not server.should_exit:
            on_started(address_of(listener))
        if not server.should_exit:
            server.run(sockets=[listener])
    return any(model.is_working for model in service.models.values())


def address_of(listener: socket.socket) -> str:
    """Return the address of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a socket that is bound to an address; raise if it is taken, or not one of this machine."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        remedy = f"Pass another {option}, or end what listens there." if error.errno == errno.EADDRINUSE else ""
        expected = f"must be an address at which this machine can listen ({error.strerror})"
        raise InvalidInputError(f"--host and {option}", expected, got=f"{host}:{port}", remedy=remedy) from None
