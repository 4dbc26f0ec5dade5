"""Files that are replaced while the service runs: no request is dropped, and no feedback is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from running_service import Client, in_process, until

from kcal import KCal, save
from kcal.errors import InvalidInputError
from kcal.serving.service import Settings

pytestmark = pytest.mark.anyio
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


async def test_replaced_file_is_loaded_without_a_dropped_request(tmp_path, models, problem):
    path, x = save(models[0], tmp_path / "model.kcal"), problem.test_embeddings[:4].astype(np.float32)
    async with in_process(path, reload_seconds=0.01) as (client, service):
        first, is_over, answers = service.get("model").predictor, asyncio.Event(), []

        async def keep_asking():
            while not is_over.is_set():
                answers.append((await client.predict(x))["probabilities"])

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        await until(lambda: answers)
        await asyncio.to_thread(save, models[1], path)
        await until(lambda: service.get("model").predictor is not first)
        is_over.set()
        await asyncio.gather(*asking)
        last = (await client.predict(x))["probabilities"]
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
        kept = (await client.predict(PROBE))["probabilities"]
        assert 'kcal_load_failed{model="model"} 1.0' in (await client.get("/metrics")).text
        page = (await client.get("/")).text
        assert "was not loaded" in page
        assert str(tmp_path) not in page
        save(models[1], path)
        await until(lambda: not service.errors)
        fixed = (await client.predict(PROBE))["probabilities"]
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
        found = (await client.predict(PROBE, model="second"))["probabilities"]
        np.testing.assert_allclose(found, models[1].predict_proba([PROBE]), atol=1e-5)
        (folder / "broken.kcal").write_bytes(b"nothing")
        await until(lambda: service.errors)
        index = (await client.post("/v2/repository/index")).json()
        assert {one["name"]: one["state"] for one in index}["broken"] == "UNAVAILABLE"
        assert (await client.get("/readyz")).status_code == 503
        (folder / "broken.kcal").unlink()
        (folder / "first.kcal").unlink()
        await until(lambda: list(service.models) == ["second"] and service.is_ready)
        assert (await client.get("/v2/models/first")).status_code == 404
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


# Feedback through reloads


async def replace(client: Client, path: Path, model: KCal) -> None:
    """Replace the file of a model, and wait until the new one answers."""
    expected = model.predict_proba([PROBE])
    await asyncio.to_thread(save, model, path)
    while not np.allclose((await client.predict(PROBE))["probabilities"], expected, atol=1e-4):
        await asyncio.sleep(0.01)


async def test_ids_can_be_labelled_and_erased_through_reloads(models, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    async with in_process(path, store=tmp_path / "feedback.db", reload_seconds=0.01) as (client, _):
        give = partial(client.give, model="model")
        await client.predict([FAR, FAR], ids=["unlabelled", "kept"])
        for number in range(3):
            await client.predict(FAR, ids=[f"p{number}"])
            await replace(client, path, models[(number + 1) % 2])
        for number in range(3):
            assert await give({"id": f"p{number}", "label": 1}) == ["stored"]
        await replace(client, path, models[0])
        assert await give({"id": "p0", "correction": 2}) == ["corrected"]
        assert await give({"id": "p1", "erase": True}) == ["erased"]
        assert await give({"id": "unlabelled", "erase": True}) == ["absent"]
        await replace(client, path, models[1])
        for name in ("p1", "unlabelled"):
            assert "no recent prediction" in await give({"id": name, "label": 1}, 404)
        assert await give({"id": "kept", "label": 1}) == ["stored"]


async def test_inputs_that_the_present_model_does_not_take_must_be_sent_again(models, problem, tmp_path):
    path = save(models[0], tmp_path / "model.kcal")
    narrow = KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings[:, :4], problem.labels)
    async with in_process(path, store=tmp_path / "feedback.db", reload_seconds=0.01) as (client, service):
        await client.predict(FAR, ids=["wide"])
        save(narrow, path)
        await until(lambda: service.get("model").metadata()["inputs"][0]["shape"] == (-1, 4))
        label = {"id": "wide", "label": 1}
        assert "send its embeddings" in await client.give(label, 404, model="model")
        assert await client.give({**label, "embeddings": FAR[:4]}, model="model") == ["stored"]


async def test_ids_can_be_labelled_while_a_model_is_replaced(models, tmp_path):
    path, is_over = save(models[0], tmp_path / "model.kcal"), asyncio.Event()
    async with in_process(path, store=tmp_path / "feedback.db", reload_seconds=0.01) as (client, _):

        async def label(name: str, address: str) -> None:
            """Label predictions at once and some time later, until the end."""
            late: deque[str] = deque()
            for number in count():
                if is_over.is_set():
                    return
                await client.predict([FAR, FAR], ids=[f"{name}-{number}", f"{name}-{number}-late"])
                late.append(f"{name}-{number}-late")
                for one in (f"{name}-{number}", *([late.popleft()] if number > 5 else [])):
                    answer = await client.post(address, json={"id": one, "label": number % 3})
                    assert answer.status_code == 200, answer.text

        addresses = ("/v2/models/model/feedback", "/v2/models/model/versions/1/feedback")
        labelling = [asyncio.create_task(label(f"c{k}", addresses[k % 2])) for k in range(4)]
        for number in range(6):
            await replace(client, path, models[(number + 1) % 2])
        is_over.set()
        await asyncio.gather(*labelling)
