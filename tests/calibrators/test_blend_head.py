"""A blend with the network's head: it computes the logits, and takes embeddings only."""

from __future__ import annotations

import copy
import inspect
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
from typer.testing import CliRunner

import calibrator_checks as checks
from kcal import CalibratedClassifier, KCalBlend, load, save
from kcal.calibrators import fit_on, predict_on
from kcal.cli import app
from kcal.deployment import HeadPredictor, metadata_of, write_onnx
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError
from synthetic import CENTRES, Problem, make_problem

HEAD = (3.0 * CENTRES, -1.5 * (CENTRES**2).sum(axis=1))  # of the logits of the problem
CONTRACT = [
    checks.check_a_clone_is_unfitted_and_fits_to_the_same_bits,
    checks.check_a_failed_fit_leaves_it_unfitted,
    checks.check_bfloat16_is_accepted,
    checks.check_log_probabilities_and_labels_agree,
    checks.check_other_columns_are_refused_by_name,
    checks.check_parameters_set_after_the_fit_change_no_prediction,
    checks.check_pickles_and_copies_of_a_used_calibrator_keep_every_bit,
    checks.check_saving_and_loading_keeps_every_bit,
    checks.check_single_and_double_precision_agree,
    checks.check_torch_in_torch_out,
]


def quick(head: Any = HEAD, **parameters: Any) -> KCalBlend:
    return KCalBlend(head=head, **parameters)


def layer(dtype: torch.dtype = torch.float32, *, kind: str = "linear") -> nn.Module:
    """Return the head of the problem as a layer."""
    module = nn.Linear(6, 3) if kind == "linear" else getattr(nn, kind)(6, 3, 1)
    weight, bias = map(torch.from_numpy, HEAD)
    with torch.no_grad():
        module.weight.copy_(weight.reshape(module.weight.shape))
        module.bias.copy_(bias)
    return module.to(dtype)


@cache
def fitted() -> KCalBlend:
    problem = make_problem()
    return quick().fit(problem.embeddings, problem.labels)


def largest_difference(one: Any, other: Any) -> float:
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


@pytest.mark.parametrize("check", CONTRACT, ids=lambda check: check.__name__.removeprefix("check_"))
def test_contract(check: Any, problem: Problem, tmp_path: Path) -> None:
    given = {
        "make": quick,
        "fitted": fitted(),
        "plain": fitted(),
        "problem": problem,
        "folder": tmp_path,
        "other": make_problem(seed=1),
    }
    check(**{name: given[name] for name in inspect.signature(check).parameters})


@pytest.mark.filterwarnings("ignore::kcal.errors.KcalWarning")
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 1000),
    n_features=st.integers(1, 40),
    n_classes=st.integers(2, 5),
    scale=st.floats(0.01, 10.0),
    biased=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_any_layer_equals_its_own_logits(
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
    blend = quick(head).fit(x, labels)
    plain = KCalBlend().fit(x, labels, logits=logits)
    assert largest_difference(blend.predict_proba(new), plain.predict_proba(new, logits=new_logits)) < 1e-6


@pytest.mark.parametrize("kind", ["linear", "Conv1d", "Conv2d", "Conv3d"])
def test_layers_serve_as_heads_and_stay_as_they_are(problem: Problem, kind: str) -> None:
    head = layer(kind=kind)
    before = copy.deepcopy(head.state_dict())
    x, new = torch.from_numpy(problem.embeddings).float(), torch.from_numpy(problem.test_embeddings).float()
    blend = quick(head).fit(x, problem.labels)
    with torch.no_grad():
        logits, new_logits = layer()(x), layer()(new)
    plain = KCalBlend().fit(x, problem.labels, logits=logits)
    probs = blend.predict_proba(new)
    assert largest_difference(probs, plain.predict_proba(new, logits=new_logits)) < 1e-6
    assert not probs.requires_grad
    assert blend.head is head
    assert all(parameter.grad is None and parameter.requires_grad for parameter in head.parameters())
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())
    with torch.no_grad():
        head.weight.zero_()  # the fit made a copy
    np.testing.assert_array_equal(blend.predict_proba(new), probs)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.float64])
def test_heads_of_any_precision_are_accepted(problem: Problem, dtype: torch.dtype) -> None:
    head = layer(dtype)
    blend = quick(head).fit(problem.embeddings, problem.labels)
    assert head.weight.dtype == dtype
    rounded = tuple(part.detach().double().numpy() for part in (head.weight, head.bias))
    plain = quick(rounded).fit(problem.embeddings, problem.labels)
    assert largest_difference(*(one.predict_proba(problem.test_embeddings) for one in (blend, plain))) == 0


def test_one_output_is_the_log_odds_of_the_second_of_two_classes(problem: Problem, tmp_path: Path) -> None:
    rows = problem.labels < 2
    x, y = problem.embeddings[rows], problem.labels[rows]
    network = LogisticRegression().fit(problem.train_embeddings, problem.train_labels == 1)
    blend = quick((network.coef_, network.intercept_)).fit(x, y == 1)
    plain = KCalBlend().fit(x, y == 1, logits=network.decision_function(x))
    new = problem.test_embeddings
    expected = plain.predict_proba(new, logits=network.decision_function(new))
    assert blend.classes_.tolist() == [False, True]
    assert largest_difference(blend.predict_proba(new), expected) < 1e-6
    loaded = load(save(blend, tmp_path / "model.kcal"))
    np.testing.assert_array_equal(loaded.predict_proba(new), blend.predict_proba(new))


def test_labels_are_columns_of_the_head(problem: Problem) -> None:
    rows = problem.labels < 2
    blend = quick().fit(problem.embeddings[rows], problem.labels[rows])
    assert blend.classes_.tolist() == [0, 1, 2]
    names = np.array(["b", "a", "c"])
    named = quick().fit(problem.embeddings, names[problem.labels], classes=["b", "a", "c"])
    assert named.classes_.tolist() == ["b", "a", "c"]
    np.testing.assert_array_equal(
        named.predict_proba(problem.test_embeddings), fitted().predict_proba(problem.test_embeddings)
    )
    with pytest.raises(InvalidInputError, match=r"^y "):
        quick().fit(problem.embeddings, names[problem.labels])
    with pytest.raises(InvalidInputError, match=r"^y "):
        quick().fit(problem.embeddings, problem.labels + 1)


def test_scikit_learn_scores_it_by_cross_validation(problem: Problem) -> None:
    x, y = problem.embeddings, problem.labels
    scores = cross_val_score(quick(layer()), x, y, cv=2, scoring="neg_log_loss", error_score="raise")
    plain = cross_val_score(KCalBlend(), x, y, cv=2, scoring="neg_log_loss", error_score="raise")
    assert scores.mean() > plain.mean()  # without logits
    probs = cross_val_predict(quick(), x, y, cv=2, method="predict_proba")
    assert log_loss(y, probs) == pytest.approx(-scores.mean(), abs=1e-4)


def test_scikit_learn_searches_its_parameters(problem: Problem, tmp_path: Path) -> None:
    grid = {"folds": [3, 5], "prior": [None, "uniform"]}
    search = GridSearchCV(quick(), grid, cv=2, scoring="neg_log_loss", error_score="raise")
    search.fit(problem.embeddings, problem.labels)
    assert len(search.cv_results_["params"]) == 4
    loaded = load(save(search.best_estimator_, tmp_path / "model.kcal"))
    assert {name: getattr(loaded, name) for name in grid} == search.best_params_


def test_it_is_the_last_step_of_a_pipeline(problem: Problem) -> None:
    wide = np.column_stack([problem.embeddings, np.arange(240)])
    pipeline = make_pipeline(FunctionTransformer(drop_last_column), quick()).fit(wide, problem.labels)
    new = np.column_stack([problem.test_embeddings, np.arange(600)])
    np.testing.assert_array_equal(pipeline.predict_proba(new), fitted().predict_proba(problem.test_embeddings))
    assert pipeline.score(new, problem.test_labels) == fitted().score(problem.test_embeddings, problem.test_labels)


def drop_last_column(rows: Any) -> Any:
    return rows[:, :-1]


def test_parameters_are_stored_as_given() -> None:
    head = layer()
    blend = KCalBlend(head=head)
    assert blend.get_params()["head"] is head
    copied = clone(blend)
    assert copied.head is not head
    assert torch.equal(copied.head.weight, head.weight)
    assert blend.set_params(head="nonsense").head == "nonsense"  # only fit looks at it
    assert "head" in repr(blend)


def test_a_loaded_blend_fits_again(problem: Problem, tmp_path: Path) -> None:
    blend = quick(layer()).fit(problem.embeddings, problem.labels)
    loaded = load(save(blend, tmp_path / "model.kcal"))
    weight, bias = loaded.head
    assert isinstance(weight, np.ndarray)
    assert isinstance(bias, np.ndarray)
    assert largest_difference(weight, HEAD[0].astype(np.float32)) == 0
    again = clone(loaded).fit(problem.embeddings, problem.labels)
    probs = blend.predict_proba(problem.test_embeddings)
    np.testing.assert_array_equal(again.predict_proba(problem.test_embeddings), probs)
    weight[:] = 0  # not that of the model
    np.testing.assert_array_equal(loaded.predict_proba(problem.test_embeddings), probs)
    unbiased = load(save(quick((HEAD[0], None)).fit(problem.embeddings, problem.labels), tmp_path / "other.kcal"))
    assert unbiased.head[1] is None


@pytest.mark.usefixtures("shared_operators")
def test_the_module_needs_embeddings_only(problem: Problem, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    x, new = torch.from_numpy(problem.embeddings).float(), torch.from_numpy(problem.test_embeddings).float()
    blend = quick(layer()).fit(x, problem.labels)
    module, expected = blend.as_module(), blend.predict_proba(new)
    torch.testing.assert_close(module(new), expected, atol=1e-6, rtol=0)
    assert not any(tensor.requires_grad for tensor in module.state_dict().values())
    predictor = HeadPredictor(blend)
    assert predictor.names == ("embeddings",)
    assert write_onnx(predictor, (new[:8],), tmp_path / "head.onnx", metadata=metadata_of(blend)).exists()


def test_records_of_outputs_and_networks_serve_it(problem: Problem) -> None:
    wrong = np.full_like(problem.logits, np.nan)  # not looked at
    blend = fit_on(quick(), ClassifierOutputs(problem.embeddings, wrong, problem.labels))
    assert not blend.needs_logits_
    expected = fitted().predict_proba(problem.test_embeddings)
    np.testing.assert_array_equal(predict_on(blend, ClassifierOutputs(problem.test_embeddings)), expected)
    network = nn.Sequential(nn.Identity(), layer())
    x = torch.from_numpy(problem.embeddings).float()
    new = torch.from_numpy(problem.test_embeddings).float()
    model = CalibratedClassifier(network, quick(network[1])).fit([(x, torch.from_numpy(problem.labels))])
    assert largest_difference(model(new).detach(), expected) < 1e-4
    assert largest_difference(model.predict_proba(new), expected) < 1e-4


def test_the_command_line_predicts_and_evaluates_without_logits(problem: Problem, tmp_path: Path) -> None:
    model, data, out = (str(tmp_path / name) for name in ("model.kcal", "test.npz", "p.npy"))
    save(fitted(), model)
    for logits in ({}, {"logits": problem.test_logits}):
        np.savez(data, embeddings=problem.test_embeddings, labels=problem.test_labels, **logits)
        for words in (("predict", model, data, "-o", out), ("evaluate", model, data, "--no-intervals")):
            result = CliRunner().invoke(app, words)
            assert result.exit_code == 0, result.output
        np.testing.assert_array_equal(np.load(out), fitted().predict_proba(problem.test_embeddings))


def test_logits_beside_a_head_are_refused(problem: Problem) -> None:
    with pytest.raises(InvalidInputError, match=r"^logits "):
        quick().fit(problem.embeddings, problem.labels, logits=problem.logits)
    with pytest.raises(InvalidInputError, match=r"^logits "):
        fitted().predict_proba(problem.test_embeddings, logits=problem.test_logits)
    with pytest.raises(InvalidInputError, match=r"^representation "):
        quick(representation="probabilities").fit(problem.embeddings, problem.labels)


class Cosine(nn.Linear):
    """A layer that is not linear."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(nn.functional.normalize(inputs), self.weight)


@pytest.mark.parametrize(
    "head",
    [
        "fc",
        nn.Sequential(nn.Linear(6, 3)),
        nn.Linear,
        Cosine(6, 3),
        nn.Conv2d(6, 3, 3),
        nn.LazyLinear(3),
        HEAD[0],
        (*HEAD, None),
        (None, HEAD[1]),
        (HEAD[0], HEAD[1][:2]),
        (HEAD[0][0], None),
        (np.empty((0, 6)), None),
        (HEAD[0].astype(str), None),
        (HEAD[0].T, None),
        nn.Linear(7, 3),
        (np.where(HEAD[0] > 1, np.nan, HEAD[0]), HEAD[1]),
        (HEAD[0], HEAD[1] - np.inf),
        (HEAD[0] * 1e300, None),
    ],
    ids=str,
)
def test_other_heads_are_refused_by_name(problem: Problem, head: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^head must") as caught:
        quick(head).fit(problem.embeddings, problem.labels)
    assert caught.value.parameter == "head"
