"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import pytest
import scipy.linalg  # noqa: F401  (loads a library of its own, whose threads are limited below)
import torch
from hypothesis import settings
from threadpoolctl import threadpool_limits

from benchmarks.torchvision_operators import define_missing_operators
from kcal.projection import RECIPES, FastRecipe
from synthetic import Problem, make_problem

# The tests run side by side: threads of one that wait for a busy processor make small steps many times slower.
torch.set_num_threads(1)
threadpool_limits(1)
# The same examples every time: what fails once fails again. No deadline: that would be a test of the machine.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.load_profile("steady")


TORCHVISION = define_missing_operators()  # other libraries import torchvision


@dataclass(frozen=True)
class ShortRecipe(FastRecipe):
    """The fast recipe with a tenth of its steps."""

    steps: int = 40


@pytest.fixture(scope="session")
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="module")
def short_trainings() -> Iterator[None]:
    """Let the fast recipe be the short one, in what is tested and in what it is compared with alike."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "fast", ShortRecipe)
        yield


@pytest.fixture(scope="module")
def short_solvers() -> Iterator[None]:
    """Let the slowest solvers stop early: for tests of promises that hold at any point, not at the minimum alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kcal.calibrators.order_preserving.MAX_DENSITY_ITERATIONS", 8)
        patch.setattr("kcal.calibrators.gp.MAX_BOUND_ITERATIONS", 150)
        yield


@pytest.fixture(scope="session")
def shared_operators() -> Iterator[None]:
    """Let all exports of a process use one table of ONNX operators: building it takes longer than most exports."""
    pytest.importorskip("onnxscript")
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield
