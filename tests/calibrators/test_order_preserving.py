"""Order-preserving calibration keeps every order exactly, and learns gaps."""

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
from kcal.calibrators.class_scores import sort_classes
from kcal.calibrators.logit_base import to_log_probs
from kcal.calibrators.order_preserving.maps import (
    GridPlaces,
    MonotoneMap,
    grid_depths,
    in_exact_order,
    integrate,
    new_gap_map,
)
from kcal.calibrators.order_preserving.training import SortedRows, _fit_density, split_folds
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.errors import InvalidInputError
from kcal.validation import check_weights
from synthetic import warped

FORMS = ("diag", "oi", "op")


@pytest.fixture(scope="module")
def fitted() -> dict[str, OrderPreservingCalibration]:
    logits, labels, _ = warped(300, seed=0, n_classes=5)
    made = {form: OrderPreservingCalibration(form=form, width=10, folds=2, epochs=40) for form in FORMS}
    return {form: calibrator.fit(logits, labels) for form, calibrator in made.items()}


@pytest.fixture
def few_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the solver of the monotone map stop early, where its minimum is not the question."""
    monkeypatch.setattr("kcal.calibrators.order_preserving.training.MAX_ITERATIONS", 20)


def same_order(before: Any, after: Any) -> bool:
    """Compare every pair of a row: less, equal or greater, before and after."""
    pairs = [np.sign(values[:, :, None].astype(float) - values[:, None, :].astype(float)) for values in (before, after)]
    return bool((pairs[0] == pairs[1]).all())


rows_of_five = st.lists(
    st.lists(
        st.one_of(
            st.sampled_from([-1e4, 1e4, 0.0, 1.0, np.nextafter(1.0, 2), -3.0, 1e4 - 1e-11, 5e-324, 1e-300]),
            st.floats(-50, 50),
        ),
        min_size=5,
        max_size=5,
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40, deadline=None)
@given(rows=rows_of_five)
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
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-15, 1e-8, 1.0, 30.0, 1e4]), base=st.floats(-100, 100))
def test_near_ties_stay_apart(fitted: Any, form: str, seed: int, scale: float, base: float) -> None:
    generator = np.random.default_rng(seed)
    logits = base * (1 + scale * generator.normal(size=(20, 5)))
    assert same_order(logits, fitted[form].predict_proba(logits))


@pytest.mark.parametrize("form", FORMS)
def test_the_maps_themselves_keep_the_order(fitted: Any, form: str) -> None:
    """The last step would correct an inversion; only rounding may make one."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(scale=10, size=(500, 5)))
    scores, order = sort_classes(torch.log_softmax(logits, dim=1))
    assert bool((fitted[form].model_.order_map.output_logits(scores, order).diff(dim=1) <= 0).all())


def test_exact_order_moves_values_by_the_least_steps() -> None:
    keys = torch.tensor([[1.0, 2.0, 2.0, 3.0, 0.5]])
    values = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert (in_exact_order(values, keys) / 5e-324).tolist() == [[1, 2, 2, 3, 0]]
    distinct = torch.tensor([[0.2, 0.3, 0.3, 0.9, 0.1]], dtype=torch.float64)
    assert torch.equal(in_exact_order(distinct, keys), distinct)


def test_the_gap_map_equals_the_loop() -> None:
    generator = np.random.default_rng(0)
    logits = torch.from_numpy(generator.normal(size=(6, 4)))
    scores, order = logits.log_softmax(1).sort(dim=1, descending=True)
    for sees_order in (False, True):
        learned = new_gap_map(scores, order, torch.tensor([2.0, 0.5]), width=3, sees_order=sees_order, seed=0)
        for layer in learned.layers:
            layer.add_(torch.from_numpy(generator.normal(size=layer.shape)))
        found = learned.output_logits(scores, order)
        for row, (z, o) in enumerate(zip(scores, order, strict=True)):
            seen = torch.empty(4).double().scatter(0, o, z) if sees_order else z
            expected = torch.zeros(4).double()
            for fold, temperature in enumerate((2.0, 0.5)):
                w = [layer[fold] for layer in learned.layers]
                x = ((seen - learned.centre) / learned.scale)[None]
                m = torch.tanh(torch.tanh(x @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]
                level = 0.0
                for j in (2, 1, 0):
                    offset = np.log(np.expm1(1 / temperature))
                    level = level + float((z[j] - z[j + 1]) * softplus(m[0, j] + offset))
                    expected[j] += level / 2
            torch.testing.assert_close(found[row], expected)


def test_the_monotone_map_is_the_integral_of_its_density() -> None:
    depths = grid_depths(torch.tensor([-20.0]))
    density = 0.2 + torch.exp(-depths / 3) + 0.1 * torch.sin(depths)
    scores = np.array([[0.0, -1e-3, -0.7, -5.0, -19.9, -25.0]])
    found = MonotoneMap(depths, density).output_logits(torch.from_numpy(scores), torch.zeros(1, 6))[0]
    for score, value in zip(scores[0], found, strict=True):
        points = np.linspace(0.0, -score, 200_001)
        area = trapezoid(np.interp(points, depths.numpy(), density.numpy()), points)
        assert float(value) == pytest.approx(-area, abs=1e-6)


def test_the_monotone_maps_slopes_are_those_of_autograd() -> None:
    generator = np.random.default_rng(0)
    scores = torch.from_numpy(-generator.exponential(size=(5, 3)) * 4)
    depths = grid_depths(torch.tensor([-6.0]))  # some scores lie below
    density = torch.from_numpy(generator.uniform(0.1, 1, len(depths))).requires_grad_()
    places, slopes = GridPlaces.of(scores, depths), torch.from_numpy(generator.normal(size=(5, 3)))
    integrals = integrate(density, depths)
    out = places.interpolate(integrals, density)
    expected = torch.autograd.grad((out * slopes).sum(), density, retain_graph=True)[0]
    in_integrals, in_density = places.pull_back(slopes, len(depths))
    surrogate = integrals @ in_integrals + density @ in_density
    torch.testing.assert_close(torch.autograd.grad(surrogate, density)[0], expected)


def test_folds_part_the_rows() -> None:
    parts = split_folds(23, 5, seed=0)
    assert sorted(np.concatenate([held for _, held in parts]).tolist()) == list(range(23))
    assert all(not set(kept) & set(held) and len(kept) + len(held) == 23 for kept, held in parts)


@pytest.mark.parametrize("form", FORMS)
def test_it_recovers_a_monotone_warp_as_samples_grow(form: str) -> None:
    logits, _, truth = warped(4_000, seed=99)

    def divergence(calibrator: Any) -> float:
        return float((truth * np.log(truth / calibrator.predict_proba(logits))).sum(axis=1).mean())

    def make() -> OrderPreservingCalibration:
        return OrderPreservingCalibration(form=form, width=10, folds=3)

    losses = [divergence(make().fit(*warped(n, seed=1)[:2])) for n in (100, 4_000)]
    assert losses[1] < 0.5 * losses[0]
    assert losses[1] < 0.01
    assert losses[1] < divergence(TemperatureScaling().fit(*warped(4_000, seed=1)[:2]))


@pytest.mark.usefixtures("few_iterations")
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


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("form", ["diag", "oi"])
def test_permuting_classes_permutes_columns_bit_for_bit(form: str, problem: Any) -> None:
    columns = np.array([1, 2, 0])
    make = OrderPreservingCalibration(form=form, width=4, folds=2, epochs=5)
    plain = make.fit(problem.logits, problem.labels).predict_proba(problem.test_logits)
    turned = make.fit(problem.logits[:, columns], np.argsort(columns)[problem.labels])
    np.testing.assert_array_equal(turned.predict_proba(problem.test_logits[:, columns]), plain[:, columns])


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("form", FORMS)
def test_missing_classes_zero_weights_and_few_samples_give_valid_rows(form: str, problem: Any) -> None:
    make = OrderPreservingCalibration(form=form, width=4, folds=2, epochs=5)
    keep = problem.labels != 2
    for rows, labels, weights in (
        (problem.logits[keep], problem.labels[keep], None),
        (problem.logits, problem.labels, (problem.labels == 1).astype(float)),
        (problem.logits[:2], problem.labels[:2], [0.5, 1.0]),
    ):
        found = make.fit(rows, labels, sample_weight=weights).predict_proba(problem.test_logits)
        np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    for few in ({"sample_weight": [0.0, 1.0]}, {}):
        n = len(few.get("sample_weight", [1.0]))
        with pytest.raises(InvalidInputError, match="at least two samples"):
            make.fit(problem.logits[:n], problem.labels[:n], **few)


def gap_map_of_fold(calibrator: OrderPreservingCalibration, fold: int, z: torch.Tensor, seen: torch.Tensor) -> Any:
    """Return the output logits of one sorted row by one fold's network, in a loop."""
    learned: Any = calibrator.model_.order_map
    w = [layer[fold] for layer in learned.layers]
    x = ((seen - learned.centre) / learned.scale)[None]
    m = torch.tanh(torch.tanh(x @ w[0] + w[1]) @ w[2] + w[3]) @ w[4] + w[5]
    out = torch.zeros_like(z)
    for j in reversed(range(len(z) - 1)):
        out[j] = out[j + 1] + (z[j] - z[j + 1]) * softplus(m[0, j] + learned.start[fold, 0, 0])
    return out


@pytest.mark.usefixtures("few_iterations")
@pytest.mark.parametrize("form", FORMS)
def test_the_cross_validated_loss_is_that_of_each_row_by_the_map_of_the_other_folds(form: str, problem: Any) -> None:
    generator = np.random.default_rng(0)
    logits, labels, weights = problem.logits[:60], problem.labels[:60], generator.uniform(0.2, 3, 60)
    made = OrderPreservingCalibration(form=form, width=3, folds=3, epochs=30, seed=2)
    fitted = made.fit(logits, labels, sample_weight=weights)
    weights = check_weights(weights, 60)
    logs = to_log_probs(torch.from_numpy(logits), "logits", ignore_order=True)
    scores, order = sort_classes(logs)
    own = (order == torch.from_numpy(labels)[:, None]).int().argmax(dim=1)
    data = SortedRows(scores, order, own, torch.from_numpy(weights))
    densities = []
    total = 0.0
    for fold, (kept, held) in enumerate(split_folds(60, 3, seed=2)):
        if form == "diag":
            densities.append(_fit_density(data, kept, grid_depths(scores), 3, seed=2))
        else:
            temperature = fit_temperature(logs[kept], labels[kept], weights[kept])
            assert float(softplus(fitted.model_.order_map.start[fold, 0, 0])) == pytest.approx(
                1 / temperature, rel=1e-4
            )
        for row in held:
            if form == "diag":
                out = MonotoneMap(grid_depths(scores), densities[-1]).output_logits(scores[[row]], order[[row]])[0]
            else:
                out = gap_map_of_fold(fitted, fold, scores[row], logs[row] if form == "op" else scores[row])
            total -= weights[row] * float(torch.log_softmax(out, dim=0)[own[row]])
    assert [choice.form for choice in fitted.choices_] == [form]
    assert fitted.choices_[0].log_loss == pytest.approx(total / weights.sum(), rel=1e-9)
    if form == "diag":
        torch.testing.assert_close(fitted.model_.order_map.density, torch.stack(densities).mean(dim=0))


@pytest.mark.parametrize("form", FORMS)
def test_weights_reach_the_training_and_not_its_start_alone(
    form: str, problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SortedRows, "temperature", lambda *_: 1.0)
    make = OrderPreservingCalibration(form=form, width=4, folds=2, epochs=250)
    logits, labels = problem.logits[:80], problem.labels[:80]
    top = logits.argmax(axis=1) == labels
    confidences = [
        make.fit(logits, labels, sample_weight=weights).predict_proba(logits).max(axis=1).mean()
        for weights in (np.where(top, 0.1, 1.0), np.where(top, 1.0, 0.1))
    ]
    assert confidences[0] < confidences[1] - 0.1


@pytest.mark.usefixtures("few_iterations")
def test_probabilities_are_taken_only_when_named(problem: Any) -> None:
    odds = np.exp(problem.logits - problem.logits.max(axis=1, keepdims=True))
    probabilities = odds / odds.sum(axis=1, keepdims=True)
    fitted = OrderPreservingCalibration(representation="probabilities", form="diag").fit(probabilities, problem.labels)
    assert same_order(probabilities, fitted.predict_proba(probabilities))
    with pytest.raises(InvalidInputError, match="row 0, which sums to"):
        fitted.fit(problem.logits, problem.labels)
