"""Tokens that clients show: 256 random bits, of which the token file holds the SHA-256, with name and scopes.

A token has so many random bits that a plain digest is as good as a slow one: there is nothing to guess.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import atomic_path, check_path, locked_folder

SCOPES = ("predict", "feedback", "metrics", "admin")
"""What a token allows; admin also allows the rest."""
PREFIX = "kcal_"
N_BYTES = 32
FORMAT = 1
LONGEST_NAME = 100


@dataclass(frozen=True)
class TokenRecord:
    """A token as it is stored."""

    name: str
    scopes: tuple[str, ...]
    sha256: str
    created: str

    def allows(self, scope: str | None) -> bool:
        """Return whether the token allows a scope; None stands for any."""
        return scope is None or scope in self.scopes or "admin" in self.scopes


def digest(token: str) -> str:
    """Return the SHA-256 of a token, as hexadecimal text."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def create_token(path: Path, name: str, scopes: Sequence[str]) -> str:
    """Add a token to a file, which is created if it does not exist; return the token, which is stored nowhere."""
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise InvalidInputError(
            "--name", f"must be printable text of at most {LONGEST_NAME} characters", got=repr(name)
        )
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidInputError("--scope", f"must be one of {', '.join(SCOPES)}", got=repr(scope))
    if not scopes:
        raise InvalidInputError("--scope", f"must be given: {', '.join(SCOPES)}")
    token = PREFIX + secrets.token_urlsafe(N_BYTES)
    ordered = tuple(scope for scope in SCOPES if scope in scopes)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with _locked(path):
        records = read_tokens(path) if check_path(path).exists() else []
        if name in [record.name for record in records]:
            remedy = "Revoke the token of this name first."
            raise InvalidInputError("--name", "must be new", got=repr(name), remedy=remedy)
        _write(path, [*records, TokenRecord(name, ordered, digest(token), created)])
    return token


def revoke_token(path: Path, name: str) -> None:
    """Remove the token of a name from a file; a running service reads the file again within seconds."""
    read_tokens(path)  # raises before a lock file is made beside a file that does not exist
    with _locked(path):
        records = read_tokens(path)
        left = [record for record in records if record.name != name]
        if len(left) == len(records):
            raise InvalidInputError("--name", f"must be that of a token in {path}", got=repr(name))
        _write(path, left)


def _locked(path: Path) -> AbstractContextManager[None]:
    """Return the lock of a token file, a file beside it: one process at a time reads, changes and writes it."""
    target = Path(os.path.realpath(check_path(path)))
    if not target.parent.is_dir():
        remedy = f"Make the folder {target.parent} first."
        raise InvalidInputError("path", "must be in an existing folder", got=str(path), remedy=remedy)
    return locked_folder(target.parent, f".{target.name}.lock", wait=True)


def read_tokens(path: Path) -> list[TokenRecord]:
    """Return the tokens of a file."""
    place = check_path(path)
    damaged = FileFormatError(f"{place} is not a token file, or it is damaged. Make one with kcal token create.")
    try:
        content = json.loads(place.read_bytes())
        if content["format"] != FORMAT:
            raise damaged
        records = [_record(entry) for entry in content["tokens"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise damaged from None
    return records


def _record(entry: Any) -> TokenRecord:
    record = TokenRecord(entry["name"], tuple(entry["scopes"]), entry["sha256"], entry["created"])
    texts = (record.name, record.sha256, record.created, *record.scopes)
    if not all(isinstance(text, str) for text in texts) or len(bytes.fromhex(record.sha256)) != N_BYTES:
        raise ValueError("a field is damaged")
    if not set(record.scopes) <= set(SCOPES):
        raise ValueError("a scope is unknown")
    return record


def _write(path: Path, records: Sequence[TokenRecord]) -> None:
    content = {"format": FORMAT, "tokens": [asdict(record) for record in records]}
    is_new = not check_path(path).exists()
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        if is_new:
            temporary.chmod(0o600)


def find_token(records: Sequence[TokenRecord], token: str) -> TokenRecord | None:
    """Return the record of a token; every record is compared, in constant time."""
    given, match = digest(token), None
    for record in records:
        if hmac.compare_digest(given, record.sha256):
            match = record
    return match


def token_of(authorization: str, *, basic: bool) -> str | None:
    """Return the token of an Authorization header; ``basic`` accepts it as the password of a browser, too."""
    kind, _, value = authorization.partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if basic and kind.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
    return None
