"""Fixtures shared by all tests."""

from __future__ import annotations

import pytest
import torch

from synthetic import Problem, make_problem

torch.set_num_threads(1)  # the tests run side by side


@pytest.fixture(scope="session")
def problem() -> Problem:
    return make_problem()
