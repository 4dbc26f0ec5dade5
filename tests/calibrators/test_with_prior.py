"""Other class frequencies without a new fit: as if the prior had been given to the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from kcal import InvalidInputError, KCal, KCalBlend, load, save
from kcal.monitoring import adjust_prior


def fitted(method: str, problem: Any, **parameters: Any) -> tuple[Any, dict[str, Any]]:
    """Return a calibrator and what its predictions take beside embeddings."""
    if method == "kcal":
        return KCal(projection="identity", smoothing=0.0, **parameters).fit(problem.embeddings, problem.labels), {}
    blend = KCalBlend(**parameters).fit(problem.embeddings, problem.labels, logits=problem.logits)
    return blend, {"logits": problem.test_logits}


@pytest.mark.parametrize("method", ["kcal", "blend"])
def test_a_new_prior_is_that_of_a_new_fit(method, problem, tmp_path):
    calibrator, logits = fitted(method, problem)
    before = calibrator.predict_proba(problem.test_embeddings, **logits)
    n_classes = before.shape[1]
    prior = np.arange(1, n_classes + 1) / np.arange(1, n_classes + 1).sum()
    changed = calibrator.with_prior(prior)
    again, _ = fitted(method, problem, prior=prior.tolist())
    probs = changed.predict_proba(problem.test_embeddings, **logits)
    np.testing.assert_allclose(probs, again.predict_proba(problem.test_embeddings, **logits), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(probs, adjust_prior(before, prior, calibrator.prior_), rtol=1e-3, atol=1e-6)
    np.testing.assert_array_equal(calibrator.predict_proba(problem.test_embeddings, **logits), before)
    np.testing.assert_allclose(changed.prior_, prior)
    np.testing.assert_array_equal(clone(changed).prior, prior)
    save(changed, tmp_path / "changed.kcal")
    restored = load(tmp_path / "changed.kcal")
    np.testing.assert_array_equal(restored.predict_proba(problem.test_embeddings, **logits), probs)
    back = changed.with_prior(None)
    np.testing.assert_array_equal(back.predict_proba(problem.test_embeddings, **logits), before)


@pytest.mark.parametrize("method", ["kcal", "blend"])
def test_a_model_that_is_moved_leaves_those_that_share_its_parts(method, problem):
    calibrator, logits = fitted(method, problem)
    before = calibrator.predict_proba(problem.test_embeddings, **logits)
    moved = calibrator.with_prior("uniform").model_.to("meta")
    changed = moved.changed(prior=moved.prior, frequencies=calibrator.model_.frequencies)
    for model in (moved, changed):
        assert {part.device.type for part in [*model.buffers(), *model.parameters()]} == {"meta"}
    np.testing.assert_array_equal(calibrator.predict_proba(problem.test_embeddings, **logits), before)


def test_the_assumed_frequencies_are_those_of_the_calibration_set(problem):
    calibrator, _ = fitted("kcal", problem)
    counts = np.bincount(problem.labels)
    np.testing.assert_allclose(calibrator.prior_, counts / counts.sum())


def test_a_prior_that_is_none_is_refused(problem):
    calibrator, _ = fitted("kcal", problem)
    with pytest.raises(InvalidInputError, match="prior must be frequencies that sum to 1"):
        calibrator.with_prior(np.ones(len(calibrator.classes_)))
    lacking = KCal(projection="identity", smoothing=0.01).fit(problem.embeddings, problem.labels, classes=range(9))
    with pytest.raises(InvalidInputError, match="gives nothing to the classes that have calibration samples"):
        lacking.with_prior(np.eye(9)[8])


@pytest.mark.parametrize("prior", ["uniform", [0.2, 0.4, 0.4], [0.0, 0.5, 0.5], [1, 0, 0]])
def test_a_class_that_is_never_seen_nor_predicted_leaves_the_blend_finite(prior):
    generator = np.random.default_rng(0)
    labels, logits = 1 + np.arange(60) % 2, generator.normal(size=(60, 3))
    logits[:, 0] = -np.inf
    rows = generator.normal(size=(60, 4)) + labels[:, None]
    blend = KCalBlend().fit(rows, labels, logits=logits, classes=range(3))
    if prior[0] == 1:
        with pytest.raises(InvalidInputError, match="gives nothing"):
            blend.with_prior(prior)
        return
    blend = blend.with_prior(prior)
    probs = blend.predict_proba(rows + 0.1, logits=logits)
    np.testing.assert_allclose(probs.sum(axis=1), 1.0)
    assert (probs[:, 0] == 0).all()
    if prior[0] == 0:  # also where a query does not mask it
        unmasked = blend.predict_proba(rows[:5] + 0.1, logits=np.nan_to_num(logits[:5], neginf=3.0))
        assert (unmasked[:, 0] == 0).all()
    only_first = np.where(np.arange(3) == 0, 0.0, -np.inf) + np.zeros((2, 1))
    np.testing.assert_allclose(blend.predict_proba(rows[:2] + 0.1, logits=only_first).sum(axis=1), 1.0)
    assert np.isfinite(blend.explain(rows[:2] + 0.1, logits=logits[:2]).shares).all()
