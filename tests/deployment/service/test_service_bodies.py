"""Bodies: compressed ones, those that arrive slowly, and the limits of each and of all together."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import re
import socket
import threading
import tracemalloc
import weakref
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running_service import PATIENCE, Running, running, wait_until
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from kcal.deployment.service import api, bodies, server
from kcal.deployment.service.bodies import STEP, BodyReader, compressed
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.messages import Answer

COMPRESS = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
DECOMPRESS = {"gzip": gzip.decompress, "deflate": zlib.decompress}
INFER = "/v2/models/animals/infer"


def read(
    parts: list[bytes], headers: dict[str, str] | None = None, *, limit: int = 2**22, total: int = 2**23
) -> tuple[bytes | RequestError, BodyReader]:
    """Return the body that arrives in these parts, or the error, and the reader."""
    reader, waiting = BodyReader(limit, total), list(parts)

    async def receive():
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def story():
        async with reader.body(headers or {}, receive) as body:
            assert len(body) <= reader.used <= total
            return body

    try:
        return asyncio.run(story()), reader
    except RequestError as error:
        return error, reader


def cut(content: bytes, size: int) -> list[bytes]:
    return [content[start : start + size] for start in range(0, len(content), size)] or [b""]


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(list(COMPRESS)), st.integers(1, 50), st.booleans())
def test_a_body_is_the_same_however_it_arrives(content, encoding, size, announced):
    encoded = COMPRESS[encoding](content)
    headers = {"content-encoding": encoding} | ({"content-length": str(len(encoded))} if announced else {})
    body, reader = read(cut(encoded, size), headers, limit=400)
    assert body == content
    assert reader.used == 0


@pytest.mark.parametrize("n_bytes", [STEP - 1, STEP, STEP + 1, 3 * STEP])
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_nothing_is_left_in_the_decoder_after_a_full_step(n_bytes, encoding):
    content = b"a" * n_bytes
    body, _ = read(cut(COMPRESS[encoding](content), 7), {"content-encoding": encoding})
    assert body == content


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_refused_before_it_has_expanded(encoding):
    bomb = COMPRESS[encoding](bytes(2**25))
    tracemalloc.start()
    try:
        error, reader = read(cut(bomb, 2**16), {"content-encoding": encoding, "content-length": str(len(bomb))})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.status == 413
    assert "4194304" in error.message.replace(",", "")
    assert peak < 2 * 2**22
    assert reader.used == 0


def test_compressed_bytes_that_expand_to_nothing_have_a_limit():
    encoder = zlib.compressobj()
    start = encoder.compress(b"{}") + encoder.flush(zlib.Z_FULL_FLUSH)
    whole = start + 1000 * start[-5:] + encoder.flush()  # a flush ends with an empty block, of 5 bytes
    headers = {"content-encoding": "deflate"}
    assert read(cut(whole, 100), headers, limit=len(whole))[0] == b"{}"
    error, reader = read(cut(whole, 100), headers, limit=len(whole) - 1)
    assert error.status == 413
    assert reader.used == 0


def test_what_grows_by_decompression_counts_towards_the_total():
    content = gzip.compress(bytes(2000))
    headers = {"content-encoding": "gzip", "content-length": str(len(content))}
    assert read([content], headers, limit=2000, total=2000)[0] == bytes(2000)
    error, reader = read([content], headers, limit=2000, total=1999)
    assert error.status == 503
    assert reader.used == 0


VALID = gzip.compress(b'{"inputs": []}', mtime=0)


@pytest.mark.parametrize(
    ("body", "encoding", "status", "message"),
    [
        (VALID, "br", 415, "'br' is not supported; supported are gzip, deflate and identity"),
        (VALID, "gzip, gzip", 415, "is not supported"),
        (VALID, "deflate", 400, "not valid deflate data"),
        (b"{}", "gzip", 400, "not valid gzip data"),
        (VALID[:-3], "gzip", 400, "complete gzip data"),
        (b"", "gzip", 400, "complete gzip data"),
        (VALID + b"more", "gzip", 400, "nothing behind it"),
        (VALID + VALID, "gzip", 400, "nothing behind it"),
    ],
)
def test_damaged_and_unknown_encodings_are_refused(service: Running, body, encoding, status, message):
    with service.http() as client:
        answer = client.post(INFER, content=body, headers={"Content-Encoding": encoding})
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert (answer.headers.get("accept-encoding") == "gzip, deflate") == (status == 415)


def test_plain_json_may_be_compressed_and_long_answers_of_inference_are(service: Running, problem):
    rows = problem.test_embeddings[:100].tolist()
    plain = {"model": "animals", "embeddings": rows[:1]}
    tensor = {"name": "embeddings", "shape": [100, 6], "datatype": "FP32", "data": rows}
    with service.http(headers={"Content-Encoding": "gzip"}) as client:
        predicted = client.post("/predict", content=gzip.compress(json.dumps(plain).encode()))
        inferred = client.post(INFER, content=gzip.compress(json.dumps({"inputs": [tensor]}).encode()))
    assert predicted.status_code == inferred.status_code == 200
    assert "content-encoding" not in predicted.headers
    assert inferred.headers["content-encoding"] == "gzip"
    assert inferred.json()["outputs"][0]["data"][:3] == pytest.approx(predicted.json()["probabilities"][0], rel=1e-5)


@pytest.mark.parametrize(("n_rows", "in_thread"), [(50, False), (2000, True)])
def test_answers_that_take_long_to_compress_are_compressed_in_a_thread(
    service: Running, problem, monkeypatch, n_rows, in_thread
):
    threads = []

    def noted(answer, headers):
        threads.append((threading.current_thread().name, 2**15 < len(answer.body) < 2**18))
        return compressed(answer, headers)

    monkeypatch.setattr(api, "compressed", noted)
    rows = problem.test_embeddings[:1].tolist() * n_rows
    tensor = {"name": "embeddings", "shape": [n_rows, 6], "datatype": "FP32", "data": rows}
    body = {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}
    with service.http() as client:
        assert client.post(INFER, json=body).headers["content-encoding"] == "gzip"
    ((thread, is_long),) = threads
    assert is_long == in_thread == thread.startswith("asyncio_")


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip", "gzip"), ("deflate", "deflate"), ("br, GZIP;q=0.5", "gzip"), ("gzip; q=0, deflate", "deflate"),
        ("", None), ("br", None), ("gzip;q=0.0", None), ("*", None), (";,;q", None), ("gzip;\tq=0", None),
    ],
)  # fmt: skip
def test_answers_are_compressed_as_the_client_accepts(accepted, encoding):
    answer = Answer(bytes(5000), headers={"A": "b"})
    result = compressed(answer, {"accept-encoding": accepted})
    assert result.headers.get("Content-Encoding") == encoding
    assert (DECOMPRESS[encoding](result.body) if encoding else result.body) == answer.body
    assert result.headers["A"] == "b"
    assert compressed(Answer(b"short"), {"accept-encoding": accepted}).body == b"short"


async def never():
    """Be a client that sends nothing more."""
    await asyncio.Event().wait()


@pytest.mark.parametrize("first", [b"", b"{"])
def test_a_body_that_does_not_come_is_given_up(first):
    reader, parts = BodyReader(100, 100, seconds=0.01), [first] if first else []

    async def receive():
        return {"type": "http.request", "body": parts.pop(), "more_body": True} if parts else await never()

    async def story():
        async with reader.body({}, receive):
            raise AssertionError("the body was never complete")

    with pytest.raises(RequestError, match=r"within 0\.01 seconds") as error:
        asyncio.run(story())
    assert error.value.status == 408
    assert reader.used == 0


def test_a_service_that_stops_does_not_wait_for_slow_bodies(monkeypatch):
    monkeypatch.setattr(bodies, "LAST_SECONDS", 0.01)

    async def story():
        reader = BodyReader(100, 100)

        async def read_slowly():
            async with reader.body({"content-length": "9"}, never):
                raise AssertionError("the body was never complete")

        reading = asyncio.create_task(read_slowly())
        await asyncio.sleep(0)
        reader.stop()
        with pytest.raises(RequestError, match="before the service stopped"):
            await reading
        with pytest.raises(RequestError, match=r"within 0\.01 seconds"):
            await read_slowly()

    asyncio.run(story())


def test_a_service_may_stop_at_the_moment_at_which_a_body_is_given_up():
    async def story():
        reader = BodyReader(100, 100, seconds=0.0)

        async def read_slowly():
            async with reader.body({}, never):
                raise AssertionError("the body was never complete")

        reading = asyncio.create_task(read_slowly())
        while not any(timeout.expired() for timeout in reader._timeouts):
            await asyncio.sleep(0)
        reader.stop()
        with pytest.raises(RequestError, match="within 0 seconds"):
            await reading

    asyncio.run(story())


def test_connections_that_have_ended_do_not_stay_in_memory(folder, monkeypatch):
    ended, lose = [], AutoHTTPProtocol.connection_lost

    def connection_lost(self, exc):
        lose(self, exc)
        ended.append(weakref.ref(self))

    def are_gone() -> bool:
        gc.collect()
        return len(ended) >= 5 and not any(reference() for reference in ended)

    monkeypatch.setattr(AutoHTTPProtocol, "connection_lost", connection_lost)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 10 * PATIENCE)
    with running(folder) as one, one.http(headers={"Connection": "close"}) as client:
        for _ in range(5):
            assert client.get("/healthz").status_code == 200
        wait_until(are_gone)


def test_an_idle_connection_stays_as_long_as_its_keep_alive():
    assert server.REQUEST_SECONDS > server.KEEP_ALIVE_SECONDS


def test_slow_clients_hold_up_neither_others_nor_the_end(folder, monkeypatch):
    monkeypatch.setattr(bodies, "LAST_SECONDS", 0.01)
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
    with ExitStack() as stack:

        def connect(content: bytes) -> socket.socket:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            connection.sendall(content)
            return connection

        with running(folder) as one, one.http() as client:
            port = int(one.url.rpartition(":")[2])
            slow = [connect(head + b"\r\n" + b"{" * 50) for _ in range(50)]
            row = {"model": "animals", "embeddings": [[0.0] * 6]}
            assert [client.post("/predict", json=row).status_code for _ in range(10)] == [200] * 10
            monkeypatch.setattr(server, "REQUEST_SECONDS", 0.01)
            for silent in (connect(b""), connect(head)):
                assert silent.recv(1000) == b""
        assert {connection.recv(12) for connection in slow} == {b"HTTP/1.1 408"}


BUFFER = 2**15
"""Bytes of the system's buffers; with much smaller ones TCP may pause for seconds."""


class Connections:
    """The connections that a server has at present."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.protocols: list[Any] = []
        made, lost = AutoHTTPProtocol.connection_made, AutoHTTPProtocol.connection_lost

        def connection_made(protocol: Any, transport: Any) -> None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            self.protocols.append(protocol)
            made(protocol, transport)

        def connection_lost(protocol: Any, error: Exception | None) -> None:
            self.protocols.remove(protocol)
            lost(protocol, error)

        monkeypatch.setattr(AutoHTTPProtocol, "connection_made", connection_made)
        monkeypatch.setattr(AutoHTTPProtocol, "connection_lost", connection_lost)

    @contextmanager
    def asking(self, one: Running, n_rows: int) -> Iterator[socket.socket]:
        """Yield a socket that has sent a request whose answer is too large for the buffers of the system."""
        body = json.dumps({"model": "animals", "embeddings": [[0.0] * 6] * n_rows}).encode()
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.socket() as connection:
            connection.settimeout(PATIENCE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
            connection.connect(("127.0.0.1", int(one.url.rpartition(":")[2])))
            connection.sendall(head.encode() + body)
            wait_until(lambda: self.unsent() > 0)
            yield connection

    def unsent(self) -> int:
        """Return the bytes that wait in the server."""
        return sum(protocol.transport.get_write_buffer_size() for protocol in self.protocols)

    def check(self, unsent_before: int) -> None:
        """Let the server check its only connection now."""
        (protocol,), done = self.protocols, threading.Event()

        def check() -> None:
            protocol.timer.cancel()
            protocol.check(protocol.cycle, unsent_before)
            done.set()

        protocol.loop.call_soon_threadsafe(check)
        assert done.wait(PATIENCE)


def test_a_client_that_does_not_read_its_answer_is_disconnected(folder, monkeypatch):
    connections = Connections(monkeypatch)
    with running(folder) as one, connections.asking(one, 5_000) as connection:
        monkeypatch.setattr(server, "REQUEST_SECONDS", 0.01)
        connections.check(0)  # the others follow by themselves
        wait_until(lambda: not connections.protocols)
        content = b""
        with suppress(ConnectionResetError):
            while part := connection.recv(2**16):
                content += part
    head, _, body = content.partition(b"\r\n\r\n")
    assert len(body) < int(re.search(rb"content-length: (\d+)", head)[1])


def test_a_client_that_reads_slowly_gets_its_whole_answer(folder, monkeypatch):
    connections = Connections(monkeypatch)
    with running(folder) as one, connections.asking(one, 5_000) as connection:
        before, n_checks = connections.unsent(), 0
        head, _, body = connection.recv(BUFFER).partition(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", head)[1])
        while len(body) < length:
            if 0 < (unsent := connections.unsent()) < before:
                connections.check(before)
                before, n_checks = unsent, n_checks + 1
            part = connection.recv(BUFFER)
            assert part, "the connection was closed"
            body += part
    assert n_checks > 3
    assert len(json.loads(body)["probabilities"]) == 5_000


def test_a_client_that_sends_a_body_that_nobody_reads_gets_its_answer_and_may_ask_again(folder):
    with running(folder, max_body=1000) as one, one.http() as client:
        for path, status in {"/predict": 413, INFER: 413, "/nothing": 404, "/v2": 405}.items():
            answer = client.post(path, content=bytes(5 * 10**6))
            assert (answer.status_code, bool(answer.json()["error"])) == (status, True)
        assert client.get("/healthz").status_code == 200
