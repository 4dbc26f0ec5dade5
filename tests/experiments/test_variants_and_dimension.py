"""Variants and dimensions are measured as fitting by hand measures them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy.special import softmax

from kcal import KCal, metrics, train_projection
from kcal.benchmark import Task, example_task
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies import dimension
from kcal.benchmark.studies.dimension import measure_dimensions, median_seconds, network_microseconds
from kcal.benchmark.studies.study import SHOWN
from kcal.benchmark.studies.variants import measure_variants, study_variants

pytestmark = pytest.mark.usefixtures("short_trainings")


@pytest.fixture
def halves(task: Task) -> tuple[np.ndarray, np.ndarray]:
    deal = reshuffles_by_row(150, 0.4, 1, 0)[0]
    return deal.calibration, deal.test


def test_variants_give_what_the_classes_give(task: Task, halves: tuple[np.ndarray, np.ndarray]) -> None:
    calibration, test = halves
    labels = task.pool.labels
    found = measure_variants(task, n_reshuffles=1, seed=0)
    plain = metrics.evaluate(softmax(task.pool.logits[test], axis=1), labels[test]).as_dict()
    identity = KCal(projection="identity").fit(task.pool.embeddings[calibration], labels[calibration])
    untrained = metrics.evaluate(identity.predict_proba(task.pool.embeddings[test]), labels[test]).as_dict()
    for name in SHOWN:
        assert found["uncal"][name][0] == pytest.approx(plain[name], rel=1e-5)
        assert found["kcal-untrained"][name][0] == pytest.approx(untrained[name])
    learned = train_projection(task.train.embeddings, task.train.labels, projection="linear", progress=False)
    linear = KCal(projection=learned, progress=False).fit(task.pool.embeddings[calibration], labels[calibration])
    loss = metrics.negative_log_likelihood(linear.predict_proba(task.pool.embeddings[test]), labels[test])
    assert found["kcal-linear"]["negative_log_likelihood"][0] == pytest.approx(loss)


def test_the_best_mean_of_each_metric_is_bold(task: Task) -> None:
    (table,) = study_variants([task], reshuffles=2).tables
    for place, name in enumerate(SHOWN, start=1):
        numbers = [float(row[place].text.partition("±")[0]) for row in table.rows]
        best = max(numbers) if name == "accuracy" else min(numbers)
        bold = [number for number, row in zip(numbers, table.rows, strict=True) if row[place].bold]
        assert bold
        assert set(bold) == {best}


def test_each_dimension_is_trained_and_fitted_by_itself(
    task: Task, halves: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dimension, "DIMENSIONS", (2, 4, 8))
    found = measure_dimensions(task, n_reshuffles=1, seed=0)
    assert found.dimensions == (2, 4)  # the embedding has six
    calibration, test = halves
    for place, d in enumerate(found.dimensions):
        learned = train_projection(task.train.embeddings, task.train.labels, dimension=d, progress=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = KCal(projection=learned, progress=False).fit(
                task.pool.embeddings[calibration], task.pool.labels[calibration]
            )
        assert calibrator.dimension_ == d
        probabilities = calibrator.predict_proba(task.pool.embeddings[test])
        expected = metrics.negative_log_likelihood(probabilities, task.pool.labels[test])
        assert found.values[place]["negative_log_likelihood"][0] == pytest.approx(expected)
    assert found.network is None
    assert len(found.table().rows) == 2
    assert [panel.x_ticks for panel in found.panels()] == [(2, 4)] * 3


def test_embeddings_of_few_dimensions_keep_them_all(task: Task) -> None:
    assert dimension.dimensions_of(task) == (6,)


def test_times_are_medians_and_the_network_runs() -> None:
    calls: list[int] = []
    median_seconds(lambda: calls.append(1))
    assert len(calls) == dimension.REPEATS + 1
    assert network_microseconds(3) > 0


def test_the_embedded_example_whose_network_is_timed_comes_last_and_once(task: Task) -> None:
    example = example_task()
    assert [each.name for each in dimension._with_the_example([task])] == [task.name, example.name]
    assert [each.name for each in dimension._with_the_example([example, task])] == [example.name, task.name]
