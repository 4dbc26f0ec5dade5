"""A fitted KCal or blend with a smaller support: its size, its bandwidth, and everything that must keep working."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from kcal.calibrators.kcal.compression import CompressionOptions

import kcal
from kcal import KCal, KCalBlend, KCalLogits
from kcal.errors import InvalidInputError, KcalWarning
from kcal.metrics import negative_log_likelihood
from kcal.support import REDUCTIONS, Reduction


@pytest.fixture(scope="module")
def problem() -> Any:
    """Noisy points around several places per class, with weak logits."""
    generator = np.random.default_rng(0)
    n, d = 260, 18
    places = 1.6 * generator.normal(size=(3, 2, d))
    labels = generator.integers(0, 3, 2 * n)
    x = places[labels, generator.integers(0, 2, 2 * n)] + 1.5 * generator.normal(size=(2 * n, d))
    z = 2.0 * np.eye(3)[labels] + 1.5 * generator.normal(size=(2 * n, 3))
    groups = generator.integers(0, 20, n)
    halves = {"x": x[:n], "y": labels[:n], "z": z[:n], "test_x": x[n:], "test_y": labels[n:], "test_z": z[n:]}
    return SimpleNamespace(groups=groups, **halves)


@pytest.fixture(scope="module")
def fitted(problem: Any) -> KCal:
    return KCal(projection="unit", smoothing=0.0).fit(problem.x, problem.y, ids=np.arange(len(problem.y)))


def gaussian_posteriors(queries: Any, points: Any, codes: Any, weights: Any, b: float, n_classes: int) -> Any:
    """Return class probabilities by a double loop."""
    result = np.zeros((len(queries), n_classes))
    for i, query in enumerate(queries):
        for point, code, weight in zip(points, codes, weights, strict=True):
            result[i, code] += weight * np.exp(-((query - point) ** 2).sum() / (2 * len(query) * b**2))
    return result / result.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("method", list(REDUCTIONS))
def test_predictions_are_the_sums_over_the_smaller_support(fitted: KCal, problem: Any, method: str) -> None:
    before = fitted.predict_proba(problem.test_x)
    small = fitted.compress(30, method=method)
    support = small.model_.support
    assert small.support_size_ == len(support) <= 30
    assert small.compression_.method == method
    queries = problem.test_x[:6] / np.linalg.norm(problem.test_x[:6], axis=1, keepdims=True)
    parts = (support.points.numpy(), support.codes.numpy(), support.log_weights.exp().numpy())
    expected = gaussian_posteriors(queries, *parts, small.bandwidth_, 3)
    np.testing.assert_allclose(small.predict_proba(problem.test_x[:6]), expected, atol=1e-9)
    counts = np.bincount(problem.y)
    np.testing.assert_allclose(np.bincount(parts[1], weights=parts[2]), counts, rtol=1e-12)
    assert np.array_equal(fitted.predict_proba(problem.test_x), before)
    assert fitted.compression_ is None


@pytest.mark.filterwarnings("ignore:The support has")
def test_as_many_points_as_samples_change_nothing(fitted: KCal, problem: Any) -> None:
    for size in (260, 1.0, 10**6):
        same = fitted.compress(size)
        assert np.array_equal(same.predict_proba(problem.test_x), fitted.predict_proba(problem.test_x))
        assert same.bandwidth_ == fitted.bandwidth_
        assert np.array_equal(same.ids_, fitted.ids_)


def test_the_loss_is_that_of_samples_predicted_from_the_merged_other_folds(fitted: KCal, problem: Any) -> None:
    small = fitted.compress(12)
    curve, model = small.bandwidth_curve_, fitted.model_
    folded = CompressionOptions().folded(model, None)
    points, codes = model.support.points.numpy(), model.support.codes.numpy()
    assert np.array_equal(folded.predicted, np.arange(260))
    for place in (0, len(curve.bandwidths) // 2):
        total = 0.0
        for fold in range(5):
            others, own = np.flatnonzero(folded.folds != fold), np.flatnonzero(folded.folds == fold)
            assert abs(len(own) - 52) <= 1
            merged = Reduction()(folded.samples.rows(others), round(12 * len(others) / 260))
            parts = (merged.points.numpy(), merged.codes, merged.weights)
            probs = gaussian_posteriors(points[own], *parts, curve.bandwidths[place], 3)
            total -= np.log(probs[np.arange(len(own)), codes[own]]).sum()
        np.testing.assert_allclose(curve.losses[place], total / 260, rtol=1e-9)
    assert curve.loss == curve.losses.min() == small.compression_.loss


def test_groups_are_never_merged_into_what_predicts_them(problem: Any) -> None:
    calibrator = KCal(projection="unit").fit(problem.x, problem.y, groups=problem.groups)
    folded = CompressionOptions().folded(calibrator.model_, problem.groups)
    groups = problem.groups[calibrator.model_.support.order.numpy()]
    for group in np.unique(groups):
        assert len(np.unique(folded.folds[groups == group])) == 1
    small = calibrator.compress(0.2)
    assert small.model_.groups is None
    assert small.bandwidth_curve_.n_folds == 5
    with pytest.raises(InvalidInputError, match="groups must be left out"):
        calibrator.compress(0.2, groups=problem.groups)


def test_samples_without_weight_play_no_part(problem: Any) -> None:
    weights = np.random.default_rng(1).uniform(0.2, 2.0, 260)
    weights[::5] = 0.0
    kept = weights > 0
    whole = KCal(projection="unit").fit(problem.x, problem.y, sample_weight=weights).compress(20)
    part = KCal(projection="unit").fit(problem.x[kept], problem.y[kept], sample_weight=weights[kept]).compress(20)
    np.testing.assert_allclose(whole.predict_proba(problem.test_x), part.predict_proba(problem.test_x), atol=1e-9)


def out_of_fold_losses(calibrator: KCal, size: int, bandwidth: float) -> Any:
    """Return the log-loss of every sample from the other folds, merged to the share that ``size`` is of all."""
    folded = CompressionOptions().folded(calibrator.model_, None)
    points, codes, losses = folded.samples.points.numpy(), folded.samples.codes, np.empty(260)
    for fold in range(5):
        others, own = np.flatnonzero(folded.folds != fold), np.flatnonzero(folded.folds == fold)
        merged = Reduction()(folded.samples.rows(others), round(size * len(others) / 260))
        squares = ((points[own][:, None] - merged.points.numpy()[None]) ** 2).sum(axis=2)
        kernel = np.exp(-squares / (2 * points.shape[1] * bandwidth**2)) * merged.weights
        sums = kernel @ np.eye(3)[merged.codes]
        losses[own] = -np.log((sums / sums.sum(axis=1, keepdims=True))[np.arange(len(own)), codes[own]])
    return losses


def rings(n_classes: int, n: int = 260) -> tuple[Any, Any]:
    """Return noisy points on a ring per class: the means of all rings are the same."""
    generator = np.random.default_rng(3)
    angles, labels = generator.uniform(0, 2 * np.pi, n), generator.integers(0, n_classes, n)
    radii = 1.0 + labels + 0.25 * generator.normal(size=n)
    return radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1), labels


def test_the_smallest_size_within_a_loss_is_found() -> None:
    fitted = KCal(projection="identity").fit(*rings(3))
    full = out_of_fold_losses(fitted, 260, fitted.bandwidth_)

    def increase(size: int) -> float:
        """Return the relative increase of the loss, and its standard error on top."""
        differences = out_of_fold_losses(fitted, size, fitted.compress(size).bandwidth_) - full
        error = np.sqrt(((differences - differences.mean()) ** 2).sum()) / 260
        return float((differences.mean() + error) / full.mean())

    increases = {size: increase(size) for size in (3, 6, 11, 20)}  # where the grid starts
    assert increases[20] > 0
    for bound in (1.001 * increases[20], 0.999 * increases[20]):
        found = fitted.compress(max_loss_increase=bound).support_size_
        within = [size for size in increases if increases[size] <= bound]
        assert found <= min(within, default=260)
        assert found > max((size for size in increases if size < min(within, default=260)), default=0)


def test_merging_at_the_fit_takes_the_size_of_the_lowest_loss(fitted: KCal, problem: Any) -> None:
    merged = KCal(projection="unit", support="merged", smoothing=0.0).fit(problem.x, problem.y)
    sizes = (3, 6, 11, 20, 38, 73, 138)  # 3·(260/3)^(j/7), rounded
    losses = {size: fitted.compress(size).compression_.loss for size in sizes}
    assert merged.support_size_ == min(losses, key=losses.__getitem__)
    assert merged.compression_.loss == losses[merged.support_size_]
    same = fitted.compress(merged.support_size_)
    np.testing.assert_allclose(same.predict_proba(problem.test_x), merged.predict_proba(problem.test_x), atol=1e-12)
    of_merged, of_all = (
        negative_log_likelihood(each.predict_proba(problem.test_x), problem.test_y) for each in (merged, fitted)
    )
    assert of_merged < of_all  # places with noise around them are what merging is for


def test_all_samples_stay_where_merging_is_no_clear_gain() -> None:
    x, labels = rings(2, 200)
    kept = KCal(projection="identity", support="merged").fit(x, labels)
    assert kept.compression_ is None
    assert kept.support_size_ == 200
    assert kept.leave_one_out_proba_.shape == (200, 2)
    merged = KCal(projection="identity", support="merged", min_cluster_size=3).fit(x, labels)
    assert 20 < merged.support_size_ <= 66


def test_the_error_of_a_gain_is_that_of_independent_groups(problem: Any) -> None:
    values = np.random.default_rng(0).normal(size=260)
    for groups in (None, problem.groups):
        model = KCal(projection="unit", bandwidth=0.1).fit(problem.x, problem.y, groups=groups).model_
        folded = CompressionOptions().folded(model, groups)
        mean, error = folded.reduced(CompressionOptions().reduction(model), 30).mean_and_error(values)
        assert mean == pytest.approx(values.mean())
        deviations = values - mean
        if groups is not None:
            ordered = groups[model.support.order.numpy()]
            deviations = np.array([deviations[ordered == group].sum() for group in np.unique(groups)])
        assert error == pytest.approx(np.sqrt((deviations**2).sum()) / 260)


def test_merging_keeps_a_given_bandwidth(problem: Any) -> None:
    merged = KCal(projection="unit", support="merged", bandwidth=0.11).fit(problem.x, problem.y)
    assert merged.bandwidth_ == 0.11
    assert merged.support_size_ < 260


def test_clusters_have_the_smallest_size_that_was_asked_for(fitted: KCal, problem: Any) -> None:
    merged = KCal(projection="unit", support="merged", min_cluster_size=12).fit(problem.x, problem.y)
    assert merged.compression_.fewest >= 12
    assert merged.support_size_ <= 260 // 12
    small = fitted.compress(1.0, min_cluster_size=12)
    assert small.compression_.fewest >= 12


def test_no_sample_is_stored(problem: Any, tmp_path: Path) -> None:
    merged = KCal(projection="identity", support="merged", min_cluster_size=5).fit(
        problem.x, problem.y, ids=[f"patient {i}" for i in range(260)]
    )
    path = kcal.save(merged, tmp_path / "merged.kcal")
    content = Path(path).read_bytes()
    assert not any(row.tobytes()[:16] in content for row in problem.x)
    assert b"patient" not in content
    assert merged.ids_ is None
    assert len(merged.support_indices_) == 0
    with pytest.raises(AttributeError, match="leave_one_out_proba_"):
        _ = merged.leave_one_out_proba_


def test_files_modules_and_evidence_keep_working(fitted: KCal, problem: Any, tmp_path: Path) -> None:
    merged = KCal(projection="unit", support="merged", min_cluster_size=2).fit(problem.x, problem.y)
    for number, small in enumerate((merged, fitted.compress(0.1, method="herding"))):
        loaded = kcal.load(kcal.save(small, tmp_path / f"{number}.kcal"))
        assert np.array_equal(loaded.predict_proba(problem.test_x), small.predict_proba(problem.test_x))
        assert loaded.compression_ == small.compression_
        assert loaded.get_params()["support"] == small.support
        module = small.as_module()
        rows = torch.from_numpy(problem.test_x)
        np.testing.assert_allclose(module(rows), small.predict_proba(problem.test_x), atol=1e-9)
        evidence = small.evidence(problem.test_x)
        np.testing.assert_allclose(module.evidence(rows), evidence, atol=1 / 260 + 1e-9)
        deviation = np.abs(np.sort(evidence) - (np.arange(260) + 0.5) / 260).max()
        assert deviation < 0.12  # roughly uniform
        assert small.evidence(np.full((1, 18), 1e3))[0] < 0.05
        assert "points for 260 samples" in small.summary()["support"]


def test_a_loaded_calibrator_can_be_compressed(fitted: KCal, problem: Any, tmp_path: Path) -> None:
    loaded = kcal.load(kcal.save(fitted, tmp_path / "all.kcal"))
    expected = fitted.compress(25).predict_proba(problem.test_x)
    assert np.array_equal(loaded.compress(25).predict_proba(problem.test_x), expected)


def test_a_compressed_support_is_not_compressed_again(fitted: KCal) -> None:
    with pytest.raises(InvalidInputError, match="compressed before"):
        fitted.compress(30).compress(10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "size or max_loss_increase must be given"),
        ({"size": 5, "max_loss_increase": 0.1}, "size or max_loss_increase must be given"),
        ({"size": 2}, "size must be at least 3, one point for each class"),
        ({"size": 0}, "size must be an integer from 1"),
        ({"size": 0.0}, "size must be an integer, or a share"),
        ({"size": 1.5}, "size must be an integer, or a share"),
        ({"size": "10%"}, "size must be an integer"),
        ({"max_loss_increase": -0.1}, "max_loss_increase must be"),
        ({"size": 9, "method": "magic"}, "method must be one of"),
        ({"size": 9, "min_cluster_size": 0}, "min_cluster_size must be"),
        ({"size": 9, "method": "random", "min_cluster_size": 2}, "min_cluster_size applies to"),
    ],
)
def test_invalid_arguments_are_named(fitted: KCal, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        fitted.compress(**arguments)


def test_invalid_parameters_are_named(problem: Any) -> None:
    for parameters in ({"support": "some"}, {"min_cluster_size": 0}, {"support": "merged", "bandwidth": "published"}):
        with pytest.raises(InvalidInputError, match=r"support|min_cluster_size"):
            KCal(projection="unit", **parameters).fit(problem.x, problem.y)


def test_kcal_on_logits_is_compressed_too(problem: Any) -> None:
    small = KCalLogits(projection="identity").fit(problem.z, problem.y).compress(0.1)
    assert small.predict_proba(problem.test_z).shape == (260, 3)
    assert small.support_size_ == 26


def test_a_blend_is_compressed(problem: Any, tmp_path: Path) -> None:
    blend = KCalBlend().fit(problem.x, problem.y, logits=problem.z)
    before = blend.predict_proba(problem.test_x, logits=problem.test_z)
    small = blend.compress(0.15)
    after = small.predict_proba(problem.test_x, logits=problem.test_z)
    assert np.array_equal(blend.predict_proba(problem.test_x, logits=problem.test_z), before)
    assert len(small.first_estimate.support) == 39
    assert small.weights_ == blend.weights_
    losses = [negative_log_likelihood(probs, problem.test_y) for probs in (before, after)]
    assert losses[1] < 1.03 * losses[0]
    loaded = kcal.load(kcal.save(small, tmp_path / "blend.kcal"))
    assert np.array_equal(loaded.predict_proba(problem.test_x, logits=problem.test_z), after)
    rows = (torch.from_numpy(problem.test_x), torch.from_numpy(problem.test_z))
    np.testing.assert_allclose(small.as_module()(*rows), after, atol=1e-9)
    with pytest.raises(InvalidInputError, match="groups must"):
        blend.compress(0.15, groups=[1, 2, 3])


def test_a_blend_with_groups_is_compressed_by_its_groups(problem: Any, tmp_path: Path) -> None:
    data = (problem.x, problem.y)
    by_groups = KCalBlend().fit(*data, logits=problem.z, groups=problem.groups)
    queries = {"X": problem.test_x, "logits": problem.test_z}
    expected = by_groups.compress(0.3, groups=problem.groups).predict_proba(**queries)
    np.testing.assert_array_equal(by_groups.compress(0.3).predict_proba(**queries), expected)
    by_rows = by_groups.compress(0.3, groups=np.arange(len(problem.y)))
    assert np.abs(by_rows.predict_proba(**queries) - expected).max() > 1e-3
    loaded = kcal.load(kcal.save(by_groups, tmp_path / "blend.kcal"))
    np.testing.assert_allclose(loaded.compress(0.3).predict_proba(**queries), expected, atol=1e-9)


def test_no_samples_can_be_added_to_a_compressed_support(fitted: KCal, problem: Any) -> None:
    small = fitted.compress(30)
    for call in (lambda: small.partial_fit(problem.x[:1], problem.y[:1]), lambda: small.forget([3])):
        with pytest.raises(InvalidInputError, match="not made of single samples"):
            call()


@pytest.mark.parametrize("size", [260, 1_000, 1.0])
def test_a_size_that_changes_nothing_warns(fitted: KCal, size: Any) -> None:
    with pytest.warns(KcalWarning, match="260 samples, so that size=.* leaves it as it is"):
        same = fitted.compress(size)
    assert same.support_size_ == 260
