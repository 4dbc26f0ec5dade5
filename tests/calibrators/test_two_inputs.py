"""What the methods on embeddings and logits have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from kcal import (
    DensityAwareCalibration,
    KCalBlend,
    KNNInterpolation,
    LastLayerRefit,
    LeakageWarning,
    TemperatureScaling,
)
from kcal.calibrators import was_fitted_on
from kcal.errors import InvalidInputError
from two_input_problems import label_loss, small_problem

METHODS = [KNNInterpolation, DensityAwareCalibration, LastLayerRefit]
every_method = pytest.mark.parametrize("method", METHODS)


@pytest.mark.parametrize(("method", "factor"), [(KNNInterpolation, 0.95), (LastLayerRefit, 0.9)])
def test_embeddings_add_information_that_logits_lack(method: Any, factor: float) -> None:
    (embeddings, logits, labels), (new, new_logits, new_labels) = (small_problem(600, seed) for seed in (8, 9))
    scaled = TemperatureScaling().fit(logits, labels).predict_log_proba(new_logits)
    ours = method().fit(embeddings, labels, logits=logits).predict_log_proba(new, logits=new_logits)
    losses = [label_loss(log_probs, new_labels, np.ones(600)) for log_probs in (ours, scaled)]
    assert losses[0] < factor * losses[1]


@every_method
def test_rows_in_the_model_are_warned_of(method: Any, recwarn: pytest.WarningsRecorder) -> None:
    """A sample of weight 0 is not in the model."""
    embeddings, logits, labels = small_problem(30, 10)
    fitted = method().fit(embeddings, labels, logits=logits, sample_weight=np.arange(30) > 0)
    np.testing.assert_array_equal(was_fitted_on(fitted, embeddings), np.arange(30) > 0)
    fitted.predict_proba(embeddings[:1], logits=logits[:1])
    assert not recwarn.list
    fitted.predict_proba(embeddings, logits=logits)
    assert [warning.category for warning in recwarn] == [LeakageWarning] * (method is not LastLayerRefit)


@every_method
def test_logits_and_two_groups_are_needed(method: Any) -> None:
    embeddings, logits, labels = small_problem(30, 11)
    with pytest.raises(InvalidInputError, match=r"^logits"):
        method().fit(embeddings, labels)
    with pytest.raises(InvalidInputError, match=r"^groups"):
        method().fit(embeddings, labels, logits=logits, groups=np.zeros(30))
    fitted = method().fit(embeddings, labels, logits=logits)
    for wrong in (None, logits[:, :2], logits[:5]):
        with pytest.raises(InvalidInputError, match=r"^logits"):
            fitted.predict_proba(embeddings + 1.0, logits=wrong)
    module = fitted.as_module()
    for name, inputs in (("logits", (torch.ones(2, 4), None)), ("embeddings", (None, torch.ones(2, 3)))):
        with pytest.raises(InvalidInputError, match=f"^{name}"):
            module(*inputs)


@pytest.mark.parametrize("method", [*METHODS, KCalBlend])
def test_tables_of_logits_name_the_classes(method: Any) -> None:
    pandas = pytest.importorskip("pandas")
    embeddings, logits, labels = small_problem(30, 12)
    names = ["owl", "cat", "dog"]
    table = pandas.DataFrame(logits, columns=names)
    fitted = method().fit(embeddings, np.array(names)[labels], logits=table)
    assert fitted.classes_.tolist() == fitted.logit_names_in_.tolist() == names
    fitted.predict_proba(embeddings + 1.0, logits=logits)
    with pytest.raises(InvalidInputError, match=r"^logits"):
        fitted.predict_proba(embeddings + 1.0, logits=table[names[::-1]])
