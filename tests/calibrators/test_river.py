"""One sample at a time gives the probabilities of all at once; river's own checks pass where it is installed."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from kcal import InvalidInputError, KCal, KCalLogits
from kcal.calibrators.river import RiverCalibrator

GENERATOR = np.random.default_rng(0)
LABELS = np.array(["no", "yes"])[np.arange(80) % 2]
ROWS = GENERATOR.normal(size=(80, 3)) + (np.arange(80) % 2)[:, None]
SAMPLES = [dict(zip("abc", row, strict=True)) for row in ROWS.tolist()]
QUERY = {"c": 0.3, "a": -0.2, "b": 0.9}
FIXED = KCal(projection="identity", bandwidth=0.6, progress=False)


def test_one_by_one_equals_all_at_once() -> None:
    weights = np.where(np.arange(80) < 30, 1.0, np.linspace(0.5, 2.0, 80))
    for given in (FIXED, copy.deepcopy(FIXED).fit(ROWS[:30], LABELS[:30])):
        model = RiverCalibrator(given)
        start = 30 if given is not FIXED else 0
        for x, y, w in zip(SAMPLES[start:], LABELS[start:].tolist(), weights[start:].tolist(), strict=True):
            model.learn_one(x, y, w)
        probs = model.predict_proba_one(QUERY)
        whole = copy.deepcopy(FIXED).fit(ROWS, LABELS, sample_weight=weights)
        expected = whole.predict_proba([[-0.2, 0.9, 0.3]])[0]
        assert list(probs) == ["no", "yes"]
        np.testing.assert_allclose(list(probs.values()), expected, atol=1e-12)
        assert model.predict_one(QUERY) == ["no", "yes"][int(expected.argmax())]
    assert not hasattr(FIXED, "classes_")  # the given calibrator does not learn


def test_before_the_fit_frequencies_are_predicted() -> None:
    model = RiverCalibrator(warm_up=5)
    assert model.predict_proba_one(QUERY) == {}
    assert model.predict_one(QUERY) is None
    for label in ("no", "no", "no", "no", "no", "no"):  # one class is not enough to fit
        model.learn_one(QUERY, label)
    assert model.predict_proba_one(QUERY) == {"no": 1.0}
    model.learn_one(SAMPLES[1], "yes")
    assert set(model.predict_proba_one(SAMPLES[2])) == {"no", "yes"}


def test_a_missing_feature_counts_as_zero_and_a_new_one_is_ignored() -> None:
    model = RiverCalibrator(FIXED)
    for x, y in zip(SAMPLES, LABELS.tolist(), strict=True):
        model.learn_one(x, y)
    assert model.predict_proba_one({"a": 1.0, "b": 0.5}) == model.predict_proba_one(
        {"a": 1.0, "b": 0.5, "c": 0.0, "d": 9.0}
    )


def test_only_embeddings_are_learned_from() -> None:
    with pytest.raises(InvalidInputError, match="must be a KCal"):
        RiverCalibrator(KCalLogits())
    with pytest.raises(InvalidInputError, match="warm_up"):
        RiverCalibrator(warm_up=1)
