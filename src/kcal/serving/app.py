"""The service over HTTP: the routes of FastAPI, who may use them, limits of bodies, metrics, and the server."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, closing
from importlib.metadata import version as package_version
from typing import Annotated, Any, TypeVar

import uvicorn
from fastapi import APIRouter, FastAPI, HTTPException, Query, Request, Response, Security
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBasic, HTTPBearer, SecurityScopes
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from kcal.errors import InvalidInputError, KcalError, printable
from kcal.serving.dashboard import render_dashboard, style_policy
from kcal.serving.grpc import serve_grpc
from kcal.serving.learning import FeedbackRecords
from kcal.serving.protocol import (
    HEADER_LENGTH,
    InferenceRequest,
    PrintableName,
    bad_request,
    busy,
    describe,
    encode_response,
    from_json,
    parse,
    read_ids,
    read_tensors,
    split_body,
)
from kcal.serving.service import ANY_SCOPE, LOCAL_HOSTS, ServedModel, Service, Settings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Result = TypeVar("Result")

EXTENSIONS = ["binary_tensor_data", "model_repository", "parameters"]
LARGE_BODY = 2**17
"""Bodies of more bytes are parsed in a thread: other requests go on."""
MAX_BODIES = 8
"""Bodies of the largest size that are in memory at the same time, at most; or more smaller ones."""
MAX_MESSAGE_LENGTH = 500
GRACE_SECONDS, KEEP_ALIVE_SECONDS = 30, 65
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
            raise HTTPException(403, "requests from web pages of another origin are refused")
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


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the description of a JSON body, for OpenAPI."""
    schema = {"$id": model.__name__, **model.model_json_schema()}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def read_body(request: Request, read: Callable[[bytes, int], Result]) -> Result:
    """Return what ``read`` makes of the body, after the request was authorized; in a thread if it is large."""
    body, max_json = await request.body(), request.app.state.service.settings.max_json
    if len(body) > LARGE_BODY:
        return await run_in_threadpool(read, body, max_json)
    return read(body, max_json)


def served_model(request: Request, name: str) -> ServedModel:
    """Return the model of an endpoint."""
    service: Service = request.app.state.service
    return service.get(name)


# Endpoints of one model

models = APIRouter()


@models.post("/infer", dependencies=needs("predict"), openapi_extra=json_body(InferenceRequest))
async def infer(request: Request, name: str) -> Response:
    """Predict; the body is JSON, with binary tensors after it if the header says how long the JSON is."""

    def read(body: bytes, max_json: int) -> tuple[InferenceRequest, dict[str, Any], list[str] | None]:
        text, binary = split_body(body, request.headers.get(HEADER_LENGTH))
        content = parse(InferenceRequest, text, max_json)
        arrays = read_tensors(content.inputs, binary)
        return content, arrays, read_ids(arrays)

    model = served_model(request, name)
    content, arrays, ids = await read_body(request, read)
    wanted = content.wanted(model.predictor.default_outputs)
    names = [name for name, _ in wanted]
    answer = await model.predict(arrays, names, ids=ids, n_samples=content.parameters.explanation_samples)
    head = {"model_name": model.name, "model_version": "1", **({} if content.id is None else {"id": content.id})}
    outputs = [(name, answer.output(name), is_binary) for name, is_binary in wanted]
    if sum(values.size for _, values, _ in outputs) > LARGE_BODY:
        return await run_in_threadpool(encode_response, head, outputs)
    return encode_response(head, outputs)


@models.post("/feedback", dependencies=needs("feedback"), openapi_extra=json_body(FeedbackRecords))
async def feedback(request: Request, name: str) -> dict[str, Any]:
    """Accept labels, corrections and erasures; they are on disk when this answers."""
    model = served_model(request, name)
    if model.learner is None:
        raise HTTPException(409, "the service has no store for feedback; start it with --store")
    records = (await read_body(request, lambda body, limit: parse(FeedbackRecords, body, limit))).root
    done = await run_in_threadpool(model.learner.give, records)
    results = [{"id": record.id, "status": status} for record, status in zip(records, done, strict=True)]
    return {"model_name": model.name, "accepted": len(results), "results": results}


@models.post("/monitors/reset", dependencies=needs("admin"))
def reset_monitors(request: Request, name: str) -> dict[str, str]:
    """End the alarms of a model: its monitors begin again."""
    model = served_model(request, name)
    model.record.reset_monitors()
    model.record.save(model.predictor)
    return {"model_name": model.name, "model_version": "1"}


@models.get("/ready", dependencies=needs(*ANY_SCOPE))
async def model_ready(request: Request, name: str) -> dict[str, Any]:
    """Return whether a model is served."""
    return {"name": served_model(request, name).name, "ready": True}


@models.get("", dependencies=needs(*ANY_SCOPE))
async def model_metadata(request: Request, name: str) -> dict[str, Any]:
    """Return inputs, outputs and classes of a model."""
    return served_model(request, name).metadata()


# Endpoints of the service

service_routes = APIRouter()


@service_routes.post("/predict", dependencies=needs("predict"), openapi_extra=json_body(PredictRequest))
async def predict(request: Request) -> dict[str, Any]:
    """Predict from plain JSON."""
    service: Service = request.app.state.service
    content = await read_body(request, lambda body, limit: parse(PredictRequest, body, limit))
    model = service.get(content.model)
    datatypes = {spec.name: spec.datatype for spec in model.predictor.inputs}
    inputs = content.__pydantic_extra__.items()
    arrays = {name: from_json(name, datatypes.get(name, "FP32"), values) for name, values in inputs}
    calibrator = model.predictor.calibrator
    outputs = ["ids", *(["explanation"] if content.explain else [])]
    outputs += ["evidence"] if content.evidence or (content.evidence is None and calibrator.has_evidence) else []
    answer = await model.predict(arrays, outputs, ids=content.ids, n_samples=content.explanation_samples)
    found: dict[str, Any] = {
        "model": model.name,
        "classes": answer.job.predictor.classes.tolist(),
        "ids": answer.job.ids,
        "labels": answer.labels,
        "probabilities": answer.scores.probs.tolist(),
    }
    if answer.scores.evidence is not None:
        found["evidence"] = answer.scores.evidence.tolist()
    if answer.explanations is not None:
        found["explanation"] = [json.loads(text) for text in answer.explanations]
    return found


@service_routes.get("/healthz")
@service_routes.get("/v2/health/live")
async def live() -> dict[str, bool]:
    """Return that the service runs."""
    return {"live": True}


@service_routes.get("/readyz")
@service_routes.get("/v2/health/ready")
async def ready(request: Request, response: Response) -> dict[str, bool]:
    """Return whether all models are loaded; status 503 if not."""
    is_ready = request.app.state.service.is_ready
    response.status_code = 200 if is_ready else 503
    return {"ready": is_ready}


@service_routes.get("/v2", dependencies=needs(*ANY_SCOPE))
async def server_metadata() -> dict[str, Any]:
    """Return name and version of the server."""
    return {"name": "kcal", "version": package_version("kcal"), "extensions": EXTENSIONS}


@service_routes.get("/v2/models", dependencies=needs(*ANY_SCOPE))
async def list_models(request: Request) -> dict[str, list[str]]:
    """Return the names of the models."""
    return {"models": sorted(request.app.state.service.models)}


@service_routes.post("/v2/repository/index", dependencies=needs(*ANY_SCOPE))
async def repository_index(request: Request) -> list[dict[str, str]]:
    """Return the state of every model, as Triton's extension of repositories does."""
    service: Service = request.app.state.service
    failed = dict.fromkeys(service.errors, ("UNAVAILABLE", "the file cannot be loaded"))
    states = failed | dict.fromkeys(service.models, ("READY", ""))
    return [
        {"name": name, "version": "1", "state": state, "reason": reason}
        for name, (state, reason) in sorted(states.items())
    ]


@service_routes.get("/metrics", dependencies=needs("metrics"))
def metrics(request: Request) -> Response:
    """Return all metrics in the format of Prometheus."""
    return Response(generate_latest(request.app.state.service.metrics.registry), media_type=CONTENT_TYPE_LATEST)


@service_routes.get("/", dependencies=needs("admin"), response_class=HTMLResponse)
def dashboard(
    request: Request,
    model: str | None = None,
    label: Annotated[str | None, Query(alias="class")] = None,
    refresh: str | None = None,
) -> Response:
    """Show the dashboard."""
    text = render_dashboard(request.app.state.service, model, label, refresh)
    return HTMLResponse(text, headers={"Content-Security-Policy": style_policy(text)})


MODEL_METRICS: dict[str, tuple[Any, ...]] = {
    "load_failed": (GaugeMetricFamily, "1 if the latest file of a model was not loaded"),
    "queue_requests": (GaugeMetricFamily, "Requests that wait for their batch"),
    "estimated_accuracy": (GaugeMetricFamily, "Accuracy estimated without labels"),
    "measured_accuracy": (GaugeMetricFamily, "Accuracy on the latest labels"),
    "measured_log_loss": (GaugeMetricFamily, "Log-loss on the latest labels"),
    "alarms": (GaugeMetricFamily, "Alarms and notices", "severity", "kind"),
    "labels": (CounterMetricFamily, "Predictions that got a label"),
    "feedback": (CounterMetricFamily, "Records of feedback", "status"),
}
"""Type, text and further labels of the metrics of a model that are computed when they are asked for."""


def _measure(model: ServedModel) -> Iterator[tuple[Any, ...]]:
    """Yield names, values and labels of the metrics of a model."""
    summary = model.summary()
    yield "queue_requests", len(model.batcher.waiting)
    yield "labels", summary.n_labels
    if summary.performance is not None:
        yield "estimated_accuracy", summary.performance.accuracy.value
    if len(summary.codes):
        yield "measured_accuracy", summary.accuracy[0]
        yield "measured_log_loss", summary.log_loss
    yield "alarms", sum(alarm.severity == "alarm" for alarm in summary.alarms), "alarm", "any"
    for key, count in Counter((alarm.severity, alarm.kind) for alarm in summary.alarms).items():
        yield "alarms", count, *key
    for status, count in (model.learner.counts if model.learner else {}).items():
        yield "feedback", count, status


class ModelCollector(Collector):
    """The metrics of all models: alarms, estimates and feedback."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def collect(self) -> Iterator[Any]:
        """Yield the families of metrics."""
        families = {
            name: kind(f"kcal_{name}", text, labels=["model", *labels])
            for name, (kind, text, *labels) in MODEL_METRICS.items()
        }
        for name in self.service.errors:
            families["load_failed"].add_metric([name], 1.0)
        for name, model in list(self.service.models.items()):
            for metric, value, *labels in _measure(model):
                families[metric].add_metric([name, *labels], value)
        yield GaugeMetricFamily("kcal_ready", "1 if every model is served", value=float(self.service.is_ready))
        yield from families.values()

    def describe(self) -> list[Any]:
        """Return nothing: the names are known when there are models."""
        return []


# The application


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer a request that is refused with one sentence, as clients of the protocol expect it."""
    if isinstance(error, RequestValidationError):
        error = HTTPException(400, describe(error.errors()))
    assert isinstance(error, StarletteHTTPException)
    text = printable(str(error.detail).encode("utf-8", "replace").decode())[:MAX_MESSAGE_LENGTH]
    return JSONResponse({"error": text}, error.status_code, error.headers)


def make_app(service: Service, on_failure: Callable[[str], None] | None = None) -> Guard:
    """Return the ASGI application of a service; ``on_failure`` is called if its only model cannot be loaded."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        running = asyncio.create_task(service.run(on_failure))
        async with serve_grpc(service):
            yield
        service.stop()
        await running
        await asyncio.to_thread(service.close)

    # the pages of FastAPI load scripts from other hosts; /openapi.json stays
    app = FastAPI(title="kcal", version=package_version("kcal"), lifespan=lifespan, docs_url=None, redoc_url=None)
    app.router.redirect_slashes = False
    app.state.service = service
    for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/1"):  # first: inference is asked for most
        app.include_router(models, prefix=prefix)
    app.include_router(service_routes)
    for kind in (StarletteHTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answer_error)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
    if service.tokens is None:  # a web page must not reach the service through a name of its own
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*LOCAL_HOSTS, "[::1]"])
    service.metrics.registry.register(ModelCollector(service))
    return Guard(app, service)


class Guard:
    """The outermost layer: limits of bodies, decompression, headers that protect browsers, and counts of requests."""

    def __init__(self, app: FastAPI, service: Service) -> None:
        self.app, self.service = app, service
        self.n_bytes = 0  # of all bodies in memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, body = time.perf_counter(), 500, Body(self, scope, receive)
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else dict(scope)  # the server drops the body

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                added = [pair for pair in SECURITY_HEADERS if pair[0] not in present]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        try:
            await self.app(inner, body.receive, send_guarded)
        finally:
            self.n_bytes -= body.n_bytes
            endpoint = getattr(inner.get("route"), "name", "other")
            self.service.metrics.requests.labels(endpoint, str(status)).inc()
            self.service.metrics.seconds.labels(endpoint).observe(time.perf_counter() - start)


class Body:
    """The body of a request as it arrives, decompressed, with its limit and that of all bodies together."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive) -> None:
        self._guard, self._receive, self.limit = guard, receive, guard.service.settings.max_body
        self.n_bytes = self._n_received = 0
        headers = dict(scope["headers"])
        self._announced = headers.get(b"content-length", b"0")
        self._encoding = headers.get(b"content-encoding", b"identity").strip().lower()
        self._decoder = zlib.decompressobj(31) if self._encoding == b"gzip" else None

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the next part; raise if the body is too large or damaged."""
        if self._encoding not in (b"identity", b"gzip"):
            raise HTTPException(415, "the Content-Encoding must be gzip or identity", {"Accept-Encoding": "gzip"})
        if not self._announced.isdigit() or int(self._announced[:20]) > self.limit:
            raise HTTPException(413, f"the body must have at most {self.limit} bytes")
        message = await self._receive()
        if message["type"] == "http.disconnect":
            return message
        content, is_last = message.get("body", b""), not message.get("more_body", False)
        self._n_received += len(content)
        if self._decoder is not None:
            content = self._decompress(content, is_last)
        if max(self._n_received, self.n_bytes + len(content)) > self.limit:
            raise HTTPException(413, f"the body must have at most {self.limit} bytes")
        if self._guard.n_bytes + len(content) > MAX_BODIES * self.limit:
            raise busy("too many bytes of other requests are waiting; try again later")
        self._guard.n_bytes += len(content)
        self.n_bytes += len(content)
        return {**message, "body": content}

    def _decompress(self, content: bytes, is_last: bool) -> bytes:
        """Return the decompressed part, but not more than one byte above the limit."""
        assert self._decoder is not None
        try:
            content = self._decoder.decompress(content, self.limit - self.n_bytes + 1)
        except zlib.error:
            raise bad_request("the body is not valid gzip data") from None
        is_over = self.n_bytes + len(content) > self.limit
        if not is_over and (self._decoder.unused_data or (is_last and not self._decoder.eof)):
            raise bad_request("the body must be complete gzip data, with nothing behind it")
        return content


# The server


class Server(uvicorn.Server):
    """A server that reports its address, stops if its only model cannot be loaded, and ends with exit code 0.

    Parameters
    ----------
    settings : Settings
        What is served, and how.
    on_started : callable, optional
        Called with the address when the server listens.

    Attributes
    ----------
    service : Service
        What answers.
    failure : str or None
        Why the server stopped by itself.
    """

    def __init__(self, settings: Settings, on_started: Callable[[str], None] | None = None) -> None:
        self.service, self._on_started = Service(settings), on_started
        self.failure: str | None = None
        config = uvicorn.Config(
            make_app(self.service, self._fail),
            host=settings.host,
            port=settings.port,
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="on",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
            ws="none",
        )
        super().__init__(config)

    @property
    def address(self) -> str:
        """Where the server listens."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        if self.started and self._on_started is not None:
            self._on_started(self.address)

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop at a signal; uvicorn's own would end the process by the signal after the last answer."""
        self.force_exit, self.should_exit = self.should_exit, True

    def _fail(self, message: str) -> None:
        self.failure, self.should_exit = message, True


def serve(settings: Settings, on_started: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered before this returns."""
    logging.getLogger("kcal.serving").setLevel(logging.INFO)
    server = Server(settings, on_started)
    with closing(listen(settings.host, settings.port)) as listener:
        server.run(sockets=[listener])
    if server.failure is not None:
        raise KcalError(server.failure)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address; raise if it is taken, or not one of this machine."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        remedy = "Pass another --port, or end what listens there." if error.errno == errno.EADDRINUSE else ""
        expected = f"must be an address at which this machine can listen ({error.strerror})"
        raise InvalidInputError("--host and --port", expected, got=f"{host}:{port}", remedy=remedy) from None
