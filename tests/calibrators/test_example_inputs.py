"""Made-up inputs of fitted calibrators: they are like the calibration set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from calibrator_checks import quick
from kcal import METHODS, KCal, KCalLogits, TemperatureScaling
from kcal.calibrators import Calibrator, make_calibrator
from module_cases import fitted
from synthetic import make_problem

PROBLEM = make_problem()


@pytest.mark.parametrize("name", METHODS)
def test_a_calibrator_predicts_its_made_up_rows(name: str) -> None:
    calibrator = fitted(name)
    rows = calibrator.example_inputs(9)
    assert {len(part) for part in rows.values()} == {9}
    for part, again in zip(rows.values(), calibrator.example_inputs(9).values(), strict=True):
        assert torch.equal(part, again)
    extra = {"logits": rows["logits"]} if len(rows) > 1 else {}
    assert calibrator.predict_proba(next(iter(rows.values())), **extra).shape == (9, 3)


def high_dimensional() -> tuple[Any, Any, Any]:
    """Return embeddings of 24 features with few directions of variance and lengths of 5 and above, logits, labels."""
    mixing = np.random.default_rng(5).normal(size=(6, 24))
    return PROBLEM.embeddings @ mixing + 2.0, PROBLEM.logits, PROBLEM.labels


def blend() -> Calibrator:
    x, z, y = high_dimensional()
    return quick("kcal-blend").fit(x, y, logits=z)


def learned(**parameters: Any) -> Calibrator:
    x, _, y = high_dimensional()
    return quick("kcal").set_params(**parameters).fit(x, y, train_embeddings=x + 0.1, train_labels=y)


FITS = {
    "kcal, identity": lambda: KCal(projection="identity").fit(PROBLEM.embeddings, PROBLEM.labels),
    "kcal, unit": lambda: KCal(projection="unit").fit(*high_dimensional()[::2]),
    "kcal, learned": learned,
    "kcal, linear": lambda: learned(projection="linear", dimension=4),
    "kcal, any module": lambda: KCal(
        projection=torch.nn.Sequential(torch.nn.Linear(24, 5), torch.nn.Tanh()).double().requires_grad_(False)
    ).fit(*high_dimensional()[::2]),
    "kcal-logits, one column": lambda: KCalLogits(projection="identity").fit(
        PROBLEM.logits[:, :1], PROBLEM.labels == 0
    ),
    "blend": blend,
}


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
@pytest.mark.parametrize("name", FITS)
def test_made_up_rows_have_the_evidence_of_calibration_samples(name: str) -> None:
    torch.manual_seed(0)
    calibrator = FITS[name]()
    (rows, *_) = calibrator.example_inputs().values()
    assert rows.shape == (64, calibrator.n_features_in_)
    assert 0.05 < float(calibrator.evidence(rows).median()) < 0.99


def test_methods_on_probabilities_get_probabilities() -> None:
    probs = torch.softmax(torch.from_numpy(PROBLEM.logits), dim=1)
    both = TemperatureScaling(representation="probabilities").fit(probs, PROBLEM.labels).example_inputs()["logits"]
    torch.testing.assert_close(both.sum(dim=1), torch.ones(64))
    one = make_calibrator("ts").set_params(representation="probabilities").fit(probs[:, :1], PROBLEM.labels == 0)
    column = one.example_inputs()["logits"]
    assert column.shape == (64, 1)
    assert ((column > 0) & (column < 1)).all()
