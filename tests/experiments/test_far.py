"""The study of inputs of no class measures what fitting by hand gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from benchmark.conftest import make_task
from experiments import far
from experiments.output import LOG_LOSS
from experiments.runner import run_study
from experiments.study import Measurements
from kcal import KCal, KCalBlend, TemperatureScaling, train_projection
from kcal.benchmark import Task


@pytest.fixture(scope="module")
def measured(task: Task) -> Measurements:
    return run_study(far.STUDY, lambda: [make_task("plain"), task], n_splits=2)


def auroc(inside: np.ndarray, outside: np.ndarray) -> float:
    return float((0.5 + 0.5 * np.sign(inside[:, None] - outside[None, :])).mean())


def test_confidence_out_of_scope_is_what_fitting_by_hand_gives(task: Task, measured: Measurements) -> None:
    assert list(measured) == ["small"]  # the other task has no such inputs
    pool, outside = task.pool, task.out_of_scope
    assert outside is not None
    learned = train_projection(task.train.embeddings, task.train.labels, progress=False)
    shares = []
    for place, split in enumerate(task.splits(2, 0)):
        rows, labels = split.calibration, pool.labels[split.calibration]
        scaled = TemperatureScaling().fit(pool.logits[rows], labels)
        found = scaled.predict_proba(outside.logits).max(axis=1)
        inside = scaled.predict_proba(pool.logits[split.test]).max(axis=1)
        loss = -scaled.predict_log_proba(pool.logits[split.test])[np.arange(len(split.test)), pool.labels[split.test]]
        expected = {
            "inside": inside.mean(),
            "outside": found.mean(),
            "high": (found > 0.9).mean(),
            "by_confidence": auroc(inside, found),
            LOG_LOSS: loss.mean(),
        }
        for name, value in expected.items():
            assert measured["small"]["ts"][name][place] == pytest.approx(value, rel=1e-6), name
        shares.append((found > 0.5).mean())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kcal = KCal(projection=learned, progress=False).fit(pool.embeddings[rows], labels)
            blend = KCalBlend(progress=False).fit(pool.embeddings[rows], labels, logits=pool.logits[rows])
        confidence = blend.predict_proba(outside.embeddings, logits=outside.logits).max(axis=1)
        evidence = [kcal.log_evidence(part) for part in (pool.embeddings[split.test], outside.embeddings)]
        assert measured["small"]["kcal"]["by_evidence"][place] == pytest.approx(auroc(*evidence))
        assert measured["small"]["kcal-blend"]["outside"][place] == pytest.approx(confidence.mean())
    half = int(np.argmin(np.abs(far.LEVELS - 0.5)))
    assert measured["small"]["ts"]["out of scope"][:, half].tolist() == pytest.approx(shares)
