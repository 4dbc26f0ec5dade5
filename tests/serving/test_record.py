"""The record of predictions: labels, corrections, erasures, monitors, bounds of memory, and restarts."""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Any

import numpy as np
import pytest

from kcal import KCal
from kcal.errors import without_warnings
from kcal.metrics import reliability
from kcal.monitoring import estimate_performance
from kcal.serving.predictor import Predictor, Scores
from kcal.serving.record import MAX_GROUPS, OTHER_GROUPS, Record

CLASSES = np.array(["cat", "dog", "owl"])
CENTRES = np.array([[0.0, 0.0, 0.0], [1.8, 0.0, 0.0], [0.0, 1.8, 0.0]])


def draw(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return embeddings of three overlapping classes and their codes."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(3, size=n_rows)
    return (CENTRES[codes] + generator.standard_normal((n_rows, 3))).astype(np.float32), codes


@cache
def predictor() -> Predictor:
    rows, codes = draw(300, 0)
    names = np.array([f"sample-{row}" for row in range(300)])
    return Predictor(KCal(projection="identity", progress=False).fit(rows, CLASSES[codes], ids=names))


class Stream:
    """Predictions of rows, with their true labels."""

    def __init__(self, n_rows: int = 600, seed: int = 1, shift: float = 0.0) -> None:
        rows, self.codes = draw(n_rows, seed)
        self.ids = [f"row-{seed}-{place}" for place in range(n_rows)]
        with without_warnings():
            self.scores = predictor().predict({"embeddings": rows + np.float32(shift)}, evidence=True)
        self.probs, self.rows = self.scores.probs, self.scores.rows["embeddings"]

    def add_to(self, record: Record, part: slice = slice(None), *, labelled: bool = True, group: Any = None) -> None:
        record.add(CLASSES, self.ids[part], self.scores[part])
        for name, code in zip(self.ids[part], self.codes[part], strict=True) if labelled else ():
            record.label(name, CLASSES[code], group)


def recorded(stream: Stream, record: Record | None = None, rows: range = range(0, 600, 100), **options: Any) -> Record:
    """Return a record that has seen a stream, with a summary after each 100."""
    record = record or Record(CLASSES, 1000)
    for start in rows:
        stream.add_to(record, slice(start, start + 100), **options)
        record.summary(predictor())
    return record


def test_reliability_and_estimates_are_of_the_latest_rows():
    stream = Stream()
    summary = recorded(stream, Record(CLASSES, 250)).summary(predictor())
    expected = reliability(stream.probs[-250:], stream.codes[-250:], bins=10, of=2, adaptive=False, minimum_count=10)
    np.testing.assert_allclose(summary.reliability(2).observed_frequency, expected.observed_frequency, equal_nan=True)
    performance = estimate_performance(stream.probs[-250:], classes=CLASSES, target="population")
    assert summary.performance.accuracy.value == pytest.approx(performance.accuracy.value)
    assert summary.accuracy[0] == (stream.probs[-250:].argmax(axis=1) == stream.codes[-250:]).mean()
    assert (summary.n_predictions, summary.n_labels) == (600, 600)


def test_correction_replaces_the_label_and_an_id_counts_once():
    stream, record = Stream(50), Record(CLASSES, 1000)
    stream.add_to(record)
    record.summary(predictor())
    record.label(stream.ids[0], CLASSES[(stream.codes[0] + 1) % 3])
    record.label("nobody", "cat")
    record.label(stream.ids[1], "horse")
    stream.add_to(record, slice(1))  # predicted again, and labelled again
    summary = record.summary(predictor())
    assert (summary.n_labels, summary.monitor.n_samples) == (50, 50)
    assert summary.codes.tolist() == stream.codes.tolist()


def test_erasure_leaves_nothing(tmp_path):
    stream, record = Stream(60), Record(CLASSES, 1000, tmp_path / "record.json")
    stream.add_to(record, group="patient")
    record.save(predictor())
    assert stream.ids[7] in record.path.read_text()
    record.erase(stream.ids)
    record.save(predictor())
    summary = record.summary(predictor())
    assert (len(summary.recent), len(summary.codes), summary.latest, summary.monitor.groups) == (0, 0, (), ())
    assert record.rows_of(stream.ids[7], "") == {}
    assert "row-" not in record.path.read_text()
    assert "patient" not in record.path.read_text()


def test_latest_predictions_are_what_was_predicted():
    stream, record = Stream(30), Record(CLASSES, 25)
    stream.add_to(record, labelled=False)
    latest = record.summary(predictor()).latest
    assert [one.id for one in latest] == stream.ids[:-21:-1]
    np.testing.assert_array_equal(latest[0].probs, stream.probs[-1])
    np.testing.assert_array_equal(record.rows_of(stream.ids[-1], "")["embeddings"][0], stream.rows[-1])
    assert record.rows_of(stream.ids[-1], "another network") == record.rows_of(stream.ids[0], "") == {}
    record.add(CLASSES, [None] * 30, stream.scores)
    assert len(record.summary(predictor()).recent) == 25


def test_groups_beyond_the_first_are_monitored_as_one():
    stream, record = Stream(MAX_GROUPS + 20), Record(CLASSES, 1000)
    stream.add_to(record, labelled=False)
    for place, (name, code) in enumerate(zip(stream.ids, stream.codes, strict=True)):
        record.label(name, CLASSES[code], f"group-{place}")
    groups = {part.name: part.n_samples for part in record.summary(predictor()).monitor.groups}
    assert (len(groups), groups[OTHER_GROUPS]) == (MAX_GROUPS + 1, 20)


def test_alarms_name_a_drift_of_inputs_and_wrong_labels_of_a_group():
    assert recorded(Stream()).summary(predictor()).alarms == ()
    drifted = recorded(Stream(shift=2.5), labelled=False).summary(predictor())
    assert "inputs" in {alarm.kind for alarm in drifted.alarms}
    record, stream = Record(CLASSES, 1000), Stream()
    stream.codes = (stream.probs.argmax(axis=1) + 1) % 3
    recorded(stream, record, group="ward 3")
    alarms = record.summary(predictor()).alarms
    assert {"calibration", "group"} <= {alarm.kind for alarm in alarms}
    assert "ward 3" in [alarm.part.name for alarm in alarms if alarm.kind == "group"]
    record.reset_monitors()
    assert [alarm for alarm in record.summary(predictor()).alarms if alarm.severity == "alarm"] == []
    record.label(stream.ids[0], CLASSES[stream.probs[0].argmax()])  # a correction does not bring them back
    summary = record.summary(predictor())
    assert (summary.monitor.n_samples, summary.n_inputs) == (0, 0)


def test_drift_of_a_later_period_is_found():
    ordinary, record = Stream(5_200), Record(CLASSES, 300)  # a period has 5,000 inputs
    for start in range(0, 5_200, 200):
        ordinary.add_to(record, slice(start, start + 200), labelled=False)
        record.summary(predictor())
    assert record.inputs.alarm_at is None
    recorded(Stream(seed=2, shift=2.5), record, labelled=False)
    assert record.inputs.period == 2
    assert record.inputs.alarm_at > 5_200


def test_learned_inputs_are_not_monitored():
    stream, record = Stream(40), Record(CLASSES, 100)
    stream.add_to(record, labelled=False)
    learned = predictor().calibrator.snapshot().partial_fit(stream.rows[:30], CLASSES[stream.codes[:30]])
    assert record.summary(Predictor(learned.snapshot())).n_inputs == 10


def test_record_goes_on_after_a_restart(tmp_path):
    path, stream = tmp_path / "record.json", Stream()
    whole = recorded(stream).summary(predictor())
    recorded(stream, first := Record(CLASSES, 1000, path), range(0, 300, 100))
    first.save(predictor())
    second = Record(CLASSES, 1000, path)
    found = recorded(stream, second, range(300, 600, 100)).summary(predictor())
    assert found.monitor.overall == whole.monitor.overall
    assert (found.n_predictions, found.n_labels, found.n_inputs) == (600, 600, whole.n_inputs)
    np.testing.assert_array_equal(found.probs, whole.probs)
    second.save(predictor())
    assert len(json.loads(path.read_text())["labelled"]) == 600
    smaller = Record(CLASSES, 10, path)
    assert smaller.labelled_ids() == stream.ids[-10:]


def test_new_class_begins_the_record_again():
    stream, record = Stream(50), Record(CLASSES, 100)
    stream.add_to(record)
    classes = np.array(["cat", "cow", "dog", "owl"])
    record.add(classes, ["new"], Scores(np.full((1, 4), 0.25, dtype=np.float32), None, {}))
    record.label("new", "cow")
    with without_warnings():
        summary = record.summary(predictor())
    assert (summary.n_predictions, summary.recent.shape, summary.codes.tolist()) == (51, (1, 4), [1])


def test_threads_may_add_while_others_look():
    stream, record, errors = Stream(200), Record(CLASSES, 500), []

    def run(step: Any) -> None:
        try:
            for number in range(8):
                step(number)
        except Exception as error:
            errors.append(error)

    steps = [
        lambda number: stream.add_to(record, slice(25 * number, 25 * (number + 1))),
        lambda number: record.summary(predictor()),
        lambda number: record.erase(stream.ids[25 * number : 25 * number + 5]),
        lambda number: record.label(stream.ids[25 * number + 7], "owl"),
    ]
    threads = [threading.Thread(target=run, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert record.summary(predictor()).n_predictions == 200
