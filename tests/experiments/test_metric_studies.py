"""Variants, remedies, sizes, dimensions and groups are measured as fitting by hand measures them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

from experiments import bandwidth_law, dimension, variants
from experiments.remedies import RECIPES
from experiments.runner import run_study
from kcal import KCal, metrics, train_projection
from kcal.benchmark import Task
from kcal.benchmark.results import MAIN_METRICS
from kcal.benchmark.tasks import row_splits

STEPS = 8


@pytest.fixture(scope="module", autouse=True)
def _short_recipes() -> Iterator[None]:
    """Train the recipes that a study names with few steps, too."""
    with pytest.MonkeyPatch.context() as patch:
        for name, recipe in RECIPES.items():
            patch.setitem(RECIPES, name, replace(recipe, steps=2 * STEPS if recipe.steps == 800 else STEPS))
        patch.setattr(dimension, "DIMENSIONS", (2, 4, 8))
        patch.setattr(dimension, "REPEATS", 1)
        yield


def by_hand(calibrator: Any, task: Task, split: Any, **given: Any) -> dict[str, float]:
    """Return the test metrics of a calibrator that is fitted on embeddings by hand."""
    rows = split.calibration
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit(task.pool.embeddings[rows], task.pool.labels[rows], **{k: v[rows] for k, v in given.items()})
        logits = {"logits": given["logits"][split.test]} if "logits" in given else {}
        probs = calibrator.predict_proba(task.pool.embeddings[split.test], **logits)
    return metrics.evaluate(probs, task.pool.labels[split.test], protocol="paper").as_dict()


def check(measured: Any, place: int, expected: dict[str, float]) -> None:
    for name in MAIN_METRICS:
        assert measured[name][place] == pytest.approx(expected[name], rel=1e-6)


@pytest.fixture(scope="module")
def split() -> Any:
    return row_splits(150, 0.4, 1, 0)[0]


def test_variants_give_what_the_classes_give(task: Task, split: Any) -> None:
    measured = run_study(variants.STUDY, lambda: [task], n_splits=1)["small"]
    labels = task.pool.labels[split.test]
    plain = metrics.evaluate(softmax(task.pool.logits[split.test], axis=1), labels, protocol="paper").as_dict()
    check(measured["uncalibrated"], 0, plain)
    check(measured["untrained"], 0, by_hand(KCal(projection="identity"), task, split))
    learned = train_projection(task.train.embeddings, task.train.labels, projection="linear", progress=False)
    check(measured["KCal-Linear"], 0, by_hand(KCal(projection=learned, progress=False), task, split))


def test_the_slope_is_the_power_that_the_bandwidths_follow() -> None:
    counts = np.array([2.0, 3.0, 20.0, 25.0])
    measured = {"rarest": counts, "bandwidth": 0.7 * counts**-0.25, "dimension": np.full(4, 6.0)}
    found = bandwidth_law.Bandwidths([measured])
    assert (found.slope, found.level) == (pytest.approx(-0.25), pytest.approx(0.7))
    assert np.isnan(bandwidth_law.Bandwidths([measured | {"rarest": np.ones(4)}]).slope)
