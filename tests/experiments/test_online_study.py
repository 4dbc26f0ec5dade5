"""The stream and the fresh search are measured as by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import online
from experiments.online import BLEND, EARLIER, FRESH, STREAM, Arrivals, sizes_of
from experiments.runner import run_study
from experiments.study import Measurements, TaskSetting
from kcal import KCal, metrics
from kcal.benchmark import Task

pytestmark = pytest.mark.filterwarnings("ignore::kcal.KcalWarning")


@pytest.fixture(scope="module", autouse=True)
def _few_sizes() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "N_SIZES", 4)
        patch.setattr(online, "SMALLEST", 40)
        yield


@pytest.fixture(scope="module")
def measured(task: Task, _few_sizes: None) -> Measurements:
    return run_study(online.STUDY, lambda: [task], n_splits=2)


def test_sizes_are_in_equal_steps_of_their_logarithm() -> None:
    assert sizes_of(2_560) == [40, 160, 640, 2_560]
    assert sizes_of(30) == [30]


def test_losses_are_those_of_fitting_by_hand(measured: Measurements, task: Task) -> None:
    setting = TaskSetting(task)
    arrivals = Arrivals(setting, setting.splits(2)[1], "directions")
    (variants,) = measured.values()
    fresh, stream = variants[f"directions, {FRESH}"], variants[f"directions, {STREAM}"]
    n_classes = len(task.classes)
    for place, size in enumerate(arrivals.sizes):
        calibrator = KCal(projection="unit", smoothing=1e-3, bandwidth=fresh["bandwidth"][1, place])
        calibrator.fit(arrivals.rows[:size], arrivals.labels[:size], classes=range(n_classes))
        loss = metrics.negative_log_likelihood(calibrator.predict_proba(arrivals.test), arrivals.truth)
        assert fresh["loss"][1, place] == pytest.approx(loss)
        calibrator.set_params(bandwidth=stream["bandwidth"][1, place])
        calibrator.fit(arrivals.rows[:size], arrivals.labels[:size], classes=range(n_classes))
        loss = metrics.negative_log_likelihood(calibrator.predict_proba(arrivals.test), arrivals.truth)
        assert stream["loss"][1, place] == pytest.approx(loss)
    np.testing.assert_array_equal(stream["bandwidth"][:, 0], fresh["bandwidth"][:, 0])  # both begin with a whole search


def test_the_bandwidth_of_an_earlier_search_is_that_of_the_size_before(measured: Measurements) -> None:
    (variants,) = measured.values()
    for metric in online.METRICS:
        earlier, fresh = (variants[f"{metric}, {name}"] for name in (EARLIER, FRESH))
        np.testing.assert_array_equal(earlier["bandwidth"][:, 1:], fresh["bandwidth"][:, :-1])
        np.testing.assert_array_equal(earlier["loss"][:, 0], fresh["loss"][:, 0])


def test_a_blend_of_few_samples_is_fitted_again_when_a_tenth_has_come(measured: Measurements) -> None:
    (variants,) = measured.values()
    stream, fresh = (variants[f"{BLEND}, {name}"] for name in (STREAM, FRESH))
    assert stream["sizes"][0].tolist() == [40, 46, 52, 60]
    np.testing.assert_allclose(stream["loss"], fresh["loss"], rtol=1e-6)
    assert (stream["searches"] == 4).all()


def test_sizes_above_the_limit_are_counted() -> None:
    fresh = {"loss": np.array([[1.0, 2.0], [4.0, 5.0]])}
    assert online.count_above({"loss": np.array([[1.02, 2.0], [4.1, 5.04]])}, fresh) == "2 of 4"


def test_the_table_has_a_row_per_task_and_calibrator(measured: Measurements, task: Task) -> None:
    output = online.STUDY.show(measured)
    (table,) = output.tables
    calibrated = (*online.METRICS, BLEND)
    assert [row[0].text for row in table.rows] == [f"{task.name}, {name}" for name in calibrated]
    assert len(output.panels) == 3
