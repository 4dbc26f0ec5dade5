"""The simulations of alarms: their drifts are what they say, and everything is shown and written."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import alarms
from experiments.alarms import confused, draw_probs, shifted
from kcal.benchmark import Task
from kcal.embeddings import ClassifierOutputs


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
    assert [file.name for file in files] == ["alarms.csv", "alarms.png"]
    assert found.title in files[0].read_text(encoding="utf-8")
