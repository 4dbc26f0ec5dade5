"""The parts of a blend's formula against slow references, its precision, and masked or extreme logits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kcal import KCalBlend
from kcal.calibrators.blend.model import fill_missing_classes, log_mass_with_background
from kcal.errors import ConvergenceWarning, FewSamplesWarning, MissingClassWarning
from kcal.kernels import ClassSums


@settings(deadline=None, derandomize=True)
@given(
    log_sums=arrays(np.float64, (2, 4, 3), elements=st.floats(-600, 10)),
    median=arrays(np.float64, 2, elements=st.floats(-400, 5)),
    background=st.sampled_from([1e-7, 1e-3, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_masses_with_background_are_those_in_log_space_up_to_a_constant_per_sample(
    log_sums: Any, median: Any, background: float, dtype: torch.dtype
) -> None:
    """For offsets far above or below the median; values below the smallest normal number stay below it."""
    frequencies = np.array([0.7, 0.2, 0.1])
    floor = torch.from_numpy(np.log(background * frequencies))
    exact = torch.logaddexp(torch.from_numpy(log_sums - median[:, None, None]), floor)
    largest = torch.from_numpy(log_sums).amax(dim=2)
    sums = torch.exp(torch.from_numpy(log_sums) - largest[:, :, None]).transpose(1, 2).to(dtype)
    masses = log_mass_with_background(
        ClassSums(sums, largest.to(dtype)), torch.from_numpy(median), floor.exp().to(dtype)[:, None]
    )
    found = masses.transpose(1, 2).double()
    assert torch.isfinite(found).all()
    expected, relative = (each - each.amax(dim=2, keepdim=True) for each in (exact, found))
    resolved = expected > (-60.0 if dtype == torch.float32 else -600.0)
    tolerance = 1e-3 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(relative[resolved], expected[resolved], atol=tolerance, rtol=0)
    assert (relative[~resolved] < -50.0).all()


def test_missing_classes_get_their_share_of_the_fallback() -> None:
    """The odds of a missing class against the others are those of the fallback; the others keep theirs."""
    generator = np.random.default_rng(0)
    log_masses, fallback = (
        torch.from_numpy(generator.normal(size=(2, 4, 5))),
        torch.from_numpy(generator.normal(size=(4, 5))),
    )
    missing = torch.tensor([False, True, False, True])[:, None]
    filled, odds = fill_missing_classes(log_masses, missing, fallback).exp(), fallback.exp()
    seen = ~missing[:, 0]
    torch.testing.assert_close(filled[:, seen], log_masses.exp()[:, seen])
    for k in (1, 3):
        torch.testing.assert_close(
            filled[:, k] / filled[:, seen].sum(dim=1), (odds[k] / odds[seen].sum(dim=0)).expand(2, 5)
        )


def test_single_precision_agrees_with_double(problem: Any) -> None:
    blend, single = (
        KCalBlend(projection=None, network_calibrator="sms").fit(
            problem.embeddings.astype(dtype), problem.labels, logits=problem.logits.astype(dtype)
        )
        for dtype in (np.float64, np.float32)
    )
    assert single.model_.experts[0].class_sums(torch.from_numpy(problem.test_embeddings)).sums.dtype == torch.float32
    precise = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    quick = single.predict_proba(
        problem.test_embeddings.astype(np.float32), logits=problem.test_logits.astype(np.float32)
    )
    assert quick.dtype == np.float32
    np.testing.assert_allclose(quick, precise, atol=1e-5)
    assert np.abs(quick - precise).max() > 0.0


@pytest.mark.parametrize("weight", [1e-8, 1e-6])
def test_a_class_whose_samples_weigh_next_to_nothing_harms_no_other(problem: Any, weight: float) -> None:
    x, z = (each.astype(np.float32) for each in (problem.embeddings, problem.logits))
    weights = np.where(problem.labels == 0, weight, 1.0)
    blend = KCalBlend(projection=None).fit(x, problem.labels, logits=z, sample_weight=weights)
    queries = problem.test_embeddings.astype(np.float32)
    answers = blend.predict_proba(queries, logits=problem.test_logits.astype(np.float32))
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)
    assert np.isfinite(blend.gate(queries)).all()
    assert (answers.argmax(axis=1) == problem.test_labels)[problem.test_labels != 0].mean() > 0.5


@pytest.mark.parametrize("mask", [-1e18, -1e9, -1e4])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.3, 0.7), (-0.2, 1.2)])
def test_a_class_that_is_masked_out_of_the_logits_is_no_answer_and_harms_no_other(
    problem: Any, mask: float, weights: tuple[float, float]
) -> None:
    x, z = (each.astype(np.float32) for each in (problem.embeddings, problem.logits))
    blend = KCalBlend(projection=None, network_calibrator="sms").fit(x, problem.labels, logits=z)
    own = blend.model_.pool
    pool = replace(own, weights=torch.cat([own.weights[:-2], torch.tensor(weights).double()]))  # ts and sms
    blend.model_ = replace(blend.model_, pool=pool)
    queries, plain = problem.test_embeddings.astype(np.float32), problem.test_logits.astype(np.float32)
    masked, rows = plain.copy(), np.arange(len(plain))
    other = (problem.test_labels + 1) % 3
    masked[rows, other] = mask
    before, answers = (blend.predict_proba(queries, logits=logits) for logits in (plain, masked))
    assert (answers[rows, other] == 0).all()
    right, still = (each[rows, problem.test_labels] for each in (before, answers))
    assert still.mean() > right.mean()


def test_logits_that_are_large_in_calibration_too_rule_nothing_out(problem: Any) -> None:
    """Logits of a large scale are not masks."""
    with pytest.warns(ConvergenceWarning):
        blend = KCalBlend(projection=None, network_calibrator="ts").fit(
            problem.embeddings, problem.labels, logits=5000 * problem.logits
        )
    assert (blend.predict_log_proba(problem.test_embeddings, logits=5000 * problem.test_logits) > -np.inf).all()


@pytest.mark.parametrize("extreme", [1e4, 1e16])
def test_extreme_logits_give_probabilities(problem: Any, extreme: float) -> None:
    x, z = (each.astype(np.float32) for each in (problem.embeddings, problem.logits))
    blend = KCalBlend(projection=None, network_calibrator="sms").fit(x, problem.labels, logits=z)
    logits = (problem.test_logits * extreme).clip(-1e18, 1e18).astype(np.float32)
    answers = blend.predict_proba(problem.test_embeddings.astype(np.float32), logits=logits)
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)


def test_without_logits_missing_classes_warn(problem: Any) -> None:
    with pytest.warns(MissingClassWarning, match="1 of 4 classes .* Add samples of them"):
        KCalBlend(projection=None).fit(problem.embeddings, problem.labels, classes=range(4))


def test_classes_within_one_group_warn(problem: Any) -> None:
    with pytest.warns(FewSamplesWarning, match="each class lies within one group"):
        blend = KCalBlend(projection=None).fit(
            problem.embeddings, problem.labels, logits=problem.logits, groups=problem.labels
        )
    assert blend.weights_["ts"] == 1.0


def test_the_representation_of_the_fit_holds_for_predictions(problem: Any) -> None:
    blend = KCalBlend(projection=None).fit(problem.embeddings, problem.labels, logits=problem.logits)
    before = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    blend.set_params(representation="probabilities")
    np.testing.assert_array_equal(blend.predict_proba(problem.test_embeddings, logits=problem.test_logits), before)
