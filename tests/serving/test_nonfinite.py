"""A network that gives NaN for finite inputs: the client is told, others are answered, and the monitoring goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import httpx
import numpy as np
import pytest
import torch
from service_command import served
from torch import nn

from kcal import CalibratedClassifier, KCal, save

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("shared_operators")

GOOD, BAD = [1.0, 2.0, 0.5], [1.0, -1.0, 0.5]  # the network takes the logarithm


class LogNetwork(nn.Module):
    """A classifier of positive numbers, (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.log(x))


@pytest.fixture(scope="module")
def client(tmp_path_factory, animals, shared_operators):
    """A client of a service of two models, whose batches wait for each other."""
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("logarithms")
    x, labels = torch.rand(90, 3) + 0.1, torch.arange(90) % 3
    classifier = CalibratedClassifier(LogNetwork(), KCal(projection="identity", bandwidth=0.8)).fit([(x, labels)])
    classifier.save(folder / "pair.kcal")
    classifier.network_to_onnx(folder / "pair.network.onnx", x[:8])
    save(animals, folder / "animals.kcal")
    with served(folder, "--max-wait-ms", "100") as one:
        yield one


def predict(client: httpx.Client, *rows: list[float]) -> httpx.Response:
    return client.post("/predict", json={"model": "pair", "input": list(rows)})


def infer(client: httpx.Client, *rows: list[float], parameters=None) -> httpx.Response:
    data = [number for row in rows for number in row]
    tensor = {"name": "input", "shape": [len(rows), 3], "datatype": "FP32", "data": data}
    body = {"inputs": [tensor], "parameters": parameters or {}}
    return client.post("/v2/models/pair/infer", json=body)


def infer_binary(client: httpx.Client, *rows: list[float]) -> httpx.Response:
    return infer(client, *rows, parameters={"binary_data_output": True})


ROUTES = (predict, infer, infer_binary)


@pytest.mark.parametrize("route", ROUTES)
def test_nonfinite_prediction_is_an_error_and_monitoring_goes_on(client, route):
    assert route(client, GOOD).status_code == 200
    for rows in ([BAD], [GOOD, BAD]):
        refused = route(client, *rows)
        assert refused.status_code == 422, refused.content
        assert "not finite" in refused.json()["error"]
    assert route(client, GOOD).status_code == 200
    for model in ("pair", "animals"):
        page = client.get("/", params={"model": model})
        assert page.status_code == 200
        assert "nan" not in page.text.lower().split()
    metrics = client.get("/metrics")
    assert metrics.status_code == 200
    assert not [line for line in metrics.text.splitlines() if not line.startswith("#") and line.endswith("NaN")]


def test_requests_of_others_in_the_same_batch_are_answered(client):
    rows = [BAD if place % 4 == 1 else GOOD for place in range(12)]
    expected = predict(client, GOOD).json()["probabilities"]
    barrier = Barrier(len(rows))

    def ask(row: list[float]) -> httpx.Response:
        barrier.wait()
        return predict(client, row)

    with ThreadPoolExecutor(len(rows)) as threads:
        answers = list(threads.map(ask, rows))
    assert [answer.status_code for answer in answers] == [422 if row is BAD else 200 for row in rows]
    for answer in answers:
        if answer.status_code == 200:
            np.testing.assert_allclose(answer.json()["probabilities"], expected, rtol=1e-5)
