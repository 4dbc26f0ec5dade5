"""Tokens of clients: 256 random bits each, of which the token file holds the SHA-256, with a name and scopes.

A token has so many random bits that a plain digest is as good as a slow one: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import atomic_path, check_path, check_target, locked_folder

Scope = Literal["predict", "feedback", "metrics", "admin"]
"""What a token allows; admin includes the others."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
MAX_NAME_LENGTH = 100


class Token(BaseModel):
    """A token as it is stored."""

    model_config = ConfigDict(extra="forbid")

    name: str
    scopes: tuple[Scope, ...]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    created: str

    def allows(self, scope: str) -> bool:
        """Return whether the token has a scope."""
        return scope in self.scopes or "admin" in self.scopes


class TokenFile(BaseModel):
    """The tokens of a service."""

    format: Literal[1]
    tokens: list[Token]


def create_token(path: Path, name: str, scopes: Sequence[str]) -> str:
    """Add a token to a file, which is created if it does not exist; return the token, which is stored nowhere."""
    if not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
        expected = f"must be printable text of at most {MAX_NAME_LENGTH} characters"
        raise InvalidInputError("--name", expected, got=repr(name))
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InvalidInputError("--scope", f"must be one of {', '.join(SCOPES)}", got=", ".join(scopes) or "none")
    secret = f"kcal_{secrets.token_urlsafe(32)}"
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with _locked(path):
        tokens = read_tokens(path) if check_path(path).exists() else []
        if name in [token.name for token in tokens]:
            remedy = "Revoke the token of this name first."
            raise InvalidInputError("--name", "must be new", got=repr(name), remedy=remedy)
        _write(path, [*tokens, Token(name=name, scopes=ordered, sha256=_digest(secret), created=created)])
    return secret


def revoke_token(path: Path, name: str) -> None:
    """Remove the token of a name from a file; a running service reads the file again within seconds."""
    read_tokens(path)  # raises before a lock file is made beside a file that does not exist
    with _locked(path):
        tokens = read_tokens(path)
        kept = [token for token in tokens if token.name != name]
        if len(kept) == len(tokens):
            raise InvalidInputError("--name", f"must be that of a token in {path}", got=repr(name))
        _write(path, kept)


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file."""
    place = check_path(path)
    try:
        return TokenFile.model_validate_json(place.read_bytes()).tokens
    except ValidationError:
        message = f"{place} is not a token file, or it is damaged. Make one with kcal token create."
        raise FileFormatError(message) from None


def find_token(tokens: Sequence[Token], secret: str) -> Token | None:
    """Return the stored token of a secret; every one is compared, in constant time."""
    given, match = _digest(secret), None
    for token in tokens:
        if hmac.compare_digest(given, token.sha256):
            match = token
    return match


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _locked(path: Path) -> AbstractContextManager[None]:
    """Return the lock of a token file, a file beside it: one process at a time reads, changes and writes it."""
    check_target(path)
    target = Path(os.path.realpath(check_path(path)))
    return locked_folder(target.parent, f".{target.name}.lock", wait=True)


def _write(path: Path, tokens: list[Token]) -> None:
    is_new = not check_path(path).exists()
    with atomic_path(path) as temporary:
        temporary.write_text(TokenFile(format=1, tokens=tokens).model_dump_json(indent=2) + "\n", encoding="utf-8")
        if is_new:
            temporary.chmod(0o600)
