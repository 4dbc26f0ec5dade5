"""The service as an ASGI application: Starlette for addresses, FastAPI for their documentation.

Inference takes a direct way. FastAPI takes long to import, and is imported when the documentation is first asked for.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kcal.deployment.service.batching import in_thread_if
from kcal.deployment.service.bodies import BodyReader, compressed
from kcal.deployment.service.documentation import docs_page, openapi_schema
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.handlers import Call, Handlers
from kcal.deployment.service.messages import (
    HTML,
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
LARGE_ANSWER = 2**15
"""Answers of more bytes are compressed in a thread, so that other requests go on."""
Handler = Callable[[Call], Awaitable[Answer]]


class Application:
    """The ASGI application of a service."""

    def __init__(self, service: Service) -> None:
        self.service, self.handlers, self.metrics = service, Handlers(service), Metrics(service)
        self.bodies = BodyReader(service.options.max_body, BODIES * service.options.max_body)
        self.api = self._make_api()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or start and stop the service with the server."""
        if scope["type"] != "http":
            await self.api(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # answered as GET is; the server leaves out the body
            scope = {**scope, "method": "GET"}
        start, endpoint, statuses = time.perf_counter(), "other", [500]
        send = with_security_headers(send, statuses.append)
        try:
            headers, path = headers_of(scope), scope["path"]
            self.service.access.check(scope["method"], path, headers)
            match = INFER.fullmatch(path) if scope["method"] == "POST" else None
            endpoint = "infer" if match else _endpoint_name(path)
            if match:
                await send_answer(send, await self._infer(match[1], match[2], headers, receive))
            else:
                await self.api(scope, receive, send)
        except RequestError as error:
            await send_answer(send, error_answer(error))  # the server skips what is left of the body
        finally:
            self.metrics.answered(endpoint, statuses[-1], time.perf_counter() - start)

    async def _infer(self, model: str, version: str | None, headers: Mapping[str, str], receive: Receive) -> Answer:
        """Answer inference without the framework, whose checks would take longer than the prediction."""
        answer = await self._answer(self.handlers.infer, Call(headers, model, version), receive)
        return await in_thread_if(len(answer.body) > LARGE_ANSWER, compressed, answer, headers)

    async def _answer(self, handler: Handler, call: Call, receive: Receive | None) -> Answer:
        """Return the answer of a handler, or to its error; the body is read if ``receive`` is given."""
        try:
            if receive is None:
                return await handler(call)
            async with self.bodies.body(call.headers, receive) as call.body:
                return await handler(call)
        except RequestError as error:
            return error_answer(error)
        except Exception:  # not the client's fault: the log has it, and the answer says nothing of the server
            logger.exception("a request failed")
            return json_answer({"error": "internal error"}, 500)

    def _make_api(self) -> Starlette:
        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            await self.service.start()
            yield
            await self.service.stop()

        api = Starlette(lifespan=lifespan, exception_handlers={HTTPException: _framework_error})
        api.router.redirect_slashes = False
        for path, (method, handler) in self._routes().items():
            route = Route(path, self._endpoint(handler, has_body=method == "POST"), methods=[method])
            route.methods = {method}  # not HEAD beside GET: it has become GET before
            api.router.routes.append(route)
        return api

    def _routes(self) -> dict[str, tuple[str, Handler]]:
        """Return the method and the handler of every address."""
        handlers = self.handlers
        of_model: dict[str, tuple[str, Handler]] = {
            "": ("GET", handlers.model_metadata),
            "/ready": ("GET", handlers.model_ready),
            "/infer": ("POST", handlers.infer),  # for the documentation: requests take the direct way
            "/feedback": ("POST", handlers.feedback),
            "/monitors/reset": ("POST", handlers.reset_monitors),
        }
        return {
            "/": ("GET", handlers.page),
            "/v2": ("GET", handlers.server_metadata),
            "/v2/health/live": ("GET", handlers.live),
            "/v2/health/ready": ("GET", handlers.ready),
            "/healthz": ("GET", handlers.live),
            "/readyz": ("GET", handlers.ready),
            "/v2/models": ("GET", handlers.models),
            "/v2/repository/index": ("POST", handlers.index),
            **{f"/v2/models/{{model}}{path}": route for path, route in of_model.items()},
            **{f"/v2/models/{{model}}/versions/{{version}}{path}": route for path, route in of_model.items()},
            "/predict": ("POST", handlers.predict),
            "/metrics": ("GET", self._metrics),
            "/docs": ("GET", self._docs),
            "/openapi.json": ("GET", self._openapi),
        }

    def _endpoint(self, handler: Handler, *, has_body: bool) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler as an endpoint of the framework, which then neither parses nor checks anything."""

        async def endpoint(request: Request) -> Response:
            call = Call(headers_of(request.scope), query=request.query_params, **request.path_params)
            answer = await self._answer(handler, call, request.receive if has_body else None)
            return Response(answer.body, answer.status, dict(answer.headers), answer.media_type)

        return endpoint

    async def _metrics(self, _: Call) -> Answer:
        return Answer(await asyncio.to_thread(self.metrics.text), media_type=MEDIA_TYPE)

    async def _docs(self, _: Call) -> Answer:
        return Answer(docs_page(await asyncio.to_thread(lambda: self._schema)).encode(), media_type=HTML)

    @cached_property
    def _schema(self) -> dict[str, Any]:
        undocumented = ("/docs", "/openapi.json")
        return openapi_schema(
            {path: method for path, (method, _) in self._routes().items() if path not in undocumented}
        )

    async def _openapi(self, _: Call) -> Answer:
        return json_answer(await asyncio.to_thread(lambda: self._schema))


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
    """Return the name of an address in the metrics; there are only a few, so that metrics stay small."""
    if path.startswith("/v2/models/") and path.endswith("/feedback"):
        return "feedback"
    if path in ("/healthz", "/readyz") or path.startswith("/v2/health/"):
        return "health"
    if path == "/v2" or path.startswith("/v2/"):
        return "v2"
    return {"/": "page", "/predict": "predict", "/metrics": "metrics", "/docs": "docs"}.get(path, "other")
