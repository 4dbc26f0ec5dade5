"""The studies measure what fitting by hand gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from kcal import KCal, metrics
from kcal.benchmark import Task
from kcal.benchmark.entrants import train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies.convexity import LossShape, loss_shape, shape_table
from kcal.benchmark.studies.sizes import COLUMNS, Sizes, measure_sizes, spans_decades
from kcal.benchmark.studies.study import Line

pytestmark = pytest.mark.usefixtures("short_trainings")


def test_the_whole_calibration_set_is_the_last_size_and_gives_what_kcal_gives(task: Task) -> None:
    study = measure_sizes(task, n_reshuffles=2, seed=0)
    assert study.sizes.tolist() == [4, 8, 15, 30, 60]
    trained = train_for("kcal", task, seed=0, by_group=False)
    fixed = None
    for column, deal in enumerate(reshuffles_by_row(150, 0.4, 2, 0)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = KCal(projection=trained, progress=False).fit(
                task.pool.embeddings[deal.calibration], task.pool.labels[deal.calibration]
            )
        probabilities = calibrator.predict_proba(task.pool.embeddings[deal.test])
        expected = metrics.negative_log_likelihood(probabilities, task.pool.labels[deal.test])
        assert study.values["negative_log_likelihood"][-1, column] == pytest.approx(expected)
        fixed = fixed or calibrator.projection_  # bandwidths are of the checkpoint that the first set picks
        with_fixed = KCal(projection=fixed, progress=False).fit(
            task.pool.embeddings[deal.calibration], task.pool.labels[deal.calibration]
        )
        assert study.bandwidths[-1, column] == pytest.approx(with_fixed.bandwidth_)
        assert study.rarest[-1, column] == np.bincount(task.pool.labels[deal.calibration]).min()
    assert study.predicted[-1, 0] == pytest.approx(study.rarest[-1, 0] ** (-1 / 10))  # six dimensions
    rows = study.metrics_table().rows
    assert [row[0].text for row in rows] == ["4", "8", "15", "30", "60", "uncalibrated"]
    panels = study.panels()
    assert [panel.y_label for panel in panels] == ["Accuracy, %", "CECE, %", "ECE, %", "Brier, %", "NLL", "bandwidth b"]
    assert len(panels) == COLUMNS
    levels = {panel.y_label: panel.lines[1].y[0] for panel in panels[:-1]}
    assert levels["NLL"] == pytest.approx(study.uncalibrated["negative_log_likelihood"].mean())
    assert {tuple(line.label for line in panel.lines) for panel in panels[:-1]} == {("KCal", "uncalibrated")}
    ratio = float(np.median(study.bandwidths / study.predicted))
    assert f"{ratio:.3f}·m^(−1/10)" in study.bandwidth_table().heading
    assert "theory: m^(−0.100)" in study.bandwidth_table().note


def test_the_slope_is_the_power_that_the_bandwidths_follow() -> None:
    counts = np.array([[2.0, 3.0], [20.0, 25.0]])
    found = Sizes("t", np.array([4, 40]), {}, {}, 0.7 * counts**-0.25, counts, 6)
    assert found.slope == pytest.approx(-0.25)
    assert np.isnan(Sizes("t", np.array([4, 40]), {}, {}, counts, np.ones((2, 2)), 6).slope)


def test_the_loss_is_looked_at_around_its_minimum(task: Task) -> None:
    shape = loss_shape(task, seed=0)
    best = shape.bandwidths[int(np.argmin(shape.losses))]
    assert shape.bandwidths[0] < best < shape.bandwidths[-1]
    assert shape.valleys >= 1
    assert shape_table([shape]).rows[0][0].text == "small"


def test_valleys_and_convexity_of_known_curves() -> None:
    at = np.linspace(-1, 3, 41)
    parabola = LossShape("p", at, (at - 1) ** 2)
    assert parabola.valleys == 1
    assert parabola.convex_between == pytest.approx((-1, 3))
    waves = LossShape("w", at, np.cos(2 * np.pi * at) + 0.01 * at)
    assert waves.valleys == 4
    low, high = waves.convex_between
    assert high - low == pytest.approx(0.5, abs=0.25)


def test_an_axis_is_logarithmic_where_a_plain_one_would_hide_the_lower_end() -> None:
    assert spans_decades((Line("", (1.0, 2.0), (0.1, 0.9)), Line("", (1.0,), (1.1,))))
    assert not spans_decades((Line("", (1.0, 2.0), (0.1, 0.9)),))
    assert not spans_decades((Line("", (1.0, 2.0), (0.0, 0.9)),))
