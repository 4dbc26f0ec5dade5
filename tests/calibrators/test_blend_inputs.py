"""Inputs of a blend: logits, parameters, training data, labels, stored parts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
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
    parts = ("exponents", "mixture", "frequencies", "network.factors", "refit.bias_at_centre", "head.weight", "points")
    for name in (f"model.{part}" for part in parts):
        tensor = state.tensors[name]
        for damaged in (tensor[..., :-1], tensor.half()):
            with pytest.raises(FileFormatError, match=name.rpartition(".")[2]):
                calibrator_from_state(replace(state, tensors=state.tensors | {name: damaged}))
