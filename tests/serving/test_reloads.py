"""Files that are replaced while the service runs: no request is dropped, and no feedback is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from itertools import count
from pathlib import Path

import httpx
import numpy as np
import pytest
from running_service import in_process, until, wait_until
from service_command import served

from kcal import KCal, save
from kcal.errors import InvalidInputError
from kcal.serving.service import Settings

pytestmark = pytest.mark.anyio
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
    assert np.abs(fitted[0].predict_proba([PROBE]) - fitted[1].predict_proba([PROBE])).max() > 0.01
    return fitted


async def probabilities(client, x, **fields):
    response = await client.post("/predict", json={"embeddings": np.atleast_2d(x).tolist(), **fields})
    assert response.status_code == 200, response.text
    return np.array(response.json()["probabilities"])


async def test_replaced_file_is_loaded_without_a_dropped_request(tmp_path, models, problem):
    path, x = save(models[0], tmp_path / "model.kcal"), problem.test_embeddings[:4].astype(np.float32)
    async with in_process(path, reload_seconds=0.01) as (client, service):
        first, is_over, answers = service.get("model").predictor, asyncio.Event(), []

        async def keep_asking():
            while not is_over.is_set():
                answers.append(await probabilities(client, x))

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await until(lambda: answers)
        await asyncio.to_thread(save, models[1], path)
        await until(lambda: service.get("model").predictor is not first)
        is_over.set()
        await asyncio.gather(*asking)
        answers, last = answers, await probabilities(client, x)
    old, new = (model.predict_proba(x) for model in models)
    assert all(min(np.abs(answer - old).max(), np.abs(answer - new).max()) < 1e-5 for answer in answers)
    np.testing.assert_allclose(answers[0], old, atol=1e-5)
    np.testing.assert_allclose(last, new, atol=1e-5)


async def test_damaged_file_leaves_the_model_as_it_is_and_is_reported(tmp_path, models):
    path = save(models[0], tmp_path / "model.kcal")
    async with in_process(path, reload_seconds=0.01) as (client, service):
        (tmp_path / "damaged").write_bytes(path.read_bytes()[:-7])
        (tmp_path / "damaged").replace(path)
        await until(lambda: service.errors)
        assert (await client.get("/readyz")).status_code == 200
        kept = await probabilities(client, PROBE)
        assert 'kcal_load_failed{model="model"} 1.0' in (await client.get("/metrics")).text
        page = (await client.get("/")).text
        assert "was not loaded" in page
        assert str(tmp_path) not in page
        save(models[1], path)
        await until(lambda: not service.errors)
        kept, fixed = kept, await probabilities(client, PROBE)
    np.testing.assert_allclose(kept, models[0].predict_proba([PROBE]), atol=1e-5)
    np.testing.assert_allclose(fixed, models[1].predict_proba([PROBE]), atol=1e-5)


async def test_models_of_a_folder_come_and_go(tmp_path, models):
    folder, stores = tmp_path / "models", tmp_path / "stores"
    folder.mkdir()
    stores.mkdir()
    for name in (".hidden.kcal", "notes.txt", "not a name.kcal"):
        (folder / name).touch()
    save(models[0], folder / "first.kcal")
    async with in_process(folder, store=stores, reload_seconds=0.01) as (client, service):
        assert (await client.get("/v2/models")).json() == {"models": ["first"]}
        save(models[1], folder / "second.kcal")
        await until(lambda: len(service.models) == 2)
        assert (await client.post("/predict", json={"embeddings": [PROBE]})).status_code == 400
        found = await probabilities(client, PROBE, model="second")
        np.testing.assert_allclose(found, models[1].predict_proba([PROBE]), atol=1e-5)
        (folder / "broken.kcal").write_bytes(b"nothing")
        await until(lambda: service.errors)
        index = (await client.post("/v2/repository/index")).json()
        assert {one["name"]: one["state"] for one in index}["broken"] == "UNAVAILABLE"
        assert (await client.get("/readyz")).status_code == 503
        (folder / "broken.kcal").unlink()
        (folder / "first.kcal").unlink()
        await until(lambda: list(service.models) == ["second"] and service.is_ready)
        result = (await client.get("/v2/models/first")).status_code
    assert result == 404
    assert (stores / "second.db").is_file()


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"path": "nothing.kcal"}, "MODEL"),
        ({"path": "model.txt"}, "MODEL"),
        ({"path": "a model.kcal"}, "MODEL"),
        ({"path": "a.network.onnx"}, "MODEL"),
        ({"path": "model.kcal", "host": "0.0.0.0"}, "--host"),
        ({"path": "model.kcal", "store": "folder"}, "--store"),
        ({"path": "model.kcal", "store": "none/feedback.db"}, "--store"),
        ({"path": "folder", "store": "model.kcal"}, "--store"),
        ({"path": "folder", "network": "a.network.onnx"}, "--network"),
        ({"path": "model.kcal", "network": "nothing.onnx"}, "--network"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path, options, parameter):
    (tmp_path / "folder").mkdir()
    for name in ("model.kcal", "model.txt", "a model.kcal", "a.network.onnx"):
        (tmp_path / name).touch()
    places = {key: value if key == "host" else Path(tmp_path, value) for key, value in options.items()}
    with pytest.raises(InvalidInputError, match=parameter):
        Settings(**places).check()


# Feedback through reloads, in a process of its own


def predict(client: httpx.Client, *ids: str) -> None:
    response = client.post("/predict", json={"embeddings": [FAR] * len(ids), "ids": list(ids)})
    assert response.status_code == 200, response.text


def give(client: httpx.Client, name: str, status: int = 200, **content: object) -> str:
    """Send feedback on an id; return what was done with it, or the error."""
    response = client.post(FEEDBACK, json={"id": name, **content})
    assert response.status_code == status, response.text
    return response.json()["results"][0]["status"] if status == 200 else response.json()["error"]


def replace(client: httpx.Client, path: Path, model: KCal) -> None:
    """Replace the file of a model, and wait until the new one answers."""
    expected = model.predict_proba([PROBE])[0]
    tensor = {"name": "embeddings", "shape": [1, 6], "datatype": "FP32", "data": PROBE}
    body = {"inputs": [tensor], "outputs": [{"name": "probabilities"}]}

    def is_served() -> bool:
        (output,) = client.post("/v2/models/model/infer", json=body).json()["outputs"]
        return np.allclose(output["data"], expected, atol=1e-4)

    save(model, path)
    wait_until(is_served)


def test_ids_can_be_labelled_and_erased_through_reloads(models, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    with served(path, "--store", str(tmp_path / "feedback.db")) as client:
        predict(client, "unlabelled", "kept")
        for number in range(3):
            predict(client, f"p{number}")
            replace(client, path, models[(number + 1) % 2])
        assert [give(client, f"p{number}", label=1) for number in range(3)] == ["stored"] * 3
        replace(client, path, models[0])
        assert give(client, "p0", correction=2) == "corrected"
        assert give(client, "p1", erase=True) == "erased"
        assert give(client, "unlabelled", erase=True) == "absent"
        replace(client, path, models[1])
        for name in ("p1", "unlabelled"):
            assert "no recent prediction" in give(client, name, 404, label=1)
        assert give(client, "kept", label=1) == "stored"


def test_inputs_that_the_present_model_does_not_take_must_be_sent_again(models, problem, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    narrow = KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings[:, :4], problem.labels)
    with served(path, "--store", str(tmp_path / "feedback.db")) as client:
        predict(client, "wide")
        save(narrow, path)
        wait_until(lambda: client.get("/v2/models/model").json()["inputs"][0]["shape"] == [-1, 4])
        assert "send its embeddings" in give(client, "wide", 404, label=1)
        assert give(client, "wide", label=1, embeddings=FAR[:4]) == "stored"


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
