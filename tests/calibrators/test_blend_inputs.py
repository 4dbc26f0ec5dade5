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
from kcal.calibrators import calibrator_from_state, calibrator_state
from kcal.errors import FileFormatError, InvalidInputError, LeakageWarning

pytestmark = pytest.mark.filterwarnings("ignore:No logits were given")


def test_logits_are_needed_or_refused_as_at_the_fit(problem: Any) -> None:
    x, y, z = problem.embeddings, problem.labels, problem.logits
    with_logits = KCalBlend().fit(x, y, logits=z)
    without = KCalBlend().fit(x, y)
    with pytest.raises(InvalidInputError, match=r"^logits "):
        with_logits.predict_proba(problem.test_embeddings)
    with pytest.raises(InvalidInputError, match=r"^logits "):
        without.predict(problem.test_embeddings, logits=problem.test_logits)
    with pytest.raises(InvalidInputError, match=r"^logits "):
        with_logits.predict_proba(problem.test_embeddings, logits=problem.test_logits[1:])
    with pytest.raises(InvalidInputError, match=r"^logits "):
        with_logits.predict_proba(problem.test_embeddings, logits=problem.test_logits[:, :2])
    with pytest.raises(InvalidInputError, match=r"^logits "):
        KCalBlend().fit(x, y, logits=z[1:])
    broken = z.copy()
    broken[3, 1] = np.nan
    with pytest.raises(InvalidInputError, match=r"logits.*row 3"):
        KCalBlend().fit(x, y, logits=broken)
    with pytest.warns(LeakageWarning):
        without.predict_proba(x)


@pytest.mark.parametrize(("name", "value"), [("folds", 1), ("prior", [0.5, 0.5]), ("representation", "odds")])
def test_bad_parameters_are_refused(problem: Any, name: str, value: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} "):
        KCalBlend(**{name: value}).fit(problem.embeddings, problem.labels, logits=problem.logits)


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
    blend = KCalBlend(head=(problem.logits[:3] @ np.ones((3, 6)), None)).fit(problem.embeddings, problem.labels)
    state = calibrator_state(blend)
    parts = ("exponents", "mixture", "frequencies", "network.factors", "refit.bias", "head.weight", "points")
    for name in (f"model.{part}" for part in parts):
        tensor = state.tensors[name]
        for damaged in (tensor[..., :-1], tensor.half()):
            with pytest.raises(FileFormatError, match=name.rpartition(".")[2]):
                calibrator_from_state(replace(state, tensors=state.tensors | {name: damaged}))


def test_columns_of_logits_in_another_order_are_refused(problem: Any) -> None:
    table = pd.DataFrame(problem.logits, columns=["a", "b", "c"])
    blend = KCalBlend().fit(problem.embeddings, problem.labels, logits=table)
    other = pd.DataFrame(problem.test_logits, columns=["b", "a", "c"])
    with pytest.raises(InvalidInputError, match=r"^logits "):
        blend.predict_proba(problem.test_embeddings, logits=other)
    blend.predict_proba(problem.test_embeddings, logits=problem.test_logits)
