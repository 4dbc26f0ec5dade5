"""The record of a served model: what it measures, forgets and keeps."""

from __future__ import annotations

import base64
import json
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from observed_models import CLASSES, calibrator, contents, draw, numbers_held, observed, stream, texts_held

import kcal
from kcal.deployment.service.latest import explain_latest
from kcal.deployment.service.observer import WATCHED_AT_ONCE, Observer
from kcal.deployment.service.watches import MOST_GROUPS, OTHER_GROUPS, PERIOD, TOLERANCE, DriftWatch, LabelWatch
from kcal.errors import FileFormatError
from kcal.metrics import accuracy, negative_log_likelihood, reliability
from kcal.monitoring import CalibrationMonitor, estimate_performance, estimate_prior


@pytest.mark.parametrize("of", ["confidence", 0, 2])
def test_reliability_is_that_of_the_latest_labelled_rows(of: str | int) -> None:
    rows = stream()
    labelled = observed(rows, capacity=250).snapshot().labelled
    assert labelled is not None
    probs, codes = rows.probs[-250:], rows.codes[-250:]
    expected = reliability(probs, codes, bins=10, of=of, adaptive=False, minimum_count=10)  # type: ignore[arg-type]
    curve = labelled.reliability(of)  # type: ignore[arg-type]
    for name in ("counts", "mean_prediction", "observed_frequency", "edges"):
        np.testing.assert_array_equal(getattr(curve, name), getattr(expected, name))
    assert labelled.accuracy == accuracy(probs, codes)
    assert labelled.negative_log_likelihood == negative_log_likelihood(probs, codes)


def test_estimates_are_of_the_latest_predictions() -> None:
    rows = stream()
    snapshot = observed(rows, capacity=250, labelled=False).snapshot()
    assert snapshot.performance is not None
    assert snapshot.performance.accuracy == estimate_performance(rows.probs[-250:], target="population").accuracy
    assert snapshot.frequencies is not None
    assert snapshot.frequencies.estimate is not None
    expected = estimate_prior(rows.probs[-250:], reference=calibrator().prior_)
    np.testing.assert_array_equal(snapshot.frequencies.estimate.prior, expected.prior)
    assert snapshot.evidence is not None
    np.testing.assert_allclose(snapshot.evidence.shares, np.histogram(rows.evidence[-250:], 10, (0, 1))[0] / 250)
    assert snapshot.labelled is None
    assert (snapshot.n_predictions, snapshot.n_recent, snapshot.n_labels) == (600, 250, 0)
    assert [each.id for each in snapshot.latest] == rows.ids[:-21:-1]


def test_a_correction_replaces_the_label_and_is_not_counted_twice() -> None:
    rows = stream(120)
    observer = observed(rows)
    wrong = (rows.codes + 1) % 3
    observer.labelled(rows.ids[:40], CLASSES[wrong[:40]].tolist())
    observer.labelled(rows.ids[:40], CLASSES[wrong[:40]].tolist())
    snapshot = observer.snapshot(max_age=0)
    codes = np.concatenate([wrong[:40], rows.codes[40:]])
    assert snapshot.n_labels == 120
    assert snapshot.labelled is not None
    np.testing.assert_array_equal(snapshot.labelled.codes, codes)
    monitor = CalibrationMonitor(CLASSES, tolerance=TOLERANCE)
    monitor.update(rows.probs, CLASSES[codes])
    assert str(snapshot.monitor) == str(monitor.report())


def test_an_id_that_is_predicted_again_counts_once() -> None:
    rows = stream(120)
    observer = observed(rows)
    observer.predicted(rows.ids, rows.probs)
    observer.labelled(rows.ids, rows.labels)
    snapshot = observer.snapshot(max_age=0)
    assert (snapshot.n_predictions, snapshot.n_labels, snapshot.monitor.n_samples) == (240, 120, 120)


def test_unknown_ids_and_labels_are_ignored() -> None:
    rows = stream(120)
    observer = observed(rows, labelled=False)
    observer.labelled(["never seen", rows.ids[0]], ["cat", "wolf"])
    assert observer.snapshot(max_age=0).n_labels == 0


def test_erasure_leaves_nothing() -> None:
    rows = stream(120)
    groups = [f"patient-{place}" for place in range(120)]
    observer = observed(rows, groups=groups)
    probs, embedding = np.array([[0.123456, 0.376544, 0.5]]), np.array([[0.3141, -0.2718, 0.5772]], dtype=np.float32)
    observer.predicted(["secret"], probs, evidence=np.array([0.7654321]), groups=["somebody"], embeddings=embedding)
    observer.labelled(["secret"], ["dog"])
    observer.snapshot(max_age=0)
    traces = np.array([0.123456, 0.376544, 0.7654321, np.float32(0.3141), np.float32(-0.2718)])
    assert np.isin(traces, numbers_held(observer)).all()
    assert {"secret", "somebody"} <= texts_held(observer)

    observer.erased(["secret"])
    assert not np.isin(traces, numbers_held(observer)).any()
    assert not {"secret", "somebody"} & texts_held(observer)
    without = observed(rows, groups=groups)
    assert str(observer.snapshot(max_age=0).monitor) == str(without.snapshot().monitor)
    assert observer.to_dict()["inputs"]["ranks"] == without.to_dict()["inputs"]["ranks"]


def test_erasure_of_a_row_that_came_long_ago_forgets_its_group() -> None:
    rows = stream(120)
    observer = observed(rows, capacity=60, groups=["common"] * 119 + ["somebody"])
    observer.erased(rows.ids[-1:])
    report = observer.snapshot(max_age=0).monitor
    assert [part.name for part in report.groups] == ["common"]
    assert report.n_samples == 120  # sums remain


def test_latest_predictions_are_what_was_predicted() -> None:
    rows = stream(120)
    observer = Observer(calibrator(), capacity=15)
    observer.predicted(rows.ids, rows.probs, embeddings=rows.embeddings, groups=range(120))
    latest = observer.snapshot().latest
    assert [prediction.id for prediction in latest] == rows.ids[:-16:-1]
    prediction = latest[2]
    np.testing.assert_array_equal(prediction.probs, rows.probs[117])
    np.testing.assert_array_equal(prediction.embedding, rows.embeddings[117])
    assert (prediction.group, prediction.logits, prediction.evidence) == ("117", None, None)


def test_latest_predictions_have_no_inputs_of_others() -> None:
    rows = stream()
    observer = Observer(calibrator())
    observer.predicted(rows.ids, rows.probs, embeddings=rows.embeddings)
    observer.erased(rows.ids[10:590])
    latest = observer.snapshot().latest
    assert [each.id for each in latest] == [*rows.ids[:589:-1], *rows.ids[9::-1]]
    np.testing.assert_array_equal([each.embedding for each in latest[:10]], rows.embeddings[:589:-1])
    assert [each.embedding for each in latest[10:]] == [None] * 10


def test_evidence_that_no_request_asked_for_is_computed() -> None:
    rows = stream(120)
    observer = Observer(calibrator())
    observer.predicted(rows.ids, rows.probs, embeddings=rows.embeddings)
    observer.snapshot()
    observer.predicted(["one more"], rows.probs[:1], evidence=np.array([0.5]))
    _, *latest = observer.snapshot(max_age=0).latest
    np.testing.assert_allclose([each.evidence for each in latest], rows.evidence[: -len(latest) - 1 : -1])


def test_memory_is_bounded() -> None:
    rows, capacity = stream(), 500
    observer = Observer(calibrator(), capacity=capacity)
    for number in range(200):
        ids = [f"{number}-{place}" for place in range(500)]
        observer.predicted(ids, rows.probs[:500], groups=ids, embeddings=rows.embeddings[:500])
        if number % 5 == 0:
            observer.labelled(ids[:50], rows.labels[:50])
            observer.snapshot(max_age=0)
    assert observer.n_predictions == 100_000
    n_classes, n_features = rows.probs.shape[1], rows.embeddings.shape[1]
    of_rows = 2 * capacity * (n_classes + n_features + 10)
    of_monitors = 5 * (PERIOD + WATCHED_AT_ONCE) + 50 * (MOST_GROUPS + 2 * n_classes + 5)
    assert len(numbers_held(observer)) < of_rows + of_monitors
    assert len(texts_held(observer)) < 2 * (2 * capacity + MOST_GROUPS) + 100


def test_groups_beyond_the_first_are_watched_as_one() -> None:
    watch = LabelWatch(["a", "b"])
    names = [f"g{place}" for place in range(MOST_GROUPS + 30)]
    watch.update(np.full((len(names), 2), 0.5), np.array(["a"] * len(names)), names)
    groups = {part.name: part.n_samples for part in watch.report().groups}
    assert groups[OTHER_GROUPS] == 30
    assert len(groups) == MOST_GROUPS + 1


def test_threads_may_predict_while_others_look() -> None:
    rows, observer = stream(), Observer(calibrator(), capacity=2400)
    known = {row.tobytes() for row in rows.probs}
    errors: list[Exception] = []
    done = threading.Event()

    def predict(number: int) -> None:
        for start in range(0, 600, 20):
            part = slice(start, start + 20)
            ids = [f"{number}-{name}" for name in rows.ids[part]]
            observer.predicted(ids, rows.probs[part], embeddings=rows.embeddings[part])
            observer.labelled(ids[:5], rows.labels[part][:5])
            observer.erased(ids[5:6])

    def look() -> None:
        try:
            while not done.is_set():
                snapshot = observer.snapshot(max_age=0)
                probs = np.array([each.probs for each in snapshot.latest])
                assert all(row.tobytes() in known for row in probs)
                assert len(explain_latest(observer.calibrator, snapshot)) == len(snapshot.latest)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=predict, args=(number,)) for number in range(4)]
    reader = threading.Thread(target=look)
    for thread in [reader, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    reader.join()
    assert errors == []
    snapshot = observer.snapshot(max_age=0)
    assert (snapshot.n_predictions, snapshot.n_labels) == (2400, 600)


def test_inputs_unlike_the_calibration_set_raise_an_alarm_without_labels() -> None:
    calm = observed(stream(), labelled=False).snapshot()
    assert calm.alarms == ()
    shifted = observed(stream(shift=2.5), labelled=False).snapshot()
    assert {alarm.kind for alarm in shifted.alarms if alarm.severity == "alarm"} == {"inputs"}


def test_inputs_that_the_calibrator_has_learnt_meanwhile_are_not_watched() -> None:
    rows, codes = draw(200, 0)
    model = kcal.KCal(projection="identity", progress=False).fit(rows, CLASSES[codes], ids=np.arange(200))
    new, new_codes = draw(150, 6)
    observer = Observer(model)
    observer.predicted([f"{place}" for place in range(150)], model.predict_proba(new), embeddings=new)
    model.partial_fit(new[:100], CLASSES[new_codes[:100]], ids=np.arange(200, 300))
    snapshot = observer.snapshot()
    assert snapshot.n_watched == 50
    assert snapshot.evidence is not None
    assert snapshot.evidence.n_samples == 50


def test_wrong_labels_of_a_group_are_named() -> None:
    rows = stream()
    groups = ["home" if place % 2 else "away" for place in range(600)]
    observer = observed(rows, labelled=False, groups=groups)
    codes = [code if place % 2 else (code + 1) % 3 for place, code in enumerate(rows.codes)]
    observer.labelled(rows.ids, CLASSES[codes].tolist())
    alarms = [(alarm.kind, alarm.name) for alarm in observer.snapshot(max_age=0).alarms if alarm.severity == "alarm"]
    assert ("calibration", None) in alarms
    assert [name for kind, name in alarms if kind == "group"] == ["away"]


def test_a_reset_ends_alarms_and_begins_with_what_comes_next() -> None:
    rows = stream(shift=2.5)
    observer = observed(rows, labelled=False)
    observer.labelled(rows.ids, CLASSES[(rows.codes + 1) % 3].tolist())
    alarms = {alarm.kind for alarm in observer.snapshot(max_age=0).alarms if alarm.severity == "alarm"}
    assert {"inputs", "calibration"} <= alarms
    observer.reset_monitors()
    observer.labelled(rows.ids[:10], rows.labels[:10])  # corrections of what came before
    snapshot = observer.snapshot(max_age=0)
    assert not [alarm for alarm in snapshot.alarms if alarm.severity == "alarm"]
    assert (snapshot.n_watched, snapshot.monitor.n_samples, snapshot.n_labels) == (0, 0, 600)
    again = Observer.from_dict(json.loads(json.dumps(observer.to_dict())), calibrator())
    for each in (observer, again):
        new = stream(seed=2)
        each.predicted(new.ids, new.probs, embeddings=new.embeddings)
        each.labelled(new.ids, CLASSES[(new.codes + 1) % 3].tolist())
        report = each.snapshot(max_age=0).monitor
        assert report.alarm
        assert report.n_samples == 600


def test_drift_of_a_later_period_is_found() -> None:
    generator, watch = np.random.default_rng(0), DriftWatch(100)
    for start in range(0, 3 * PERIOD, 500):
        watch.update(generator.integers(101, size=500) / 100, np.arange(start, start + 500))
    assert watch.alarm_at is None
    watch.update(generator.integers(30, size=500) / 100, np.arange(500))
    assert watch.alarm_at is not None
    assert 3 * PERIOD < watch.alarm_at <= watch.n_samples == 3 * PERIOD + 500
    assert sum(np.size(each) for each in contents(watch)) < PERIOD  # rows of earlier periods are gone


def test_monitors_go_on_after_a_restart() -> None:
    rows = stream()
    groups = ["home" if place % 3 else "away" for place in range(600)]
    whole = observed(rows, groups=groups)
    half = observed(
        type(rows)(rows.ids[:300], rows.embeddings[:300], rows.probs[:300], rows.evidence[:300], rows.codes[:300]),
        groups=groups,
    )
    again = Observer.from_dict(json.loads(json.dumps(half.to_dict())), calibrator())
    for start in range(300, 600, 50):
        part = slice(start, start + 50)
        again.predicted(rows.ids[part], rows.probs[part], groups=groups[part], embeddings=rows.embeddings[part])
        again.labelled(rows.ids[part], rows.labels[part])
        again.snapshot(max_age=0)
    one, other = whole.snapshot(), again.snapshot()
    assert str(one.monitor) == str(other.monitor)
    assert (one.n_predictions, one.n_labels, one.n_watched) == (other.n_predictions, other.n_labels, other.n_watched)


def test_labelled_predictions_survive_a_restart() -> None:
    rows = stream()
    observer = observed(rows, groups=["home" if place % 3 else "away" for place in range(600)])
    again = Observer.from_dict(json.loads(json.dumps(observer.to_dict())), calibrator())
    before, after = observer.snapshot().labelled, again.snapshot().labelled
    np.testing.assert_array_equal(after.probs, before.probs)
    np.testing.assert_array_equal(after.codes, before.codes)
    assert after.accuracy == np.mean(rows.probs.argmax(axis=1) == rows.codes)
    assert again.labelled_ids() == rows.ids
    again.labelled(rows.ids[:1], [CLASSES[(rows.codes[0] + 1) % 3]])
    corrected = again.snapshot(max_age=0)
    assert corrected.n_labels == 600
    assert corrected.labelled.codes[0] == (rows.codes[0] + 1) % 3
    assert corrected.monitor.n_samples == 600  # the monitor began again with the labels as they are now


def test_an_erasure_after_a_restart_leaves_nothing_in_the_next_state() -> None:
    rows = stream()
    observer = observed(rows, groups=["alone", *["home"] * 599])
    again = Observer.from_dict(json.loads(json.dumps(observer.to_dict())), calibrator())
    again.erased(rows.ids[:1])
    state = again.to_dict()
    assert rows.ids[0] not in state["labelled"]["ids"]
    assert "alone" not in json.dumps(state)
    encoded = base64.b64decode(state["labelled"]["probs"])
    assert rows.probs[0].astype("<f8").tobytes() not in encoded
    assert rows.probs[1].astype("<f8").tobytes() in encoded


def test_a_smaller_record_takes_the_latest_of_a_state() -> None:
    rows = stream()
    again = Observer.from_dict(observed(rows).to_dict(), calibrator(), capacity=100)
    assert again.labelled_ids() == rows.ids[-100:]
    assert again.snapshot().n_labels == 600
    again.erased(rows.ids[-1:])
    assert again.snapshot(max_age=0).monitor.n_samples == 600  # it has seen rows that are gone, and goes on


@pytest.mark.parametrize(
    "damage",
    [
        {"ids": ["a", "a"]},
        {"ids": ["a", 3]},
        {"ids": ["a"]},
        {"codes": [0, 3]},
        {"codes": [0, -1]},
        {"codes": [0, None]},
        {"groups": [None, 4]},
        {"groups": [None]},
        {"probs": "????"},
        {"probs": base64.b64encode(np.zeros(5).tobytes()).decode()},
        {"probs": base64.b64encode(np.full(6, np.nan).tobytes()).decode()},
    ],
)
def test_damaged_labelled_predictions_are_refused(damage: dict[str, object]) -> None:
    rows = stream(n_rows=2)
    state = observed(rows).to_dict()
    assert Observer.from_dict(state, calibrator()).labelled_ids() == rows.ids
    state["labelled"] |= damage
    with pytest.raises(FileFormatError):
        Observer.from_dict(state, calibrator())


@pytest.mark.parametrize("state", [{}, {"format": 9}, {"format": 2, "labels": 3}, {"format": 2, "labels": {}}])
def test_a_damaged_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(FileFormatError):
        Observer.from_dict(state, calibrator())


def test_a_new_class_begins_the_record_again() -> None:
    rows, codes = draw(200, 0)
    model = kcal.KCal(projection="identity", progress=False).fit(rows, CLASSES[codes], ids=np.arange(200))
    observer = Observer(model)
    observer.predicted(["a"], model.predict_proba(draw(1, 7)[0]))
    new = draw(21, 5)[0] + 9
    model.partial_fit(new[1:], np.array(["yak"] * 20), ids=np.arange(200, 220))
    observer.predicted(["b"], np.array([[0.1, 0.2, 0.7]]))  # of before the update
    observer.predicted(["c"], np.asarray(model.predict_proba(new[:1])))
    observer.labelled(["c"], ["yak"])
    snapshot = observer.snapshot(max_age=0)
    assert snapshot.classes.tolist() == ["cat", "dog", "owl", "yak"]
    assert [each.id for each in snapshot.latest] == ["c"]


def test_a_method_without_evidence_is_recorded_too() -> None:
    logits = np.random.default_rng(0).standard_normal((80, 3))
    model = kcal.TemperatureScaling().fit(logits, np.where(np.arange(80) < 50, logits.argmax(axis=1), 0))
    observer = Observer(model)
    observer.predicted(None, model.predict_proba(logits), logits=logits)
    snapshot = observer.snapshot()
    assert (snapshot.evidence, snapshot.drift_log_wealth, snapshot.latest[0].id) == (None, None, None)
    assert explain_latest(model, snapshot) == (None,) * 20


def test_explanations_are_of_the_latest_predictions() -> None:
    snapshot = observed(stream(120)).snapshot()
    for prediction, explanation in zip(snapshot.latest, explain_latest(calibrator(), snapshot), strict=True):
        assert explanation is not None
        np.testing.assert_allclose(explanation.probabilities[0], prediction.probs, atol=1e-6)


def test_predictions_without_inputs_have_no_explanation() -> None:
    rows = stream(120)
    observer = Observer(calibrator())
    observer.predicted(rows.ids[:1], rows.probs[:1])
    observer.predicted(rows.ids[1:2], rows.probs[1:2], embeddings=rows.embeddings[1:2])
    snapshot = observer.snapshot()
    assert [each is None for each in explain_latest(calibrator(), snapshot)] == [False, True]
    other = SimpleNamespace(has_explanations=True, inputs="embeddings", needs_logits_=False, n_features_in_=7)
    assert explain_latest(other, snapshot) == (None, None)
