"""Feedback by id while a model is replaced, and afterwards, through the addresses of ``kcal serve`` alone."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count
from pathlib import Path

import httpx
import numpy as np
import pytest
from running_service import wait_until
from service_command import served

from kcal import KCal, save

FEEDBACK = "/v2/models/model/feedback"
PROBE, FAR = [0.3] * 6, [60.0] * 6
"""A row that tells models apart, and one so far from it that labels of it change nothing there."""


@pytest.fixture(scope="module")
def models(problem) -> list[KCal]:
    """Two models that predict differently."""
    fitted = [
        KCal(projection="identity", bandwidth=width, smoothing=0.0).fit(problem.embeddings, problem.labels)
        for width in (0.8, 3)
    ]
    probs = [model.predict_proba([PROBE]) for model in fitted]
    assert np.abs(probs[0] - probs[1]).max() > 0.01
    return fitted


def predict(client: httpx.Client, *ids: str, **fields: object) -> None:
    body = {"embeddings": [FAR] * len(ids), "ids": list(ids), **fields}
    response = client.post("/predict", json=body)
    assert response.status_code == 200, response.text


def give(client: httpx.Client, name: str, status: int = 200, address: str = FEEDBACK, **content: object) -> str:
    """Send feedback on an id; return what was done with it, or the error."""
    response = client.post(address, json={"id": name, **content})
    assert response.status_code == status, response.text
    return response.json()["results"][0]["status"] if status == 200 else response.json()["error"]


def replace(client: httpx.Client, path: Path, model: KCal) -> None:
    """Replace the file of a model, and wait until the new one answers."""
    expected = model.predict_proba([PROBE])[0]
    tensor = {"name": "embeddings", "shape": [1, 6], "datatype": "FP32", "data": PROBE}
    body = {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}  # no ids: nothing to remember

    def is_served() -> bool:
        (output,) = client.post("/v2/models/model/infer", json=body).json()["outputs"]
        return np.allclose(output["data"], expected, atol=1e-4)

    path.parent.mkdir(exist_ok=True)
    save(model, path)
    wait_until(is_served)


def test_ids_can_be_labelled_after_any_number_of_reloads(models, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    with served(path, "--store", str(tmp_path / "feedback.db")) as client:
        for number in range(4):
            predict(client, f"p{number}")
            replace(client, path, models[(number + 1) % 2])
        assert [give(client, f"p{number}", label=1) for number in range(4)] == ["stored"] * 4
        replace(client, path, models[1])
        assert [give(client, f"p{number}", correction=2) for number in range(4)] == ["corrected"] * 4


def test_ids_can_be_labelled_while_a_model_is_replaced(models, tmp_path):
    path, is_over, failures = save(models[0], tmp_path / "model.kcal"), threading.Event(), []

    def label(client: httpx.Client, name: str, address: str) -> None:
        """Label predictions at once and some time later, until the end."""
        late: deque[str] = deque()
        for number in count():
            if is_over.is_set():
                return
            predict(client, f"{name}-{number}", f"{name}-{number}-late")
            late.append(f"{name}-{number}-late")
            for one in (f"{name}-{number}", *([late.popleft()] if number > 20 else [])):
                answer = client.post(address, json={"id": one, "label": number % 3})
                if answer.status_code != 200:
                    failures.append(answer.text)

    addresses = (FEEDBACK, "/v2/models/model/versions/1/feedback")
    with served(path, "--store", str(tmp_path / "feedback.db")) as client:
        threads = [threading.Thread(target=label, args=(client, f"c{k}", addresses[k % 2])) for k in range(4)]
        for thread in threads:
            thread.start()
        try:
            for number in range(4):
                replace(client, path, models[(number + 1) % 2])
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    assert failures == []


def test_erased_ids_stay_erased_after_reloads(models, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    with served(path, "--store", str(tmp_path / "feedback.db")) as client:
        predict(client, "unlabelled", "labelled", "kept")
        assert give(client, "labelled", label=1) == "stored"
        replace(client, path, models[1])
        assert give(client, "labelled", erase=True) == "erased"
        assert give(client, "unlabelled", erase=True) == "absent"
        for model in models:
            replace(client, path, model)
            for name in ("unlabelled", "labelled"):
                assert "no recent prediction" in give(client, name, 404, label=1)
        assert give(client, "kept", label=1) == "stored"
        assert give(client, "kept", erase=True) == "erased"
        assert "no recent prediction" in give(client, "kept", 404, label=1)


def test_as_many_ids_are_remembered_as_the_command_says(models, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    with served(path, "--store", str(tmp_path / "feedback.db"), "--recent", "50") as client:
        predict(client, *[f"p{row}" for row in range(45)])
        replace(client, path, models[1])
        predict(client, *[f"q{row}" for row in range(25)])
        assert "no recent prediction" in give(client, "p0", 404, label=1)
        for name in ("p44", "q0", "q24"):
            assert give(client, name, label=1) == "stored"


def test_predictions_of_earlier_versions_can_be_labelled(models, tmp_path):
    folder, stores = tmp_path / "models", tmp_path / "stores"
    path = folder / "model" / "1" / "model.kcal"
    path.parent.mkdir(parents=True)
    stores.mkdir()
    save(models[0], path)
    with served(folder, "--store", str(stores)) as client:
        predict(client, "before")
        replace(client, folder / "model" / "2" / "model.kcal", models[1])
        predict(client, "of-first", version=1)
        predict(client, "of-second")
        for name in ("before", "of-first", "of-second"):
            assert give(client, name, label=1) == "stored"


def test_inputs_that_the_present_model_does_not_take_must_be_sent_again(models, problem, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    narrow = KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings[:, :4], problem.labels)
    with served(path, "--store", str(tmp_path / "feedback.db")) as client:
        predict(client, "wide")
        save(narrow, path)
        wait_until(lambda: client.get("/v2/models/model").json()["inputs"][0]["shape"] == [-1, 4])
        assert "send its embeddings" in give(client, "wide", 404, label=1)
        assert give(client, "wide", label=1, embeddings=FAR[:4]) == "stored"
