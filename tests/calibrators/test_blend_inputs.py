"""Inputs of a blend: logits, parameters, training data, labels, stored parts."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax

from kcal import KCalBlend
from kcal.calibrators import fit_on
from kcal.errors import FileFormatError, InvalidInputError, LeakageWarning
from quick_blend import blend_of


def test_logits_are_asked_for_or_refused_as_at_the_fit(problem: Any) -> None:
    x, y, z = problem.embeddings, problem.labels, problem.logits
    with_logits = KCalBlend().fit(x, y, logits=z)
    without = KCalBlend().fit(x, y)
    with pytest.raises(InvalidInputError, match="fitted with logits; pass logits="):
        with_logits.predict_proba(problem.test_embeddings)
    with pytest.raises(InvalidInputError, match="fitted without logits"):
        without.predict(problem.test_embeddings, logits=problem.test_logits)
    with pytest.raises(InvalidInputError, match="a row for each row of X, 600 of them; got 599"):
        with_logits.predict_proba(problem.test_embeddings, logits=problem.test_logits[1:])
    with pytest.raises(InvalidInputError, match="logits"):
        with_logits.predict_proba(problem.test_embeddings, logits=problem.test_logits[:, :2])
    with pytest.raises(InvalidInputError, match="a row for each row of X"):
        KCalBlend().fit(x, y, logits=z[1:])
    broken = z.copy()
    broken[3, 1] = np.nan
    with pytest.raises(InvalidInputError, match=r"logits.*row 3"):
        KCalBlend().fit(x, y, logits=broken)
    with pytest.warns(LeakageWarning):
        without.predict_proba(x)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"folds": 1}, "folds must be"),
        ({"prior": [0.5, 0.5]}, "prior must have one entry per class"),
        ({"representation": "odds"}, "representation must be"),
    ],
)
def test_bad_parameters_are_refused(problem: Any, parameters: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        KCalBlend(**parameters).fit(problem.embeddings, problem.labels, logits=problem.logits)


def test_the_score_is_the_accuracy(problem: Any) -> None:
    blend = KCalBlend().fit(problem.embeddings, problem.labels, logits=problem.logits)
    right = blend.predict(problem.test_embeddings, logits=problem.test_logits) == problem.test_labels
    assert blend.score(problem.test_embeddings, problem.test_labels, logits=problem.test_logits) == right.mean()
    weights = np.linspace(0, 1, len(right))
    found = blend.score(problem.test_embeddings, problem.test_labels, logits=problem.test_logits, sample_weight=weights)
    assert found == pytest.approx(np.average(right, weights=weights))


def test_one_group_is_not_enough(problem: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"two (different )?groups"):
        KCalBlend().fit(problem.embeddings, problem.labels, groups=np.zeros(240))


def test_a_class_without_calibration_samples_keeps_the_networks_opinion(problem: Any) -> None:
    rows = problem.labels < 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        blend = KCalBlend().fit(problem.embeddings[rows], problem.labels[rows], logits=problem.logits[rows])
    found = blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    assert found.shape == (600, 3)
    assert (found[:, 2] > 0).all()


def test_labels_of_any_kind_with_their_classes(problem: Any) -> None:
    names = np.array(["b", "a", "c"])
    blend = KCalBlend().fit(problem.embeddings, names[problem.labels], logits=problem.logits, classes=["b", "a", "c"])
    plain = KCalBlend().fit(problem.embeddings, problem.labels, logits=problem.logits)
    rows = {"X": problem.test_embeddings, "logits": problem.test_logits}
    np.testing.assert_allclose(blend.predict_proba(**rows), plain.predict_proba(**rows), atol=1e-9)
    np.testing.assert_array_equal(blend.predict(**rows), names[plain.predict(**rows)])


def test_probabilities_as_logits_when_told(problem: Any) -> None:
    plain = KCalBlend().fit(problem.embeddings, problem.labels, logits=problem.logits)
    shares = softmax(problem.logits, axis=1)
    told = KCalBlend(representation="probabilities").fit(problem.embeddings, problem.labels, logits=shares)
    np.testing.assert_allclose(
        told.predict_proba(problem.test_embeddings, logits=softmax(problem.test_logits, axis=1)),
        plain.predict_proba(problem.test_embeddings, logits=problem.test_logits),
        atol=1e-5,
    )


def test_parts_of_a_stored_blend_that_do_not_fit_together_are_refused(problem: Any) -> None:
    state = blend_of(problem).state()
    for name in (
        "formula.exponents",
        "formula.shares",
        "formula.frequencies",
        "formula.network.factors",
        "formula.refit.bias",
        "estimate.support.points",
        "estimate.support.codes",
    ):
        with pytest.raises(FileFormatError, match="stored"):
            KCalBlend.from_state(replace(state, tensors=state.tensors | {name: state.tensors[name][..., :-1]}))


def test_the_dispatcher_hands_it_both(problem: Any) -> None:
    from kcal.calibrators import predict_on
    from kcal.embeddings import ClassifierOutputs

    both = ClassifierOutputs(problem.embeddings, problem.logits, problem.labels)
    fitted = fit_on(KCalBlend(), both)
    found = predict_on(fitted, ClassifierOutputs(problem.test_embeddings, problem.test_logits))
    expected = fitted.predict_proba(problem.test_embeddings, logits=problem.test_logits)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(InvalidInputError, match="takes embeddings"):
        fit_on(KCalBlend(), ClassifierOutputs(None, problem.logits, problem.labels))


def test_columns_of_logits_in_another_order_are_refused(problem: Any) -> None:
    table = pd.DataFrame(problem.logits, columns=["a", "b", "c"])
    blend = KCalBlend().fit(problem.embeddings, problem.labels, logits=table)
    other = pd.DataFrame(problem.test_logits, columns=["b", "a", "c"])
    with pytest.raises(InvalidInputError, match="in the same order: a, b, c; got b, a, c"):
        blend.predict_proba(problem.test_embeddings, logits=other)
    blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
