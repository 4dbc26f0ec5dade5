"""HTTP beside the framework: bodies with a limit, answers, and the headers that every answer has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kcal.deployment.service.errors import RequestError, bad_request, busy
from kcal.deployment.service.tensors import too_large

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

BODY_SECONDS = 60.0
"""How long a client may take to send a body."""
DRAINED_BYTES = 2**16
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self' 'unsafe-inline'; script-src 'self'; img-src 'self' data:; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RAW_SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


@dataclass(frozen=True, eq=False)
class Answer:
    """A response."""

    body: bytes = b""
    status: int = 200
    media_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """Return an answer of JSON."""
    return Answer(json.dumps(content, allow_nan=False).encode(), status, headers=headers or {})


def error_answer(error: RequestError) -> Answer:
    """Return the answer to a request that was refused."""
    return json_answer({"error": error.message}, error.status, error.headers)


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the headers of a request by lower-case name; the last of a name counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def read_body(headers: Mapping[str, str], receive: Receive, limit: int) -> bytes:
    """Return the body of a request; raise before it is read if it is announced, or while it comes, as too large."""
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(415, "the body must not be compressed")
    announced = headers.get("content-length", "0")
    if not announced.isdigit() or len(announced) > 18:
        raise bad_request("Content-Length must be a number")
    if int(announced) > limit:
        raise too_large("the body", limit)
    message = await receive()
    if not message.get("more_body"):
        first: bytes = message.get("body", b"")
        if len(first) > limit:
            raise too_large("the body", limit)
        return first
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _read_rest(message, receive, limit)
    except TimeoutError:
        raise RequestError(408, f"the body must arrive within {BODY_SECONDS:.0f} seconds") from None


class BodyReader:
    """Reads bodies, and keeps those that are read or answered at the same time below a total number of bytes.

    Parameters
    ----------
    limit : int
        Bytes of a body.
    total : int
        Bytes of all bodies; further requests get status 503.
    """

    def __init__(self, limit: int, total: int) -> None:
        self.limit, self.total, self.used = limit, total, 0

    @asynccontextmanager
    async def body(self, headers: Mapping[str, str], receive: Receive) -> AsyncIterator[bytes]:
        """Yield the body of a request; it counts until the block ends, at its announced length or at the limit."""
        announced = headers.get("content-length", "")
        size = min(int(announced), self.limit) if announced.isdigit() and len(announced) < 18 else self.limit
        if self.used + size > self.total:
            raise busy("too many bytes of other requests are waiting; try again later")
        self.used += size
        try:
            yield await read_body(headers, receive, self.limit)
        finally:
            self.used -= size


async def _read_rest(message: Message, receive: Receive, limit: int) -> bytes:
    parts, size = [], 0
    while True:
        if message["type"] == "http.disconnect":
            raise bad_request("the client left before its body was complete")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise too_large("the body", limit)
        if not message.get("more_body"):
            return b"".join(parts)
        message = await receive()


async def drain(receive: Receive) -> bool:
    """Read what is left of a small body, so that the connection can be used again; return whether it was all."""
    size = 0
    while size <= DRAINED_BYTES:
        try:
            async with asyncio.timeout(1.0):
                message = await receive()
        except TimeoutError:
            return False
        if message["type"] == "http.disconnect":
            return False
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            return True
    return False


async def send_answer(send: Send, answer: Answer) -> None:
    """Send an answer."""
    headers = [
        (b"content-type", answer.media_type.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        *_RAW_SECURITY_HEADERS,
        *((name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()),
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def with_security_headers(send: Send, note: Callable[[int], None]) -> Send:
    """Return a function that sends what the framework answers with our headers, and notes the status."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            note(message["status"])
            present = {name for name, _ in message["headers"]}
            more = [header for header in _RAW_SECURITY_HEADERS if header[0] not in present]
            message["headers"] = [*message["headers"], *more]
        await send(message)

    return wrapped
