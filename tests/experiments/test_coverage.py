"""The study of the coverage of intervals: its true values, and that a second run goes on."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import coverage
from experiments.coverage import Problem, draw, true_errors


def test_true_errors_are_those_of_many_labels() -> None:
    generator = np.random.default_rng(0)
    problem = Problem(rows=200, classes=3, balanced=False, groups=10, effect=0.5, power=1.5)
    data = draw(problem, generator)
    truth = true_errors(data)
    rows = np.repeat(np.arange(200), 2000)
    often = coverage.draw_labels(data.true[rows], generator)
    counted = np.zeros((200, 3))
    np.add.at(counted, (rows, often), 1 / 2000)
    estimated = true_errors(data._replace(true=counted))
    for name in ("expected_calibration_error", "static_classwise_calibration_error"):
        assert estimated[name] == pytest.approx(truth[name], abs=0.01)
    calibrated = true_errors(draw(problem._replace(power=1.0), generator))
    assert calibrated["classwise_calibration_error"] == pytest.approx(0, abs=1e-12)
