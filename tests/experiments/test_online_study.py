"""The stream and the fresh search are measured as by hand."""

from __future__ import annotations

import numpy as np
import pytest

from experiments import online
from experiments.online import FRESH, STREAM, Arrivals
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
