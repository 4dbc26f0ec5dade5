"""The endpoints of HTTP: plain JSON, probes, metrics, documentation, bodies and their limits, tokens."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import socket
import stat
from contextlib import closing

import httpx
import numpy as np
import pytest
from running_service import PATIENCE, Running, in_process, running, until, wait_until

from kcal.errors import FileFormatError, InvalidInputError
from kcal.serving.app import listen, make_app
from kcal.serving.service import Service, Settings
from kcal.serving.tokens import SCOPES, create_token, find_token, read_tokens, revoke_token

pytestmark = pytest.mark.anyio
FEEDBACK = "/v2/models/animals/feedback"
ROW = {"model": "animals", "embeddings": [[0.0] * 6]}


@pytest.fixture(scope="module")
def client(service: Running):
    with service.http() as one:
        yield one


def test_plain_json_gives_probabilities_labels_evidence_and_ids(client, animals, problem):
    x = problem.test_embeddings[:3].astype(np.float32)
    answer = client.post("/predict", json={"model": "animals", "embeddings": x.tolist(), "ids": ["a", "b", "c"]}).json()
    np.testing.assert_allclose(answer["probabilities"], animals.predict_proba(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(answer["evidence"], animals.evidence(x), rtol=1e-5, atol=1e-7)
    assert (answer["labels"], answer["ids"]) == (animals.predict(x).tolist(), ["a", "b", "c"])
    assert answer["classes"] == animals.classes_.tolist()
    plain = client.post("/predict", content=json.dumps(ROW | {"evidence": False, "explain": True})).json()
    assert "evidence" not in plain
    assert len(plain["explanation"][0]["samples"]) == 5


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"model": None}, 400),
        ({"model": "nothing"}, 404),
        ({"model": 3}, 400),
        ({"embeddings": [[0.0] * 5]}, 400),
        ({"embeddings": [[0.0] * 6, [0.0]]}, 400),
        ({"embeddings": [["0"] * 6]}, 400),
        ({"embeddings": 3}, 400),
        ({"embeddings": ["x" * 4_000_000, *[""] * 1_000_000]}, 400),  # as an array of text: 16 TB
        ({"embeddings": []}, 400),
        ({"embeddings": [[1e30] * 6]}, 400),
        ({"pixels": [[0.0]]}, 400),
        ({"ids": ["a", "b"]}, 400),
        ({"ids": ["\n"]}, 400),
        ({"explain": "yes"}, 400),
        ({"explanation_samples": 0, "explain": True}, 400),
        ({"embeddings": [[0.0] * 6] * 257, "explain": True}, 400),
    ],
)
def test_invalid_plain_json_is_refused(client, change, status):
    answer = client.post("/predict", json=ROW | change)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])


def test_probes_heads_and_unknown_paths(client):
    for path in ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", "/", "/metrics", "/v2/models/animals"):
        assert client.get(path).status_code == 200
        head = client.head(path)
        assert (head.status_code, head.content) == (200, b"")
    assert client.get("/nothing").status_code == 404
    assert client.get("/v2/models/animals/versions/2").status_code == 404
    assert client.get("/docs").status_code == 404  # its page would load a script from another host
    assert (client.get("/predict").status_code, list(client.get("/predict").json())) == (405, ["error"])
    assert client.get("/v2/models").json() == {"models": ["animals", "blend"]}
    operation = client.get("/openapi.json").json()["paths"]["/v2/models/{name}/infer"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert {"inputs", "outputs"} <= schema["properties"].keys()
    assert {"200", "400", "401", "403", "404", "413", "422", "503"} <= operation["responses"].keys()


async def test_metrics_count_requests_batches_classes_and_evidence(path, animals, problem):
    x = problem.test_embeddings[:7].astype(np.float32)
    async with in_process(path) as (client, _):
        await client.post("/predict", json={"embeddings": x.tolist()})
        await client.post("/predict", json={"embeddings": 3})
        text = (await client.get("/metrics")).text
    labels, counts = np.unique(animals.predict(x), return_counts=True)
    for label, count in zip(labels, counts, strict=True):
        assert f'kcal_predictions_total{{class="{label}",model="animals"}} {float(count)}' in text
    for line in (
        'kcal_batch_rows_sum{model="animals"} 7.0',
        'kcal_evidence_count{model="animals"} 7.0',
        'kcal_requests_total{endpoint="predict",status="200"} 1.0',
        'kcal_requests_total{endpoint="predict",status="400"} 1.0',
        "kcal_ready 1.0",
    ):
        assert line in text


def test_every_response_has_headers_that_protect_a_browser(client):
    for path in ("/", "/healthz", "/nothing", "/metrics"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


async def test_service_without_models_is_live_but_not_ready(tmp_path):
    with Service(Settings(tmp_path)) as service:
        transport = httpx.ASGITransport(make_app(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            paths = ("/healthz", "/readyz", "/v2/models/animals")
            assert [(await client.get(path)).status_code for path in paths] == [200, 503, 404]


# Bodies


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (gzip.compress(b"{}", mtime=0), "gzip", 415),
        (b"0" * (2**16 + 1), "identity", 413),
        (b"[" + b" " * 2**15 + b"]", "identity", 413),  # JSON has a quarter of the limit
    ],
    ids=["compressed", "large", "large-json"],
)
async def test_compressed_and_large_bodies_are_refused(path, body, encoding, status):
    async def parts():
        yield body[:100]
        yield body[100:]

    async with in_process(path, max_body=2**16) as (client, _):
        headers = {"Content-Encoding": encoding}
        for content in (body, parts()):
            answer = await client.post("/predict", content=content, headers=headers)
            assert (answer.status_code, list(answer.json())) == (status, ["error"])


async def test_bodies_together_have_a_limit(path):
    async with in_process(path, max_body=2**12) as (client, _):
        may_end, read = asyncio.Event(), []

        async def unfinished():
            yield b" " * 2**11
            read.append(1)  # the service asks for more
            await may_end.wait()

        waiting = [asyncio.create_task(client.post("/predict", content=unfinished())) for _ in range(16)]
        await until(lambda: len(read) == 16)
        refused = await client.post("/predict", json=ROW)
        may_end.set()
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        # half a body is more JSON than is allowed
        assert {answer.status_code for answer in await asyncio.gather(*waiting)} == {413}
        assert (await client.post("/predict", json=ROW)).status_code == 200


async def test_a_client_that_stops_in_its_body_gets_an_answer(path, monkeypatch):
    monkeypatch.setattr("kcal.serving.app.BODY_SECONDS", 0.05)

    async def begin():
        yield b'{"embeddings"'
        await asyncio.sleep(PATIENCE)

    async with in_process(path) as (client, _):
        answer = await client.post("/predict", content=begin())
        assert (answer.status_code, "body" in answer.json()["error"]) == (408, True)
        await client.predict([0.0] * 6)


@pytest.mark.parametrize("start", [b"GET /readyz", b"POST /predict"])
@pytest.mark.parametrize("endless", [b"a" * 2**17, b"x: y\r\n" * 2**14])
def test_headers_without_end_are_refused_before_they_fill_the_memory(service, start, endless):
    host, port = service.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
        client.sendall(start + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nx: ")
        client.sendall(endless)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("path", ["/predict", "/v2/models/animals/infer"])
def test_a_client_that_leaves_in_its_body_is_no_error_of_the_server(path, folder):
    name = path.rpartition("/")[2]
    with running(folder) as served, served.http() as client:
        host, _, port = served.address.rpartition(":")
        with socket.create_connection((host, int(port))) as connection:
            request = f"POST {path} HTTP/1.1\r\nHost: {served.address}\r\nContent-Length: 100\r\n\r\n{{"
            connection.sendall(request.encode())
        counted = f'kcal_requests_total{{endpoint="{name}",status='
        wait_until(lambda: counted in client.get("/metrics").text)
        assert f'{counted}"400"}} 1.0' in client.get("/metrics").text


# Tokens


def test_token_file_holds_digests_and_is_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "tokens.json"
    tokens = {scope: create_token(path, scope, [scope]) for scope in SCOPES}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    for scope, token in tokens.items():
        assert len(token) >= 43
        assert token not in text
        assert hashlib.sha256(token.encode()).hexdigest() in text
        assert find_token(read_tokens(path), token).name == scope
    assert find_token(read_tokens(path), tokens["admin"][:-1]) is None
    revoke_token(path, "admin")
    assert [record.name for record in read_tokens(path)] == ["predict", "feedback", "metrics"]
    for name, scopes in (("predict", ["predict"]), ("b", ["root"]), ("", ["admin"]), ("b", [])):
        with pytest.raises(InvalidInputError):
            create_token(path, name, scopes)
    with pytest.raises(InvalidInputError, match="--name"):
        revoke_token(path, "nobody")


def entry(scope, digest) -> bytes:
    record = {"name": "a", "scopes": [scope], "sha256": digest, "created": ""}
    return json.dumps({"format": 1, "tokens": [record]}).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"format": 2, "tokens": []}', b"[" * 10**5, entry("root", "00" * 32), entry("admin", "zz" * 32)],
)
def test_damaged_token_files_are_refused(tmp_path, content):
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not a token file"):
        read_tokens(path)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_scopes_decide_what_a_token_may_do(path, tmp_path):
    file = tmp_path / "tokens.json"
    tokens = {scope: create_token(file, scope, [scope]) for scope in SCOPES}
    row, label = {"embeddings": [[0.0] * 6]}, {"id": "a", "label": "owl", "embeddings": [0.0] * 6}
    requests = [
        ("predict", "POST", "/predict", row),
        ("predict", "POST", "/v2/models/animals/versions/1/infer", {}),
        ("feedback", "POST", FEEDBACK, label),
        ("metrics", "GET", "/metrics", None),
        ("admin", "GET", "/", None),
        ("admin", "POST", "/v2/models/animals/monitors/reset", None),
        ("any", "GET", "/v2", None),
        ("any", "GET", "/v2/models/animals", None),
        ("any", "POST", "/v2/repository/index", None),
        ("anyone", "GET", "/healthz", None),
        ("anyone", "GET", "/v2/health/ready", None),
    ]
    options = {"host": "0.0.0.0", "tokens": file, "store": tmp_path / "feedback.db", "reload_seconds": 0.01}
    async with in_process(path, **options) as (client, service):
        shown = {"none": {}, "wrong": bearer("kcal_wrong"), **{key: bearer(one) for key, one in tokens.items()}}
        for scope, method, address, body in requests:
            for name, headers in shown.items():
                status = (await client.request(method, address, json=body, headers=headers)).status_code
                if scope == "anyone" or name in (scope, "admin") or (scope == "any" and name in SCOPES):
                    assert status == (400 if body == {} else 200), (address, name)
                else:
                    assert status == (401 if name in ("none", "wrong") else 403), (address, name)
        password = base64.b64encode(f"me:{tokens['admin']}".encode()).decode()
        basic = {"Authorization": f"Basic {password}"}
        assert (await client.get("/metrics", headers=basic)).status_code == 200
        assert (await client.post(FEEDBACK, json=label, headers=basic)).status_code == 401
        asked = await client.get("/", headers={"Authorization": "Basic ###"})
        assert (asked.status_code, asked.headers["www-authenticate"].split()[0]) == (401, "Basic")
        large = await client.post("/predict", content=b"0" * 10**6)  # refused before the body is looked at
        assert large.status_code == 401
        revoke_token(file, "predict")
        await until(lambda: len(service.tokens) == 3)
        assert (await client.post("/predict", json=row, headers=shown["predict"])).status_code == 401


@pytest.mark.parametrize(
    ("headers", "is_answered"),
    [
        ({}, True),
        ({"Origin": "http://127.0.0.1"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Host": "evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example:8000"}, False),
        ({"Host": "localhost:8000"}, True),
        ({"Host": "[::1]:8000"}, True),
    ],
)
async def test_web_pages_of_others_cannot_use_a_service_without_tokens(path, headers, is_answered):
    async with in_process(path) as (client, _):
        answer = await client.post("/predict", json={"embeddings": [[0.0] * 6]}, headers=headers)
    assert (answer.status_code == 200) == is_answered
    assert is_answered or list(answer.json()) == ["error"]


def test_address_that_cannot_be_used_is_named():
    with closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInputError, match=rf"127.0.0.1:{port}"):
            listen("127.0.0.1", port)
    with pytest.raises(InvalidInputError, match="--host"):
        listen("192.0.2.1", 0)  # reserved for examples: no machine has it


def test_service_on_ipv6_answers(path):
    with running(path, host="::1") as one, one.http() as client:
        assert client.post("/predict", json={"embeddings": [[0.0] * 6]}).status_code == 200
