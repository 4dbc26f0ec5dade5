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
KINDS = ("whole", "pair")  # calibration inside the ONNX file, and a calibrator behind its network


class LogNetwork(nn.Module):
    """A classifier of positive numbers, (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.log(x))


@pytest.fixture(scope="module")
def client(tmp_path_factory, animals, shared_operators):
    """A client of a service of three models, whose batches wait for each other."""
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("logarithms")
    x, labels = torch.rand(90, 3) + 0.1, torch.arange(90) % 3
    classifier = CalibratedClassifier(LogNetwork(), KCal(projection="identity", bandwidth=0.8)).fit([(x, labels)])
    classifier.to_onnx(folder / "whole.onnx", x[:8])
    classifier.save(folder / "pair.kcal")
    classifier.network_to_onnx(folder / "pair.network.onnx", x[:8])
    save(animals, folder / "animals.kcal")
    with served(folder, "--max-wait-ms", "100") as one:
        yield one


def predict(client: httpx.Client, kind: str, *rows: list[float]) -> httpx.Response:
    return client.post("/predict", json={"model": kind, "input": list(rows)})


def infer(client: httpx.Client, kind: str, *rows: list[float], parameters=None) -> httpx.Response:
    data = [number for row in rows for number in row]
    tensor = {"name": "input", "shape": [len(rows), 3], "datatype": "FP32", "data": data}
    body = {"inputs": [tensor], "parameters": parameters or {}}
    return client.post(f"/v2/models/{kind}/infer", json=body)


def infer_binary(client: httpx.Client, kind: str, *rows: list[float]) -> httpx.Response:
    return infer(client, kind, *rows, parameters={"binary_data_output": True})


ROUTES = (predict, infer, infer_binary)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", KINDS)
def test_prediction_that_is_not_finite_is_an_error_and_monitoring_goes_on(client, kind, route):
    assert route(client, kind, GOOD).status_code == 200
    for rows in ([BAD], [GOOD, BAD]):
        refused = route(client, kind, *rows)
        assert refused.status_code == 422, refused.content
        assert "not finite" in refused.json()["error"]
    assert route(client, kind, GOOD).status_code == 200
    for model in (*KINDS, "animals"):
        page = client.get("/", params={"model": f"{model}/1"})
        assert page.status_code == 200
        assert "nan" not in page.text.lower().split()
    metrics = client.get("/metrics")
    assert metrics.status_code == 200
    assert not [line for line in metrics.text.splitlines() if not line.startswith("#") and line.endswith("NaN")]


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_that_are_not_finite_are_not_counted(client, kind):
    before = n_predictions(client, kind)
    assert infer_binary(client, kind, *[BAD] * 1000).status_code == 422
    assert predict(client, kind, GOOD).status_code == 200  # what was answered before it is counted
    assert n_predictions(client, kind) < before + 1000


def n_predictions(client: httpx.Client, kind: str) -> float:
    """Return the predictions of a model, of all classes."""
    lines = client.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("kcal_predictions_total{") and f'model="{kind}"' in line]
    return sum(float(line.split()[-1]) for line in counts)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_of_others_in_the_same_batch_are_answered(client, kind):
    rows = [BAD if place % 4 == 1 else GOOD for place in range(12)]
    expected = predict(client, kind, GOOD).json()["probabilities"]
    barrier = Barrier(len(rows))

    def ask(row: list[float]) -> httpx.Response:
        barrier.wait()
        return predict(client, kind, row)

    with ThreadPoolExecutor(len(rows)) as threads:
        answers = list(threads.map(ask, rows))
    assert [answer.status_code for answer in answers] == [422 if row is BAD else 200 for row in rows]
    for answer in answers:
        if answer.status_code == 200:
            np.testing.assert_allclose(answer.json()["probabilities"], expected, rtol=1e-5)
