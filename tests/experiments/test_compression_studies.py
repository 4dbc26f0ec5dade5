"""The studies of a smaller support measure what fitting and compressing by hand gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from experiments import compression, merged_expert
from experiments.output import LOG_LOSS
from experiments.runner import run_study
from kcal import KCal, KCalBlend
from kcal.benchmark import Task
from kcal.metrics import negative_log_likelihood


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "SHARES", (0.2, 0.5))
    monkeypatch.setattr(compression, "ROUNDS", 1)
    monkeypatch.setattr(merged_expert, "SHARES", (0.3,))
    monkeypatch.setattr("kcal.calibrators.kcal.compression.GRID_STEP", 8.0)


@pytest.mark.filterwarnings("ignore")
def test_every_size_is_compressed_from_the_same_calibrator(task: Task) -> None:
    (measured,) = run_study(compression.STUDY, lambda: [task], n_splits=1).values()
    (split,) = task.splits(1, 0)
    rows, test = split.calibration, split.test
    full = KCal(projection="unit").fit(task.pool.embeddings[rows], task.pool.labels[rows])
    for name, calibrator in (
        (compression.ALL, full),
        ("kmeans, 20%", full.compress(0.2)),
        ("herding, 50%", full.compress(0.5, method="herding")),
        (compression.WITHIN, full.compress(max_loss_increase=0.005)),
    ):
        expected = negative_log_likelihood(calibrator.predict_proba(task.pool.embeddings[test]), task.pool.labels[test])
        assert measured[name][LOG_LOSS][0] == pytest.approx(expected, rel=1e-6)
        assert measured[name]["size"][0] == calibrator.support_size_
    table, (losses, errors) = (
        compression.show({"task": measured}).tables[0],
        compression.show({"task": measured}).panels,
    )
    assert len(table.rows) == 2 * 4 + 3
    assert table.rows[0][3].text == "+0.0"
    assert [line.label for line in losses.lines] == ["kmeans", "kernel-thinning", "herding", "random", "all samples"]
    assert errors.y_label == "CECE, %"
    assert errors.lines[0].y[0] == pytest.approx(100 * measured["kmeans, 20%"][compression.CECE][0])


@pytest.mark.filterwarnings("ignore")
def test_merged_experts_are_compared_with_the_blend_on_the_same_splits(task: Task) -> None:
    def by_row(tasks: Any, seed: int) -> Any:
        return list(merged_expert.by_row_and_group(tasks, seed))[:1]

    study = merged_expert.Study("merged_expert", "", merged_expert.variants, merged_expert.show, by_row)
    (measured,) = run_study(study, lambda: [task], n_splits=1).values()
    (split,) = task.splits(1, 0)
    rows, test = split.calibration, split.test
    setting = merged_expert.TaskSetting(task)
    parameters = {"projection": setting.projection("kcal-blend"), "progress": False}
    for name, make in (
        (merged_expert.MERGED, lambda fit: fit(KCalBlend(**parameters, merged=True))),
        ("compressed to 30%", lambda fit: fit(KCalBlend(**parameters)).compress(0.3)),
    ):
        calibrator = make(
            lambda blend: blend.fit(task.pool.embeddings[rows], task.pool.labels[rows], logits=task.pool.logits[rows])
        )
        probs = calibrator.predict_proba(task.pool.embeddings[test], logits=task.pool.logits[test])
        expected = negative_log_likelihood(probs, task.pool.labels[test])
        assert measured[name][LOG_LOSS][0] == pytest.approx(expected, rel=1e-5)
    change = 100 * (measured[merged_expert.MERGED][LOG_LOSS] / measured[merged_expert.BLEND][LOG_LOSS] - 1)
    row = merged_expert.wins({"task": measured}).rows[0]
    assert float(row[1].text.replace("−", "-")) == pytest.approx(float(change[0]), abs=0.006)
    assert row[2].text == f"{np.count_nonzero(change < 0)} of 1"
