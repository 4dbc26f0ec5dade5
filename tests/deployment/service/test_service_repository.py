"""Models of a folder: versions, replaced files, damaged files, and no dropped request."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from running_service import in_process

from kcal import KCal, save
from kcal.deployment.service.repository import find_models
from kcal.deployment.service.runtime import ServiceOptions
from kcal.errors import InvalidInputError

QUICK = {"reload_seconds": 0.01}


@pytest.fixture(scope="module")
def other(problem) -> KCal:
    """A model that predicts otherwise."""
    labels = np.array(["cat", "dog", "owl"])[problem.labels]
    return KCal(projection="identity", bandwidth=3.0).fit(problem.embeddings, labels)


async def probabilities(client, x, **fields):
    response = await client.post("/predict", json={"embeddings": x.tolist(), **fields})
    assert response.status_code == 200, response.text
    return np.array(response.json()["probabilities"])


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_folder_is_read_by_names_and_versions(tmp_path):
    for place in (
        "a.kcal",
        "b/1/x.kcal",
        "b/10/x.onnx",
        "b/x/x.kcal",
        "b/01/x.kcal",
        ".c.kcal",
        "d.txt",
        "e/1/.x.kcal",
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    (tmp_path / "not a name.kcal").touch()
    assert sorted(find_models(tmp_path)) == [("a", 1), ("b", 1), ("b", 10)]


def test_a_file_that_is_replaced_is_loaded_without_a_dropped_request(tmp_path, animals, other, problem):
    path, x = save(animals, tmp_path / "animals.kcal"), problem.test_embeddings[:4].astype(np.float32)

    async def story():
        async with in_process(path, **QUICK) as (client, service):
            first = service.repository.get("animals")
            is_over, answers = asyncio.Event(), []

            async def keep_asking():
                while not is_over.is_set():
                    answers.append(await probabilities(client, x))

            asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
            await asyncio.to_thread(save, other, path)
            await until(lambda: service.repository.get("animals") is not first)
            await probabilities(client, x)
            is_over.set()
            await asyncio.gather(*asking)
            return answers, await probabilities(client, x)

    answers, last = asyncio.run(story())
    old, new = animals.predict_proba(x), other.predict_proba(x)
    assert np.abs(old - new).max() > 0.1
    kinds = [int(np.abs(answer - new).max() < 1e-5) for answer in answers]
    assert all(kind or np.abs(answer - old).max() < 1e-5 for kind, answer in zip(kinds, answers, strict=True))
    assert kinds[0] == 0
    np.testing.assert_allclose(last, new, rtol=1e-5, atol=1e-6)


def test_a_damaged_file_leaves_the_model_as_it_is_and_is_reported(tmp_path, animals, other, problem):
    path, x = save(animals, tmp_path / "animals.kcal"), problem.test_embeddings[:4].astype(np.float32)

    async def story():
        async with in_process(path, **QUICK) as (client, service):
            damaged = tmp_path / "damaged"
            damaged.write_bytes(path.read_bytes()[:-7])
            damaged.replace(path)
            await until(lambda: service.repository.errors)
            assert (await client.get("/readyz")).status_code == 200
            kept = await probabilities(client, x)
            metrics = (await client.get("/metrics")).text
            assert 'kcal_load_failed{model="animals",version="1"} 1.0' in metrics
            page = (await client.get("/")).text
            assert str(tmp_path) not in page
            save(other, path)
            await until(lambda: not service.repository.errors)
            return kept, await probabilities(client, x)

    kept, mended = asyncio.run(story())
    np.testing.assert_allclose(kept, animals.predict_proba(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mended, other.predict_proba(x), rtol=1e-5, atol=1e-6)


def test_the_latest_version_answers_and_versions_come_and_go(tmp_path, animals, other, problem):
    x = problem.test_embeddings[:4].astype(np.float32)
    for version, model in (("2", animals), ("9", other)):
        (tmp_path / "animals" / version).mkdir(parents=True)
        save(model, tmp_path / "animals" / version / "model.kcal")

    async def story():
        async with in_process(tmp_path, **QUICK) as (client, service):
            np.testing.assert_allclose(await probabilities(client, x), other.predict_proba(x), rtol=1e-5, atol=1e-6)
            old = await probabilities(client, x, version=2)
            np.testing.assert_allclose(old, animals.predict_proba(x), rtol=1e-5, atol=1e-6)
            shutil.copytree(tmp_path / "animals" / "2", tmp_path / "animals" / "10")
            await until(lambda: 10 in service.repository.models["animals"])
            np.testing.assert_allclose(await probabilities(client, x), animals.predict_proba(x), rtol=1e-5, atol=1e-6)
            shutil.rmtree(tmp_path / "animals" / "10")
            await until(lambda: 10 not in service.repository.models["animals"])
            assert (await client.get("/v2/models/animals")).json()["versions"] == ["2", "9"]
            shutil.rmtree(tmp_path / "animals")
            await until(lambda: not service.repository.models)
            return (await client.get("/v2/models/animals")).status_code, (await client.get("/readyz")).status_code

    assert asyncio.run(story()) == (404, 503)


def test_feedback_goes_to_the_latest_version_and_follows_it(tmp_path, animals, problem):
    models, stores = tmp_path / "models", tmp_path / "stores"
    (models / "animals" / "1").mkdir(parents=True)
    stores.mkdir()
    save(animals, models / "animals" / "1" / "model.kcal")
    x = problem.test_embeddings[0].tolist()

    async def story():
        async with in_process(models, store=stores, **QUICK) as (client, service):
            body = {"id": "a", "label": "owl", "embeddings": x}
            assert (await client.post("/v2/models/animals/feedback", json=body)).status_code == 200
            shutil.copytree(models / "animals" / "1", models / "animals" / "2")
            await until(lambda: 2 in service.repository.models["animals"])
            assert "a" in service.learners["animals"].calibrator.current_ids_
            assert service.learners["animals"].model.version == 2
            old = await client.post("/v2/models/animals/versions/1/feedback", json=body)
            assert (old.status_code, "latest version" in old.json()["error"]) == (409, True)
            new = await client.post("/v2/models/animals/versions/2/feedback", json=body)
            return new.json()["results"]

    assert asyncio.run(story()) == [{"id": "a", "status": "corrected"}]
    assert (stores / "animals.db").is_file()
    assert json.loads((stores / "animals.monitor.json").read_text())["n_predictions"] == 0


def test_predictions_of_the_replaced_model_can_still_get_their_labels(tmp_path, animals, other, problem):
    path = save(animals, tmp_path / "animals.kcal")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db", **QUICK) as (client, service):
            first = service.repository.get("animals")
            await probabilities(client, problem.test_embeddings[:1], ids=["early"])
            await first.batcher.settled()
            save(other, path)
            await until(lambda: service.repository.get("animals") is not first)
            body = {"id": "early", "label": "owl"}
            return (await client.post("/v2/models/animals/feedback", json=body)).json()

    assert asyncio.run(story())["results"] == [{"id": "early", "status": "stored"}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "nothing.kcal"}, "must be a file or a folder"),
        ({"path": "model.txt"}, "must end in .kcal"),
        ({"path": "a model.kcal"}, "letters, digits"),
        ({"path": "model.kcal", "host": "0.0.0.0"}, "needs a token file"),
        ({"path": "model.kcal", "store": "folder"}, "must be a file, as MODEL is"),
        ({"path": "folder", "store": "model.kcal"}, "must be an existing folder"),
        ({"path": "a.network.onnx"}, "must be a calibrator, not its network"),
        ({"path": "folder", "network": "a.network.onnx"}, "put NAME.network.onnx beside NAME.kcal"),
        ({"path": "whole.onnx", "network": "a.network.onnx"}, "needs one .kcal file as MODEL"),
        ({"path": "model.kcal", "network": "nothing.onnx"}, "network_to_onnx wrote"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tmp_path, options, message):
    (tmp_path / "folder").mkdir()
    for name in ("model.kcal", "model.txt", "a model.kcal", "a.network.onnx", "whole.onnx"):
        (tmp_path / name).touch()
    places = {key: value if key == "host" else Path(tmp_path, value) for key, value in options.items()}
    with pytest.raises(InvalidInputError, match=message):
        ServiceOptions(**places).check()
