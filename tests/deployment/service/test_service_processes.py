"""Servers in processes of their own: killed under feedback, stopped under requests, and networks in ONNX files."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running_service import PATIENCE, running, wait_until

from kcal import save
from kcal.deployment import metadata_of
from kcal.deployment.service.runtime import ServiceOptions
from kcal.deployment.service.server import serve
from kcal.persistence import CalibrationStore

CONTEXT = multiprocessing.get_context("forkserver")  # starts servers without importing everything again
CONTEXT.set_forkserver_preload(["kcal.deployment.service.api", "test_service_processes"])


def run(options: ServiceOptions, sender: Any) -> None:
    """Serve, and tell the address."""
    serve(options, sender.send)


@contextmanager
def process_of(path: Path, **options: Any) -> Iterator[tuple[Any, str]]:
    """Run a server in a process; yield it and its address when it is ready."""
    receiver, sender = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=run, args=(ServiceOptions(path, port=0, **options), sender))
    process.start()
    try:
        url = receiver.recv()
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200)
        yield process, url
    finally:
        process.kill()
        process.join()


def test_no_acknowledged_label_is_lost_when_the_server_is_killed(tmp_path, animals):
    path, store = save(animals, tmp_path / "animals.kcal"), tmp_path / "feedback.db"
    acknowledged: list[str] = []
    for number in range(3):
        with process_of(path, store=store) as (process, url):
            clients = [
                threading.Thread(target=give_labels, args=(url, f"{number}-{k}", acknowledged)) for k in range(3)
            ]
            before = len(acknowledged)
            for client in clients:
                client.start()
            wait_until(lambda before=before: len(acknowledged) >= before + 6)
            os.kill(process.pid, signal.SIGKILL)
            for client in clients:
                client.join()
    with CalibrationStore(store) as opened:
        stored = set(opened.ids())
    assert len(acknowledged) >= 18
    assert not set(acknowledged) - stored
    with process_of(path, store=store) as (_, url):
        answer = httpx.post(
            f"{url}/v2/models/animals/feedback", json={"id": acknowledged[0], "label": "cat"}, timeout=PATIENCE
        )
        assert answer.json()["results"][0]["status"] == "corrected"


def test_a_start_does_not_wait_for_the_framework_of_the_documentation():
    code = "import sys, kcal.deployment.service.api; print({'starlette', 'fastapi', 'pydantic'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "{'starlette'}\n"


def give_labels(url: str, name: str, acknowledged: list[str]) -> None:
    """Send labels until the server is gone."""
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        for count in range(10**6):
            record = {"id": f"{name}-{count}", "label": "owl", "embeddings": [0.01 * count] * 6}
            try:
                answer = client.post("/v2/models/animals/feedback", json=record)
            except httpx.TransportError:
                return
            if answer.status_code == 200:
                acknowledged.append(record["id"])


def test_a_signal_to_stop_lets_requests_in_flight_finish(tmp_path, animals, problem):
    path = save(animals, tmp_path / "animals.kcal")
    x = np.tile(problem.test_embeddings, (10, 1)).round(3)
    body = json.dumps({"embeddings": x.tolist()}).encode()
    with process_of(path) as (process, url):
        answers: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: answers.append(httpx.post(f"{url}/predict", content=body, timeout=PATIENCE))
        )
        asking.start()
        busy = 'kcal_batch_rows_count{model="animals",version="1"} 1.0'
        wait_until(lambda: answers or busy in httpx.get(f"{url}/metrics", timeout=PATIENCE).text)
        process.terminate()
        asking.join()
        process.join()
        assert process.exitcode == 0
        assert answers[0].status_code == 200
        assert len(answers[0].json()["probabilities"]) == len(x)


def write_network(path: Path, animals) -> np.ndarray:
    """Write a network of two inputs, integers of any length and numbers, and return its weights."""
    pytest.importorskip("onnxruntime")
    from onnx import TensorProto, helper, numpy_helper

    weights = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    rows = {"tokens": (TensorProto.INT64, ["rows", "length"]), "scales": (TensorProto.FLOAT, ["rows", 2])}
    nodes = [
        helper.make_node("Cast", ["tokens"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("MatMul", ["scales", "weights"], ["scores"]),
        helper.make_node("Mul", ["scores", "mean"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in rows.items()],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata_of(animals))
    path.write_bytes(model.SerializeToString())
    return weights


def test_an_exported_network_is_served_with_its_own_inputs(tmp_path, animals):
    weights = write_network(tmp_path / "network.onnx", animals)
    (tmp_path / "broken.txt").write_bytes(b"nothing")
    tokens, scales = np.array([[1, 2, 3], [4, 5, 9]]), np.array([[0.5, -1.0], [1.0, 0.25]], dtype=np.float32)
    body = {"model": "network", "tokens": tokens.tolist(), "scales": scales.tolist()}
    with running_partly(tmp_path) as client:
        metadata = client.get("/v2/models/network").json()
        assert metadata["inputs"] == [
            {"name": "tokens", "datatype": "INT64", "shape": [-1, -1]},
            {"name": "scales", "datatype": "FP32", "shape": [-1, 2]},
        ]
        answer = client.post("/predict", json=body).json()
        wrong = client.post("/predict", json={**body, "tokens": [[1.5], [2.5]]})
        assert (wrong.status_code, "must be integers" in wrong.json()["error"]) == (400, True)
        assert client.post("/v2/models/network/feedback", json={"id": "a", "label": "owl"}).status_code == 409
        assert client.get("/").status_code == 200
    odds = np.exp(scales @ weights * tokens.mean(axis=1, keepdims=True))
    np.testing.assert_allclose(answer["probabilities"], odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)
    assert answer["labels"] == animals.classes_[odds.argmax(axis=1)].tolist()
    assert "evidence" not in answer


@contextmanager
def running_partly(folder: Path) -> Iterator[httpx.Client]:
    """Serve a folder with a file that cannot be loaded: the service is live, and not ready."""
    with running(folder, reload_seconds=0.01) as one, one.http() as client:
        (folder / "broken.txt").rename(folder / "broken.onnx")
        wait_until(lambda: one.service.repository.errors)
        index = client.post("/v2/repository/index").json()
        assert {entry["name"]: entry["state"] for entry in index} == {"network": "READY", "broken": "UNAVAILABLE"}
        assert client.get("/readyz").status_code == 503
        yield client
