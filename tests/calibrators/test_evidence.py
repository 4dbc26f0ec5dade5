"""The evidence: the share of calibration samples that have less of it."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import nn

from kcal import KCal, KCalBlend, KCalLogits, TemperatureScaling, TrainedProjection, train_projection
from kcal.errors import FewSamplesWarning
from kcal.projection import FastRecipe

pytestmark = pytest.mark.filterwarnings("ignore:No logits were given")

N_FEATURES = 16


def draw(n: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return embeddings of three classes, whose lengths vary, and labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, n)
    rows = 2.0 * np.eye(3, N_FEATURES)[labels] + 0.5 * generator.normal(size=(n, N_FEATURES))
    return rows * generator.lognormal(sigma=0.3, size=(n, 1)), labels


ROWS, LABELS = draw(600, 0)
FRESH, _ = draw(2000, 1)


@pytest.fixture(scope="module")
def trained() -> TrainedProjection:
    rows, labels = draw(400, 2)
    return train_projection(rows, labels, recipe=FastRecipe(steps=40, batch_size=100, checkpoints=2))


def calibrators(trained: TrainedProjection) -> dict[str, Any]:
    return {
        "unit": KCal(projection="unit").fit(ROWS, LABELS),
        "identity": KCal(projection="identity").fit(ROWS, LABELS),
        "trained": KCal(projection=trained).fit(ROWS, LABELS),
        "blend": KCalBlend().fit(ROWS, LABELS),
        "logits": KCalLogits(projection="identity").fit(ROWS[:, :3], LABELS),
    }


@pytest.fixture(scope="module")
def fitted(trained: TrainedProjection) -> dict[str, Any]:
    return calibrators(trained)


NAMES = ["unit", "identity", "trained", "blend"]


@pytest.mark.parametrize("name", [*NAMES, "logits"])
def test_the_evidence_of_fresh_samples_is_roughly_uniform(fitted: dict[str, Any], name: str) -> None:
    evidence = fitted[name].evidence(FRESH[:, : fitted[name].n_features_in_])
    assert evidence.shape == (2000,)
    assert 0 <= evidence.min() <= evidence.max() <= 1
    assert kstest(evidence, "uniform").statistic < 0.1


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_are_much_longer_have_no_evidence(fitted: dict[str, Any], name: str) -> None:
    calibrator = fitted[name]
    for factor in (10.0, 1000.0):
        assert calibrator.evidence(factor * FRESH).mean() < 0.01
    if name in ("unit", "blend"):  # the density alone cannot see it
        np.testing.assert_allclose(calibrator.log_evidence(1024 * FRESH), calibrator.log_evidence(FRESH), rtol=1e-9)
        assert calibrator.evidence(0.01 * FRESH).mean() < 0.01


def test_the_evidence_is_the_share_of_samples_of_lower_leave_one_out_density(fitted: dict[str, Any]) -> None:
    calibrator = fitted["identity"]
    bandwidth, squares = calibrator.bandwidth_, ((ROWS[:, None] - ROWS) ** 2).sum(axis=2)
    kernels = np.exp(-squares / (2 * N_FEATURES * bandwidth**2))
    np.fill_diagonal(kernels, 0.0)
    densities = kernels.sum(axis=1) / 599
    new = np.exp(-((FRESH[:50, None] - ROWS) ** 2).sum(axis=2) / (2 * N_FEATURES * bandwidth**2)).mean(axis=1)
    expected = (np.log(densities) <= np.log(new)[:, None] + 1e-3).mean(axis=1)
    np.testing.assert_allclose(calibrator.evidence(FRESH[:50]), expected, atol=1e-12)


def test_the_length_is_combined_with_the_density_where_the_metric_ignores_it(fitted: dict[str, Any]) -> None:
    calibrator = fitted["unit"]
    reference, rows = calibrator.calibration_log_evidence_, FRESH[:50]
    densities = calibrator.log_evidence(rows)
    lengths, own = np.linalg.norm(ROWS, axis=1), np.linalg.norm(rows, axis=1)[:, None]
    of_density = (reference <= densities[:, None] + 1e-3).mean(axis=1)
    no_longer, no_shorter = (lengths <= own * 1.001).mean(axis=1), (lengths >= own * 0.999).mean(axis=1)
    smallest = np.minimum(of_density, 2 * np.minimum(no_longer, no_shorter)).clip(max=1)
    np.testing.assert_allclose(calibrator.evidence(rows), 1 - (1 - smallest) ** 2, atol=0.01)


def test_groups_are_left_out_whole() -> None:
    rows, labels = np.repeat(ROWS[:100], 3, axis=0), np.repeat(LABELS[:100], 3)
    groups = np.repeat(np.arange(100), 3)
    of_rows, of_groups = (
        KCal(projection="identity", bandwidth=0.1).fit(rows, labels, groups=keys).evidence(FRESH)
        for keys in (None, groups)
    )
    single = KCal(projection="identity", bandwidth=0.1).fit(ROWS[:100], LABELS[:100]).evidence(FRESH)
    np.testing.assert_allclose(of_groups, single, atol=1e-12)
    assert of_rows.mean() < single.mean() / 2  # every sample has its copies nearby


def test_a_weight_of_zero_leaves_a_sample_out_of_the_reference() -> None:
    weights = np.tile([1.0, 1.0, 0.0], 200)
    weighted = KCal(projection="unit", bandwidth=0.2).fit(ROWS, LABELS, sample_weight=weights)
    part = KCal(projection="unit", bandwidth=0.2).fit(ROWS[weights > 0], LABELS[weights > 0])
    np.testing.assert_allclose(weighted.evidence(FRESH), part.evidence(FRESH), atol=1e-9)


class Cosines(nn.Module):
    """A module of a user's own that compares directions."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Return directions, times 3."""
        return 3.0 * nn.functional.normalize(rows)


@pytest.mark.parametrize(("module", "ignores"), [(Cosines(), True), (nn.Identity(), False), (nn.Tanh(), False)])
def test_own_modules_that_ignore_the_length_are_recognised(module: nn.Module, ignores: bool) -> None:
    calibrator = KCal(projection=module).fit(ROWS, LABELS)
    np.testing.assert_equal(np.allclose(calibrator.log_evidence(1024 * FRESH), calibrator.log_evidence(FRESH)), ignores)
    if ignores:
        assert calibrator.evidence(1024 * FRESH).max() < 0.01


# Few samples

FEW = r"(\d+) calibration samples for (\d+) classes .* accuracy of ([\d.]+)% and a log-loss of ([\d.]+)"


def test_few_samples_are_warned_of_with_what_leave_one_out_expects() -> None:
    with pytest.warns(FewSamplesWarning, match=FEW) as caught:
        calibrator = KCal(projection="identity").fit(ROWS[:23], LABELS[:23])
    (message,) = [str(entry.message) for entry in caught if entry.category is FewSamplesWarning]
    found = re.match(FEW, message)
    assert found is not None
    probs = calibrator.leave_one_out_proba_
    own = probs[np.arange(23), LABELS[:23]]
    assert found.groups()[:2] == ("23", "3")
    assert found[3] == f"{100 * (probs.argmax(axis=1) == LABELS[:23]).mean():.1f}"
    assert found[4] == f"{-np.log(own).mean():.3f}"


def test_the_summary_of_a_blend_compares_it_with_the_network() -> None:
    logits = 2.0 * ROWS[:, :3]
    blend = KCalBlend().fit(ROWS, LABELS, logits=logits)
    losses = re.fullmatch(r"([\d.]+); the network alone: ([\d.]+)", blend.summary()["out-of-fold log-loss"])
    assert losses is not None
    scaled = TemperatureScaling().fit(logits, LABELS).predict_log_proba(logits)
    assert abs(float(losses[2]) + scaled[np.arange(600), LABELS].mean()) < 0.02
    assert float(losses[1]) < float(losses[2])


@pytest.mark.parametrize("projection", ["unit", "identity"])
def test_equal_samples_have_all_evidence_for_themselves_and_none_for_others(projection: str) -> None:
    rows = np.ones((40, 3), dtype=np.float32)
    calibrator = KCal(projection=projection, bandwidth=0.1).fit(rows, np.arange(40) % 2)
    with_others = np.array([[1.0, 1.0, 1.0], [1.0, -1.0, 1.0], [3.0, 3.0, 3.0]])
    np.testing.assert_array_equal(calibrator.evidence(with_others), [1.0, 0.0, 0.0])


def test_normalised_embeddings_are_not_judged_by_rounding() -> None:
    unit, fresh = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (ROWS, FRESH))
    calibrator = KCal(projection="unit").fit(unit.astype(np.float32), LABELS)
    assert np.median(calibrator.evidence(fresh.astype(np.float16))) > 0.2
    assert np.median(calibrator.evidence(1.1 * fresh)) == 0
