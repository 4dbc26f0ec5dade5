"""A smaller support keeps the weight of every class, and what it must keep of its points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.kernels import class_posteriors
from kcal.support import REDUCTIONS, Reduction, WeightedPoints, sizes_per_class

N_CLASSES = 4


def samples_of(
    seed: int, n: int = 40, d: int = 3, *, weighted: bool = True, dtype: type = np.float32
) -> WeightedPoints:
    """Return random points of the classes 0, 1 and 3 of four."""
    generator = np.random.default_rng(seed)
    codes = np.concatenate([[0, 1, 3], generator.choice([0, 1, 3], n - 3, p=[0.6, 0.3, 0.1])])
    points = (codes[:, None] + generator.normal(size=(n, 3))).astype(dtype)
    return WeightedPoints(torch.from_numpy(points), codes, generator.uniform(0.1, 3.0, n), N_CLASSES)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(5, 60),
    size=st.integers(1, 70),
    method=st.sampled_from(list(REDUCTIONS)),
    min_cluster_size=st.integers(1, 4),
)
def test_the_weight_of_every_class_stays(seed: int, n: int, size: int, method: str, min_cluster_size: int) -> None:
    samples = samples_of(seed, n)
    bound = min_cluster_size if method == "kmeans" else 1
    reduced = Reduction(method, seed, bound)(samples, size)
    np.testing.assert_allclose(reduced.class_weights, samples.class_weights, rtol=1e-13)
    assert len(reduced) <= max(size, 3)
    assert (reduced.weights > 0).all()
    assert reduced.points.dtype == torch.float32
    if method != "kmeans":
        assert len(reduced) == min(max(size, 3), n)


@pytest.mark.parametrize("method", list(REDUCTIONS))
def test_the_same_seed_gives_the_same_points(method: str) -> None:
    samples = samples_of(0, 80)
    one, other = (Reduction(method, 7)(samples, 20) for _ in range(2))
    assert torch.equal(one.points, other.points)
    assert np.array_equal(one.weights, other.weights)


@pytest.mark.parametrize("method", ["kernel-thinning", "herding", "random"])
def test_thinning_keeps_samples_and_none_of_them_twice(method: str) -> None:
    samples = samples_of(1, 90)
    reduced = Reduction(method, 0)(samples, 30)
    known = {(int(code), *row) for code, row in zip(samples.codes, samples.points.tolist(), strict=True)}
    kept = [(int(code), *row) for code, row in zip(reduced.codes, reduced.points.tolist(), strict=True)]
    assert len(set(kept)) == len(kept) == 30
    assert set(kept) <= known


def test_one_centroid_per_class_is_the_weighted_mean() -> None:
    samples = samples_of(2, dtype=np.float64)
    reduced = Reduction()(samples, 3)
    assert reduced.codes.tolist() == [0, 1, 3]
    for code, point, members in zip(reduced.codes, reduced.points.numpy(), reduced.members, strict=True):
        own = samples.codes == code
        mean = np.average(samples.points.numpy()[own], axis=0, weights=samples.weights[own])
        np.testing.assert_allclose(point, mean, rtol=1e-12)
        assert members == own.sum()


def test_merging_keeps_the_mean_of_every_class_at_any_size() -> None:
    samples = samples_of(3, 60, dtype=np.float64)
    reduced = Reduction()(samples, 17)
    for code in (0, 1, 3):
        own, merged = samples.codes == code, reduced.codes == code
        np.testing.assert_allclose(
            reduced.weights[merged] @ reduced.points.numpy()[merged],
            samples.weights[own] @ samples.points.numpy()[own],
            rtol=1e-12,
        )


def test_duplicates_are_merged_into_one_point_each() -> None:
    places = np.array([[0.0, 0.0], [5.0, 1.0], [9.0, 9.0]])
    chosen = np.array([0, 1, 1, 2, 0, 1])
    weights = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    samples = WeightedPoints(torch.from_numpy(places[chosen]), np.zeros(6, dtype=np.int64), weights, 1)
    for size in (3, 4, 5):  # no more distinct points than three
        reduced = Reduction()(samples, size)
        order = np.argsort(reduced.points[:, 0].numpy())
        np.testing.assert_allclose(reduced.points.numpy()[order], places)
        assert reduced.weights[order].tolist() == [6.0, 11.0, 4.0]
        assert reduced.members[order].tolist() == [2, 3, 1]


def test_all_samples_are_kept_as_they_are() -> None:
    samples = samples_of(4)
    for method in REDUCTIONS:
        reduced = Reduction(method)(samples, len(samples))
        assert torch.equal(reduced.points, samples.points)
        assert np.array_equal(reduced.weights, samples.weights)


@pytest.mark.parametrize("n", [7, 40, 200])
def test_no_cluster_is_smaller_than_asked_for_where_its_class_is_not(n: int) -> None:
    samples = samples_of(5, n)
    counts = samples.class_counts
    for size in (3, n // 3, n):
        reduced = Reduction(min_cluster_size=5)(samples, size)
        for code, members in zip(reduced.codes, reduced.members, strict=True):
            assert members >= min(5, counts[code])
        sums = np.bincount(reduced.codes, weights=reduced.members, minlength=N_CLASSES)
        assert np.array_equal(sums, counts)


def test_clusters_within_coarse_cells_are_almost_as_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(600, 4))
    samples = WeightedPoints(torch.from_numpy(points), np.zeros(600, dtype=np.int64), np.ones(600), 1)

    def scatter(size: int) -> float:
        centroids = Reduction()(samples, size)
        assert abs(len(centroids) - size) <= 4
        return float(torch.cdist(samples.points, centroids.points).amin(dim=1).square().mean())

    whole = scatter(49)
    monkeypatch.setattr("kcal.support.merging.LARGE", 1e4)
    assert scatter(49) < 1.15 * whole < 1.15 * scatter(20)


def test_large_classes_are_thinned_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcal.support.thinning.PART", 16)
    samples = samples_of(6, 200)
    for method in ("kernel-thinning", "herding"):
        reduced = Reduction(method)(samples, 50)
        assert len(reduced) == 50
        np.testing.assert_allclose(reduced.class_weights, samples.class_weights, rtol=1e-13)


def test_herding_and_kernel_thinning_are_closer_to_all_points_than_random_ones() -> None:
    generator = np.random.default_rng(0)
    codes = np.arange(900) % 3
    points = torch.from_numpy(2.0 * np.eye(3)[codes] + generator.normal(size=(900, 3)))
    samples = WeightedPoints(points, codes, np.ones(900), 3)
    queries = points[::7] + 0.3
    exact = class_posteriors(queries, samples.support(), 0.5)

    def error(method: str, seed: int) -> float:
        support = Reduction(method, seed, bandwidth=0.5)(samples, 90).support()
        return float((class_posteriors(queries, support, 0.5) - exact).abs().mean())

    errors = {method: np.mean([error(method, seed) for seed in range(3)]) for method in REDUCTIONS}
    assert max(errors[method] for method in ("kernel-thinning", "herding")) < 0.7 * errors["random"]


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any),
    size=st.integers(1, 400),
)
def test_sizes_sum_up_and_every_class_keeps_a_point(counts: list[int], size: int) -> None:
    numbers = np.array(counts)
    sizes, present = sizes_per_class(size, numbers), numbers > 0
    assert sizes.sum() == min(max(size, present.sum()), numbers.sum())
    assert (sizes[present] >= 1).all()
    assert (sizes <= numbers).all()
    if present.sum() < size < numbers.sum():
        quotas = 1 + (size - present.sum()) * (numbers - 1) / (numbers.sum() - present.sum())
        assert (np.abs(sizes - quotas)[present] < 1).all()
