"""A fitted KCal or blend with a smaller support: its points, its size, its bandwidth, and what must keep working."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kcal
from kcal import KCal, KCalBlend
from kcal.errors import InvalidInputError, KcalWarning
from kcal.metrics import negative_log_likelihood
from kcal.samples import code_groups, cross_folds


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


def points_of(calibrator: KCal) -> tuple[Any, Any, Any]:
    """Return the support points of a calibrator, their classes and weights."""
    support = calibrator.model_.support
    weights = torch.ones(len(support)) if support.log_weights is None else support.log_weights.exp()
    return support.points.numpy(), support.codes.numpy(), weights.double().numpy()


def kernel_between(queries: Any, points: Any, b: float) -> Any:
    squares = ((queries[:, None] - points[None]) ** 2).sum(axis=2)
    return np.exp(-squares / (2 * points.shape[1] * b**2))


def gaussian_posteriors(queries: Any, points: Any, codes: Any, weights: Any, b: float, n_classes: int) -> Any:
    """Return class probabilities by dense sums."""
    sums = (kernel_between(queries, points, b) * weights) @ np.eye(n_classes)[codes]
    return sums / sums.sum(axis=1, keepdims=True)


# Points


def random_fit(seed: int, n: int, **parameters: Any) -> tuple[KCal, Any, Any, Any]:
    """Return a KCal over random points of the classes 0, 1 and 3 of four, with its points, labels and weights."""
    generator = np.random.default_rng(seed)
    labels = np.concatenate([[0, 1, 3], generator.choice([0, 1, 3], n - 3, p=[0.6, 0.3, 0.1])])
    rows, weights = labels[:, None] + generator.normal(size=(n, 3)), generator.uniform(0.1, 3.0, n)
    calibrator = KCal(projection="identity", progress=False, seed=seed, **{"bandwidth": 0.7, **parameters})
    calibrator.fit(rows, labels, sample_weight=weights, classes=range(4))
    return calibrator, rows, labels, weights


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(5, 60), st.integers(3, 70), st.integers(1, 4))
def test_weight_and_mean_of_every_class_are_kept(seed: int, n: int, size: int, smallest: int) -> None:
    calibrator, rows, labels, weights = random_fit(seed, n)
    small = calibrator.compress(size, min_cluster_size=smallest)
    points, codes, kept = points_of(small)
    factor = weights.sum() / kept.sum()
    np.testing.assert_allclose(
        factor * np.bincount(codes, kept, minlength=4), np.bincount(labels, weights, minlength=4), rtol=1e-12
    )
    assert len(points) <= size
    for code in (0, 1, 3):
        own, merged = labels == code, codes == code
        np.testing.assert_allclose(
            factor * kept[merged] @ points[merged], weights[own] @ rows[own], rtol=1e-10, atol=1e-12
        )
    counts = np.bincount(labels)
    if small.compression_ is not None:
        assert small.compression_.fewest >= min(smallest, counts[counts > 0].min())


def test_the_history_ends_with_the_bandwidth_in_use(fitted: KCal, problem: Any) -> None:
    for calibrator in (fitted, KCal(projection="identity", bandwidth=0.3).fit(problem.x, problem.y)):
        small = calibrator.compress(0.1)
        assert small.bandwidth_history_[-1].bandwidth == small.bandwidth_ == small.bandwidth_curve_.bandwidth
        assert calibrator.bandwidth_history_[-1].bandwidth == calibrator.bandwidth_
    merged = KCal(projection="identity", bandwidth=0.3, support="merged").fit(problem.x, problem.y)
    assert (merged.bandwidth_, merged.bandwidth_history_[-1].source) == (0.3, "given")


def test_predictions_are_sums_over_the_smaller_support(fitted: KCal, problem: Any) -> None:
    before = fitted.predict_proba(problem.test_x)
    small, again = (fitted.compress(30) for _ in range(2))
    points, codes, weights = points_of(small)
    assert small.support_size_ == len(points) <= 30
    queries = problem.test_x / np.linalg.norm(problem.test_x, axis=1, keepdims=True)
    expected = gaussian_posteriors(queries, points, codes, weights, small.bandwidth_, 3)
    np.testing.assert_allclose(small.predict_proba(problem.test_x), expected, atol=1e-9)
    np.testing.assert_array_equal(again.predict_proba(problem.test_x), small.predict_proba(problem.test_x))
    np.testing.assert_array_equal(fitted.predict_proba(problem.test_x), before)
    assert fitted.compression_ is None


# Size and bandwidth


def out_of_fold_losses(
    calibrator: KCal, rows: Any, labels: Any, size: int, bandwidth: float, groups: Any = None
) -> Any:
    """Return the log-loss of every sample from the other folds, compressed to the share that ``size`` is of all.

    Folds are those of the samples sorted by class.
    """
    order, n, n_classes = np.argsort(labels, kind="stable"), len(labels), labels.max() + 1
    folds, losses = np.empty(n, dtype=int), np.empty(n)
    folds[order] = cross_folds(labels[order], None if groups is None else groups[order], 5, 0)
    for fold in range(5):
        others, own = folds != fold, folds == fold
        whole = KCal(projection=calibrator.projection, bandwidth=bandwidth, progress=False)
        whole.fit(rows[others], labels[others])
        share = max(round(size * others.sum() / n), n_classes)
        parts = points_of(whole.compress(share) if share < others.sum() else whole)
        queries = whole.projection_(torch.from_numpy(rows[own])).numpy()
        probs = gaussian_posteriors(queries, *parts, bandwidth, n_classes)
        losses[own] = -np.log(probs[np.arange(own.sum()), labels[own]])
    return losses


def rings(n_classes: int, n: int = 260) -> tuple[Any, Any]:
    """Return noisy points on a ring per class: the means of all rings are the same."""
    generator = np.random.default_rng(3)
    angles, labels = generator.uniform(0, 2 * np.pi, n), generator.integers(0, n_classes, n)
    radii = 1.0 + labels + 0.25 * generator.normal(size=n)
    return radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1), labels


def test_loss_is_that_of_samples_predicted_from_the_merged_other_folds(fitted: KCal, problem: Any) -> None:
    small = fitted.compress(12)
    curve = small.bandwidth_curve_
    for place in (0, len(curve.bandwidths) // 2):
        losses = out_of_fold_losses(fitted, problem.x, problem.y, 12, curve.bandwidths[place])
        np.testing.assert_allclose(curve.losses[place], losses.mean(), rtol=1e-9)
    assert curve.loss == curve.losses.min() == small.compression_.loss


@pytest.mark.parametrize("grouped", [False, True])
def test_smallest_size_within_a_loss_is_found(grouped: bool) -> None:
    x, labels = rings(3)
    groups = np.random.default_rng(0).integers(0, 40, 260) if grouped else np.arange(260)
    fitted = KCal(projection="identity").fit(x, labels, groups=groups if grouped else None)
    keys = {"groups": code_groups(groups)} if grouped else {}
    full = out_of_fold_losses(fitted, x, labels, 260, fitted.bandwidth_, **keys)

    def increase(size: int) -> float:
        """Return the relative increase of the loss, and its standard error by independent groups on top."""
        differences = out_of_fold_losses(fitted, x, labels, size, fitted.compress(size).bandwidth_, **keys) - full
        error = np.sqrt((np.bincount(groups, weights=differences - differences.mean()) ** 2).sum()) / 260
        return float((differences.mean() + error) / full.mean())

    increases = {size: increase(size) for size in (3, 6, 11, 20)}  # where the grid starts
    assert increases[20] > 0
    for bound in (1.001 * increases[20], 0.999 * increases[20]):
        found = fitted.compress(max_loss_increase=bound).support_size_
        within = [size for size in increases if increases[size] <= bound]
        assert found <= min(within, default=260)
        assert found > max((size for size in increases if size < min(within, default=260)), default=0)


def test_groups_are_never_merged_into_what_predicts_them(problem: Any) -> None:
    """Labels that depend on the group alone cannot be predicted from other groups."""
    groups = np.repeat(np.arange(52), 5)
    rows = 10.0 * np.random.default_rng(0).normal(size=(52, 4))[groups] + 0.01 * problem.x[:, :4]
    labels = np.random.default_rng(1).integers(0, 2, 52)[groups]
    losses = [
        KCal(projection="identity", bandwidth=1.0).fit(rows, labels, groups=keys).compress(104).compression_.loss
        for keys in (None, groups)
    ]
    assert losses[0] < 0.3 < 0.6 < losses[1]
    small = KCal(projection="identity").fit(rows, labels, groups=groups)
    assert small.compress(0.2).bandwidth_curve_.n_folds == 5
    whole = KCal(projection="identity").fit(rows, labels)
    given = [each.compress(0.2, groups=groups).compression_.loss for each in (small, whole)]
    assert given[0] == small.compress(0.2).compression_.loss
    assert min(given) > 0.6


def test_samples_without_weight_play_no_part(problem: Any) -> None:
    weights = np.random.default_rng(1).uniform(0.2, 2.0, 260)
    weights[::5] = 0.0
    kept = weights > 0
    whole = KCal(projection="unit").fit(problem.x, problem.y, sample_weight=weights).compress(20)
    part = KCal(projection="unit").fit(problem.x[kept], problem.y[kept], sample_weight=weights[kept]).compress(20)
    np.testing.assert_allclose(whole.predict_proba(problem.test_x), part.predict_proba(problem.test_x), atol=1e-9)


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
    assert kept.leave_one_out_proba_.shape == (200, 2)
    merged = KCal(projection="identity", support="merged", min_cluster_size=3).fit(x, labels)
    assert 20 < merged.support_size_ <= 66
    assert merged.compression_.fewest >= 3


@pytest.mark.parametrize("size", [260, 1.0, 10**6])
def test_as_many_points_as_samples_warn_and_change_nothing(fitted: KCal, problem: Any, size: Any) -> None:
    with pytest.warns(KcalWarning, match="260 samples"):
        same = fitted.compress(size)
    np.testing.assert_array_equal(same.predict_proba(problem.test_x), fitted.predict_proba(problem.test_x))
    assert same.bandwidth_ == fitted.bandwidth_
    np.testing.assert_array_equal(same.ids_, fitted.ids_)


# What must keep working


def test_no_sample_is_stored(problem: Any, tmp_path: Path) -> None:
    merged = KCal(projection="identity", support="merged", min_cluster_size=5).fit(
        problem.x, problem.y, ids=[f"patient {i}" for i in range(260)]
    )
    content = Path(kcal.save(merged, tmp_path / "merged.kcal")).read_bytes()
    assert not any(row.tobytes()[:16] in content for row in problem.x)
    assert b"patient" not in content
    assert merged.ids_ is None
    assert len(merged.support_indices_) == 0
    with pytest.raises(AttributeError, match="leave_one_out_proba_"):
        _ = merged.leave_one_out_proba_


def test_files_modules_and_evidence_keep_working(fitted: KCal, problem: Any, tmp_path: Path) -> None:
    merged = KCal(projection="unit", support="merged", min_cluster_size=2).fit(problem.x, problem.y)
    for number, small in enumerate((merged, fitted.compress(0.1))):
        loaded = kcal.load(kcal.save(small, tmp_path / f"{number}.kcal"))
        np.testing.assert_array_equal(loaded.predict_proba(problem.test_x), small.predict_proba(problem.test_x))
        assert loaded.compression_ == small.compression_
        assert loaded.get_params()["support"] == small.support
        module, rows = small.as_module(), torch.from_numpy(problem.test_x)
        np.testing.assert_allclose(module(rows), small.predict_proba(problem.test_x), atol=1e-9)
        evidence = small.evidence(problem.test_x)
        np.testing.assert_allclose(module.evidence(rows), evidence, atol=1 / 260 + 1e-9)
        assert np.abs(np.sort(evidence) - (np.arange(260) + 0.5) / 260).max() < 0.12  # roughly uniform
        assert small.evidence(np.full((1, 18), 1e3))[0] < 0.05
        assert "260 samples" in small.summary()["support"]


def test_compressed_support_cannot_be_compressed_or_updated(fitted: KCal, problem: Any) -> None:
    small = fitted.compress(30)
    with pytest.raises(InvalidInputError, match="compressed before"):
        small.compress(10)
    for call in (lambda: small.partial_fit(problem.x[:1], problem.y[:1]), lambda: small.forget([3])):
        with pytest.raises(InvalidInputError, match="not made of single samples"):
            call()


BAD_ARGUMENTS = [
    {},
    {"size": 5, "max_loss_increase": 0.1},
    *({"size": size} for size in (2, 0, 0.0, 1.5, "10%")),
    {"max_loss_increase": -0.1},
    {"min_cluster_size": 0, "size": 9},
]


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=str)
def test_invalid_arguments_are_named(fitted: KCal, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(arguments), "size")):
        fitted.compress(**arguments)


def test_blend_is_compressed(problem: Any, tmp_path: Path) -> None:
    blend, queries = KCalBlend().fit(problem.x, problem.y, logits=problem.z), {"logits": problem.test_z}
    before = blend.predict_proba(problem.test_x, **queries)
    small = blend.compress(0.15)
    after = small.predict_proba(problem.test_x, **queries)
    np.testing.assert_array_equal(blend.predict_proba(problem.test_x, **queries), before)
    assert small.support_size_ == 39
    assert small.weights_ == blend.weights_
    losses = [negative_log_likelihood(probs, problem.test_y) for probs in (before, after)]
    assert losses[1] < 1.03 * losses[0]
    loaded = kcal.load(kcal.save(small, tmp_path / "blend.kcal"))
    np.testing.assert_array_equal(loaded.predict_proba(problem.test_x, **queries), after)
    rows = (torch.from_numpy(problem.test_x), torch.from_numpy(problem.test_z))
    np.testing.assert_allclose(small.as_module()(*rows), after, atol=1e-9)
    with pytest.raises(InvalidInputError, match="groups"):
        blend.compress(0.15, groups=[1, 2, 3])


def test_blend_with_groups_is_compressed_by_its_groups(problem: Any, tmp_path: Path) -> None:
    by_groups = KCalBlend().fit(problem.x, problem.y, logits=problem.z, groups=problem.groups)
    queries = {"X": problem.test_x, "logits": problem.test_z}
    expected = by_groups.compress(0.3).predict_proba(**queries)
    by_rows = by_groups.compress(0.3, groups=np.arange(len(problem.y)))
    assert np.abs(by_rows.predict_proba(**queries) - expected).max() > 1e-3
    loaded = kcal.load(kcal.save(by_groups, tmp_path / "blend.kcal"))
    np.testing.assert_allclose(loaded.compress(0.3).predict_proba(**queries), expected, atol=1e-9)


def test_a_merged_point_of_a_blend_counts_as_many_samples_as_it_stands_for() -> None:
    """Samples that occur three times, merged into one point each, leave the same blend."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 26)
    rows = generator.normal(size=(78, 4)) + labels[:, None]
    logits = 2.0 * np.eye(3)[labels] + generator.normal(size=(78, 3))
    blend = KCalBlend().fit(np.repeat(rows, 3, axis=0), np.repeat(labels, 3), logits=np.repeat(logits, 3, axis=0))
    small = blend.compress(78)
    assert (small.support_size_, small.model_.compression.fewest) == (78, 3)
    inputs = torch.from_numpy(rows + 0.1), torch.from_numpy(logits)
    same = small.model_.changed(bandwidth=blend.bandwidth_)
    torch.testing.assert_close(same(*inputs), blend.model_(*inputs), rtol=0, atol=1e-9)
