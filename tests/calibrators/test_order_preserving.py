"""Order-preserving calibration: the order is exact, the maps are those of the formulas, and the training learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from torch.nn.functional import softplus

from kcal import OrderPreservingCalibration, TemperatureScaling
from synthetic import warped

pytestmark = pytest.mark.filterwarnings("ignore::kcal.FewSamplesWarning")

FORMS = ("diag", "oi", "op")


@pytest.fixture(scope="module")
def fitted() -> dict[str, OrderPreservingCalibration]:
    logits, labels, _ = warped(300, seed=0, n_classes=5)
    made = {form: OrderPreservingCalibration(form=form, width=10, folds=2, epochs=40) for form in FORMS}
    return {form: calibrator.fit(logits, labels) for form, calibrator in made.items()}


def same_order(before: Any, after: Any) -> bool:
    """Compare every pair of a row: less, equal or greater, before and after."""
    pairs = [np.sign(values[:, :, None].astype(float) - values[:, None, :].astype(float)) for values in (before, after)]
    return bool((pairs[0] == pairs[1]).all())


entries = st.one_of(
    st.sampled_from([-1e4, 1e4, 0.0, 1.0, np.nextafter(1.0, 2), -3.0, 1e4 - 1e-11, 5e-324, 1e-300]),
    st.floats(-50, 50),
)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.lists(entries, min_size=5, max_size=5), min_size=1, max_size=20))
def test_the_order_is_kept_exactly(fitted: Any, form: str, dtype: Any, rows: list[list[float]]) -> None:
    logits = np.array(rows).astype(dtype)
    calibrator = fitted[form]
    probabilities, log_probs = calibrator.predict_proba(logits), calibrator.predict_log_proba(logits)
    assert probabilities.dtype == dtype
    assert same_order(logits, probabilities)
    assert (np.diff(np.take_along_axis(log_probs, logits.argsort(axis=1), axis=1)) >= 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-12 if dtype == np.float64 else 1e-6)
    np.testing.assert_array_equal(calibrator.predict(logits), logits.argmax(axis=1))
    for k in range(1, 6):
        top = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        np.testing.assert_array_equal(top, np.argsort(-probabilities, axis=1, kind="stable")[:, :k])


@pytest.mark.parametrize("form", FORMS)
def test_the_maps_keep_the_order_and_the_correction_is_one_of_rounding(fitted: Any, form: str) -> None:
    logits = np.random.default_rng(0).normal(scale=10, size=(500, 5))
    module = fitted[form].as_module()(None, torch.from_numpy(logits)).numpy()
    probabilities = fitted[form].predict_proba(logits)
    np.testing.assert_allclose(module, probabilities, rtol=1e-12)
    assert (np.diff(np.take_along_axis(module, logits.argsort(axis=1), axis=1)) >= 0).all()


def gaps_of_fold(model: Any, fold: int, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The output logits of one sorted row by the network of one fold, in a loop."""
    w = [part[layer][fold] for layer in range(3) for part in (model.weights, model.biases)]
    x = ((x - model.centre) / model.scale)[None]
    m = torch.tanh(torch.tanh(x @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]
    out = torch.zeros_like(z)
    for j in reversed(range(len(z) - 1)):
        out[j] = out[j + 1] + (z[j] - z[j + 1]) * softplus(m[0, j] + model.start[fold, 0, 0])
    return out


@pytest.mark.parametrize("form", ["oi", "op"])
def test_gaps_and_their_cross_validated_loss_are_those_of_the_loop(form: str, problem: Any) -> None:
    generator = np.random.default_rng(0)
    logits, labels, weights = problem.logits[:60], problem.labels[:60], generator.uniform(0.2, 3, 60)
    made = OrderPreservingCalibration(form=form, width=3, folds=3, epochs=30, seed=2)
    fitted = made.fit(logits, labels, sample_weight=weights)
    model = fitted.model_
    folds = np.array_split(np.random.default_rng(2).permutation(60), 3)
    logs = torch.log_softmax(torch.from_numpy(logits), dim=1)
    found, total = model.log_probs(logs), 0.0
    for row, log_probs in enumerate(logs):
        z, order = log_probs.sort(descending=True)
        outs = [gaps_of_fold(model.map, fold, z, log_probs if form == "op" else z) for fold in range(3)]
        torch.testing.assert_close(found[row, order], torch.log_softmax(sum(outs) / 3, dim=0))
        held_out = next(fold for fold, part in enumerate(folds) if row in part)
        total -= weights[row] * float(torch.log_softmax(outs[held_out], dim=0)[order == labels[row]])
    assert fitted.choices_[0].log_loss == pytest.approx(total / weights.sum(), rel=1e-9)


def test_the_increasing_function_is_the_integral_of_its_density(fitted: Any) -> None:
    model = fitted["diag"].model_
    depths, density = model.map.depths.numpy(), model.map.density.numpy()
    assert (density > 0).all()
    deepest = depths[-1]
    log_probs = torch.tensor([[-1e-3, -0.7, -5.0, -0.9 * deepest, -1.5 * deepest]]).double()
    areas = []
    for score in log_probs[0].tolist():
        points = np.linspace(0.0, -score, 200_001)
        areas.append(-trapezoid(np.interp(points, depths, density), points))
    expected = torch.log_softmax(torch.tensor(areas).double(), dim=0)
    torch.testing.assert_close(model.log_probs(log_probs)[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_it_recovers_a_monotone_warp_as_samples_grow(form: str) -> None:
    logits, _, truth = warped(4_000, seed=99)

    def divergence(calibrator: Any) -> float:
        return float((truth * np.log(truth / calibrator.predict_proba(logits))).sum(axis=1).mean())

    made = OrderPreservingCalibration(form=form, width=10, folds=3)
    losses = [divergence(made.fit(*warped(n, seed=1)[:2])) for n in (100, 4_000)]
    assert losses[1] < 0.5 * losses[0]
    assert losses[1] < 0.01
    assert losses[1] < divergence(TemperatureScaling().fit(*warped(4_000, seed=1)[:2]))


@pytest.mark.parametrize("form", FORMS)
def test_weights_reach_the_training(form: str) -> None:
    """One half is right more often where the gap is wide, the other equally often: no temperature serves both."""
    gaps, steep = np.tile([0.5, 4.0], 200), np.arange(400) < 200
    generator = np.random.default_rng(0)
    right = generator.uniform(size=400) < np.where(steep, np.where(gaps > 1, 0.97, 0.55), 0.8)
    logits = np.stack([gaps, np.zeros(400), np.full(400, -3.0)], axis=1) + generator.normal(scale=0.1, size=(400, 3))
    make = OrderPreservingCalibration(form=form, width=8, folds=2, epochs=150)
    contrasts = []
    for weights in (np.where(steep, 1.0, 0.01), np.where(steep, 0.01, 1.0)):
        found = make.fit(logits, (~right).astype(int), sample_weight=weights).predict_proba(logits)[:, 0]
        contrasts.append(found[gaps > 1].mean() - found[gaps < 1].mean())
    assert contrasts[0] > contrasts[1] + 0.15


@pytest.mark.usefixtures("short_solvers")
def test_auto_minimises_the_cross_validated_loss(problem: Any) -> None:
    calibrator = OrderPreservingCalibration(epochs=5).fit(problem.logits, problem.labels)
    for form, widths in (("diag", [10]), ("oi", [2, 10, 50]), ("op", [2, 10, 50])):
        tried = [choice for choice in calibrator.choices_ if choice.form == form]
        losses = [choice.log_loss for choice in tried]
        assert [choice.width for choice in tried] == widths[: len(tried)]
        assert all(np.diff(losses[:-1]) < 0)  # ever wider, until that no longer helps
        assert len(tried) == len(widths) or losses[-1] >= losses[-2]
    best = min(calibrator.choices_, key=lambda choice: choice.log_loss)
    assert (calibrator.form_, calibrator.width_) == (best.form, best.width)
    alone = OrderPreservingCalibration(epochs=5, form=best.form, width=best.width).fit(problem.logits, problem.labels)
    np.testing.assert_array_equal(
        alone.predict_proba(problem.test_logits), calibrator.predict_proba(problem.test_logits)
    )


def test_only_op_distinguishes_classes() -> None:
    """One class is overconfident, the others are not: a row-wise map of sorted scores cannot know which."""
    generator = np.random.default_rng(0)
    true = generator.normal(scale=2, size=(6_000, 3))
    labels = (true + generator.gumbel(size=true.shape)).argmax(axis=1)
    logits = true + np.array([3.0, 0.0, 0.0])
    nll = {}
    for form in FORMS:
        calibrator = OrderPreservingCalibration(form=form, width=10, folds=2).fit(logits[:3000], labels[:3000])
        nll[form] = -calibrator.predict_log_proba(logits[3000:])[np.arange(3000), labels[3000:]].mean()
    assert nll["op"] < min(nll["oi"], nll["diag"]) - 0.01
