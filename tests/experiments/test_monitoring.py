"""The study without labels: on predictions that are right, estimates are near the truth and intervals hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from experiments import monitoring
from experiments.runner import run_study
from experiments.shift import UNIFORM
from kcal.benchmark import Task
from kcal.embeddings import ClassifierOutputs

MEANS, PRIOR = np.array([-2.0, 0.3, 2.5]), np.array([0.5, 0.3, 0.2])


def known_task(n_pool: int) -> Task:
    """Return a task whose network knows p(y | x)."""

    def outputs(n: int, seed: int) -> ClassifierOutputs:
        generator = np.random.default_rng(seed)
        labels = generator.choice(3, size=n, p=PRIOR)
        points = MEANS[labels] + generator.normal(size=n)
        logits = np.log(norm.pdf(points[:, None], MEANS) * PRIOR).astype(np.float32)
        return ClassifierOutputs(points[:, None].astype(np.float32), logits, labels)

    return Task("known", outputs(200, 0), outputs(n_pool, 1), 0.3, ("a", "b", "c"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitoring, "METHODS", ("ts",))
    monkeypatch.setattr(monitoring, "N_CHUNKS", 30)
    monkeypatch.setattr(monitoring, "CHUNK", 300)


@pytest.mark.usefixtures("quick")
def test_right_predictions_give_right_estimates_and_intervals():
    measured = run_study(monitoring.STUDY, lambda: [known_task(6_000)], n_splits=2)
    values = measured["known"]["ts"]
    assert values["ratios"][0].tolist() == [1.0, 0.1, 10.0, UNIFORM]
    shifted = [1, 2, 3]
    assert (values["error, none"][:, shifted] > 0.3).all()
    for name in ("em", "corrected-em", "moments", "corrected-em, shrunken"):
        assert (values[f"error, {name}"][:, shifted] < 0.13).all(), name
        assert (values[f"loss, {name}"][:, shifted] < values["loss, none"][:, shifted]).all(), name
    assert values["error, known"].max() == 0
    assert values["prior interval"].mean() > 0.88
    for metric in monitoring.METRICS:
        assert values[f"prior estimated, {metric}"].mean() > 0.88
    assert values["NannyML's rule, accuracy"][:, 0].mean() > 0.9
