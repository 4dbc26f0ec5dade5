"""Feedback: durable when it is acknowledged, followed by the calibrator, and gone when it is erased."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running_service import PATIENCE, in_process, until, used_ids

from kcal import CalibrationStore, ClassifierOutputs, KCal, KCalBlend, TemperatureScaling, Updates, load, save
from kcal.calibrators import online_samples
from kcal.errors import KcalError, without_warnings
from kcal.serving.learning import Learner
from kcal.serving.predictor import Predictor
from synthetic import Problem

pytestmark = pytest.mark.anyio
CLASSES = np.array(["cat", "dog", "owl"])
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def record(problem: Problem, name: str, row: int = 0) -> dict[str, Any]:
    return {"id": name, "label": CLASSES[problem.labels[row]], "embeddings": problem.embeddings[row].tolist()}


async def test_labels_reach_store_calibrator_and_record(path, problem, tmp_path):
    x = problem.test_embeddings[:3].astype(np.float32)
    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        before = await client.predict(x, ids=["a", "b", "c"])
        given = [{"id": "a", "label": "owl"}, {"id": "b", "label": "dog"}]
        assert await client.give(given) == ["stored", "stored"]
        await until(lambda: {"a", "b"} <= used_ids(service))
        learned = await client.predict(x)
        assert await client.give({"id": "a", "correction": "cat"}) == ["corrected"]
        await until(lambda: online_samples(service.get("animals").predictor.calibrator).codes[-2] == 0)
        assert service.get("animals").summary().codes.tolist() == [0, 1]
        corrected = await client.predict(x)
    with CalibrationStore(tmp_path / "feedback.db") as store:
        samples = store.samples()
    assert dict(zip(samples.ids.tolist(), samples.labels.tolist(), strict=True)) == {"a": "cat", "b": "dog"}
    np.testing.assert_array_equal(samples.embeddings, x[:2])
    expected = load(path)
    np.testing.assert_allclose(before["probabilities"], expected.predict_proba(x), **CLOSE)
    expected.partial_fit(x[:2], ["owl", "dog"], ids=["a", "b"])
    with without_warnings():  # about rows that it has learned
        np.testing.assert_allclose(learned["probabilities"], expected.predict_proba(x), **CLOSE)
        expected.correct(["a"], ["cat"])
        np.testing.assert_allclose(corrected["probabilities"], expected.predict_proba(x), **CLOSE)


async def test_erasure_leaves_nothing_in_store_calibrator_record_and_files(path, problem, tmp_path):
    x = problem.test_embeddings[:1].astype(np.float32)
    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        before = await client.predict(x, ids=["patient-7"])
        await client.give({"id": "patient-7", "label": "owl"})
        await until(lambda: "patient-7" in used_ids(service))
        await asyncio.to_thread(service.get("animals").record.save, service.get("animals").predictor)
        assert b"patient-7" in (tmp_path / "feedback.db.monitor.json").read_bytes()
        assert await client.give({"id": "patient-7", "erase": True}) == ["erased"]
        assert "patient-7" not in used_ids(service)
        assert "patient-7" not in (await client.get("/")).text
        for file in tmp_path.iterdir():
            assert b"patient-7" not in file.read_bytes()
            assert x.tobytes() not in file.read_bytes()
        await client.give({"id": "patient-7", "label": "owl"}, 404)
        assert await client.give({"id": "patient-7", "erase": True}) == ["absent"]
        after = await client.predict(x)
    np.testing.assert_allclose(after["probabilities"], before["probabilities"], **CLOSE)


INVALID = [
    ({"id": "unknown", "label": "owl"}, 404),
    ({"id": "cal-3", "erase": True}, 409),
    ({"id": "cal-3", "label": "owl"}, 409),
    ({"id": "a", "label": "horse"}, 400),
    ({"id": "a"}, 400),
    ({"id": "a", "label": "owl", "erase": True}, 400),
    ({"id": "a", "erase": False}, 400),
    ({"id": "a", "erase": True, "group": "b"}, 400),
    ({"id": "", "label": "owl"}, 400),
    ({"id": "a\n", "label": "owl"}, 400),
    ({"id": 3, "label": "owl"}, 400),
    ({"id": "a", "label": "owl", "colour": [1]}, 400),
    ({"id": "a", "label": "owl", "embeddings": [[0] * 6, [0] * 6]}, 400),
    ({"id": "a", "label": "owl", "group": "\ud800"}, 400),
    ([], 400),
    ([3], 400),
]


async def test_invalid_feedback_changes_nothing(path, tmp_path):
    async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
        await client.predict(np.zeros(6), ids=["a"])
        for content, status in INVALID:
            assert await client.give(content, status)
            if content:
                both = [{"id": "a", "label": "owl"}, *(content if isinstance(content, list) else [content])]
                await client.give(both, status)
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert len(store) == 0


async def test_records_of_one_request_are_written_in_order_all_or_none(path, tmp_path):
    records = [
        {"id": "a", "label": "owl"},
        {"id": "a", "correction": "cat"},
        {"id": "b", "label": "dog"},
        {"id": "b", "erase": True},
        {"id": "unknown", "label": "owl"},
    ]
    async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
        await client.predict(np.zeros((2, 6)), ids=["a", "b"])
        await client.give(records, 404)
        with CalibrationStore(tmp_path / "feedback.db") as store:
            assert len(store) == store.last_change == 0
        assert await client.give(records[:-1]) == ["stored", "corrected", "stored", "erased"]


async def test_complete_store_is_followed_in_deletions(tmp_path, problem):
    names = [f"s{row}" for row in range(60)]
    with CalibrationStore(tmp_path / "all.db") as store:
        labels = CLASSES[problem.labels[:60]]
        store.append(ClassifierOutputs(problem.embeddings[:60].astype(np.float32), labels=labels, ids=names))
        save(store.fit(KCal(projection="identity", bandwidth=0.8)), tmp_path / "animals.kcal")
        store.delete(["s5"])
    options = {"store": tmp_path / "all.db", "store_is_complete": True}
    async with in_process(tmp_path / "animals.kcal", **options) as (client, service):
        assert "s5" not in used_ids(service)
        assert await client.give({"id": "s6", "erase": True}) == ["erased"]
        assert used_ids(service) == set(names) - {"s5", "s6"}


@pytest.mark.parametrize("name", ["cow", "yak"])  # which move the columns of other classes, and do not
async def test_class_that_the_store_brings_is_predicted_counted_and_labelled(path, problem, tmp_path, name):
    far = np.full((1, 6), 50, dtype=np.float32)
    x = np.concatenate([far, problem.test_embeddings[:20].astype(np.float32)])
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.append(ClassifierOutputs(far, labels=np.array([name]), ids=np.array(["new"])))
    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        answer = await client.predict(x, ids=[f"p{row}" for row in range(21)])
        assert answer["classes"] == sorted(["cat", "dog", "owl", name])
        assert await client.give({"id": "p0", "label": name}) == ["stored"]
        assert service.get("animals").record.labelled_ids() == ["p0"]
        labels, metrics = answer["labels"], (await client.get("/metrics")).text
    assert labels[0] == name
    for label, count in Counter(labels).items():
        assert f'kcal_predictions_total{{class="{label}",model="animals"}} {float(count)}' in metrics


@pytest.mark.parametrize("kind", ["blend", "compressed", "scaling"])
async def test_every_method_keeps_labels_and_says_whether_it_learns(kind, blend, problem, tmp_path, caplog):
    """A blend that was saved without ``updates`` learns, too."""
    model = {"blend": blend, "compressed": blend.compress(20)}.get(kind) or TemperatureScaling().fit(
        problem.logits, problem.labels
    )
    save(model, tmp_path / "animals.kcal")
    inputs = {"logits": problem.test_logits[:1].tolist()}
    if kind != "scaling":
        inputs["embeddings"] = problem.test_embeddings[:1].tolist()
    async with in_process(tmp_path / "animals.kcal", store=tmp_path / "feedback.db") as (client, service):
        before = await client.predict(inputs, ids=["a"])
        assert ("evidence" in before) == (kind != "scaling")
        answer = (await client.post("/v2/models/animals/feedback", json={"id": "a", "label": 2})).json()
        assert answer["learns"] == (kind == "blend")
        if kind == "blend":
            await until(lambda: "a" in used_ids(service))
        after, page = await client.predict(inputs), (await client.get("/")).text
        assert service.get("animals").summary().n_labels == 1
    assert (after["probabilities"] == before["probabilities"]) == (kind != "blend")
    assert ("Predictions do not follow the feedback" in page) == (kind != "blend")
    assert ("does not learn from it" in caplog.text) == (kind != "blend")
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.samples().labels.tolist() == [2]


async def test_without_a_store_feedback_is_refused(path):
    async with in_process(path) as (client, _):
        assert "--store" in await client.give({"id": "a", "label": "owl"}, 409)


@pytest.mark.parametrize(
    ("classes", "given", "label"),
    [
        (np.array([1, 2, 3]), 2, 2),
        (np.array([1, 2, 3]), "2", 2),
        (np.array([1.0, 2.0, 4.0]), 4, 4.0),
        (np.array([1.0, 2.0, 4.0]), 2.0, 2.0),
        (np.array(["1", "2", "3"]), 2, "2"),
        (np.array([False, True]), True, True),
    ],
)
async def test_labels_are_classes_in_the_types_of_json(classes, given, label, problem, tmp_path):
    codes = problem.labels % len(classes)
    save(KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, classes[codes]), tmp_path / "animals.kcal")
    async with in_process(tmp_path / "animals.kcal", store=tmp_path / "feedback.db") as (client, _):
        await client.give({"id": "a", "label": given, "embeddings": [0.0] * 6})
        await client.give({"id": "b", "label": "nothing", "embeddings": [0.0] * 6}, 400)
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.samples().labels.tolist() == [label]


async def test_alarms_stay_over_a_restart_until_the_monitors_are_reset(path, problem, tmp_path):
    x, wrong = problem.test_embeddings, {"cat": "dog", "dog": "owl", "owl": "cat"}
    names = [f"p{row}" for row in range(len(x))]
    for has_alarm in (True, False):
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            if has_alarm:
                labels = (await client.predict(x, ids=names))["labels"]
                given = zip(names, labels, strict=True)
                await client.give([{"id": one, "label": wrong[label], "group": "ward 2"} for one, label in given])
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            page = (await client.get("/")).text
            assert ("monitors/reset" in page) == has_alarm
            assert ("Group <bdi>ward 2</bdi>: mean confidence" in page) == has_alarm
            assert (
                'kcal_alarms{kind="any",model="animals",severity="alarm"} 0.0' in (await client.get("/metrics")).text
            ) != has_alarm
            answer = await client.post("/v2/models/animals/monitors/reset")
            assert (answer.status_code, answer.json()["model_name"]) == (200, "animals")
            assert (await client.post("/v2/models/nothing/monitors/reset")).status_code == 404


async def test_ids_of_clients_are_not_rows_of_a_model_without_ids(problem, tmp_path):
    labels = CLASSES[problem.labels]
    path = save(KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, labels), tmp_path / "animals.kcal")
    async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
        await client.predict(problem.test_embeddings[:1], ids=["3"])
        assert await client.give({"id": "3", "label": "owl"}) == ["stored"]
        await client.give({"id": "row 3", "erase": True}, status=409)


# Searches, failures and other networks


async def test_neither_erasure_nor_prediction_waits_for_a_search(problem, tmp_path, monkeypatch):
    model = KCal(projection="identity", updates=Updates())  # searches again when its samples have grown by half
    labels, names = CLASSES[problem.labels[:60]], [f"own-{row}" for row in range(60)]
    path = save(model.fit(problem.embeddings[:60], labels, ids=names), tmp_path / "animals.kcal")
    search, is_searching, may_end, ended = KCal._search, threading.Event(), threading.Event(), []

    def slow(*arguments):
        is_searching.set()
        ended.append(may_end.wait(PATIENCE))
        return search(*arguments)

    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        await client.give(record(problem, "patient-7", 60))
        monkeypatch.setattr(KCal, "_search", slow)
        await client.give([record(problem, f"new-{row}", row) for row in range(60, 120)])
        await asyncio.to_thread(is_searching.wait, PATIENCE)
        await client.give({"id": "patient-7", "erase": True})
        assert "patient-7" not in used_ids(service)
        await client.predict(problem.test_embeddings[:1])
        assert (await client.get("/")).status_code == 200
        assert not ended
        may_end.set()
        earlier = len(load(path).bandwidth_history_)

        def new_searches():
            history = service.get("animals").predictor.calibrator.bandwidth_history_[earlier:]
            return [step for step in history if step.source == "search"]

        await until(new_searches)
        assert "patient-7" not in used_ids(service)
        assert ended == [True]


async def test_erasure_that_predictions_cannot_follow_is_not_acknowledged(path, problem, tmp_path, monkeypatch):
    def fail(_):
        raise KcalError("no memory")

    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        await client.give(record(problem, "patient-7"))
        await until(lambda: "patient-7" in used_ids(service))
        with monkeypatch.context() as patch:
            patch.setattr(Learner, "_follow", fail)
            await client.give({"id": "patient-7", "erase": True}, 503)
            assert "no memory" in (await client.get("/")).text
        await client.give({"id": "patient-7", "erase": True})
        assert "patient-7" not in used_ids(service)


async def test_full_disk_does_not_hide_an_erasure(path, problem, tmp_path, monkeypatch):
    file = tmp_path / "feedback.db.monitor.json"

    def fail(*_):
        raise KcalError("database or disk is full")

    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        await client.predict(problem.test_embeddings[:1], ids=["patient-7"])
        await client.give({"id": "patient-7", "label": "owl"})
        await asyncio.to_thread(service.get("animals").record.save, service.get("animals").predictor)
        with monkeypatch.context() as patch:
            patch.setattr(CalibrationStore, "vacuum", fail)
            patch.setattr("kcal.serving.record.write_whole", fail)
            assert await client.give({"id": "patient-7", "erase": True}) == ["erased"]
            assert not file.exists()
        assert "patient-7" not in used_ids(service)


# Restarts


@pytest.fixture(params=[KCal, KCalBlend])
def learning(request: pytest.FixtureRequest, tmp_path: Path, problem: Problem) -> Path:
    """The file of a model that learns, fitted on 60 samples; it is named animals, and its classes are numbers."""
    x, y, z = problem.embeddings[:60], problem.labels[:60], problem.logits[:60]
    with without_warnings():
        if request.param is KCal:
            return save(KCal(projection="identity").fit(x, y), tmp_path / "animals.kcal")
        return save(KCalBlend().fit(x, y, logits=z), tmp_path / "animals.kcal")


def inputs_of(path: Path, rows: slice, problem: Problem) -> dict[str, Any]:
    arrays = {"embeddings": problem.embeddings[rows].astype(np.float32)}
    if load(path).method == "kcal-blend":
        arrays["logits"] = problem.logits[rows].astype(np.float32)
    return arrays


def predicted(service: Any, path: Path, problem: Problem) -> tuple[Any, Any]:
    with without_warnings():
        scores = service.get("animals").predictor.predict(inputs_of(path, slice(200, 230), problem), evidence=True)
    return scores.probs, scores.evidence


async def test_restart_predicts_the_same_to_the_bit(learning, problem, tmp_path):
    async with in_process(learning, store=tmp_path / "feedback.db") as (client, service):
        for row in range(60, 64):
            arrays = inputs_of(learning, slice(row, row + 1), problem)
            inputs = {name: part[0].tolist() for name, part in arrays.items()}
            await client.give({"id": f"f{row}", "label": int(problem.labels[row]), **inputs})
            await until(lambda row=row: f"f{row}" in used_ids(service))
        await client.give({"id": "f60", "erase": True})
        expected = predicted(service, learning, problem)
    async with in_process(learning, store=tmp_path / "feedback.db") as (_, service):
        for before, after in zip(expected, predicted(service, learning, problem), strict=True):
            np.testing.assert_array_equal(after, before)


async def test_restart_is_ready_before_the_search_that_is_due(learning, problem, tmp_path, monkeypatch):
    rows = slice(60, 160)
    names = [f"f{row}" for row in range(60, 160)]
    arrays = inputs_of(learning, rows, problem)
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.append(ClassifierOutputs(**arrays, labels=problem.labels[rows], ids=names))
    kind, may_search = type(load(learning)), threading.Event()
    original = kind.refresh

    def waiting(calibrator: Any, *, search: bool = True) -> Any:
        assert not search or may_search.wait(PATIENCE)
        return original(calibrator, search=search)

    monkeypatch.setattr(kind, "refresh", waiting)
    async with in_process(learning, store=tmp_path / "feedback.db") as (client, service):
        early, first = predicted(service, learning, problem), service.get("animals").predictor
        assert (await client.get("/")).status_code == 200  # nor does the dashboard wait
        may_search.set()
        await until(lambda: service.get("animals").predictor is not first)
        late = predicted(service, learning, problem)
    live: Any = load(learning)
    embeddings = arrays.pop("embeddings")
    live.partial_fit(embeddings, problem.labels[rows], **arrays)
    for found, calibrator in ((early, live.snapshot(search=False)), (late, live.snapshot())):
        with without_warnings():
            expected = Predictor(calibrator).predict(inputs_of(learning, slice(200, 230), problem), evidence=True)
        np.testing.assert_array_equal(found[0], expected.probs)
        np.testing.assert_array_equal(found[1], expected.evidence)
    assert not np.array_equal(early[0], late[0])


async def label_patients(client: Any, problem: Problem) -> None:
    names = [f"patient-{row:02}" for row in range(20)]
    await client.predict(problem.embeddings[100:120], ids=names)
    labels = CLASSES[problem.labels[100:120]].tolist()
    await client.give([{"id": name, "label": label} for name, label in zip(names, labels, strict=True)])


async def test_record_survives_a_restart_without_samples_that_were_deleted_elsewhere(path, problem, tmp_path):
    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        await label_patients(client, problem)
        before = service.get("animals").summary()
    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        page, metrics = (await client.get("/")).text, (await client.get("/metrics")).text
        after = service.get("animals").summary()
    np.testing.assert_array_equal(after.codes, problem.labels[100:120])
    assert (after.n_predictions, after.n_labels, after.monitor.n_samples) == (20, 20, 20)
    assert "on 20 labels" in page
    assert f'kcal_measured_accuracy{{model="animals"}} {before.accuracy[0]}' in metrics
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.delete(["patient-03"])
        store.vacuum()
    async with in_process(path, store=tmp_path / "feedback.db"):
        pass
    for file in tmp_path.iterdir():
        assert b"patient-03" not in file.read_bytes()


@pytest.mark.parametrize("content", [b"", b"[3]", b'{"format": 3, "monitor": {}}'])
async def test_damaged_record_is_reported_and_begins_anew(path, problem, tmp_path, content, caplog):
    file = tmp_path / "feedback.db.monitor.json"
    file.write_bytes(content)
    async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
        await label_patients(client, problem)
        assert service.get("animals").summary().n_labels == 20
    assert "begins anew" in caplog.text
    assert b"patient-03" in file.read_bytes()
