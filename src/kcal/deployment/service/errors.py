"""Errors of a request: an HTTP status and one sentence for the client, without internals of the server."""

from __future__ import annotations

from kcal.errors import printable

LONGEST_MESSAGE = 500
"""Messages may quote a part of the request; longer ones are cut."""


class RequestError(Exception):
    """Raise for a request that cannot be answered.

    Parameters
    ----------
    status : int
        HTTP status.
    message : str
        What was expected and what was given, for the client.
    headers : dict, optional
        Headers of the response.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, headers or {}
        text = printable(message.encode("utf-8", "replace").decode())
        self.message = text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"
        super().__init__(self.message)


def bad_request(message: str) -> RequestError:
    """Return the error for a malformed body."""
    return RequestError(400, message)


def busy(message: str, seconds: int = 1) -> RequestError:
    """Return the error of a server that has too much to do; the client may try again after some seconds."""
    return RequestError(503, message, {"Retry-After": str(seconds)})


def too_large(what: str, limit: int) -> RequestError:
    """Return the error for a body, or a part of one, of more bytes than allowed."""
    return RequestError(413, f"{what} must have at most {limit} bytes")
