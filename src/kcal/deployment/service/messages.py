"""HTTP without the framework: answers, and the headers that every answer has."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from kcal.deployment.service.errors import RequestError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HTML = "text/html; charset=utf-8"
_SECURITY_HEADERS = {
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
SECURITY_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _SECURITY_HEADERS.items()]


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


async def send_answer(send: Send, answer: Answer) -> None:
    """Send an answer."""
    headers = {"content-type": answer.media_type, "content-length": str(len(answer.body)), **answer.headers}
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": answer.body})


def with_security_headers(send: Send, note_status: Callable[[int], None]) -> Send:
    """Return a function that sends an answer with the headers that every answer has, and notes its status."""

    async def wrapped(message: Message) -> None:
        if message["type"] == "http.response.start":
            note_status(message["status"])
            present = {name for name, _ in message["headers"]}
            message["headers"] = [*message["headers"], *(one for one in SECURITY_HEADERS if one[0] not in present)]
        await send(message)

    return wrapped
