"""Who may do what: tokens and scopes, and requests that web pages of others make through a browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.tokens import TokenRecord, find_token, read_tokens, token_of
from kcal.errors import FileFormatError

LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
ANYONE = "anyone"
"""Scope of what needs no token."""
ANY = "any"
"""Scope of what every token allows."""
SHOWN_IN_BROWSERS = ("metrics", "admin")
"""Scopes of what a browser shows; it then asks for the token as a password."""

_RULES: tuple[tuple[str, str], ...] = (
    (r"/healthz|/readyz|/v2/health/(live|ready)", ANYONE),
    (r"/v2/models/[^/]+(/versions/[^/]+)?/feedback", "feedback"),
    (r"/v2/models/[^/]+(/versions/[^/]+)?/infer|/predict", "predict"),
    (r"/v2/models/[^/]+(/versions/[^/]+)?/monitors/reset", "admin"),
    (r"/metrics", "metrics"),
    (r"/v2|/v2/(models|repository/index).*|/openapi\.json|/docs", ANY),
)
RULES = tuple((re.compile(pattern), scope) for pattern, scope in _RULES)


def scope_of(path: str) -> str:
    """Return the scope that an address needs; admin unless a rule says otherwise."""
    return next((scope for pattern, scope in RULES if pattern.fullmatch(path)), "admin")


class Access:
    """Decides whether a request may pass.

    Without a token file everything is allowed, but only to requests for this machine by one of its own names: a web
    page that a browser shows must not reach the service through a name of its own. A request with a body that a web
    page of another origin makes is refused in any case.
    """

    def __init__(self, token_file: Path | None) -> None:
        self.token_file = token_file
        self.tokens: list[TokenRecord] = [] if token_file is None else read_tokens(token_file)
        self._stamp = self._read_stamp()

    def refresh(self) -> None:
        """Read the token file again if it has changed; while it cannot be read, the earlier tokens stay."""
        stamp = self._read_stamp()
        if self.token_file is None or stamp is None or stamp == self._stamp:
            return
        try:
            self.tokens = read_tokens(self.token_file)
        except (FileFormatError, OSError):
            return
        self._stamp = stamp

    def _read_stamp(self) -> tuple[int, int, int] | None:
        if self.token_file is None:
            return None
        try:
            status = self.token_file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise if a request may not pass; the names of headers are lower case."""
        scope = scope_of(path)
        if scope == ANYONE:
            return
        origin, host = headers.get("origin"), headers.get("host", "")
        is_reading = method in ("GET", "HEAD")
        if not is_reading and origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, "requests from web pages of another origin are refused")
        if self.token_file is None:
            if _without_port(host) not in LOCAL_NAMES:
                raise RequestError(403, "without tokens the service answers only as 127.0.0.1 or localhost")
            return
        self._check_token(scope, token_of(headers.get("authorization", ""), basic=is_reading), is_reading)

    def _check_token(self, scope: str, token: str | None, is_reading: bool) -> None:
        record = None if token is None else find_token(self.tokens, token)
        if record is None:
            kind = 'Basic realm="kcal"' if scope in SHOWN_IN_BROWSERS and is_reading else "Bearer"
            message = "the request needs a valid token: Authorization: Bearer TOKEN"
            raise RequestError(401, message, {"WWW-Authenticate": kind})
        if not record.allows(None if scope == ANY else scope):
            raise RequestError(403, f"the token does not have the scope {scope}")


def _without_port(host: str) -> str:
    return re.sub(r":\d+$", "", host).lower()
