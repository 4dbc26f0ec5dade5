"""A blend with the network's head: it computes the logits, and takes embeddings only."""

from __future__ import annotations

import copy
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import nn

from kcal import CalibratedClassifier, KCalBlend, load, save
from kcal.calibrators import fit_on, predict_on
from kcal.deployment import HeadPredictor, export_program
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from synthetic import CENTRES, Problem, make_problem

pytestmark = pytest.mark.filterwarnings("ignore:No logits were given")

HEAD = (3.0 * CENTRES, -1.5 * (CENTRES**2).sum(axis=1))  # of the logits of the problem


def layer(dtype: torch.dtype = torch.float32, *, kind: str = "linear") -> nn.Module:
    """Return the head of the problem as a layer."""
    module = nn.Linear(6, 3) if kind == "linear" else getattr(nn, kind)(6, 3, 1)
    weight, bias = map(torch.from_numpy, HEAD)
    with torch.no_grad():
        module.weight.copy_(weight.reshape(module.weight.shape))
        module.bias.copy_(bias)
    return module.to(dtype)


def fit_head(head: Any = HEAD) -> KCalBlend:
    problem = make_problem()
    return KCalBlend(head=head).fit(problem.embeddings, problem.labels)


fitted = cache(fit_head)


@pytest.mark.filterwarnings("ignore::kcal.errors.KcalWarning")
@settings(max_examples=8)
@given(
    seed=st.integers(0, 1000),
    n_features=st.integers(1, 40),
    n_classes=st.integers(2, 5),
    scale=st.floats(0.01, 10.0),
    biased=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_head_equals_its_own_logits(
    seed: int, n_features: int, n_classes: int, scale: float, biased: bool, dtype: torch.dtype
) -> None:
    generator = np.random.default_rng(seed)
    head = nn.Linear(n_features, n_classes, bias=biased, dtype=dtype)
    with torch.no_grad():
        for part in head.parameters():
            part.copy_(torch.from_numpy(generator.normal(scale=scale, size=part.shape)))
        x, new = torch.from_numpy(generator.normal(size=(2, 60, n_features))).to(dtype)
        logits, new_logits = head(x), head(new)
    labels = (logits.numpy() + generator.gumbel(size=logits.shape)).argmax(axis=1)
    found = KCalBlend(head=head).fit(x, labels).predict_proba(new)
    expected = KCalBlend().fit(x, labels, logits=logits).predict_proba(new, logits=new_logits)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        *((kind, torch.float32) for kind in ("linear", "Conv1d", "Conv2d", "Conv3d")),
        *(("linear", dtype) for dtype in (torch.half, torch.bfloat16, torch.float64)),
    ],
)
def test_layers_of_any_precision_are_copied(problem: Problem, kind: str, dtype: torch.dtype) -> None:
    head = layer(dtype, kind=kind)
    rounded = (head.weight.detach().double().numpy().reshape(3, 6), head.bias.detach().double().numpy())
    before, blend = copy.deepcopy(head.state_dict()), fit_head(head)
    probs = blend.predict_proba(problem.test_embeddings)
    np.testing.assert_array_equal(probs, fit_head(rounded).predict_proba(problem.test_embeddings))
    assert blend.head is head
    assert all(parameter.grad is None and parameter.requires_grad for parameter in head.parameters())
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    for other in (pickle.loads(pickle.dumps(blend)), copy.deepcopy(blend)):
        np.testing.assert_array_equal(other.predict_proba(problem.test_embeddings), probs)
    with torch.no_grad():
        head.weight.zero_()
    np.testing.assert_array_equal(blend.predict_proba(problem.test_embeddings), probs)


def test_one_output_is_the_log_odds_of_the_second_of_two_classes(problem: Problem, tmp_path: Path) -> None:
    x, y, new = problem.embeddings, problem.labels == 1, problem.test_embeddings
    network = LogisticRegression().fit(problem.train_embeddings, problem.train_labels == 1)
    blend = KCalBlend(head=(network.coef_, network.intercept_)).fit(x, y)
    plain = KCalBlend().fit(x, y, logits=network.decision_function(x))
    expected = plain.predict_proba(new, logits=network.decision_function(new))
    assert blend.classes_.tolist() == [False, True]
    for each in (blend, load(save(blend, tmp_path / "model.kcal"))):
        np.testing.assert_allclose(each.predict_proba(new), expected, rtol=0, atol=1e-6)


def test_labels_are_columns_of_the_head(problem: Problem) -> None:
    rows = problem.labels < 2
    assert KCalBlend(head=HEAD).fit(problem.embeddings[rows], problem.labels[rows]).classes_.tolist() == [0, 1, 2]
    names = np.array(["b", "a", "c"])
    named = KCalBlend(head=HEAD).fit(problem.embeddings, names[problem.labels], classes=["b", "a", "c"])
    np.testing.assert_array_equal(
        named.predict_proba(problem.test_embeddings), fitted().predict_proba(problem.test_embeddings)
    )
    for labels in (names[problem.labels], problem.labels + 1):
        with pytest.raises(InvalidInputError, match=r"^y "):
            KCalBlend(head=HEAD).fit(problem.embeddings, labels)


def test_scikit_learn_validates_searches_and_chains_it(problem: Problem, tmp_path: Path) -> None:
    x, y = problem.embeddings, problem.labels
    scores = cross_val_score(KCalBlend(head=layer()), x, y, cv=2, scoring="neg_log_loss", error_score="raise")
    plain = cross_val_score(KCalBlend(), x, y, cv=2, scoring="neg_log_loss", error_score="raise")
    assert scores.mean() > plain.mean()  # without logits
    probs = cross_val_predict(KCalBlend(head=HEAD), x, y, cv=2, method="predict_proba")
    assert log_loss(y, probs) == pytest.approx(-scores.mean(), abs=1e-4)
    grid = {"folds": [3, 5], "prior": [None, "uniform"]}
    search = GridSearchCV(KCalBlend(head=HEAD), grid, cv=2, scoring="neg_log_loss", error_score="raise").fit(x, y)
    loaded = load(save(search.best_estimator_, tmp_path / "model.kcal"))
    assert {name: getattr(loaded, name) for name in grid} == search.best_params_
    pipeline = make_pipeline(FunctionTransformer(drop_last_column), KCalBlend(head=HEAD))
    pipeline.fit(np.column_stack([x, np.arange(240)]), y)
    new = np.column_stack([problem.test_embeddings, np.arange(600)])
    np.testing.assert_array_equal(pipeline.predict_proba(new), fitted().predict_proba(problem.test_embeddings))


def drop_last_column(rows: Any) -> Any:
    return rows[:, :-1]


def test_loaded_blend_fits_again(problem: Problem, tmp_path: Path) -> None:
    loaded = load(save(fit_head(layer()), tmp_path / "model.kcal"))
    weight, _ = loaded.head
    np.testing.assert_array_equal(weight, HEAD[0].astype(np.float32))
    probs = loaded.predict_proba(problem.test_embeddings)
    again = clone(loaded).fit(problem.embeddings, problem.labels)
    np.testing.assert_array_equal(again.predict_proba(problem.test_embeddings), probs)
    weight[:] = 0  # not that of the model
    np.testing.assert_array_equal(loaded.predict_proba(problem.test_embeddings), probs)
    assert load(save(fit_head((HEAD[0], None)), tmp_path / "other.kcal")).head[1] is None


def test_export_networks_and_records_need_embeddings_only(problem: Problem) -> None:
    x, new = torch.from_numpy(problem.embeddings).float(), torch.from_numpy(problem.test_embeddings).float()
    wrong = np.full_like(problem.logits, np.nan)  # not looked at
    blend = fit_on(KCalBlend(head=HEAD), ClassifierOutputs(problem.embeddings, wrong, problem.labels))
    assert not blend.tags.needs_logits
    expected = fitted().predict_proba(problem.test_embeddings)
    np.testing.assert_array_equal(predict_on(blend, ClassifierOutputs(problem.test_embeddings)), expected)
    network = nn.Sequential(nn.Identity(), layer())
    model = CalibratedClassifier(network, KCalBlend(head=network[1])).fit([(x, torch.from_numpy(problem.labels))])
    np.testing.assert_allclose(model(new).detach(), expected, rtol=0, atol=1e-4)
    predictor = HeadPredictor(blend)
    assert predictor.names == ("embeddings",)
    np.testing.assert_allclose(export_program(predictor, (new[:8],)).module()(new)[0], expected, rtol=0, atol=1e-4)


def test_logits_beside_a_head_are_refused(problem: Problem) -> None:
    with pytest.raises(InvalidInputError, match=r"^logits "):
        KCalBlend(head=HEAD).fit(problem.embeddings, problem.labels, logits=problem.logits)
    with pytest.raises(InvalidInputError, match=r"^logits "):
        fitted().predict_proba(problem.test_embeddings, logits=problem.test_logits)
    with pytest.raises(InvalidInputError, match=r"^representation "):
        KCalBlend(head=HEAD, representation="probabilities").fit(problem.embeddings, problem.labels)


class Cosine(nn.Linear):
    """A layer that is not linear."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(nn.functional.normalize(inputs), self.weight)


OTHERS: dict[str, Any] = {
    "text": "fc",
    "several layers": nn.Sequential(nn.Linear(6, 3)),
    "class": nn.Linear,
    "not linear": Cosine(6, 3),
    "wide kernel": nn.Conv2d(6, 3, 3),
    "lazy": nn.LazyLinear(3),
    "one array": HEAD[0],
    "three arrays": (*HEAD, None),
    "no weight": (None, HEAD[1]),
    "short bias": (HEAD[0], HEAD[1][:2]),
    "one row": (HEAD[0][0], None),
    "no rows": (np.empty((0, 6)), None),
    "weight of text": (HEAD[0].astype(str), None),
    "transposed": (HEAD[0].T, None),
    "other features": nn.Linear(7, 3),
    "NaN": (np.where(HEAD[0] > 1, np.nan, HEAD[0]), HEAD[1]),
    "infinite": (HEAD[0], HEAD[1] - np.inf),
    "huge": (HEAD[0] * 1e300, None),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_heads_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^head must") as caught:
        fit_head(OTHERS[name])
    assert caught.value.parameter == "head"
