"""A restart: ready before a search, with the predictions of a service that went on, and with the page as it was."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_service import PATIENCE, in_process

from kcal import ClassifierOutputs, KCal, KCalBlend, Updates, load, save
from kcal.deployment.service.predictors import CalibratorPredictor
from kcal.errors import without_warnings
from kcal.persistence import CalibrationStore
from synthetic import Problem

pytestmark = pytest.mark.filterwarnings("ignore::kcal.KcalWarning")

FEEDBACK = "/v2/models/model/feedback"


@pytest.fixture(params=[KCal, KCalBlend])
def path(request: pytest.FixtureRequest, tmp_path: Path, problem: Problem) -> Path:
    """The file of a model that learns online, fitted on 60 samples."""
    rows = slice(60)
    if request.param is KCal:
        model: Any = KCal(projection="identity").fit(problem.embeddings[rows], problem.labels[rows])
    else:
        model = KCalBlend(updates=Updates()).fit(
            problem.embeddings[rows], problem.labels[rows], logits=problem.logits[rows]
        )
    return save(model, tmp_path / "model.kcal")


def inputs(path: Path, rows: slice, problem: Problem) -> dict[str, Any]:
    """Return the inputs of some rows that the model takes."""
    arrays = {"embeddings": problem.embeddings[rows].astype(np.float32)}
    if load(path).method == "kcal-blend":
        arrays["logits"] = problem.logits[rows].astype(np.float32)
    return arrays


def labels_of(path: Path, rows: slice, problem: Problem) -> list[dict[str, Any]]:
    """Return feedback on some rows."""
    arrays = inputs(path, rows, problem)
    return [
        {
            "id": f"f{row}",
            "label": int(problem.labels[row]),
            **{name: part[place].tolist() for name, part in arrays.items()},
        }
        for place, row in enumerate(range(rows.start, rows.stop))
    ]


def predicted(predictor: Any, path: Path, problem: Problem) -> Any:
    with without_warnings():
        scores = predictor.predict(inputs(path, slice(200, 230), problem), evidence=True)
    return scores.probs, scores.evidence


async def give(client: Any, content: Any) -> None:
    response = await client.post(FEEDBACK, json=content)
    assert response.status_code == 200, response.text


async def all_done(service: Any) -> None:
    """Wait until the calibrator has followed its store, and a search that was due is over."""
    learner = service.learners["model"]
    await asyncio.wrap_future(learner.follow_soon())
    await asyncio.to_thread(learner.following.wait)


def test_without_a_search_meanwhile_predictions_are_the_same_to_the_bit(path, problem, tmp_path):
    async def first():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            for start in range(60, 64):
                await give(client, labels_of(path, slice(start, start + 1), problem))
                await all_done(service)
            await give(client, {"id": "f60", "erase": True})
            await all_done(service)
            return predicted(service.repository.get("model").predictor, path, problem)

    async def second():
        async with in_process(path, store=tmp_path / "feedback.db") as (_, service):
            return predicted(service.repository.get("model").predictor, path, problem)

    for before, after in zip(asyncio.run(first()), asyncio.run(second()), strict=True):
        np.testing.assert_array_equal(after, before)


def test_with_searches_meanwhile_it_is_a_service_that_gets_all_labels_at_once(path, problem, tmp_path):
    """The samples are those of the service that went on, and the parameters those of a search on all of them."""

    async def story(store: Path, content: list[Any]):
        async with in_process(path, store=store) as (client, service):
            for part in content:
                await give(client, part)
                await all_done(service)
            await all_done(service)
            learner = service.learners["model"]
            return learner.calibrator.current_ids_, predicted(service.repository.get("model").predictor, path, problem)

    parts = [labels_of(path, slice(start, start + 20), problem) for start in range(60, 160, 20)]
    went_on, _ = asyncio.run(story(tmp_path / "feedback.db", parts))
    restarted, predictions = asyncio.run(story(tmp_path / "feedback.db", []))
    at_once, expected = asyncio.run(story(tmp_path / "at-once.db", [[record for part in parts for record in part]]))
    assert went_on == restarted == at_once
    for found, wanted in zip(predictions, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_it_is_ready_before_the_search_that_is_due(path, problem, tmp_path, monkeypatch):
    rows = slice(60, 160)
    names = [f"f{row}" for row in range(60, 160)]
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.append(ClassifierOutputs(**inputs(path, rows, problem), labels=problem.labels[rows], ids=names))
    kind, may_search = type(load(path)), threading.Event()
    original = kind.refresh

    def waiting(calibrator: Any, *, search: bool = True) -> Any:
        assert not search or may_search.wait(PATIENCE)
        return original(calibrator, search=search)

    monkeypatch.setattr(kind, "refresh", waiting)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            learner = service.learners["model"]
            early = predicted(service.repository.get("model").predictor, path, problem)
            assert learner.calibrator.is_search_due_
            assert (await client.get("/")).status_code == 200  # nor does the page wait
            may_search.set()
            await all_done(service)
            assert not learner.calibrator.is_search_due_
            return early, predicted(service.repository.get("model").predictor, path, problem)

    early, late = asyncio.run(story())
    live: Any = load(path)
    live.partial_fit(
        problem.embeddings[rows].astype(np.float32),
        problem.labels[rows],
        **{name: part for name, part in inputs(path, rows, problem).items() if name == "logits"},
    )
    for found, calibrator in ((early, live.snapshot(search=False)), (late, live.snapshot())):
        for one, other in zip(found, predicted(CalibratorPredictor(calibrator), path, problem), strict=True):
            np.testing.assert_array_equal(one, other)
    assert not np.array_equal(early[0], late[0])


async def labelled(client: Any, path: Path, problem: Problem) -> None:
    """Predict 20 rows and label them."""
    arrays = {name: rows.tolist() for name, rows in inputs(path, slice(100, 120), problem).items()}
    names = [f"patient-{row:02}" for row in range(20)]
    assert (await client.post("/predict", json={**arrays, "ids": names})).status_code == 200
    await give(client, [{"id": name, "label": int(problem.labels[100 + row])} for row, name in enumerate(names)])


def test_the_page_survives_it(path, problem, tmp_path):
    async def first():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await labelled(client, path, problem)
            await all_done(service)
            return service.repository.get("model").observer.snapshot(max_age=0).labelled

    async def second():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            observer = service.repository.get("model").observer
            page = (await client.get("/")).text
            return observer.snapshot(max_age=0).labelled, (await client.get("/metrics")).text, page

    before, (after, metrics, page) = asyncio.run(first()), asyncio.run(second())
    np.testing.assert_array_equal(after.probs, before.probs)
    np.testing.assert_array_equal(after.codes, problem.labels[100:120])
    assert "on the latest 20 labels" in page
    assert 'id="reliability' in page
    assert "no predictions since the service started" in page
    line = next(line for line in metrics.splitlines() if line.startswith("kcal_measured_accuracy{"))
    assert float(line.split()[-1]) == pytest.approx(np.mean(before.probs.argmax(axis=1) == problem.labels[100:120]))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_when_an_erasure_is_acknowledged_its_file_has_nothing_of_the_id(path, problem, tmp_path, is_restarted):
    file = tmp_path / "feedback.db.monitor.json"

    async def erased(client):
        assert b"patient-07" in file.read_bytes()
        await give(client, {"id": "patient-07", "erase": True})
        for each in tmp_path.iterdir():
            with suppress(FileNotFoundError):  # a temporary file that was renamed meanwhile
                assert b"patient-07" not in each.read_bytes()
        assert b"patient-08" in file.read_bytes()

    async def first():
        async with in_process(path, store=tmp_path / "feedback.db", reload_seconds=0.01, save_seconds=0.02) as (
            client,
            _,
        ):
            await labelled(client, path, problem)
            while not (file.exists() and b"patient-07" in file.read_bytes()):
                await asyncio.sleep(0.01)
            if not is_restarted:
                await erased(client)

    async def second():
        (tmp_path / ".feedback.db.monitor.json.new").write_bytes(b"patient-07")  # left by a killed process
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await erased(client)

    asyncio.run(first())
    if is_restarted:
        asyncio.run(second())


def test_a_sample_that_another_program_deleted_is_gone_from_the_record(path, problem, tmp_path):
    async def first():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await labelled(client, path, problem)

    async def second():
        async with in_process(path, store=tmp_path / "feedback.db") as (_, service):
            return service.repository.get("model").observer.labelled_ids()

    asyncio.run(first())
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.delete(["patient-03"])
        store.vacuum()
    assert asyncio.run(second()) == [f"patient-{row:02}" for row in range(20) if row != 3]
    for each in tmp_path.iterdir():
        assert b"patient-03" not in each.read_bytes()


@pytest.mark.parametrize("content", [b"{", b'{"format": 1}', b"[3]", b""])
def test_a_damaged_or_older_file_is_reported_and_begins_anew(path, problem, tmp_path, content, caplog):
    file = tmp_path / "feedback.db.monitor.json"
    file.write_bytes(content)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await labelled(client, path, problem)
            await service.learners["model"].batcher.settled()  # labels are recorded just after their acknowledgement
            return service.repository.get("model").observer.n_labels

    assert asyncio.run(story()) == 20
    assert "begins again" in caplog.text
    assert b"patient-03" in file.read_bytes()


def test_without_room_for_the_file_an_erasure_removes_it(path, problem, tmp_path, monkeypatch):
    file = tmp_path / "feedback.db.monitor.json"

    async def first():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await labelled(client, path, problem)

    async def second():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            monkeypatch.setattr("kcal.deployment.service.state_file.os.fsync", no_room)
            await give(client, {"id": "patient-07", "erase": True})
            assert not file.exists()

    def no_room(_: int) -> None:
        raise OSError(28, "No space left on device")

    asyncio.run(first())
    assert file.exists()
    asyncio.run(second())
