"""Every study measures a small task, and shows tables and panels of what it measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from experiments import blend_compression, compression, dimension, growth, monitoring, online, sampling
from experiments.remedies import RECIPES
from experiments.runner import run_study
from experiments.studies import STUDIES
from experiments.study import Study, by_row
from kcal.benchmark import Task
from kcal.projection import FastRecipe

SMALL = {
    blend_compression: {"SHARES": (0.3,)},
    compression: {"SHARES": (0.3,), "ROUNDS": 1},
    dimension: {"DIMENSIONS": (2, 4), "REPEATS": 1, "settings": by_row},
    growth: {"SIZES": (60, 120), "MAX_SAMPLES": 120},
    monitoring: {"METHODS": ("ts",), "N_CHUNKS": 3, "CHUNK": 20},
    online: {"N_SIZES": 2, "MIN_SIZE": 40},
    sampling: {"RECIPE": FastRecipe(steps=4)},
}
"""Sizes of studies that are set to smaller ones."""


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, values in SMALL.items():
            for name, value in values.items():
                patch.setattr(module, name, value)
        for name, recipe in RECIPES.items():
            patch.setitem(RECIPES, name, replace(recipe, steps=4))
        patch.setattr("kcal.calibrators.compress.GRID_STEP", 8.0)
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_study_measures_and_shows_a_small_task(study: Study, task: Task) -> None:
    settings = study.settings if study.name in ("growth", "groups", "remedies") else by_row
    measured = run_study(replace(study, settings=settings), lambda: [task], n_splits=1)
    assert measured
    for variants in measured.values():
        for values in variants.values():
            assert any(np.isfinite(array).any() for array in values.values())
    shown = study.show(measured)
    assert len(study.about) > 100
    assert shown.tables
    for table in shown.tables:
        assert table.rows
        assert all(len(row) == len(table.heading) for row in table.rows)
        assert table.as_markdown().count("\n| ") == len(table.rows) + 2
