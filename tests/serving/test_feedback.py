"""Feedback: durable when it is acknowledged, followed by the calibrator, and gone when it is erased."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_service import PATIENCE, in_process, until

from kcal import CalibrationStore, ClassifierOutputs, KCal, KCalBlend, TemperatureScaling, Updates, load, save
from kcal.calibrators import online_ids, online_samples
from kcal.errors import KcalError, without_warnings
from kcal.serving.learning import Learner
from kcal.serving.predictor import Predictor
from synthetic import Problem

FEEDBACK = "/v2/models/animals/feedback"
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


async def predict(client, x, **fields):
    response = await client.post("/predict", json={"embeddings": np.atleast_2d(x).tolist(), **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def give(client, content, status: int = 200):
    response = await client.post(FEEDBACK, content=json.dumps(content))
    assert response.status_code == status, response.text
    return response.json()


def statuses(answer) -> list[str]:
    return [entry["status"] for entry in answer["results"]]


def used_ids(service) -> set[str]:
    return set(online_ids(service.get("animals").predictor.calibrator))


def record(problem: Problem, name: str, row: int = 0) -> dict[str, Any]:
    label = ("cat", "dog", "owl")[problem.labels[row]]
    return {"id": name, "label": label, "embeddings": problem.embeddings[row].tolist()}


def test_labels_reach_store_calibrator_and_record(path, problem, tmp_path):
    x = problem.test_embeddings[:3].astype(np.float32)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            before = await predict(client, x, ids=["a", "b", "c"])
            given = [{"id": "a", "label": "owl"}, {"id": "b", "label": "dog"}]
            assert statuses(await give(client, given)) == ["stored", "stored"]
            await until(lambda: {"a", "b"} <= used_ids(service))
            learned = await predict(client, x)
            assert statuses(await give(client, {"id": "a", "correction": "cat"})) == ["corrected"]
            await until(lambda: online_samples(service.get("animals").predictor.calibrator).codes[-2] == 0)
            assert service.get("animals").summary().codes.tolist() == [0, 1]
            return before, learned, await predict(client, x)

    before, learned, corrected = asyncio.run(story())
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


def test_erasure_leaves_nothing_in_store_calibrator_record_and_files(path, problem, tmp_path):
    x = problem.test_embeddings[:1].astype(np.float32)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            before = await predict(client, x, ids=["patient-7"])
            await give(client, {"id": "patient-7", "label": "owl"})
            await until(lambda: "patient-7" in used_ids(service))
            await asyncio.to_thread(service.get("animals").record.save, service.get("animals").predictor)
            assert b"patient-7" in (tmp_path / "feedback.db.monitor.json").read_bytes()
            assert statuses(await give(client, {"id": "patient-7", "erase": True})) == ["erased"]
            assert "patient-7" not in used_ids(service)
            assert "patient-7" not in (await client.get("/")).text
            for file in tmp_path.iterdir():
                assert b"patient-7" not in file.read_bytes()
                assert x.tobytes() not in file.read_bytes()
            await give(client, {"id": "patient-7", "label": "owl"}, 404)
            assert statuses(await give(client, {"id": "patient-7", "erase": True})) == ["absent"]
            return before, await predict(client, x)

    before, after = asyncio.run(story())
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


def test_invalid_feedback_changes_nothing(path, tmp_path):
    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await predict(client, np.zeros(6), ids=["a"])
            for content, status in INVALID:
                assert (await give(client, content, status))["error"]
                if content:
                    both = [{"id": "a", "label": "owl"}, *(content if isinstance(content, list) else [content])]
                    await give(client, both, status)

    asyncio.run(story())
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert len(store) == 0


def test_records_of_one_request_are_written_in_order_all_or_none(path, tmp_path):
    records = [
        {"id": "a", "label": "owl"},
        {"id": "a", "correction": "cat"},
        {"id": "b", "label": "dog"},
        {"id": "b", "erase": True},
        {"id": "unknown", "label": "owl"},
    ]

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await predict(client, np.zeros((2, 6)), ids=["a", "b"])
            await give(client, records, 404)
            with CalibrationStore(tmp_path / "feedback.db") as store:
                assert len(store) == store.last_change == 0
            return await give(client, records[:-1])

    assert statuses(asyncio.run(story())) == ["stored", "corrected", "stored", "erased"]


def test_complete_store_is_followed_in_deletions(tmp_path, problem):
    names = [f"s{row}" for row in range(60)]
    with CalibrationStore(tmp_path / "all.db") as store:
        labels = np.array(["cat", "dog", "owl"])[problem.labels[:60]]
        store.append(ClassifierOutputs(problem.embeddings[:60].astype(np.float32), labels=labels, ids=names))
        save(store.fit(KCal(projection="identity", bandwidth=0.8)), tmp_path / "animals.kcal")
        store.delete(["s5"])

    async def story():
        options = {"store": tmp_path / "all.db", "store_is_complete": True}
        async with in_process(tmp_path / "animals.kcal", **options) as (client, service):
            assert "s5" not in used_ids(service)
            assert statuses(await give(client, {"id": "s6", "erase": True})) == ["erased"]
            return used_ids(service)

    assert asyncio.run(story()) == set(names) - {"s5", "s6"}


@pytest.mark.parametrize("name", ["cow", "yak"])  # which move the columns of other classes, and do not
def test_class_that_the_store_brings_is_predicted_counted_and_labelled(path, problem, tmp_path, name):
    far = np.full((1, 6), 50, dtype=np.float32)
    x = np.concatenate([far, problem.test_embeddings[:20].astype(np.float32)])
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.append(ClassifierOutputs(far, labels=np.array([name]), ids=np.array(["new"])))

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            answer = await predict(client, x, ids=[f"p{row}" for row in range(21)])
            assert answer["classes"] == sorted(["cat", "dog", "owl", name])
            assert statuses(await give(client, {"id": "p0", "label": name})) == ["stored"]
            assert service.get("animals").record.labelled_ids() == ["p0"]
            return answer["labels"], (await client.get("/metrics")).text

    labels, metrics = asyncio.run(story())
    assert labels[0] == name
    for label, count in Counter(labels).items():
        assert f'kcal_predictions_total{{class="{label}",model="animals"}} {float(count)}' in metrics


@pytest.mark.parametrize("kind", ["blend", "compressed", "scaling"])
def test_every_method_keeps_labels_and_says_whether_it_learns(kind, blend, problem, tmp_path, caplog):
    """A blend that was saved without ``updates`` learns, too."""
    model = {"blend": blend, "compressed": blend.compress(20)}.get(kind) or TemperatureScaling().fit(
        problem.logits, problem.labels
    )
    save(model, tmp_path / "animals.kcal")
    inputs = {"embeddings": problem.test_embeddings[:1].tolist(), "logits": problem.test_logits[:1].tolist()}
    if kind == "scaling":
        del inputs["embeddings"]

    async def story():
        async with in_process(tmp_path / "animals.kcal", store=tmp_path / "feedback.db") as (client, service):
            before = (await client.post("/predict", json={**inputs, "ids": ["a"]})).json()
            assert ("evidence" in before) == (kind != "scaling")
            assert (await give(client, {"id": "a", "label": 2}))["learns"] == (kind == "blend")
            if kind == "blend":
                await until(lambda: "a" in used_ids(service))
            after = (await client.post("/predict", json=inputs)).json()
            assert service.get("animals").summary().n_labels == 1
            return before["probabilities"], after["probabilities"], (await client.get("/")).text

    before, after, page = asyncio.run(story())
    assert (after == before) == (kind != "blend")
    assert ("Predictions do not follow the feedback" in page) == (kind != "blend")
    assert ("does not learn from it" in caplog.text) == (kind != "blend")
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.samples().labels.tolist() == [2]


def test_without_a_store_feedback_is_refused(path):
    async def story():
        async with in_process(path) as (client, _):
            return await give(client, {"id": "a", "label": "owl"}, 409)

    assert "--store" in asyncio.run(story())["error"]


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
def test_labels_are_classes_in_the_types_of_json(classes, given, label, problem, tmp_path):
    codes = problem.labels % len(classes)
    save(KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, classes[codes]), tmp_path / "animals.kcal")

    async def story():
        async with in_process(tmp_path / "animals.kcal", store=tmp_path / "feedback.db") as (client, _):
            await give(client, {"id": "a", "label": given, "embeddings": [0.0] * 6})
            await give(client, {"id": "b", "label": "nothing", "embeddings": [0.0] * 6}, 400)

    asyncio.run(story())
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.samples().labels.tolist() == [label]


def test_alarms_name_groups_and_stay_until_the_monitors_are_reset(path, problem, tmp_path):
    x = problem.test_embeddings.astype(np.float32)
    wrong = {"cat": "dog", "dog": "owl", "owl": "cat"}

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _service):
            names = [f"p{row}" for row in range(len(x))]
            labels = (await predict(client, x, ids=names))["labels"]
            given = [
                {"id": one, "label": wrong[label], "group": "ward 2"} for one, label in zip(names, labels, strict=True)
            ]
            await give(client, given)
            page = (await client.get("/")).text
            assert "monitors/reset" in page
            assert "Group <bdi>ward 2</bdi>: mean confidence" in page
            assert alarms_in((await client.get("/metrics")).text) > 0
            answer = await client.post("/v2/models/animals/monitors/reset")
            assert (answer.status_code, answer.json()["model_name"]) == (200, "animals")
            assert "monitors/reset" not in (await client.get("/")).text
            assert (await client.post("/v2/models/nothing/monitors/reset")).status_code == 404
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            return (await client.get("/metrics")).text

    assert alarms_in(asyncio.run(story())) == 0


def alarms_in(metrics: str) -> float:
    """Return the number of alarms, without notices."""
    samples = [one for family in text_string_to_metric_families(metrics) for one in family.samples]
    return sum(one.value for one in samples if one.name == "kcal_alarms" and one.labels["kind"] == "any")


def test_ids_of_clients_are_not_rows_of_a_model_without_ids(problem, tmp_path):
    labels = np.array(["cat", "dog", "owl"])[problem.labels]
    path = save(KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, labels), tmp_path / "animals.kcal")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await predict(client, problem.test_embeddings[:1], ids=["3"])
            assert statuses(await give(client, {"id": "3", "label": "owl"})) == ["stored"]
            await give(client, {"id": "row 3", "erase": True}, status=409)

    asyncio.run(story())


# Searches, failures and other networks


@pytest.fixture
def searching(problem: Problem, tmp_path: Path) -> Path:
    """The file of a calibrator that searches again when its samples have grown by half."""
    labels, names = np.array(["cat", "dog", "owl"])[problem.labels[:60]], [f"own-{row}" for row in range(60)]
    model = KCal(projection="identity", updates=Updates()).fit(problem.embeddings[:60], labels, ids=names)
    return save(model, tmp_path / "animals.kcal")


def test_neither_erasure_nor_prediction_waits_for_a_search(searching, problem, tmp_path, monkeypatch):
    search, is_searching, may_end, ended = KCal._search, threading.Event(), threading.Event(), []

    def slow(*arguments):
        is_searching.set()
        ended.append(may_end.wait(PATIENCE))
        return search(*arguments)

    async def story():
        async with in_process(searching, store=tmp_path / "feedback.db") as (client, service):
            await give(client, record(problem, "patient-7", 60))
            monkeypatch.setattr(KCal, "_search", slow)
            await give(client, [record(problem, f"new-{row}", row) for row in range(60, 120)])
            await asyncio.to_thread(is_searching.wait, PATIENCE)
            await give(client, {"id": "patient-7", "erase": True})
            assert "patient-7" not in used_ids(service)
            await predict(client, problem.test_embeddings[:1])
            assert (await client.get("/")).status_code == 200
            assert not ended
            may_end.set()
            earlier = len(load(searching).bandwidth_history_)

            def new_searches():
                history = service.get("animals").predictor.calibrator.bandwidth_history_[earlier:]
                return [step for step in history if step.source == "search"]

            await until(new_searches)
            assert "patient-7" not in used_ids(service)
            assert ended == [True]

    asyncio.run(story())


def test_erasure_that_predictions_cannot_follow_is_not_acknowledged(path, problem, tmp_path, monkeypatch):
    def fail(_):
        raise KcalError("no memory")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await give(client, record(problem, "patient-7"))
            await until(lambda: "patient-7" in used_ids(service))
            with monkeypatch.context() as patch:
                patch.setattr(Learner, "_follow", fail)
                await give(client, {"id": "patient-7", "erase": True}, 503)
                assert "no memory" in (await client.get("/")).text
            await give(client, {"id": "patient-7", "erase": True})
            assert "patient-7" not in used_ids(service)

    asyncio.run(story())


def test_full_disk_does_not_hide_an_erasure(path, problem, tmp_path, monkeypatch):
    file = tmp_path / "feedback.db.monitor.json"

    def fail(*_):
        raise KcalError("database or disk is full")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await predict(client, problem.test_embeddings[:1], ids=["patient-7"])
            await give(client, {"id": "patient-7", "label": "owl"})
            await asyncio.to_thread(service.get("animals").record.save, service.get("animals").predictor)
            with monkeypatch.context() as patch:
                patch.setattr(CalibrationStore, "vacuum", fail)
                patch.setattr("kcal.serving.record.write_whole", fail)
                assert statuses(await give(client, {"id": "patient-7", "erase": True})) == ["erased"]
                assert not file.exists()
            assert "patient-7" not in used_ids(service)

    asyncio.run(story())


def test_label_with_inputs_replaces_the_sample_of_an_earlier_network(path, problem, tmp_path):
    x = problem.embeddings.astype(np.float32)
    with CalibrationStore(tmp_path / "feedback.db", version="earlier") as earlier:
        earlier.append(ClassifierOutputs(x[:2], labels=["cat", "dog"], ids=["scan-1", "scan-2"]))

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            learner = service.get("animals").learner
            assert isinstance(learner, Learner)
            predictor = Predictor(load(path))
            predictor.version = "present"
            learner.start(predictor)
            learner.predictor.version = "present"  # as that of a network would be
            assert not {"scan-1", "scan-2"} & used_ids(service)
            given = [
                {"id": "scan-1", "label": "owl", "embeddings": x[5].tolist()},
                {"id": "scan-2", "correction": "owl"},
            ]
            assert statuses(await give(client, given)) == ["corrected", "corrected"]
            await until(lambda: "scan-1" in used_ids(service))
            assert "scan-2" not in used_ids(service)

    asyncio.run(story())
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.versions_of(["scan-1", "scan-2"]) == ["present", "earlier"]


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


def labels_of(path: Path, rows: range, problem: Problem) -> list[dict[str, Any]]:
    arrays = inputs_of(path, slice(rows.start, rows.stop), problem)
    return [
        {"id": f"f{row}", "label": int(problem.labels[row])} | {name: part[i].tolist() for name, part in arrays.items()}
        for i, row in enumerate(rows)
    ]


def predicted(service: Any, path: Path, problem: Problem) -> tuple[Any, Any]:
    with without_warnings():
        scores = service.get("animals").predictor.predict(inputs_of(path, slice(200, 230), problem), evidence=True)
    return scores.probs, scores.evidence


def test_restart_predicts_the_same_to_the_bit(learning, problem, tmp_path):
    async def first():
        async with in_process(learning, store=tmp_path / "feedback.db") as (client, service):
            for row in range(60, 64):
                await give(client, labels_of(learning, range(row, row + 1), problem))
                await until(lambda row=row: f"f{row}" in used_ids(service))
            await give(client, {"id": "f60", "erase": True})
            return predicted(service, learning, problem)

    async def second():
        async with in_process(learning, store=tmp_path / "feedback.db") as (_, service):
            return predicted(service, learning, problem)

    for before, after in zip(asyncio.run(first()), asyncio.run(second()), strict=True):
        np.testing.assert_array_equal(after, before)


def test_restart_is_ready_before_the_search_that_is_due(learning, problem, tmp_path, monkeypatch):
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

    async def story():
        async with in_process(learning, store=tmp_path / "feedback.db") as (client, service):
            early, first = predicted(service, learning, problem), service.get("animals").predictor
            assert (await client.get("/")).status_code == 200  # nor does the dashboard wait
            may_search.set()
            await until(lambda: service.get("animals").predictor is not first)
            return early, predicted(service, learning, problem)

    early, late = asyncio.run(story())
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
    await predict(client, problem.embeddings[100:120], ids=names)
    labels = np.array(["cat", "dog", "owl"])[problem.labels[100:120]].tolist()
    await give(client, [{"id": name, "label": label} for name, label in zip(names, labels, strict=True)])


def test_record_survives_a_restart_without_samples_that_were_deleted_elsewhere(path, problem, tmp_path):
    async def first():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await label_patients(client, problem)
            return service.get("animals").summary()

    async def second():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            page, metrics = (await client.get("/")).text, (await client.get("/metrics")).text
            return service.get("animals").summary(), page, metrics

    before, (after, page, metrics) = asyncio.run(first()), asyncio.run(second())
    np.testing.assert_array_equal(after.probs, before.probs)
    np.testing.assert_array_equal(after.codes, problem.labels[100:120])
    assert (after.n_predictions, after.n_labels, after.monitor.n_samples) == (20, 20, 20)
    assert "on 20 labels" in page
    assert f'kcal_measured_accuracy{{model="animals"}} {before.accuracy[0]}' in metrics
    with CalibrationStore(tmp_path / "feedback.db") as store:
        store.delete(["patient-03"])
        store.vacuum()
    asyncio.run(second())
    for file in tmp_path.iterdir():
        assert b"patient-03" not in file.read_bytes()


@pytest.mark.parametrize("content", [b"{", b'{"format": 1}', b"[3]", b"", b'{"format": 3, "monitor": {}}'])
def test_damaged_record_is_reported_and_begins_anew(path, problem, tmp_path, content, caplog):
    file = tmp_path / "feedback.db.monitor.json"
    file.write_bytes(content)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await label_patients(client, problem)
            return service.get("animals").summary().n_labels

    assert asyncio.run(story()) == 20
    assert "begins anew" in caplog.text
    assert b"patient-03" in file.read_bytes()
