"""A network that gives NaN for finite inputs: the client is told, others are answered, and the monitoring goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch
from running_service import in_process
from torch import nn

from kcal import CalibratedClassifier, KCal, save

pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("shared_operators")]

GOOD, BAD = [1.0, 2.0, 0.5], [1.0, -1.0, 0.5]  # the network takes the logarithm


class LogNetwork(nn.Module):
    """A classifier of positive numbers, (n, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.log(x))


@pytest.fixture(scope="module")
def pair(tmp_path_factory, animals, shared_operators) -> Path:
    """A folder of two models."""
    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("logarithms")
    x, labels = torch.rand(90, 3) + 0.1, torch.arange(90) % 3
    classifier = CalibratedClassifier(LogNetwork(), KCal(projection="identity", bandwidth=0.8)).fit([(x, labels)])
    classifier.save(folder / "pair.kcal")
    classifier.network_to_onnx(folder / "pair.network.onnx", x[:8])
    save(animals, folder / "animals.kcal")
    return folder


def predict(client, *rows):
    return client.post("/predict", json={"model": "pair", "input": list(rows)})


def infer(client, *rows):
    data = [number for row in rows for number in row]
    tensor = {"name": "input", "shape": [len(rows), 3], "datatype": "FP32", "data": data}
    body = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    return client.post("/v2/models/pair/infer", json=body)


@pytest.mark.parametrize("route", [predict, infer])
async def test_nonfinite_prediction_is_an_error_of_its_own_request_and_monitoring_goes_on(pair, route):
    async with in_process(pair, max_wait=0.1) as (client, _):
        for rows in ([BAD], [GOOD, BAD]):
            refused = await route(client, *rows)
            assert refused.status_code == 422, refused.content
            assert "not finite" in refused.json()["error"]
        expected = await route(client, GOOD)
        rows = [BAD if place % 4 == 1 else GOOD for place in range(12)]
        answers = await asyncio.gather(*(route(client, row) for row in rows))  # in one batch
        assert [answer.status_code for answer in answers] == [422 if row is BAD else 200 for row in rows]
        if route is predict:
            found = [answer.json()["probabilities"] for answer in answers if answer.status_code == 200]
            np.testing.assert_allclose(found, [expected.json()["probabilities"]] * len(found), rtol=1e-5)
        for model in ("pair", "animals"):
            page = await client.get("/", params={"model": model})
            assert page.status_code == 200
            assert "nan" not in page.text.lower().split()
        metrics = (await client.get("/metrics")).text
        assert not [line for line in metrics.splitlines() if not line.startswith("#") and line.endswith("NaN")]
