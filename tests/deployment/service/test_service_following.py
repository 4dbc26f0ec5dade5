"""Feedback with several versions, during reloads and searches: what is acknowledged holds for all that is served."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from running_service import PATIENCE, in_process

from kcal import ClassifierOutputs, KCal, Updates, save
from kcal.deployment.service import handlers, runtime
from kcal.deployment.service.feedback import FeedbackRecord
from kcal.deployment.service.following import FollowingCalibrator
from kcal.deployment.service.inference import BatchLimits, ServedModel
from kcal.deployment.service.learning import Learner
from kcal.deployment.service.predictors import CalibratorPredictor
from kcal.deployment.service.record import PredictionInputs
from kcal.errors import KcalError
from kcal.persistence import CalibrationStore
from synthetic import Problem

FEEDBACK = "/v2/models/model/feedback"


def fitted(problem: Problem, n_samples: int = 60) -> KCal:
    """A calibrator that searches again when its samples have grown by half."""
    calibrator = KCal(projection="identity", updates=Updates())
    return calibrator.fit(
        problem.embeddings[:n_samples], problem.labels[:n_samples], ids=[f"own-{row}" for row in range(n_samples)]
    )


@pytest.fixture
def path(problem: Problem, tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return save(fitted(problem), tmp_path / "models/model.kcal")


async def give(client, content, status: int = 200):
    response = await client.post(FEEDBACK, content=json.dumps(content))
    assert response.status_code == status, response.text
    return response.json()


def record(problem: Problem, name: str, row: int = 0) -> dict:
    return {"id": name, "label": int(problem.labels[row]), "embeddings": problem.embeddings[row].tolist()}


def used_ids(service) -> set[str]:
    return set(service.repository.get("model").predictor.calibrator.current_ids_)


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_erasure_holds_for_every_version_and_after_a_return_to_an_earlier_one(problem, tmp_path):
    models, store = tmp_path / "models/model", tmp_path / "stores"
    (models / "1").mkdir(parents=True)
    store.mkdir()
    save(fitted(problem), models / "1/a.kcal")
    rows = {"embeddings": problem.test_embeddings[:2].tolist(), "ids": ["patient-7", "patient-8"]}

    async def story():
        async with in_process(tmp_path / "models", store=store, reload_seconds=0.01) as (client, service):
            first = service.repository.get("model")
            await client.post("/predict", json=rows)
            await give(client, [{"id": "patient-7", "label": 0}, {"id": "patient-8", "label": 1}])
            await until(lambda: {"patient-7", "patient-8"} <= used_ids(service))
            (models / "2").mkdir()
            save(fitted(problem, 50), models / "2/a.kcal")
            await until(lambda: service.repository.get("model") is not first and first.predictor is not None)
            await until(lambda: not {"patient-7", "patient-8"} & set(first.predictor.calibrator.current_ids_))
            assert {"patient-7", "patient-8"} <= used_ids(service)
            assert (await give(client, {"id": "patient-7", "erase": True}))["results"][0]["status"] == "erased"
            assert [each.id for each in first.observer.snapshot(max_age=0).latest] == ["patient-8"]
            assert first.observer.labelled_ids() == ["patient-8"]
            shutil.rmtree(models / "2")
            await until(lambda: service.repository.get("model") is first and "patient-8" in used_ids(service))
            assert "patient-7" not in used_ids(service)
            assert (await give(client, {"id": "patient-7", "erase": True}))["results"][0]["status"] == "absent"

    asyncio.run(story())
    for file in store.iterdir():
        assert b"patient-7" not in file.read_bytes()


def test_what_is_acknowledged_while_a_model_is_reloaded_holds_for_the_new_one(path, problem, tmp_path, monkeypatch):
    has_followed, may_go_on = threading.Event(), threading.Event()

    def slow(*arguments, **options):
        learner = Learner(*arguments, **options)
        has_followed.set()
        assert may_go_on.wait(PATIENCE)
        return learner

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db", reload_seconds=0.01) as (client, service):
            before = service.repository.get("model")
            await give(client, [record(problem, "kept"), record(problem, "erased", 1)])
            monkeypatch.setattr(runtime, "Learner", slow)
            save(fitted(problem, 50), path)
            await asyncio.to_thread(has_followed.wait, PATIENCE)
            await give(client, [{"id": "erased", "erase": True}, record(problem, "new", 2)])
            may_go_on.set()
            await until(lambda: service.repository.get("model") is not before)
            return used_ids(service)

    ids = asyncio.run(story())
    assert {"kept", "new"} <= ids
    assert "erased" not in ids


def test_feedback_that_is_read_while_its_model_is_replaced_is_stored(path, problem, tmp_path, monkeypatch):
    parse, is_reading, may_go_on = handlers.parse_feedback, threading.Event(), threading.Event()

    def slow(*arguments):
        is_reading.set()
        assert may_go_on.wait(PATIENCE)
        return parse(*arguments)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db", reload_seconds=0.01) as (client, service):
            before = service.repository.get("model")
            await client.post("/predict", json={"embeddings": problem.test_embeddings[:1].tolist(), "ids": ["a"]})
            monkeypatch.setattr(handlers, "parse_feedback", slow)
            answer = asyncio.create_task(give(client, {"id": "a", "label": 1}))
            await asyncio.to_thread(is_reading.wait, PATIENCE)
            save(fitted(problem, 50), path)
            await until(lambda: service.repository.get("model") is not before)
            await asyncio.sleep(0.05)  # the batches of the old model end
            may_go_on.set()
            return await answer

    assert asyncio.run(story())["results"] == [{"id": "a", "status": "stored"}]


def test_neither_an_erasure_nor_a_prediction_waits_for_a_search(path, problem, tmp_path, monkeypatch):
    search, is_searching, may_end = KCal._search, threading.Event(), threading.Event()

    def slow(*arguments):
        is_searching.set()
        assert may_end.wait(PATIENCE)
        return search(*arguments)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await give(client, record(problem, "patient-7", 60))
            monkeypatch.setattr(KCal, "_search", slow)
            await give(client, [record(problem, f"new-{row}", row) for row in range(60, 120)])
            await asyncio.to_thread(is_searching.wait, PATIENCE)
            await give(client, {"id": "patient-7", "erase": True})
            assert "patient-7" not in used_ids(service)
            row = {"embeddings": problem.test_embeddings[:1].tolist()}
            assert (await client.post("/predict", json=row)).status_code == 200
            assert (await client.get("/")).status_code == 200
            assert not may_end.is_set()
            may_end.set()
            await asyncio.to_thread(service.learners["model"].following.wait)
            assert "patient-7" not in used_ids(service)
            assert not service.learners["model"].calibrator.is_search_due_

    asyncio.run(story())


def test_an_erasure_that_predictions_cannot_follow_is_not_acknowledged(path, problem, tmp_path, monkeypatch):
    def fail(_):
        raise KcalError("no memory")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await give(client, record(problem, "patient-7"))
            await until(lambda: "patient-7" in used_ids(service))
            with monkeypatch.context() as patch:
                patch.setattr(FollowingCalibrator, "_follow", fail)
                answer = await give(client, {"id": "patient-7", "erase": True}, 503)
                assert "predictions do not follow it yet" in answer["error"]
                assert "no memory" in (await client.get("/")).text
            await give(client, {"id": "patient-7", "erase": True})
            assert "patient-7" not in used_ids(service)

    asyncio.run(story())


def test_a_store_that_cannot_be_rewritten_does_not_hide_an_erasure(path, problem, tmp_path, monkeypatch):
    def fail(_):
        raise KcalError("database or disk is full")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await give(client, record(problem, "patient-7"))
            monkeypatch.setattr(CalibrationStore, "vacuum", fail)
            answer = await give(client, {"id": "patient-7", "erase": True})
            assert answer["results"][0]["status"] == "erased"
            assert "patient-7" not in used_ids(service)

    asyncio.run(story())


def test_a_label_with_inputs_replaces_the_sample_of_an_earlier_network(path, problem, tmp_path):
    x = problem.embeddings.astype(np.float32)

    async def story():
        with CalibrationStore(tmp_path / "feedback.db", version="A") as earlier:
            earlier.append(ClassifierOutputs(x[:2], labels=[0, 1], ids=["scan-1", "scan-2"]))
        with CalibrationStore(tmp_path / "feedback.db", version="B") as store:
            predictor, inputs = CalibratorPredictor(fitted(problem)), PredictionInputs(10)
            learner = Learner(ServedModel("model", 1, predictor, BatchLimits(), inputs), store)
            records = [FeedbackRecord("scan-1", 2, {"embeddings": x[5:6]}), FeedbackRecord("scan-2", 2)]
            assert await learner.learn(records) == ["corrected", "corrected"]
            await asyncio.wrap_future(learner.follow_soon())
            await learner.close()
            return store.samples().outputs, store.versions_of(["scan-1", "scan-2", "scan-3"]), learner

    outputs, versions, learner = asyncio.run(story())
    assert versions == ["B", "A", None]
    assert dict(zip(outputs.ids.tolist(), outputs.labels.tolist(), strict=True)) == {"scan-1": 2, "scan-2": 2}
    np.testing.assert_array_equal(outputs.embeddings[outputs.ids.tolist().index("scan-1")], x[5])
    assert {"scan-1", "scan-2"} & set(learner.calibrator.current_ids_) == {"scan-1"}


def test_a_stop_during_a_load_closes_what_was_opened(path, tmp_path, monkeypatch):
    is_loading, may_go_on = threading.Event(), threading.Event()
    made = []

    def slow(*arguments, **options):
        is_loading.set()
        assert may_go_on.wait(PATIENCE)
        made.append(Learner(*arguments, **options))
        return made[0]

    async def story():
        monkeypatch.setattr(runtime, "Learner", slow)
        service = runtime.Service(runtime.ServiceOptions(path, store=tmp_path / "feedback.db"))
        await service.start()
        await asyncio.to_thread(is_loading.wait, PATIENCE)
        stopping = asyncio.create_task(service.stop())
        await asyncio.sleep(0)
        may_go_on.set()
        await stopping

    asyncio.run(story())
    with pytest.raises(KcalError, match="closed"):
        made[0].store.ids()
    with pytest.raises(RuntimeError, match="shutdown"):
        made[0].follow_soon()
