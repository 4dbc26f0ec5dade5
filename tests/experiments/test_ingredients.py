"""The study of the blend's ingredients measures what fitting by hand gives."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmark.conftest import make_task
from kcal import KCalBlend, TemperatureScaling, metrics
from kcal.benchmark import Task
from kcal.benchmark.entrants import train_for
from kcal.benchmark.reshuffles import reshuffles_by_row
from kcal.benchmark.studies.ingredients import (
    EACH_COUNTS,
    INGREDIENTS,
    LEFT_OUT,
    METRICS,
    PARTS,
    CountedFrequencies,
    EverySampleCounts,
    InSample,
    OneMetric,
    measure_ingredients,
    study_ingredients,
)
from kcal.calibrators.holdout import stratified_folds
from kcal.projection import project


@pytest.fixture(scope="module", autouse=True)
def _short_trainings_of_every_metric(short_trainings: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, metric in METRICS.items():
            patch.setitem(METRICS, name, replace(metric, recipe=replace(metric.recipe, steps=40)))
        yield


def test_each_ingredient_is_what_fitting_by_hand_gives(task: Task) -> None:
    found = measure_ingredients(task, by_group=False, n_reshuffles=1, seed=0)
    assert list(found) == [*(name for name in INGREDIENTS if name != EACH_COUNTS), *METRICS, *PARTS.values()]
    deal = reshuffles_by_row(len(task.pool.labels), task.calibration_share, 1, 0)[0]
    trained = train_for("kcal", task, seed=0, by_group=False)
    cases = {
        "the whole blend": (KCalBlend(projection=trained, progress=False), True),
        "no bias": (KCalBlend(projection=trained, bias=0, progress=False), True),
        "no logits": (KCalBlend(projection=trained, progress=False), False),
    }
    pool = task.pool
    for name, (blend, with_logits) in cases.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            blend.fit(
                pool.embeddings[deal.calibration],
                pool.labels[deal.calibration],
                logits=pool.logits[deal.calibration] if with_logits else None,
                classes=range(len(task.classes)),
            )
            probabilities = blend.predict_proba(
                pool.embeddings[deal.test], logits=pool.logits[deal.test] if with_logits else None
            )
        expected = metrics.negative_log_likelihood(probabilities, pool.labels[deal.test])
        assert found[name]["negative_log_likelihood"][0] == pytest.approx(expected, rel=1e-9)
        assert found[name][LEFT_OUT][0] == pytest.approx(blend._pool.loss, rel=1e-9)
    assert len({float(values["negative_log_likelihood"][0]) for values in found.values()}) >= 8


def test_the_overview_comes_first_and_groups_are_dealt_where_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for known, kept in ((INGREDIENTS, 3), (METRICS, 1)):
        for name in list(known)[kept:]:
            if name != EACH_COUNTS:
                monkeypatch.delitem(known, name)
    seen: list[tuple[str, int, int]] = []
    tasks = [make_task(), make_task("pairs", n_groups=2)]
    made = study_ingredients(tasks, reshuffles=1, watch=lambda *step: seen.append(step))
    first, expected, *others = made.tables
    deal = reshuffles_by_row(len(tasks[0].pool.labels), tasks[0].calibration_share, 1, 0)[0]
    assert [row[0].text for row in expected.rows] == list(first.heading[1:])
    left_out, test, difference, of_scaling = (float(entry.text) for entry in expected.rows[0][1:])
    assert difference == pytest.approx(test - left_out, abs=2e-4)
    scaled = float(next(row for row in others[0].rows if row[0].text == PARTS["ts"])[-1].text)
    folds = stratified_folds(tasks[0].pool.labels[deal.calibration], 5, 0)
    logits, labels = tasks[0].pool.logits[deal.calibration], tasks[0].pool.labels[deal.calibration]
    losses = [
        -TemperatureScaling()
        .fit(logits[folds != fold], labels[folds != fold])
        .predict_log_proba(logits[folds == fold])[np.arange((folds == fold).sum()), labels[folds == fold]]
        for fold in range(5)
    ]
    assert of_scaling == pytest.approx(scaled - np.concatenate(losses).mean(), abs=2e-4)
    assert test == pytest.approx(float(first.rows[0][1].text), abs=1e-9)
    assert first.heading == ("", "small", "small (by group)", "pairs")
    assert [table.title.partition(":")[0] for table in others] == list(first.heading[1:])
    assert [name for name, done, total in seen if done == total] == list(first.heading[1:])
    assert [row[0].text for row in first.rows] == [
        "the whole blend, NLL",
        *list(INGREDIENTS)[1:],
        *METRICS,
        *PARTS.values(),
    ]
    each = next(row for row in first.rows if row[0].text == EACH_COUNTS)
    assert [entry.text == "–" for entry in each[1:]] == [True, False, True]  # only groups have samples alike
    place = others[0].heading.index("NLL")
    whole, changed = (float(others[0].rows[row][place].text) for row in (0, 2))
    assert float(first.rows[2][1].text.replace("−", "-")) == pytest.approx(changed - whole, abs=2e-4)
    assert "flattered" in made.about
    assert made.about.endswith("Here: 1 reshuffle.")


def test_a_metric_that_is_not_trained_is_the_standardised_embeddings_up_to_a_turn(task: Task) -> None:
    made = METRICS["standardised, in place of the learned metric"].train(task, seed=0, by_group=False)
    assert len(made.checkpoints) == 1
    rows = torch.from_numpy(task.train.embeddings)
    found = torch.pdist(project(made.module, rows[:30]))
    expected = torch.pdist(((rows - rows.mean(0)) / rows.std(0, correction=0))[:30])
    ratios = found / expected
    torch.testing.assert_close(ratios, ratios.mean().expand_as(ratios), rtol=1e-3, atol=0)


def test_what_is_left_out_is_left_out(task: Task) -> None:
    pool = task.pool
    arguments = {"logits": pool.logits, "groups": pool.groups, "classes": range(len(task.classes))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole, counted, in_sample, each = (
            kind(projection=None, network_calibrator="ts").fit(pool.embeddings, pool.labels, **arguments)
            for kind in (KCalBlend, CountedFrequencies, InSample, EverySampleCounts)
        )
        pooled, chosen = (
            kind(network_calibrator="ts").fit(
                pool.embeddings,
                pool.labels,
                train_embeddings=task.train.embeddings,
                train_labels=task.train.labels,
                **arguments,
            )
            for kind in (KCalBlend, OneMetric)
        )
    losses = {expert.metric: expert.estimate.bandwidth_curve_.loss for expert in pooled._experts}
    assert len(losses) == 2
    assert list(chosen.bandwidths_) == [min(losses, key=lambda metric: losses[metric])]
    counts = np.bincount(pool.labels, minlength=len(task.classes))
    np.testing.assert_allclose(counted.frequencies_, counts / counts.sum(), rtol=0.02)
    assert np.ptp(whole.frequencies_) < 0.9 * np.ptp(counted.frequencies_)
    said = TemperatureScaling().fit(pool.logits, pool.labels).predict_log_proba(pool.logits)
    np.testing.assert_allclose(in_sample._partners[0].cross_fitted, said, atol=1e-6)
    assert np.abs(whole._partners[0].cross_fitted.numpy() - said).max() > 1e-3
    assert each.group_efficiency_ == 1.0
    assert whole.group_efficiency_ < 1
