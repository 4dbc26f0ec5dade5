"""What a blend answers is put together quickly, and is what the slow way says."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from kcal.calibrators.logits import log_softmax_of

from kcal import KCalBlend, StructuredMatrixScaling, TemperatureScaling
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.network import Partner
from kcal.errors import ConvergenceWarning, FewSamplesWarning, MissingClassWarning
from kcal.kernels import ClassSums


@pytest.mark.parametrize("representation", ["logits", "probabilities"])
@pytest.mark.parametrize("kind", [TemperatureScaling, StructuredMatrixScaling])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_partner_says_its_log_probabilities_but_for_what_classes_share(
    problem: Any, kind: Any, representation: str, dtype: torch.dtype
) -> None:
    rows = torch.from_numpy(problem.logits).to(dtype)
    rows = torch.softmax(rows, dim=1) if representation == "probabilities" else rows + 5.0
    partner = Partner(kind(representation=representation).fit(rows, problem.labels), torch.empty(0))
    heights = partner.heights(log_softmax_of(rows, representation).to(dtype))
    assert heights.dtype == dtype
    said = partner.says(rows)
    torch.testing.assert_close(torch.log_softmax(heights.double(), dim=1), said, atol=3e-5, rtol=0)
    assert (said - partner.says(rows.roll(1, dims=1))).abs().max() > 0.1


log_sums = arrays(np.float64, (2, 4, 3), elements=st.floats(-600, 10))


@settings(deadline=None, derandomize=True)
@given(
    sums=log_sums,
    typical=arrays(np.float64, 2, elements=st.floats(-400, 5)),
    background=st.sampled_from([1e-7, 1e-3, 1.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_masses_are_those_of_logarithms_but_for_what_classes_share(
    sums: Any, typical: Any, background: float, dtype: torch.dtype
) -> None:
    """However far above or below the typical mass; what lies below the least number stays below."""
    expert = Expert("unit", None, (1.0, 2.0), typical.tolist())  # type: ignore[arg-type]
    frequencies = np.array([0.7, 0.2, 0.1])
    slow = torch.stack(
        expert.log_masses_of_logarithms(torch.from_numpy(sums), torch.from_numpy(np.log(frequencies)), background)
    )
    largest = torch.from_numpy(sums).amax(dim=2)
    parts = torch.exp(torch.from_numpy(sums) - largest[:, :, None]).transpose(1, 2).to(dtype)
    floor = torch.from_numpy(background * frequencies).to(dtype)
    quick = expert.log_masses(ClassSums(parts, largest.to(dtype)), floor).transpose(1, 2).double()
    assert torch.isfinite(quick).all()
    apart_slowly, apart = (each - each.amax(dim=2, keepdim=True) for each in (slow, quick))
    told = apart_slowly > (-60.0 if dtype == torch.float32 else -600.0)
    torch.testing.assert_close(apart[told], apart_slowly[told], atol=1e-3 if dtype == torch.float32 else 1e-9, rtol=0)
    assert (apart[~told] < -50.0).all()


def test_answers_of_single_precision_are_those_of_double(problem: Any) -> None:
    blend, single = (
        KCalBlend(projection=None, network_calibrator="sms").fit(
            problem.embeddings.astype(dtype), problem.labels, logits=problem.logits.astype(dtype)
        )
        for dtype in (np.float64, np.float32)
    )
    assert single._experts[0].class_sums(torch.from_numpy(problem.test_embeddings)).sums.dtype == torch.float32
    precise = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    quick = single.predict_proba(
        problem.test_embeddings.astype(np.float32), logits=problem.test_logits.astype(np.float32)
    )
    assert quick.dtype == np.float32
    np.testing.assert_allclose(quick, precise, atol=1e-5)
    assert np.abs(quick - precise).max() > 0.0


@pytest.mark.parametrize("weight", [1e-60, 1e-42, 1e-20, 1e-6])
def test_a_class_whose_samples_weigh_next_to_nothing_harms_no_other(problem: Any, weight: float) -> None:
    x, z = (each.astype(np.float32) for each in (problem.embeddings, problem.logits))
    weights = np.where(problem.labels == 0, weight, 1.0)
    blend = KCalBlend(projection=None).fit(x, problem.labels, logits=z, sample_weight=weights)
    queries = problem.test_embeddings.astype(np.float32)
    answers = blend.predict_proba(queries, logits=problem.test_logits.astype(np.float32))
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)
    assert np.isfinite(blend.evidence(queries)).all()
    assert (answers.argmax(axis=1) == problem.test_labels)[problem.test_labels != 0].mean() > 0.5


@pytest.mark.parametrize("mask", [np.finfo(np.float32).min, -1e9, -1e4])
@pytest.mark.parametrize("weights", [(1.0, 0.0), (0.3, 0.7), (-0.2, 1.2)])
def test_a_class_that_is_masked_out_of_the_logits_is_no_answer_and_harms_no_other(
    problem: Any, mask: float, weights: tuple[float, float]
) -> None:
    x, z = (each.astype(np.float32) for each in (problem.embeddings, problem.logits))
    blend = KCalBlend(projection=None, network_calibrator="sms").fit(x, problem.labels, logits=z)
    blend._pool.weights[-2:] = weights  # of temperature and matrix scaling
    queries, plain = problem.test_embeddings.astype(np.float32), problem.test_logits.astype(np.float32)
    masked, rows = plain.copy(), np.arange(len(plain))
    other = (problem.test_labels + 1) % 3
    masked[rows, other] = mask
    before, answers = (blend.predict_proba(queries, logits=logits) for logits in (plain, masked))
    assert (answers[rows, other] == 0).all()
    right, still = (each[rows, problem.test_labels] for each in (before, answers))
    assert still.mean() > right.mean()


def test_logits_that_are_large_in_calibration_too_rule_nothing_out(problem: Any) -> None:
    """Scores a thousand times as large, say, are the network's own way to speak."""
    with pytest.warns(ConvergenceWarning):
        blend = KCalBlend(projection=None, network_calibrator="ts").fit(
            problem.embeddings, problem.labels, logits=5000 * problem.logits
        )
    assert (blend.predict_log_proba(problem.test_embeddings, logits=5000 * problem.test_logits) > -np.inf).all()


@pytest.mark.parametrize("extreme", [1e4, 1e30, 1e38])
def test_extreme_logits_give_probabilities(problem: Any, extreme: float) -> None:
    x, z = (each.astype(np.float32) for each in (problem.embeddings, problem.logits))
    blend = KCalBlend(projection=None, network_calibrator="sms").fit(x, problem.labels, logits=z)
    logits = (problem.test_logits * extreme).clip(-3e38, 3e38).astype(np.float32)
    answers = blend.predict_proba(problem.test_embeddings.astype(np.float32), logits=logits)
    np.testing.assert_allclose(answers.sum(axis=1), 1.0, atol=1e-5)


def test_without_logits_classes_without_samples_are_told_of(problem: Any) -> None:
    with pytest.warns(MissingClassWarning, match="1 of 4 classes .* pass logits="):
        KCalBlend(projection=None).fit(problem.embeddings, problem.labels, classes=range(4))


def test_groups_that_hold_whole_classes_are_told_of(problem: Any) -> None:
    with pytest.warns(FewSamplesWarning, match="each class lies within one group"):
        blend = KCalBlend(projection=None).fit(
            problem.embeddings, problem.labels, logits=problem.logits, groups=problem.labels
        )
    assert blend.weights_["ts"] == 1.0


def test_what_the_fit_was_told_of_the_logits_holds_for_predictions(problem: Any) -> None:
    blend = KCalBlend(projection=None).fit(problem.embeddings, problem.labels, logits=problem.logits)
    before = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    blend.set_params(representation="probabilities")
    np.testing.assert_array_equal(blend.predict_proba(problem.test_embeddings, logits=problem.test_logits), before)
