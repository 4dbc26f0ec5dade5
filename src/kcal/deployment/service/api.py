"""The service as an ASGI application: FastAPI for addresses and their documentation, a direct way for inference."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version as package_version
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from kcal.deployment.service.bodies import STEP, BodyReader, compressed
from kcal.deployment.service.documentation import OPERATIONS, docs_page
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.handlers import Handlers
from kcal.deployment.service.messages import (
    Answer,
    Receive,
    Scope,
    Send,
    error_answer,
    headers_of,
    json_answer,
    send_answer,
    with_security_headers,
)
from kcal.deployment.service.metrics import MEDIA_TYPE, Metrics
from kcal.deployment.service.runtime import Service

logger = logging.getLogger("kcal.service")

INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")
BODIES = 8
"""Bodies of the largest size that are in memory at the same time, at most; or more smaller ones."""
Endpoint = Callable[[Request], Awaitable[Answer]]


class Application:
    """The ASGI application of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.handlers, self.metrics = service, Handlers(service), Metrics(service)
        self.bodies = BodyReader(service.options.max_body, BODIES * service.options.max_body)
        self.api = self._make_api()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or take part in the start and the end of the server."""
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        start, endpoint, status = time.perf_counter(), "other", [500]
        try:
            headers = headers_of(scope)
            self.service.access.check(scope["method"], scope["path"], headers)
            match = INFER.fullmatch(scope["path"]) if scope["method"] == "POST" else None
            if match is None:
                endpoint = _endpoint_name(scope["path"])
                await self.api(scope, receive, with_security_headers(send, status.append))
            else:
                endpoint = "infer"
                await self._infer(match[1], match[2], headers, receive, send, status)
        except RequestError as error:
            status.append(error.status)
            await send_answer(send, error_answer(error))  # the server reads past what is left of the body
        finally:
            self.metrics.answered(endpoint, status[-1], time.perf_counter() - start)

    async def _infer(
        self, name: str, version: str | None, headers: dict[str, str], receive: Receive, send: Send, status: list[int]
    ) -> None:
        """Answer inference without the framework, whose checks would take longer than the prediction."""
        async with self.bodies.body(headers, receive) as body:
            answer = await _guarded(self.handlers.infer(name, version, headers, body))
        is_large = len(answer.body) > STEP
        answer = await asyncio.to_thread(compressed, answer, headers) if is_large else compressed(answer, headers)
        status.append(answer.status)
        await send_answer(send, answer)

    def _make_api(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            await self.service.start()
            yield
            await self.service.stop()

        api = FastAPI(
            title="kcal",
            version=package_version("kcal"),
            description="Calibrated predictions over the Open Inference Protocol v2, with feedback and monitoring.",
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            lifespan=lifespan,
        )
        for path, (method, endpoint) in self._endpoints().items():
            documentation = OPERATIONS.get(path.replace("/versions/{version}", ""), {})
            api.add_api_route(
                path,
                self._adapted(endpoint),
                methods=[method],
                response_class=Response,
                name=re.sub(r"\W+", "_", path).strip("_") or "page",
                summary=documentation.get("summary"),
                openapi_extra={**documentation.get("openapi", {}), **_path_parameters(path)},
                responses=documentation.get("responses"),
                include_in_schema=path != "/docs",
            )
        api.add_exception_handler(HTTPException, _framework_error)
        return api

    def _endpoints(self) -> dict[str, tuple[str, Endpoint]]:
        handlers = self.handlers

        def body_of(request: Request) -> AbstractAsyncContextManager[bytes]:
            return self.bodies.body(headers_of(request.scope), request.receive)

        async def infer(request: Request) -> Answer:
            path, headers = request.path_params, headers_of(request.scope)
            async with body_of(request) as body:
                return await handlers.infer(path["model"], path.get("version"), headers, body)

        async def feedback(request: Request) -> Answer:
            path = request.path_params
            async with body_of(request) as body:
                return await handlers.feedback(path["model"], path.get("version"), body)

        async def predict(request: Request) -> Answer:
            async with body_of(request) as body:
                return await handlers.predict(body)

        async def metrics(_: Request) -> Answer:
            return Answer(await asyncio.to_thread(self.metrics.text), media_type=MEDIA_TYPE)

        async def docs(_: Request) -> Answer:
            return Answer(docs_page(self.api.openapi()).encode(), media_type="text/html; charset=utf-8")

        async def page(request: Request) -> Answer:
            return await handlers.page(request.query_params)

        model, one = "/v2/models/{model}", "/v2/models/{model}/versions/{version}"
        plain: dict[str, Callable[[Request], Answer]] = {
            "/v2": lambda _: handlers.server_metadata(),
            "/v2/health/live": lambda _: handlers.health(ready=False),
            "/v2/health/ready": lambda _: handlers.health(ready=True),
            "/healthz": lambda _: handlers.health(ready=False),
            "/readyz": lambda _: handlers.health(ready=True),
            "/v2/models": lambda _: handlers.models(),
            **{
                path: lambda request: handlers.model_metadata(
                    request.path_params["model"], request.path_params.get("version")
                )
                for path in (model, one)
            },
            **{
                f"{path}/ready": lambda request: handlers.model_ready(
                    request.path_params["model"], request.path_params.get("version")
                )
                for path in (model, one)
            },
        }
        return {
            "/": ("GET", page),
            **{path: ("GET", _asynchronous(answer)) for path, answer in plain.items()},
            "/v2/repository/index": ("POST", _asynchronous(lambda _: handlers.index())),
            **{f"{path}/infer": ("POST", infer) for path in (model, one)},
            **{f"{path}/feedback": ("POST", feedback) for path in (model, one)},
            "/predict": ("POST", predict),
            "/metrics": ("GET", metrics),
            "/docs": ("GET", docs),
        }

    def _adapted(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        """Return an endpoint for the framework, which then neither parses nor checks anything."""

        async def call(request: Request) -> Response:
            answer = await _guarded(endpoint(request))
            return Response(answer.body, answer.status, dict(answer.headers), answer.media_type)

        return call


async def _guarded(answer: Awaitable[Answer]) -> Answer:
    """Return an answer; errors that are no request's fault are logged, and say nothing of the server."""
    try:
        return await answer
    except RequestError as error:
        return error_answer(error)
    except Exception:
        logger.exception("a request failed")
        return json_answer({"error": "internal error"}, 500)


def _asynchronous(answer: Callable[[Request], Answer]) -> Endpoint:
    async def endpoint(request: Request) -> Answer:
        return answer(request)

    return endpoint


async def _framework_error(request: Request, error: Exception) -> Response:
    """Answer a request for an address that does not exist, or by a method that it does not have."""
    assert isinstance(error, HTTPException)
    headers, path = dict(error.headers or {}), request.url.path
    if error.status_code == 405:
        problem = f"{path} answers {headers['Allow']}, not {request.method}"
    else:
        problem = f"there is nothing at {path}"
    answer = error_answer(RequestError(error.status_code, f"{problem}; /docs lists all addresses", headers))
    return Response(answer.body, answer.status, headers, answer.media_type)


def _endpoint_name(path: str) -> str:
    """Return the name of an address in the metrics: one of few, whatever is asked for."""
    if path.startswith("/v2/models/") and path.endswith("/feedback"):
        return "feedback"
    if path.startswith("/v2/"):
        return "v2"
    return {"/": "page", "/predict": "predict", "/metrics": "metrics"}.get(path, "other")


def _path_parameters(path: str) -> dict[str, Any]:
    names = re.findall(r"\{(\w+)\}", path)
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    return {"parameters": parameters} if parameters else {}
