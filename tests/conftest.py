"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest
import scipy.linalg  # noqa: F401  (loads a library of its own, whose threads are limited below)
import torch
from threadpoolctl import threadpool_limits

from synthetic import Problem, make_problem

# The tests run side by side: threads of one that wait for a busy processor make small steps many times slower.
torch.set_num_threads(1)
threadpool_limits(1)


@pytest.fixture(scope="session")
def problem() -> Problem:
    return make_problem()
