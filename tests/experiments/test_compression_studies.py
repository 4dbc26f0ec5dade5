"""The studies of a smaller support measure what fitting and compressing by hand gives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments import blend_compression, compression
from experiments.output import LOG_LOSS
from experiments.runner import run_study
from experiments.study import by_row
from kcal import KCal, KCalBlend
from kcal.benchmark import Task
from kcal.metrics import negative_log_likelihood


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "SHARES", (0.2, 0.5))
    monkeypatch.setattr(compression, "ROUNDS", 1)
    monkeypatch.setattr(blend_compression, "SHARES", (0.3,))
    monkeypatch.setattr("kcal.calibrators.compress.GRID_STEP", 8.0)


@pytest.mark.filterwarnings("ignore")
def test_every_size_is_compressed_from_the_same_calibrator(task: Task) -> None:
    (measured,) = run_study(compression.STUDY, lambda: [task], n_splits=1).values()
    (split,) = task.splits(1, 0)
    rows, test = split.calibration, split.test
    full = KCal(projection="unit").fit(task.pool.embeddings[rows], task.pool.labels[rows])
    for name, calibrator in (
        (compression.ALL, full),
        ("kmeans, 20%", full.compress(0.2)),
        ("kmeans, 50%", full.compress(0.5)),
        (compression.WITHIN, full.compress(max_loss_increase=0.005)),
    ):
        expected = negative_log_likelihood(calibrator.predict_proba(task.pool.embeddings[test]), task.pool.labels[test])
        assert measured[name][LOG_LOSS][0] == pytest.approx(expected, rel=1e-6)
        assert measured[name]["size"][0] == calibrator.support_size_


@pytest.mark.filterwarnings("ignore")
def test_a_compressed_blend_is_compared_with_the_blend_on_the_same_splits(task: Task) -> None:
    (measured,) = run_study(replace(blend_compression.STUDY, settings=by_row), lambda: [task], n_splits=1).values()
    (split,) = task.splits(1, 0)
    rows, test = split.calibration, split.test
    blend = KCalBlend(progress=False)
    blend.fit(task.pool.embeddings[rows], task.pool.labels[rows], logits=task.pool.logits[rows])
    for name, calibrator in ((blend_compression.BLEND, blend), ("compressed to 30%", blend.compress(0.3))):
        probs = calibrator.predict_proba(task.pool.embeddings[test], logits=task.pool.logits[test])
        expected = negative_log_likelihood(probs, task.pool.labels[test])
        assert measured[name][LOG_LOSS][0] == pytest.approx(expected, rel=1e-5)
