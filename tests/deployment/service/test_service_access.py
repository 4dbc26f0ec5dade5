"""Tokens and scopes, and requests that web pages of others would make."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import stat
from contextlib import closing

import pytest
from running_service import in_process

from kcal import save
from kcal.deployment.service.access import scope_of
from kcal.deployment.service.runtime import ServiceOptions
from kcal.deployment.service.server import listen
from kcal.deployment.service.tokens import (
    SCOPES,
    create_token,
    find_token,
    read_tokens,
    revoke_token,
    token_of,
)
from kcal.errors import FileFormatError, InvalidInputError

INFER = "/v2/models/animals/infer"
FEEDBACK = "/v2/models/animals/feedback"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_a_token_file_holds_digests_and_is_readable_by_its_owner_alone(tmp_path):
    path = tmp_path / "tokens.json"
    tokens = {scope: create_token(path, scope, [scope]) for scope in SCOPES}
    assert len(set(tokens.values())) == len(SCOPES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    for scope, token in tokens.items():
        assert len(token) >= 43
        assert token not in text
        assert hashlib.sha256(token.encode()).hexdigest() in text
        assert find_token(read_tokens(path), token).name == scope
    assert find_token(read_tokens(path), tokens["admin"][:-1]) is None
    revoke_token(path, "admin")
    assert find_token(read_tokens(path), tokens["admin"]) is None
    assert [record.name for record in read_tokens(path)] == ["predict", "feedback", "metrics"]


@pytest.mark.parametrize(
    ("name", "scopes", "message"),
    [
        ("a", ["predict"], "must be new"),
        ("b", ["root"], "must be one of"),
        ("", ["admin"], "printable"),
        ("b", [], "must be given"),
    ],
)
def test_tokens_that_mean_nothing_are_not_made(tmp_path, name, scopes, message):
    path = tmp_path / "tokens.json"
    create_token(path, "a", ["predict"])
    with pytest.raises(InvalidInputError, match=message):
        create_token(path, name, scopes)
    with pytest.raises(InvalidInputError, match="must be that of a token"):
        revoke_token(path, "nobody")


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"format": 2, "tokens": []}', b'{"format": 1, "tokens": [{"name": "a"}]}', b"[" * 10**5]
    + [json.dumps({"format": 1, "tokens": [{"name": "a", "scopes": [s], "sha256": d, "created": ""}]}).encode()
       for s, d in (("root", "00" * 32), ("admin", "00"), ("admin", "zz" * 32), (3, "00" * 32))],
)  # fmt: skip
def test_damaged_token_files_are_refused(tmp_path, content):
    path = tmp_path / "tokens.json"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not a token file"):
        read_tokens(path)


@pytest.mark.parametrize(
    ("path", "scope"),
    [
        ("/healthz", "anyone"), ("/readyz", "anyone"), ("/v2/health/live", "anyone"), ("/v2/health/ready", "anyone"),
        ("/v2", "any"), ("/v2/models", "any"), ("/v2/models/a", "any"), ("/v2/models/a/versions/1/ready", "any"),
        (INFER, "predict"), ("/v2/models/a/versions/1/infer", "predict"), ("/predict", "predict"),
        (FEEDBACK, "feedback"), ("/v2/models/a/versions/1/feedback", "feedback"),
        ("/v2/models/a/monitors/reset", "admin"), ("/v2/models/a/versions/1/monitors/reset", "admin"),
        ("/", "admin"), ("/metrics", "metrics"), ("/anything", "admin"), ("/healthz/", "admin"), ("//healthz", "admin"),
    ],
)  # fmt: skip
def test_every_address_has_a_scope(path, scope):
    assert scope_of(path) == scope


def test_a_browser_sends_the_token_as_a_password_to_read_and_never_to_write():
    header = "Basic " + base64.b64encode(b"anyone:kcal_x:y").decode()
    assert token_of(header, basic=True) == "kcal_x:y"
    assert token_of(header, basic=False) is None
    assert token_of("Basic ###", basic=True) is None
    assert token_of("bearer  kcal_x ", basic=False) == "kcal_x"
    assert token_of("", basic=True) is None


def test_scopes_decide_what_a_token_may_do(tmp_path, animals):
    path, file = save(animals, tmp_path / "animals.kcal"), tmp_path / "tokens.json"
    tokens = {scope: create_token(file, scope, [scope]) for scope in SCOPES}
    row = {"embeddings": [[0.0] * 6]}
    label = {"id": "a", "label": "owl", "embeddings": [0.0] * 6}
    requests = {
        "predict": [("POST", "/predict", row)],
        "feedback": [("POST", FEEDBACK, label)],
        "metrics": [("GET", "/metrics", None)],
        "admin": [("GET", "/", None)],
        "any": [("GET", "/v2", None), ("GET", "/v2/models/animals", None), ("GET", "/docs", None)],
        "anyone": [("GET", "/healthz", None), ("GET", "/v2/health/ready", None)],
    }

    async def story():
        options = {"host": "0.0.0.0", "tokens": file, "store": tmp_path / "feedback.db", "reload_seconds": 0.01}
        async with in_process(path, **options) as (client, _):
            statuses = {}
            for scope, entries in requests.items():
                for method, address, body in entries:
                    shown = {"none": {}, "wrong": bearer("kcal_wrong")} | {
                        key: bearer(one) for key, one in tokens.items()
                    }
                    for name, headers in shown.items():
                        answer = await client.request(method, address, json=body, headers=headers)
                        statuses[scope, address, name] = answer.status_code
                        if answer.status_code == 401:
                            kind = "Basic" if scope in ("metrics", "admin") else "Bearer"
                            assert answer.headers["www-authenticate"].startswith(kind)
            password = base64.b64encode(f"me:{tokens['admin']}".encode()).decode()
            basic = {"Authorization": f"Basic {password}"}
            assert (await client.get("/metrics", headers=basic)).status_code == 200
            assert (await client.post(FEEDBACK, json=label, headers=basic)).status_code == 401
            revoke_token(file, "predict")
            for _ in range(1000):
                await asyncio.sleep(0.01)
                if (await client.post("/predict", json=row, headers=bearer(tokens["predict"]))).status_code == 401:
                    return statuses
            raise AssertionError("the revoked token still works")

    for (scope, _, name), status in asyncio.run(story()).items():
        if scope == "anyone":
            expected = 200
        elif name in ("none", "wrong"):
            expected = 401
        else:
            expected = 200 if name in (scope, "admin") or scope == "any" else 403
        assert status == expected, (scope, name)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://127.0.0.1"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost:8000"}, 200),
    ],
)
def test_web_pages_of_others_cannot_use_a_service_without_tokens(tmp_path, animals, headers, status):
    path = save(animals, tmp_path / "animals.kcal")

    async def story():
        async with in_process(path) as (client, _):
            answer = await client.post("/predict", json={"embeddings": [[0.0] * 6]}, headers=headers)
            assert (await client.get("/healthz", headers=headers)).status_code == 200
            return answer.status_code

    assert asyncio.run(story()) == status


def test_a_port_that_is_taken_and_a_host_of_another_machine_are_named():
    with closing(listen("127.0.0.1", 0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInputError, match=rf"Address already in use.*127.0.0.1:{port}.*another --port"):
            listen("127.0.0.1", port)
    with pytest.raises(InvalidInputError, match=r"must be an address at which this machine can listen"):
        listen("192.0.2.1", 0)  # reserved for examples: no machine has it


def test_a_store_in_a_folder_that_does_not_exist_is_refused_before_the_start(folder, tmp_path):
    options = ServiceOptions(folder / "animals.kcal", store=tmp_path / "none" / "feedback.db")
    with pytest.raises(InvalidInputError, match="--store must lie in an existing folder"):
        options.check()


def test_messages_say_what_was_given(service, problem):
    with service.http() as client:
        rows = {"embeddings": problem.test_embeddings[:2].tolist(), "logits": problem.test_logits[:1].tolist()}
        answer = client.post("/predict", json={"model": "blend", **rows})
    assert answer.status_code == 400
    assert answer.json()["error"].endswith("got 2 of embeddings, 1 of logits")
