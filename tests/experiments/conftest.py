"""A small task with groups and inputs of no class, and short trainings for every study."""

from __future__ import annotations

import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Task


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(n_out_of_scope=40)


@pytest.fixture(scope="module", autouse=True)
def _short(short_trainings: None) -> None:
    """Train the fast recipe with few steps, in the studies and in what they are compared with alike."""
