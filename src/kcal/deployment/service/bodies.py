"""Bodies of requests, read with a limit and decompressed as they arrive; and compressed answers."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from kcal.deployment.service.errors import RequestError, bad_request, busy, too_large
from kcal.deployment.service.messages import Answer, Receive

BODY_SECONDS = 60.0
"""How long a client may take to send a body."""
LAST_SECONDS = 5.0
"""How long it may still take when the service stops."""
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content encodings, and what zlib has to know to read and write them."""
STEP = 2**18
"""Bytes that are decompressed before their number is checked, and other requests have their turn."""
FEWEST_COMPRESSED = 2**10
"""Bytes of an answer from which on it is compressed."""


class BodyReader:
    """Reads bodies, and keeps those that are read or answered at the same time below a total number of bytes.

    Parameters
    ----------
    limit : int
        Bytes of a body, compressed or not.
    total : int
        Bytes of all bodies; further requests get status 503.
    seconds : float
        How long a body may take; after that its request gets status 408.
    """

    def __init__(self, limit: int, total: int, seconds: float = BODY_SECONDS) -> None:
        self.limit, self.total, self.used, self.seconds = limit, total, 0, seconds
        self._timeouts: set[asyncio.Timeout] = set()  # of the bodies that are being read

    def stop(self) -> None:
        """Let no body take longer than some seconds from now on."""
        self.seconds = min(LAST_SECONDS, self.seconds)
        end = asyncio.get_running_loop().time() + self.seconds
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(min(end, timeout.when() or end))

    @asynccontextmanager
    async def body(self, headers: Mapping[str, str], receive: Receive) -> AsyncIterator[bytes]:
        """Yield the body of a request; what has arrived of it, decompressed, counts until the block ends."""
        self._check_announced(headers)
        decoder, count = _Decoder(_content_encoding(headers)), _Count()
        try:
            yield await self._read(receive, decoder, count)
        finally:
            self.used -= count.n_bytes

    async def _read(self, receive: Receive, decoder: _Decoder, count: _Count) -> bytes:
        """Return a body; raise if it is too large or takes too long."""
        seconds = self.seconds
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._timeouts.add(timeout)
                return b"".join([part async for part in self._parts(receive, decoder, count)])
        except TimeoutError:
            end = f"within {seconds:g} seconds" if seconds == self.seconds else "before the service stopped"
            raise RequestError(408, f"the body did not arrive {end}", {"Connection": "close"}) from None
        finally:
            self._timeouts.discard(timeout)

    async def _parts(self, receive: Receive, decoder: _Decoder, count: _Count) -> AsyncIterator[bytes]:
        n_received, is_complete = 0, False
        while not is_complete:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise bad_request("the client left before its body was complete")
            is_complete, content = not message.get("more_body"), message.get("body", b"")
            n_received += len(content)
            for part in decoder.read(content, is_complete):
                if max(n_received, count.n_bytes + len(part)) > self.limit:
                    raise too_large("the body", self.limit)
                self._add(count, len(part))
                yield part
                if len(part) == STEP:
                    await asyncio.sleep(0)

    def _check_announced(self, headers: Mapping[str, str]) -> None:
        """Raise if the announced length is above the limit, or no number."""
        announced = headers.get("content-length", "0")
        if not (announced.isascii() and announced.isdigit() and len(announced) <= 18):
            raise bad_request("Content-Length must be a number")
        if int(announced) > self.limit:
            raise too_large("the body", self.limit)

    def _add(self, count: _Count, n_bytes: int) -> None:
        """Let a request count with more bytes; raise if all requests together have too many."""
        if self.used + n_bytes > self.total:
            raise busy("too many bytes of other requests are waiting; try again later")
        self.used += n_bytes
        count.n_bytes += n_bytes


@dataclass
class _Count:
    """Bytes that a request counts with."""

    n_bytes: int = 0


def _content_encoding(headers: Mapping[str, str]) -> str:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", *WINDOW_BITS):
        supported = ", ".join(WINDOW_BITS)
        message = f"the Content-Encoding {encoding!r} is not supported; supported are {supported} and identity"
        raise RequestError(415, message, {"Accept-Encoding": supported})
    return encoding


class _Decoder:
    """Decompresses a body as it arrives."""

    def __init__(self, encoding: str) -> None:
        self.encoding = encoding
        self.decoder = zlib.decompressobj(WINDOW_BITS[encoding]) if encoding in WINDOW_BITS else None

    def read(self, content: bytes, is_complete: bool) -> Iterator[bytes]:
        """Yield the next part of the body, a step at a time if it is compressed; raise if it is damaged."""
        if self.decoder is None:
            yield content
            return
        part = b""
        while content or len(part) == STEP:  # after a full step the decoder may have more inside
            try:
                part = self.decoder.decompress(content, STEP)
            except zlib.error:
                raise bad_request(f"the body is not valid {self.encoding} data") from None
            content = self.decoder.unconsumed_tail
            yield part
        if self.decoder.unused_data or (is_complete and not self.decoder.eof):
            raise bad_request(f"the body must be complete {self.encoding} data, with nothing behind it")


def compressed(answer: Answer, headers: Mapping[str, str]) -> Answer:
    """Return an answer in an encoding that the client accepts, if there is one and the answer is long enough."""
    offers = ["".join(offer.split()).partition(";") for offer in headers.get("accept-encoding", "").lower().split(",")]
    accepted = [name for name, _, weight in offers if name in WINDOW_BITS and weight.rstrip(".0") != "q="]
    if not accepted or len(answer.body) < FEWEST_COMPRESSED:
        return answer
    encoder = zlib.compressobj(1, wbits=WINDOW_BITS[accepted[0]])
    body = encoder.compress(answer.body) + encoder.flush()
    return replace(answer, body=body, headers={**answer.headers, "Content-Encoding": accepted[0]})
