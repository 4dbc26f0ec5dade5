"""Merged estimates of a blend: fitted on what the merged samples of the other folds say of a sample."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kcal
from kcal import KCalBlend
from kcal.calibrators.blend.experts import check_factors, fit_experts
from kcal.calibrators.blend.fitting import whole_class_sums
from kcal.calibrators.blend.merged import merge_experts
from kcal.calibrators.kcal.compression import CompressionOptions
from kcal.calibrators.kcal.samples import check_samples
from kcal.errors import InvalidInputError
from kcal.support import Reduction, WeightedPoints


@pytest.fixture(scope="module")
def rows() -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 150)
    x = 1.5 * np.eye(3, 16)[labels] + 0.6 * generator.normal(size=(150, 16))
    return x, labels, 2.0 * np.eye(3)[labels] + 1.5 * generator.normal(size=(150, 3))


def test_sums_are_those_of_the_merged_other_folds_at_their_whole_weight(rows: Any) -> None:
    x, labels, _ = rows
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 150)
    samples = check_samples(torch.from_numpy(x), labels, classes=None, sample_weight=weights)
    options = KCalBlend().estimate_options()
    experts = fit_experts(samples, None, options, projection=None, factors=check_factors((0.5, 1.0)))
    (merged,), by_metric = merge_experts(experts, samples, CompressionOptions())
    folded = by_metric["merged unit"]
    assert merged.metric == "merged unit"
    assert len(merged.support) < 150
    whole = whole_class_sums(folded.class_sums(merged.bandwidths), folded.samples.class_weights, folded.weights_left)
    points, scaled = x / np.linalg.norm(x, axis=1, keepdims=True), weights / weights.max()
    for row in (0, 77, 149):
        others = np.flatnonzero(folded.folded.folds != folded.folded.folds[row])
        size = round(len(merged.support) * len(others) / 150)
        part = Reduction()(WeightedPoints(torch.from_numpy(points), labels, scaled, 3).rows(others), size)
        for place, bandwidth in enumerate(merged.bandwidths):
            expected = np.zeros(3)
            for point, code, weight in zip(part.points.numpy(), part.codes, part.weights, strict=True):
                distance = ((points[row] - point) ** 2).sum()
                expected[code] += weight * np.exp(-distance / (2 * 16 * bandwidth**2))
            for code in range(3):
                own = labels == code
                expected[code] *= scaled[own].sum() / scaled[others][labels[others] == code].sum()
            sums = whole.sums[place, :, row] * torch.exp(whole.offsets[place, row])
            np.testing.assert_allclose(sums, expected, rtol=1e-9)


def test_a_blend_with_merged_estimates_is_saved_exported_and_compressed(rows: Any, tmp_path: Path) -> None:
    x, labels, logits = rows
    blend = KCalBlend(projection=None, merged=True).fit(x[:100], labels[:100], logits=logits[:100])
    assert [name for name in blend.weights_ if name.startswith("merged")] == [
        "merged unit × 0.5", "merged unit × 1", "merged unit × 2",
    ]  # fmt: skip
    probs = blend.predict_proba(x[100:], logits=logits[100:])
    loaded = kcal.load(kcal.save(blend, tmp_path / "blend.kcal"))
    assert loaded.merged is True
    assert np.array_equal(loaded.predict_proba(x[100:], logits=logits[100:]), probs)
    tensors = (torch.from_numpy(x[100:]), torch.from_numpy(logits[100:]))
    np.testing.assert_allclose(blend.as_module()(*tensors), probs, atol=1e-9)
    without = replace(blend.model_, experts=blend.model_.experts[:1])
    assert len(without.names) == len(blend.model_.names) - 3
    small = blend.compress(0.2)
    first, second = small.model_.experts
    assert len(first.support) == 20
    assert second is blend.model_.experts[1]
    assert np.abs(small.predict_proba(x[100:], logits=logits[100:]) - probs).mean() < 0.03


def test_by_default_no_estimate_is_merged(rows: Any) -> None:
    x, labels, logits = rows
    assert len(KCalBlend(projection=None).fit(x, labels, logits=logits).model_.experts) == 1
    with pytest.raises(InvalidInputError, match="merged must be"):
        KCalBlend(projection=None, merged="yes").fit(x, labels, logits=logits)
