"""What a blend answers is put together quickly, and is what the slow way says."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kcal import KCalBlend, StructuredMatrixScaling, TemperatureScaling
from kcal.calibrators.blend_experts import Expert
from kcal.calibrators.logits import log_softmax_of
from kcal.calibrators.partners import Partner
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
    blend = KCalBlend(projection=None, partner="sms").fit(problem.embeddings, problem.labels, logits=problem.logits)
    precise = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    quick = blend.predict_proba(
        problem.test_embeddings.astype(np.float32), logits=problem.test_logits.astype(np.float32)
    )
    assert quick.dtype == np.float32
    np.testing.assert_allclose(quick, precise, atol=1e-4)
