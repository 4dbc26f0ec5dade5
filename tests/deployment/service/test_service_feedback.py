"""Feedback: durable when it is acknowledged, followed by the calibrator, and forgotten when it is erased."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from unittest.mock import create_autospec

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_service import in_process

from kcal import ClassifierOutputs, KCal, TemperatureScaling, load, save
from kcal.deployment.service.errors import RequestError
from kcal.deployment.service.feedback import parse_feedback
from kcal.deployment.service.predictors import CalibratorPredictor
from kcal.errors import without_warnings
from kcal.persistence import CalibrationStore

FEEDBACK = "/v2/models/animals/feedback"


@pytest.fixture
def path(tmp_path: Path, animals: KCal) -> Path:
    return save(animals, tmp_path / "animals.kcal")


async def predict(client, x, **fields):
    response = await client.post("/predict", json={"embeddings": np.atleast_2d(x).tolist(), **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def give(client, content, status: int = 200):
    response = await client.post(FEEDBACK, content=json.dumps(content))
    assert response.status_code == status, response.text
    return response.json()


async def followed(service) -> None:
    await asyncio.wrap_future(service.learners["animals"].follow_soon())


def test_labels_reach_the_store_then_the_calibrator_and_the_observer(path, problem, tmp_path):
    x = problem.test_embeddings[:3].astype(np.float32)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            before = await predict(client, x, ids=["a", "b", "c"])
            answer = await give(client, [{"id": "a", "label": "owl"}, {"id": "b", "label": "dog"}])
            assert [entry["status"] for entry in answer["results"]] == ["stored", "stored"]
            await followed(service)
            learnt = await predict(client, x)
            assert (await give(client, {"id": "a", "correction": "cat"}))["results"][0]["status"] == "corrected"
            await followed(service)
            corrected = await predict(client, x)
            snapshot = service.repository.get("animals").observer.snapshot(max_age=0)
            assert snapshot.n_labels == 2
            return before, learnt, corrected

    before, learnt, corrected = asyncio.run(story())
    with CalibrationStore(tmp_path / "feedback.db") as store:
        samples = store.samples()
    assert dict(zip(samples.outputs.ids.tolist(), samples.outputs.labels.tolist(), strict=True)) == {
        "a": "cat",
        "b": "dog",
    }
    np.testing.assert_array_equal(samples.outputs.embeddings, x[:2])
    expected = load(path)
    np.testing.assert_allclose(before["probabilities"], expected.predict_proba(x), rtol=1e-5, atol=1e-6)
    expected.partial_fit(x[:2], ["owl", "dog"], ids=["a", "b"])
    with without_warnings():  # of rows that it has learnt
        np.testing.assert_allclose(learnt["probabilities"], expected.predict_proba(x), rtol=1e-5, atol=1e-6)
        expected.correct(["a"], ["cat"])
        np.testing.assert_allclose(corrected["probabilities"], expected.predict_proba(x), rtol=1e-5, atol=1e-6)


def test_an_erasure_leaves_nothing_in_the_store_the_calibrator_and_the_observer(path, problem, tmp_path):
    x = problem.test_embeddings[:1].astype(np.float32)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            before = await predict(client, x, ids=["patient-7"])
            await give(client, {"id": "patient-7", "label": "owl"})
            await followed(service)
            assert "patient-7" in service.learners["animals"].calibrator.current_ids_
            assert (await give(client, {"id": "patient-7", "erase": True}))["results"][0]["status"] == "erased"
            assert "patient-7" not in service.learners["animals"].calibrator.current_ids_
            assert "patient-7" not in (await client.get("/")).text
            await give(client, {"id": "patient-7", "label": "owl"}, 404)
            after = await predict(client, x)
            assert (await give(client, {"id": "patient-7", "erase": True}))["results"][0]["status"] == "absent"
            return before, after

    before, after = asyncio.run(story())
    np.testing.assert_allclose(after["probabilities"], before["probabilities"], rtol=1e-5, atol=1e-6)
    for file in tmp_path.iterdir():
        assert b"patient-7" not in file.read_bytes()


def test_a_restart_follows_the_store_again(path, problem, tmp_path):
    x = problem.test_embeddings[:2].astype(np.float32)

    async def first():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await give(client, [{"id": "new", "label": "owl", "embeddings": x[0].tolist()}])
            await followed(service)
            return await predict(client, x)

    async def second():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            assert service.repository.get("animals").observer.n_predictions == 2
            return await predict(client, x)

    np.testing.assert_allclose(asyncio.run(first())["probabilities"], asyncio.run(second())["probabilities"], rtol=1e-5)
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.ids() == ["new"]


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        ({"id": "unknown", "label": "owl"}, 404, "send its embeddings"),
        ({"id": "cal-3", "erase": True}, 409, "a sample of the model's file"),
        ({"id": "cal-3", "label": "owl"}, 409, "a sample of the model's file"),
        ({"id": "a", "label": "horse"}, 400, "must be a class of the model"),
        ({"id": "a"}, 400, "one of label, correction and erase"),
        ({"id": "a", "label": "owl", "erase": True}, 400, "one of label, correction and erase"),
        ({"id": "a", "erase": False}, 400, "erase must be true"),
        ({"id": "", "label": "owl"}, 400, "printable text"),
        ({"id": "a\n", "label": "owl"}, 400, "printable text"),
        ({"id": 3, "label": "owl"}, 400, "printable text"),
        ({"id": "a", "label": "owl", "colour": 1}, 400, "no field 'colour'"),
        ({"id": "a", "label": "owl", "embeddings": [1, 2]}, 400, "must have the shape"),
        ({"id": "a", "label": "owl", "group": 3}, 400, "group must be printable text"),
        ({"id": "a", "label": "owl", "group": "\ud800"}, 400, "group must be printable text"),
        ([], 400, "a list of 1 to"),
        ([3], 400, "must be an object"),
    ],
)
def test_feedback_that_cannot_be_used_changes_nothing(path, tmp_path, content, status, message):
    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await predict(client, np.zeros(6), ids=["a"])
            both = [{"id": "a", "label": "owl"}, *(content if isinstance(content, list) else [content])]
            assert message in (await give(client, content, status))["error"]
            if content:
                await give(client, both, status)

    asyncio.run(story())
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert len(store) == 0


def test_a_refused_request_leaves_nothing_of_its_earlier_records_in_the_store(path, tmp_path):
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

    statuses = [entry["status"] for entry in asyncio.run(story())["results"]]
    assert statuses == ["stored", "corrected", "stored", "erased"]


def test_requests_that_are_written_together_are_refused_one_by_one(path, tmp_path, problem):
    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await predict(client, problem.test_embeddings[:20], ids=[f"p{row}" for row in range(20)])
            contents = [{"id": f"p{row}" if row % 5 else "nobody", "label": "owl"} for row in range(20)]
            contents += [{"id": "p1", "label": "cat"}, {"id": "p2", "erase": True}]
            answers = await asyncio.gather(*(client.post(FEEDBACK, json=content) for content in contents))
            return [answer.status_code for answer in answers]

    statuses = asyncio.run(story())
    assert statuses == [404 if row < 20 and row % 5 == 0 else 200 for row in range(22)]
    with CalibrationStore(tmp_path / "feedback.db") as store:
        labels = dict(zip(store.ids(), store.samples().outputs.labels.tolist(), strict=True))
    assert labels == {f"p{row}": "cat" if row == 1 else "owl" for row in range(20) if row % 5 and row != 2}


def test_a_store_of_the_whole_calibration_set_is_followed_in_deletions_too(tmp_path, problem):
    names = [f"s{row}" for row in range(60)]
    with CalibrationStore(tmp_path / "all.db") as store:
        labels = np.array(["cat", "dog", "owl"])[problem.labels[:60]]
        store.append(ClassifierOutputs(problem.embeddings[:60].astype(np.float32), labels=labels, ids=names))
        save(store.fit(KCal(projection="identity", bandwidth=0.8)), tmp_path / "animals.kcal")
        store.delete(["s5"])

    async def story():
        options = {"store": tmp_path / "all.db", "store_is_complete": True}
        async with in_process(tmp_path / "animals.kcal", **options) as (client, service):
            assert "s5" not in service.learners["animals"].calibrator.current_ids_
            assert (await give(client, {"id": "s6", "erase": True}))["results"][0]["status"] == "erased"
            return service.learners["animals"].calibrator.current_ids_

    assert sorted(asyncio.run(story())) == sorted(set(names) - {"s5", "s6"})


@pytest.mark.parametrize("name", ["cow", "yak"])  # which change the columns of other classes, and do not
def test_a_class_that_the_store_brings_is_counted_and_its_predictions_take_feedback(path, problem, tmp_path, name):
    far = np.full((1, 6), 50, dtype=np.float32)
    x = np.concatenate([far, problem.test_embeddings[:20].astype(np.float32)])

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await predict(client, x)
            with CalibrationStore(tmp_path / "feedback.db") as store:
                store.append(ClassifierOutputs(far, labels=np.array([name]), ids=np.array(["new"])))
            await followed(service)
            before = service.repository.get("animals").tallies.class_counts()
            answer = await predict(client, x, ids=[f"p{row}" for row in range(21)])
            assert answer["classes"] == sorted(["cat", "dog", "owl", name])
            assert (await give(client, {"id": "p0", "label": name}))["results"][0]["status"] == "stored"
            await service.learners["animals"].batcher.settled()
            model = service.repository.get("animals")
            assert model.observer.labelled_ids() == ["p0"]
            return before, answer["labels"], model.tallies.class_counts(), (await client.get("/metrics")).text

    before, labels, after, metrics = asyncio.run(story())
    assert labels[0] == name
    assert {label: after[label] - before.get(label, 0) for label in after} == Counter(labels)
    assert f'kcal_predictions_total{{class="{name}",model="animals",version="1"}} 1.0' in metrics


def test_predictions_have_the_classes_of_the_predictor_that_made_them(path, animals, problem):
    x = problem.test_embeddings[:5].astype(np.float32)
    later = KCal(projection="identity").fit(problem.embeddings, np.array(["ant", "bee", "cow"])[problem.labels])
    tensor = {"name": "embeddings", "datatype": "FP32", "shape": [5, 6], "data": x.tolist()}

    async def story():
        async with in_process(path) as (client, service):
            model = service.repository.get("animals")
            first, run = model.predictor, model.batcher._run

            def run_then_replace(jobs):
                results = run(jobs)
                model.predictor = CalibratorPredictor(later)
                return results

            model.batcher._run = run_then_replace
            plain = await predict(client, x)
            model.predictor = first
            outputs = {"inputs": [tensor], "outputs": [{"name": "labels"}]}
            answer = await client.post("/v2/models/animals/infer", json=outputs)
            return plain, answer.json()["outputs"][0]["data"]

    plain, labels = asyncio.run(story())
    assert plain["classes"] == animals.classes_.tolist()
    assert plain["labels"] == labels == animals.predict(x).tolist()


def test_a_method_that_does_not_learn_keeps_labels_for_its_monitor(tmp_path, problem):
    save(TemperatureScaling().fit(problem.logits, problem.labels), tmp_path / "animals.kcal")

    async def story():
        async with in_process(tmp_path / "animals.kcal", store=tmp_path / "feedback.db") as (client, service):
            body = {"logits": problem.test_logits[:1].tolist(), "ids": ["a"]}
            assert "evidence" not in (await client.post("/predict", json=body)).json()
            await give(client, {"id": "a", "label": 2})
            await service.learners["animals"].batcher.settled()
            n_labels = service.repository.get("animals").observer.snapshot(max_age=0).n_labels
            return n_labels, (await client.get("/")).text

    n_labels, page = asyncio.run(story())
    assert n_labels == 1
    assert "the method ts does not learn online" in page
    with CalibrationStore(tmp_path / "feedback.db") as store:
        assert store.samples().outputs.labels.tolist() == [2]


def test_compressed_model_says_why_it_does_not_follow(blend, problem, tmp_path):
    save(blend.compress(20), tmp_path / "animals.kcal")

    async def story():
        async with in_process(tmp_path / "animals.kcal", store=tmp_path / "feedback.db") as (client, service):
            inputs = {"embeddings": problem.test_embeddings[:1].tolist(), "logits": problem.test_logits[:1].tolist()}
            before = (await client.post("/predict", json={**inputs, "ids": ["a"]})).json()
            await give(client, {"id": "a", "label": 2})
            await followed(service)
            after = (await client.post("/predict", json=inputs)).json()
            return before["probabilities"], after["probabilities"], (await client.get("/")).text

    before, after, page = asyncio.run(story())
    assert after == before
    assert "not made of single samples" in page


def test_without_a_store_feedback_is_refused(path):
    async def story():
        async with in_process(path) as (client, _):
            return await give(client, {"id": "a", "label": "owl"}, 409)

    assert "no store" in asyncio.run(story())["error"]


@pytest.mark.parametrize(
    ("classes", "given", "label"),
    [
        ([1.0, 2.5], 1, 1.0),
        ([1.0, 2.5], "2.5", 2.5),
        ([1, 2], 2, 2),
        ([1, 2], "2", 2),
        ([False, True], True, True),
        (["1", "2"], "2", "2"),
        ([1.0, 2.5], 10**400, None),
        ([False, True], 1, None),
        ([1, 2], [1], None),
    ],
)
def test_labels_are_classes_of_the_model_in_the_types_of_json(classes, given, label):
    predictor = create_autospec(CalibratorPredictor, instance=True, classes=np.array(classes), inputs=())
    content = {"id": "a", "label": given}
    if label is None:
        with pytest.raises(RequestError, match="must be a class"):
            parse_feedback(content, predictor)
    else:
        (record,) = parse_feedback(content, predictor)
        assert (record.label, type(record.label)) == (label, type(label))


def test_the_group_of_feedback_is_watched_by_the_monitor(path, problem, tmp_path):
    x = problem.test_embeddings[:3].astype(np.float32)

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            await predict(client, x, ids=["a", "b", "c"])
            labels = [{"id": "a", "label": "owl", "group": "ward 1"}, {"id": "b", "label": "dog", "group": "ward 2"}]
            await give(client, [*labels, {"id": "c", "label": "dog"}])
            await followed(service)
            groups = service.repository.get("animals").observer.snapshot(max_age=0).monitor.groups
            page = (await client.get("/")).text
            return {group.name for group in groups}, page

    groups, page = asyncio.run(story())
    assert groups == {"ward 1", "ward 2"}
    assert "<summary>Groups</summary>" in page
    assert "ward 2" in page


def test_alarms_stay_until_the_monitors_are_reset(path, problem, tmp_path):
    x = problem.test_embeddings.astype(np.float32)
    wrong = {"cat": "dog", "dog": "owl", "owl": "cat"}

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, service):
            names = [f"p{row}" for row in range(len(x))]
            labels = (await predict(client, x, ids=names))["labels"]
            await give(client, [{"id": one, "label": wrong[label]} for one, label in zip(names, labels, strict=True)])
            await service.learners["animals"].batcher.settled()  # labels are recorded just after the answer
            service.repository.get("animals").observer.snapshot(max_age=0)
            assert "/v2/models/animals/versions/1/monitors/reset" in (await client.get("/")).text
            assert alarms_in((await client.get("/metrics")).text) > 0
            answer = await client.post("/v2/models/animals/monitors/reset")
            assert (answer.status_code, answer.json()) == (200, {"model_name": "animals", "model_version": "1"})
            assert "monitors/reset" not in (await client.get("/")).text
            assert (await client.post("/v2/models/nothing/monitors/reset")).status_code == 404
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            return (await client.get("/metrics")).text

    assert alarms_in(asyncio.run(story())) == 0


def alarms_in(metrics: str) -> float:
    """Return the number of alarms, without notices."""
    families = text_string_to_metric_families(metrics)
    samples = [one for family in families for one in family.samples if one.name == "kcal_alarms"]
    return sum(one.value for one in samples if one.labels["kind"] == "any")


def test_plain_requests_are_counted_as_those_of_the_protocol_are(path, problem, tmp_path):
    x = problem.test_embeddings[:1].tolist()
    tensor = {"name": "embeddings", "datatype": "FP32", "shape": [1, len(x[0])], "data": x}

    async def story():
        async with in_process(path) as (client, service):
            await client.post("/predict", json={"embeddings": x})
            await client.post("/predict", json={"embeddings": [x[0][1:]]})
            await client.post("/v2/models/animals/infer", json={"inputs": [tensor]})
            await client.post("/v2/models/animals/infer", json={"inputs": [tensor | {"name": "none"}]})
            return service.repository.get("animals").tallies.traffic()

    traffic = asyncio.run(story())
    assert (traffic.requests, traffic.errors) == (4, 2)
    assert traffic.per_second > 0
    assert 0 < traffic.p50_ms <= traffic.p99_ms


def test_ids_of_clients_are_not_mistaken_for_rows_of_a_model_without_ids(problem, tmp_path):
    labels = np.array(["cat", "dog", "owl"])[problem.labels]
    model = KCal(projection="identity", bandwidth=0.8).fit(problem.embeddings, labels)
    path = save(model, tmp_path / "animals.kcal")

    async def story():
        async with in_process(path, store=tmp_path / "feedback.db") as (client, _):
            await predict(client, problem.test_embeddings[:1], ids=["3"])
            stored = await give(client, {"id": "3", "label": "owl"})
            refused = await give(client, {"id": "row 3", "erase": True}, status=409)
            return stored["results"][0]["status"], refused["error"]

    status, error = asyncio.run(story())
    assert status == "stored"
    assert "'row 3' is a sample of the model's file" in error
