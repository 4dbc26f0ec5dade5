"""The simulations of alarms: their drifts are what they say, and everything is shown and written."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import alarms
from experiments.alarms import QUICK, Sizes, confused, detection_delays, draw_labels, draw_probs, false_alarms, shifted
from kcal.benchmark import Task
from kcal.embeddings import ClassifierOutputs


def test_labels_follow_their_probabilities():
    generator = np.random.default_rng(0)
    probs = np.tile([0.5, 0.3, 0.2], (20_000, 1))
    np.testing.assert_allclose(np.bincount(draw_labels(probs, generator)) / 20_000, probs[0], atol=0.015)
    drawn = draw_probs(2_000, generator)
    np.testing.assert_allclose(drawn.sum(axis=1), 1)
    assert 0.7 < drawn.max(axis=1).mean() < 0.85


def test_drifts_are_true_probabilities():
    probs = draw_probs(500, np.random.default_rng(1))
    for change in alarms.DRIFTS.values():
        np.testing.assert_allclose(change(probs).sum(axis=1), 1)
    np.testing.assert_allclose(shifted(probs, 1.0), probs)
    odds = shifted(probs, 3.0) / probs
    np.testing.assert_allclose(odds[:, -1] / odds[:, 0], 3.0)
    moved = confused(probs, 0.2)
    np.testing.assert_allclose(moved[:, -1], 0.8 * probs[:, -1])
    np.testing.assert_allclose(moved[:, 1:-1], probs[:, 1:-1])


def test_tables_count_alarms_and_delays(monkeypatch):
    notes: list[str] = []
    rows = false_alarms(Sizes(calibrated=3, rows=200, drifted=1), 0, notes.append).rows
    assert [row[0].text for row in rows] == ["0.01", "0.05", "0.2"]
    monkeypatch.setattr(
        alarms, "DRIFTS", {"strongly overconfident": alarms.DRIFTS["strongly overconfident (exponent 0.5)"]}
    )
    monkeypatch.setattr(alarms, "CALM", 100)
    monkeypatch.setattr(alarms, "AFTER", 400)
    monkeypatch.setattr(alarms, "river_detectors", dict)
    ((name, exact, tolerant),) = detection_delays(QUICK, 0, notes.append).rows
    assert name.text == "strongly overconfident"
    assert 0 < int(exact.text) < int(tolerant.text) < 400
    assert len(notes) == 5


def test_delays_name_missed_and_early_alarms():
    assert alarms._delay_entry(np.array([5.0, np.inf, -3.0, 7.0])).text == "7 (1 missed, 1 false)"
    assert alarms._delay_entry(np.array([np.inf, np.inf])).text == "– (2 missed)"
    assert alarms._delay_entry(np.array([4.0, 6.0])).text == "5"


@pytest.fixture
def patients() -> Task:
    """A task of five patients, the last two of which are predicted with the wrong classes."""
    generator = np.random.default_rng(0)

    def outputs(n: int, *, wrong: bool) -> ClassifierOutputs:
        labels, groups = np.arange(n) % 3, np.arange(n) % 5
        embeddings = (generator.normal(size=(n, 4)) + 2 * np.eye(3, 4)[labels]).astype(np.float32)
        shown = np.where((groups > 2) & wrong, (labels + 1) % 3, labels)
        logits = (2 * np.eye(3)[shown] + generator.normal(size=(n, 3))).astype(np.float32)
        embeddings[(groups > 2) & wrong] += 3
        return ClassifierOutputs(embeddings, logits, labels, groups)

    return Task("patients", outputs(300, wrong=False), outputs(3_000, wrong=True), 0.2, ("a", "b", "c"))


@pytest.mark.usefixtures("short_trainings")
def test_a_stream_of_other_patients_raises_every_alarm_after_the_change(patients, tmp_path):
    stream = alarms.patient_stream(patients, 0, n_calibration=600)
    assert set(stream.patients[: stream.change]) == {0, 1, 2}
    assert set(stream.patients[stream.change :]) == {3, 4}
    figure, found, named = alarms.watch(stream, lambda note: None)
    assert len(figure.axes) == 2
    at = {row[0].text: row[1].text for row in found.rows}
    for name in ("labels, tolerance 0.02", "no labels, evidence"):
        assert stream.change < int(at[name].replace(",", "")) < stream.change + 300, name
    by_patient = {row[0].text: row[-1].text for row in named.rows}
    assert by_patient["patient 0"] == by_patient["patient 1"] == "–"
    assert by_patient["patient 3"] != "–"
    files = alarms.write(tmp_path, [found, named], figure)
    assert [file.name for file in files] == ["alarms.md", "alarms.png"]
    assert found.note in files[0].read_text(encoding="utf-8")
