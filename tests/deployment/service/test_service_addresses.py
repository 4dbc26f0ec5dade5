"""The addresses beside inference: plain JSON, metrics, documentation, health and errors."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_service import Running, in_process, running, wait_until

from kcal.deployment.service.bodies import BodyReader
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.inference import BatchLimits
from kcal.deployment.service.runtime import ServiceOptions
from kcal.deployment.service.server import make_application


@pytest.fixture(scope="module")
def client(service: Running):
    with service.http() as one:
        yield one


def test_plain_json_gives_probabilities_labels_evidence_and_ids(client, animals, problem):
    x = problem.test_embeddings[:3].astype(np.float32)
    body = {"model": "animals", "embeddings": x.tolist(), "explain": True, "explanation_samples": 2}
    answer = client.post("/predict", json=body).json()
    np.testing.assert_allclose(answer["probabilities"], animals.predict_proba(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(answer["evidence"], animals.evidence(x), rtol=1e-5, atol=1e-7)
    assert answer["labels"] == animals.predict(x).tolist()
    assert answer["classes"] == ["cat", "dog", "owl"]
    assert len(set(answer["ids"])) == 3
    assert [len(entry["samples"]) for entry in answer["explanation"]] == [2, 2, 2]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"embeddings": [[0] * 6]}, 400, "must name one of the models: animals, blend"),
        ({"model": "x", "embeddings": [[0] * 6]}, 404, "no model 'x'"),
        ({"model": "../animals", "embeddings": [[0] * 6]}, 404, "no model"),
        ({"model": "animals", "version": "7", "embeddings": [[0] * 6]}, 404, "no version '7'"),
        ({"model": "animals", "version": [], "embeddings": [[0] * 6]}, 400, "version must be"),
        ({"model": "animals"}, 400, "'embeddings' is missing"),
        ({"model": "animals", "embeddings": [[0] * 6], "x": 1}, 400, "no field 'x'"),
        ({"model": "animals", "embeddings": [[0] * 6, [0]]}, 400, "elements of shape"),
        ({"model": "animals", "embeddings": []}, 400, "must have the shape"),
        ({"model": "animals", "embeddings": [[0] * 6], "ids": ["a", "b"]}, 400, "must be BYTES of shape"),
        ({"model": "animals", "embeddings": [[0] * 6] * 2, "ids": ["a", "a"]}, 400, "different from each other"),
        ({"model": "animals", "embeddings": [[0] * 6], "explain": 1}, 400, "explain must be true or false"),
        ({"model": "animals", "embeddings": [[0] * 6] * 257, "explain": True}, 400, "at most 256 rows"),
    ],
)
def test_plain_json_that_cannot_be_used_is_refused(client, body, status, message):
    answer = client.post("/predict", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]


@pytest.mark.parametrize("name", ["return_ids", "binary_data_output"])
def test_flags_of_a_request_for_inference_must_be_true_or_false(client, name):
    tensor = {"name": "embeddings", "shape": [1, 6], "datatype": "FP32", "data": [0.0] * 6}
    answer = client.post("/v2/models/animals/infer", json={"inputs": [tensor], "parameters": {name: "yes"}})
    assert answer.status_code == 400
    assert answer.json()["error"] == f"parameter {name} must be true or false"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"])
def test_probes_are_answered(client, path):
    assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/", "/healthz", "/v2/models/animals", "/metrics", "/docs", "/openapi.json"])
def test_a_request_for_the_head_is_answered_as_one_for_all_but_without_a_body(client, path):
    head, whole = client.head(path), client.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


def test_what_cannot_be_read_has_no_head(client):
    assert client.head("/predict").status_code == client.head("/v2/models/animals/infer").status_code == 405
    assert not any("head" in methods for methods in client.get("/openapi.json").json()["paths"].values())


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nothing", 404, "there is nothing at /nothing; /docs lists all addresses"),
        ("POST", "/v2/nothing", 404, "there is nothing at /v2/nothing; /docs lists all addresses"),
        ("GET", "/v2/models/..%2fanimals", 404, "there is nothing at /v2/models/../animals; "),
        ("GET", "/a%0ab%1b[31m", 404, "there is nothing at /a"),
        ("GET", "/v2/models/animals/versions/0", 404, "the model 'animals' has no version '0'"),
        ("GET", "/predict", 405, "/predict answers POST, not GET; /docs lists all addresses"),
        ("DELETE", "/v2/models/animals", 405, "/v2/models/animals answers GET, not DELETE; /docs lists all addresses"),
        ("PUT", "/v2/models/animals/infer", 405, "/v2/models/animals/infer answers POST, not PUT; /docs"),
    ],
)
def test_unknown_addresses_and_methods_say_what_was_asked_and_where_to_look(client, method, path, status, message):
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)
    assert answer.json()["error"].isprintable()
    assert answer.headers.get("allow", "") == (message.split(" answers ")[-1].split(",")[0] if status == 405 else "")


def test_the_models_are_listed(client):
    assert client.get("/v2/models").json() == {"models": ["animals", "blend"]}


def metric(client: httpx.Client, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [one for family in families for one in family.samples if one.name == name]
    return sum(one.value for one in samples if labels.items() <= one.labels.items())


def test_metrics_count_requests_batches_classes_and_evidence(client, animals, problem):
    value = partial(metric, client)
    names = {
        "kcal_requests_total": {"endpoint": "predict", "status": "200"},
        "kcal_request_seconds_count": {"endpoint": "predict"},
        "kcal_evidence_count": {"model": "animals"},
        "kcal_batch_rows_sum": {"model": "animals"},
    }
    before = {name: value(name, **labels) for name, labels in names.items()}
    counts = {label: value("kcal_predictions_total", model="animals", **{"class": label}) for label in animals.classes_}
    x = problem.test_embeddings[:40].astype(np.float32)
    client.post("/predict", json={"model": "animals", "embeddings": x.tolist()})
    steps = {name: value(name, **labels) - before[name] for name, labels in names.items()}
    assert list(steps.values()) == [1, 1, 40, 40]
    for label, count in counts.items():
        expected = int((animals.predict(x) == label).sum())
        assert value("kcal_predictions_total", model="animals", **{"class": label}) - count == expected
    assert value("kcal_ready") == 1
    assert 0 < value("kcal_estimated_accuracy", model="animals") <= 1


def test_an_alarm_of_the_inputs_is_in_the_metrics(folder, problem):
    with running(folder) as fresh, fresh.http() as client:

        def alarms(kind: str) -> float:
            labels = {"model": "animals", "severity": "alarm", "kind": kind}
            return metric(client, "kcal_alarms", **labels)

        assert (alarms("any"), alarms("inputs")) == (0, 0)
        far = (problem.test_embeddings[:100] + 100.0).tolist()
        assert client.post("/predict", json={"model": "animals", "embeddings": far}).status_code == 200
        wait_until(lambda: alarms("any") == 1)
        assert (alarms("inputs"), alarms("class")) == (1, 0)


def test_the_documentation_lists_every_address_and_loads_nothing_from_elsewhere(client):
    schema = client.get("/openapi.json").json()
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer", "/predict", "/metrics"):
        assert path in schema["paths"]
    infer = schema["paths"]["/v2/models/{model}/infer"]["post"]
    assert set(infer["requestBody"]["content"]) == {"application/json", "application/octet-stream"}
    page = client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<script" not in page.text
    assert "http" not in page.text.replace("<!doctype html>", "")
    assert "POST /v2/models/{model}/infer" in page.text


def test_every_answer_has_headers_that_protect_a_browser(client):
    for path in ("/", "/docs", "/v2", "/nothing", "/metrics"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_the_service_is_live_but_not_ready_before_its_models_are_loaded(folder):
    application = make_application(ServiceOptions(folder))

    async def story():
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            paths = ("/healthz", "/readyz", "/v2/health/ready", "/v2/models/animals/ready")
            return [(await client.get(path)).status_code for path in paths]

    assert asyncio.run(story()) == [200, 503, 503, 503]


def test_a_queue_that_is_full_answers_503(folder):
    async def story():
        limits = BatchLimits(max_batch=1, max_queue=1)
        async with in_process(folder, limits=limits) as (client, _):
            body = {"model": "animals", "embeddings": [[0.0] * 6]}
            answers = await asyncio.gather(*(client.post("/predict", json=body) for _ in range(30)))
            refused = [answer for answer in answers if answer.status_code == 503]
            assert refused
            assert {answer.status_code for answer in answers} == {200, 503}
            return refused[0]

    answer = asyncio.run(story())
    assert answer.headers["retry-after"] == "1"
    assert "are waiting already" in answer.json()["error"]


def test_bodies_that_wait_have_a_limit_together():
    async def story():
        reader, rest, statuses = BodyReader(limit=10, total=15), asyncio.Event(), []

        async def read(first: bytes, headers):
            parts = [first]

            async def slowly():
                if not parts:
                    await rest.wait()
                return {"type": "http.request", "body": parts.pop() if parts else b".", "more_body": not rest.is_set()}

            try:
                async with reader.body(headers, slowly) as body:
                    return body
            except RequestError as error:
                statuses.append(error.status)

        silent = [asyncio.create_task(read(b"", {"content-length": "10"})) for _ in range(8)]
        bodies = ((b"12345678", {"content-length": "9"}), (b"12345678", {}), (b"1234", {"content-length": "5"}))
        waiting = [asyncio.create_task(read(*body)) for body in bodies]
        await asyncio.sleep(0)
        assert (reader.used, statuses) == (12, [503])
        for task in silent:
            task.cancel()
        rest.set()
        return await asyncio.gather(*waiting), reader.used

    assert asyncio.run(story()) == ([b"12345678.", None, b"1234."], 0)
