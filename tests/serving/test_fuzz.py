"""Malformed bodies: never an error of the server, always a message, and what is valid is answered correctly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running_service import Client, in_process

from kcal import save

MAX_BODY = 20_000
INFER, PREDICT, FEEDBACK = "/v2/models/animals/infer", "/predict", "/v2/models/animals/feedback"
some = settings(max_examples=110, suppress_health_check=list(HealthCheck), deadline=None)


@pytest.fixture(scope="module")
def ask(animals, tmp_path_factory) -> Iterator[Callable[..., httpx.Response]]:
    """Return what posts a body to an application in this thread."""
    folder = tmp_path_factory.mktemp("fuzz")
    path = save(animals, folder / "animals.kcal")
    with asyncio.Runner() as runner:
        served = in_process(path, store=folder / "feedback.db", max_body=MAX_BODY)
        client, _ = runner.run(served.__aenter__())
        yield lambda *arguments: runner.run(post(client, *arguments))
        runner.run(served.__aexit__(None, None, None))


async def post(client: Client, path: str, body: bytes, headers: Any = None) -> httpx.Response:
    return await client.post(path, content=body, headers=headers)


def check_refused(answer: httpx.Response) -> None:
    """A refusal has a message, and nothing of the server in it."""
    assert 400 <= answer.status_code < 500, answer.content
    message = answer.json()["error"]
    assert message
    assert not any(word in message for word in ("Traceback", "/tmp", ".py", "site-packages"))
    assert answer.headers["content-type"] == "application/json"


NUMBERS = st.integers() | st.sampled_from([10**30, -1, 2**63, 10**12]) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["inputs", "outputs", "id", "parameters", "name", "shape", "datatype", "data", "binary_data_size"]
)
TENSORS = st.dictionaries(KEYS, JSON, max_size=6)
LENGTHS = st.one_of(st.none(), st.integers(-5, 3000).map(str), st.sampled_from(["x", "1e3", "", "٣", "9" * 30, "0x10"]))


def variants(body: bytes) -> list[bytes]:
    """Return a body and what becomes of it where bytes are lost, changed or added."""
    third = len(body) // 3
    return [body, body[:third], body[third:], body[:third] + b"\x80" + body[third + 1 :], body + body, body[::-1]]


def header_of(length: str | None) -> dict[str, bytes]:
    return {} if length is None else {"inference-header-content-length": length.encode("latin-1", "ignore")}


@settings(some, max_examples=220)
@given(st.sampled_from([INFER, PREDICT, FEEDBACK]), st.binary(max_size=200) | JSON | TENSORS, LENGTHS)
def test_bodies_that_mean_nothing(ask, path, content, length):
    for one in variants(content if isinstance(content, bytes) else json.dumps(content).encode()):
        check_refused(ask(path, one, header_of(length)))


@some
@given(st.lists(TENSORS, max_size=3), st.lists(TENSORS, max_size=2), st.binary(max_size=60))
def test_tensors_that_mean_nothing(ask, inputs, outputs, more):
    text = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    for one in variants(text):
        check_refused(ask(INFER, one + more, header_of(str(len(text)))))


def valid(n_rows: int, binary: bool, seed: int) -> tuple[dict[str, Any], bytes, np.ndarray]:
    """Return a request, its binary data and its rows."""
    rows = np.random.default_rng(seed).normal(size=(n_rows, 6)).astype(np.float32)
    tensor: dict[str, Any] = {"name": "embeddings", "shape": [n_rows, 6], "datatype": "FP32"}
    if binary:
        tensor["parameters"] = {"binary_data_size": rows.nbytes}
    else:
        tensor["data"] = rows.tolist()
    return (
        {"id": "x", "inputs": [tensor], "outputs": [{"name": "probabilities"}]},
        rows.tobytes() if binary else b"",
        rows,
    )


@st.composite
def changes(draw) -> list[tuple[tuple[str, ...], Any]]:
    places = st.sampled_from(
        [("id",), ("inputs",), ("outputs",), ("parameters",), *((part,) for part in ("x",)),
         *(("inputs", key) for key in ("name", "shape", "datatype", "data", "parameters")),
         *(("outputs", key) for key in ("name", "parameters"))]
    )  # fmt: skip
    return draw(st.lists(st.tuples(places, JSON), max_size=2))


@some
@given(st.integers(1, 4), st.booleans(), st.integers(0, 99), changes(), st.integers(-3, 3), st.binary(max_size=3))
def test_requests_with_changes(ask, animals, n_rows, binary, seed, edits, shift, more):
    request, data, rows = valid(n_rows, binary, seed)
    for (first, *rest), value in edits:
        entries = request.get(first)
        if rest and isinstance(entries, list) and entries and isinstance(entries[0], dict):
            entries[0][rest[0]] = value
        else:
            request[first] = value
    text = json.dumps(request).encode()
    is_valid = not edits and (not binary or (shift == 0 and not more))
    headers = header_of(str(len(text) + shift)) if binary else {}
    body = text + data + (more if binary else b"")
    for one in variants(body)[1:]:
        check_refused(ask(INFER, one, headers))
    answer = ask(INFER, body, headers)
    if answer.status_code != 200:
        assert not is_valid
        check_refused(answer)
    elif is_valid:
        (output,) = answer.json()["outputs"]
        assert (answer.json()["id"], output["shape"]) == ("x", [n_rows, 3])
        expected = animals.predict_proba(rows)
        np.testing.assert_allclose(np.reshape(output["data"], (n_rows, 3)), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("path", [INFER, PREDICT, FEEDBACK])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b'{"inputs": [NaN]}',
        b'{"inputs": -Infinity}',
        b'{"x": 1' + b"0" * 4400 + b"}",
        b'{"x": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        b"[" * 5001,
        b"null",
    ],
)
def test_known_malformed_bodies(ask, path, body):
    check_refused(ask(path, body))


@pytest.mark.parametrize("headers", [{}, {"content-length": "10"}, {"content-length": "99999999999"}])
def test_body_is_refused_by_its_announced_and_its_real_length(ask, headers):
    answer = ask(INFER, b" " * (MAX_BODY + 1), headers)
    assert answer.status_code == 413
    check_refused(answer)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content-encoding", "gzip"),
        ("content-length", "-1"),
        ("content-length", "x"),
        ("inference-header-content-length", "\xb2"),
        ("inference-header-content-length", "1" * 5000),
    ],
)
def test_headers_that_cannot_be_followed_are_refused(ask, name, value):
    check_refused(ask(INFER, b"{}", {name: value.encode("latin-1")}))
