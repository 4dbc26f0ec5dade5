"""A smaller support: fewer points that stand for the samples, as many as out-of-fold predictions choose.

k-means merges clusters of a class into centroids, c_j = Σ_{i in j} w_i·z_i / W_j of weight W_j = Σ_{i in j} w_i. The
total weight of every class stays.

A merged support contains every sample as a part of a centroid: leaving out a point of it leaves out no sample. So each
sample is predicted from the merged samples of the other folds, merged as all samples are, to the same share of their
number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import pairwise_distances_argmin

from kcal.calibrators.kernel_model import Compression, KernelModel
from kcal.errors import BandwidthWarning, InvalidInputError, KcalWarning, warn, without_warnings
from kcal.kernels import (
    BandwidthCurve,
    PredictedLoss,
    PreparedSupport,
    SortedSupport,
    get_kernel,
    search_bandwidth,
    sorted_support,
)
from kcal.progress import progress_bar
from kcal.samples import Floats, Index, Samples, cross_folds
from kcal.threads import openmp_threads_for
from kcal.validation import (
    ALMOST_ZERO,
    check_integer,
    check_number,
)

Points = NDArray[np.floating]

SIZE_FOLDS = 5
MAX_PREDICTED = 5_000
"""Samples that are predicted to choose a bandwidth and a size; of more so many are chosen at random."""
MANY_SAMPLES = 50_000
"""Number of samples from which one fold alone is left out and predicted: its samples are enough."""
SEARCHED = 2.0
"""The search for the bandwidth starts within this factor of that of all samples, on both sides."""
GRID_STEP = 2.0
"""Ratio of the sizes that are tried, at most."""
REFINEMENTS = 3
"""Halvings, on a logarithmic scale, of the interval in which the smallest size is."""
TINY = np.finfo(np.float64).tiny
MAX_SUPPORT_SIZE = 10**12
MAX_KMEANS_ITERATIONS = 20
"""Iterations of k-means: more change nothing that predictions show."""
LARGE = 1e8
"""Points × centroids × dimensions from which k-means runs first for coarse cells, then within each of them."""


@dataclass(frozen=True, eq=False)
class SizeTrial:
    """A size of the support, with the out-of-fold predictions of samples and the bandwidths that were tried."""

    size: int
    supports: Sequence[SortedSupport]  # without each fold
    curve: BandwidthCurve
    own_log_probs: torch.Tensor  # (n_predicted,), of the own class of each predicted sample


class SizeTrials:
    """Out-of-fold predictions of the samples of an estimate by smaller supports, of any size.

    ``samples`` are those of the points, in the order of the fit, and a point stands for ``min_cluster_size`` of them at
    least. With ``fixed_bandwidth`` that of the estimate is used. ``after_each`` is called with a text after each size
    that was tried.
    """

    def __init__(
        self,
        estimate: KernelModel,
        samples: Samples | None,
        after_each: Callable[[str], None],
        *,
        min_cluster_size: int,
        seed: int,
        n_folds: int = SIZE_FOLDS,
        fixed_bandwidth: bool = False,
    ) -> None:
        if samples is None:
            expected = "must not have been compressed before: its points are no samples"
            raise InvalidInputError("support", expected, remedy="Compress the calibrator with all samples.")
        places = estimate.support.counted.to(estimate.points.device)
        counted = samples.select(estimate.order[places].cpu().numpy())  # in the order of the points
        self.samples = replace(counted, embeddings=estimate.points[places])
        if self.samples.n_parts < 2:
            self.samples = replace(self.samples, groups=None)  # no other group would be left
        self.merge = partial(merge_samples, min_cluster_size=min_cluster_size, seed=seed)
        self.bandwidth, self.fixed_bandwidth = estimate.bandwidth, fixed_bandwidth
        self.n_samples, self.smallest = len(self.samples), len(np.unique(self.samples.codes))  # one point per class
        self.changes_nothing = min_cluster_size == 1  # as many points as samples are the samples
        self._kernel, self._after_each, self._trials = get_kernel(estimate.kernel), after_each, dict[int, SizeTrial]()
        folds = cross_folds(self.samples.codes, self.samples.groups, n_folds, seed)
        candidates = np.flatnonzero(folds == 0) if self.n_samples > MANY_SAMPLES else np.arange(self.n_samples)
        chosen = np.sort(np.random.default_rng([seed, 3]).permutation(candidates)[:MAX_PREDICTED])
        self._predicted = [self.samples.select(chosen[folds[chosen] == fold]) for fold in np.unique(folds[chosen])]
        self._others = [self.samples.select(np.flatnonzero(folds != fold)) for fold in np.unique(folds[chosen])]
        self._weights = np.concatenate([part.weights for part in self._predicted])

    def __getitem__(self, size: int) -> SizeTrial:
        """Return the trial of a size, made once."""
        if size not in self._trials:
            self._trials[size] = self._try(size)
            self._after_each(f"{size:,} points, loss {self._trials[size].curve.loss:.4f}")
        return self._trials[size]

    def _try(self, size: int) -> SizeTrial:
        share = size / self.n_samples
        merged = (self.merge(part, round(share * len(part)))[0] for part in self._others)
        supports = [sorted_support(part) for part in merged]
        loss = PredictedLoss(partial(self._own_probs, supports), torch.from_numpy(np.log(self._weights)))
        if self.fixed_bandwidth or (size == self.n_samples and self.changes_nothing):
            value = loss(self.bandwidth)
            curve = BandwidthCurve(np.array([self.bandwidth]), np.array([value]), self.bandwidth, value, at_edge=False)
        else:
            with without_warnings(BandwidthWarning):  # the search with all samples has warned
                interval = (self.bandwidth / SEARCHED, self.bandwidth * SEARCHED)
                curve = search_bandwidth(loss.at, interval=interval)
        log_probs = self._own_probs(supports, [curve.bandwidth])[0].clamp_min(ALMOST_ZERO).log()
        return SizeTrial(size, supports, replace(curve, n_folds=len(supports)), log_probs)

    def _own_probs(self, supports: Sequence[SortedSupport], bandwidths: Sequence[float]) -> list[torch.Tensor]:
        """Return the probabilities of the predicted samples' own classes at each bandwidth, (n_predicted,)."""
        parts = [
            PreparedSupport(support, list(bandwidths), self._kernel)
            .own_shares(part.embeddings, torch.from_numpy(part.codes).to(part.embeddings.device))
            .cpu()
            for support, part in zip(supports, self._predicted, strict=True)
        ]
        return list(torch.cat(parts, dim=1))

    def log_densities(self, trial: SizeTrial) -> Floats:
        """Return the log density of the other folds at the predicted samples, (n_predicted,)."""
        found = [
            PreparedSupport(support, [trial.curve.bandwidth], self._kernel).log_densities(part.embeddings)[0]
            for support, part in zip(trial.supports, self._predicted, strict=True)
        ]
        densities: Floats = torch.cat(found).cpu().double().numpy()
        return densities

    @cached_property
    def _full_log_probs(self) -> torch.Tensor:
        """Out-of-fold log probabilities with all samples of the other folds, at their bandwidth, (n_predicted,)."""
        supports = [sorted_support(others) for others in self._others]
        return self._own_probs(supports, [self.bandwidth])[0].clamp_min(ALMOST_ZERO).log()

    @property
    def full_loss(self) -> float:
        """Out-of-fold loss with all samples of the other folds, at their bandwidth."""
        return -float(np.average(self._full_log_probs.numpy(), weights=self._weights))

    def increase(self, trial: SizeTrial) -> tuple[float, float]:
        """Return how much higher the loss of a trial is than that with all samples, and the standard error.

        Samples of a group are not independent: with groups, the error is that of the group means.
        """
        values, shares = (self._full_log_probs - trial.own_log_probs).numpy(), self._weights / self._weights.sum()
        mean = float(shares @ values)
        deviations = shares * (values - mean)
        if self.samples.groups is not None:
            groups = np.concatenate([part.groups for part in self._predicted])
            deviations = np.bincount(groups, weights=deviations)
        return mean, float(np.sqrt((deviations**2).sum()))

    @property
    def grid(self) -> list[int]:
        """Sizes from the smallest to the largest, each at most ``GRID_STEP`` times the one before."""
        ratio = self.n_samples / self.smallest
        n_steps = int(np.ceil(np.log(ratio) / np.log(GRID_STEP)))
        sizes = np.round(self.smallest * ratio ** np.linspace(0.0, 1.0, n_steps + 1))
        return [int(size) for size in np.unique(sizes)]


# Which size is taken

FindSize = Callable[[SizeTrials], SizeTrial]


def size_rule(size: Any, max_loss_increase: Any) -> FindSize:
    """Return how the size is found; raise unless exactly one of both is given, and valid."""
    if (size is None) == (max_loss_increase is None):
        expected = "or max_loss_increase must be given, and not both"
        raise InvalidInputError("size", expected, remedy="Pass size=0.1, for example.")
    if size is None:
        return partial(select_within, check_number(max_loss_increase, "max_loss_increase", minimum=0))
    expected = "must be an integer, or a share of the samples above 0 and at most 1"
    if isinstance(size, float | np.floating):
        return partial(select_size, check_number(float(size), "size", minimum=TINY, maximum=1, expected=expected))
    return partial(select_size, check_integer(size, "size", minimum=1, maximum=MAX_SUPPORT_SIZE, expected=expected))


def select_size(size: int | float, trials: SizeTrials) -> SizeTrial:
    """Return the trial of a number of points, or of a share of the samples, but at least one point per class."""
    is_share = isinstance(size, float)
    n_points = max(round(size * trials.n_samples), trials.smallest) if is_share else int(size)
    if n_points < trials.smallest:
        expected = f"must be at least {trials.smallest:,}, one point for each class that has samples"
        raise InvalidInputError("size", expected, got=str(size))
    if trials.changes_nothing and (size == 1 if is_share else size >= trials.n_samples):
        warn(f"The support has {trials.n_samples:,} samples, so that size={size:,} leaves it as it is.", KcalWarning)
    return trials[min(n_points, trials.n_samples)]


def select_one_se(trials: SizeTrials) -> SizeTrial:
    """Return the trial of the lowest loss, but that of all samples if no loss is lower by more than a standard error.

    Where clusters have a smallest size, all samples are no choice.
    """
    best = min((trials[size] for size in trials.grid), key=lambda trial: trial.curve.loss)
    if not trials.changes_nothing:
        return best
    increase, error = trials.increase(best)
    return best if increase < -error else trials[trials.n_samples]


def select_within(share: float, trials: SizeTrials) -> SizeTrial:
    """Return the trial of the smallest size whose loss is higher than that of all samples by at most a share of it.

    The increase and its standard error together must be within the bound: a size is not to be chosen by chance.
    """

    def is_within(size: int) -> bool:
        return sum(trials.increase(trials[size])) <= share * trials.full_loss

    too_small, enough = 0, trials.n_samples
    for size in trials.grid:
        if is_within(size):
            enough = size
            break
        too_small = size
    for _ in range(REFINEMENTS if too_small else 0):
        middle = round((too_small * enough) ** 0.5)
        if is_within(middle):
            enough = middle
        else:
            too_small = middle
    return trials[enough]


def compress_model(
    model: KernelModel, samples: Samples | None, find_size: FindSize, *, progress: bool | None, **options: Any
) -> tuple[KernelModel, SizeTrial]:
    """Return the model with the support that ``find_size`` chooses, and its trial; ``options`` are of the trials.

    ``samples`` are those of the points, in the order of the fit; None raises. Where no smaller support is chosen, the
    model is returned as it is.
    """
    with progress_bar("Compressing the support", None, show=progress) as advance:
        trials = SizeTrials(model, samples, advance, **options)
        trial = find_size(trials)
    if trial.size >= trials.n_samples and trials.changes_nothing:
        return model, trial
    merged, members = trials.merge(trials.samples, trial.size)
    references, n = model.log_densities, len(model.log_densities)
    if n:  # out-of-fold densities in place of those of single samples; their lengths stay
        densities = trials.log_densities(trial)
        quantiles = np.quantile(densities, (np.arange(n) + 0.5) / n, method="inverted_cdf")
        references = torch.from_numpy(quantiles).to(references.device)
    smaller = model.with_support(
        sorted_support(merged),
        bandwidth=trial.curve.bandwidth,
        compression=Compression(trials.n_samples, int(members.min()), trial.curve.loss),
        log_densities=references,
        log_lengths=model.log_lengths,
    )
    return smaller, trial


# Fewer points


def merge_samples(samples: Samples, size: int, *, min_cluster_size: int, seed: int) -> tuple[Samples, Index]:
    """Return at most ``size`` points, in proportion to those of each class, and the number of samples behind each.

    ``samples`` have points as embeddings, and positive weights.
    """
    if size >= len(samples) and min_cluster_size == 1:
        return samples, np.ones(len(samples), dtype=np.int64)
    sizes = sizes_per_class(size, np.bincount(samples.codes, minlength=samples.n_classes))
    values, parts = samples.embeddings.cpu().numpy(), []
    for code in np.flatnonzero(sizes):
        rows = np.flatnonzero(samples.codes == code)
        given = values[rows], samples.weights[rows], int(sizes[code])
        parts.append(_merge(*given, seed, min_cluster_size))
    points, weights, members = (np.concatenate(column) for column in zip(*parts, strict=True))
    codes = np.repeat(np.flatnonzero(sizes), [len(part[1]) for part in parts])
    embeddings = torch.from_numpy(points).to(samples.embeddings)
    return replace(samples, embeddings=embeddings, codes=codes, weights=weights, groups=None), members


def sizes_per_class(size: int, counts: Index) -> Index:
    """Return the number of points that each class keeps, (n_classes,): ``size`` in all, in proportion to its points.

    m_k = 1 + (size − K)·(n_k − 1) / (n − K), rounded by the largest remainder, K being the number of classes with
    points. Every class keeps a point, and none gets more than it has. ``size`` is bounded by K and n.
    """
    present = counts > 0
    n_present, n_points = int(present.sum()), int(counts.sum())
    free = min(max(size, n_present), n_points) - n_present
    quotas = free * np.where(present, counts - 1, 0) / max(n_points - n_present, 1)
    sizes = np.floor(quotas).astype(np.int64)
    missing = free - int(sizes.sum())
    sizes[np.argsort(sizes - quotas, kind="stable")[:missing]] += 1
    return np.where(present, sizes + 1, 0)


def _merge(
    points: Points, weights: Floats, size: int, seed: int, min_cluster_size: int
) -> tuple[Points, Floats, Index]:
    """Return centroids of the points of a class, their weights, and the number of points behind each.

    There are fewer than ``size`` where points coincide, or where a cluster of fewer than ``min_cluster_size`` points is
    dissolved into the nearest others.
    """
    size = min(size, max(len(points) // min_cluster_size, 1))
    clusters = _cluster(points, weights, size, seed)
    small = np.bincount(clusters)[clusters] < min_cluster_size
    if small.all():
        clusters = np.zeros_like(clusters)
    elif small.any():
        large, clusters[~small] = np.unique(clusters[~small], return_inverse=True)
        centroids = _centroids(points[~small], weights[~small], clusters[~small], len(large))[0]
        clusters[small] = pairwise_distances_argmin(points[small], centroids)
    kept, clusters = np.unique(clusters, return_inverse=True)
    return *_centroids(points, weights, clusters, len(kept)), np.bincount(clusters).astype(np.int64)


def _cluster(points: Points, weights: Floats, size: int, seed: int) -> Index:
    """Return the cluster of each point, (n,): k-means or, where that takes too long, k-means within coarse cells."""
    if size <= 1 or size >= len(points):
        return np.zeros(len(points), dtype=np.int64) if size <= 1 else np.arange(len(points))
    if points.size * size < LARGE:
        return _kmeans(points, weights, size, seed)
    cells, clusters, start = _kmeans(points, weights, max(round(size**0.5), 2), seed), np.empty(len(points), int), 0
    bounds = np.round(size * np.concatenate([[0.0], np.cumsum(np.bincount(cells)) / len(points)])).astype(int)
    for cell, n_clusters in enumerate(np.diff(bounds)):
        rows = np.flatnonzero(cells == cell)
        if len(rows):
            clusters[rows] = start + _cluster(points[rows], weights[rows], max(int(n_clusters), 1), seed)
            start = int(clusters[rows].max()) + 1
    return clusters


def _kmeans(points: Points, weights: Floats, size: int, seed: int) -> Index:
    from sklearn.cluster import KMeans  # here, because its import takes long

    if points.size * size < LARGE:
        points = points.astype(np.float64)  # faster in small k-means: single precision is computed in chunks
    model = KMeans(size, n_init=1, max_iter=MAX_KMEANS_ITERATIONS, random_state=seed)
    with warnings.catch_warnings(), openmp_threads_for(points.size * size):
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        clusters: Index = model.fit(points, sample_weight=weights).labels_.astype(np.int64)
    return clusters


def _centroids(points: Points, weights: Floats, clusters: Index, n_clusters: int) -> tuple[Points, Floats]:
    """Return the weighted means of the clusters 0 to n_clusters − 1, which have points, and their weights."""
    totals = np.bincount(clusters, weights=weights).astype(np.float64)
    members = csr_array((weights, (clusters, np.arange(len(clusters)))), shape=(n_clusters, len(clusters)))
    return (members @ points / totals[:, None]).astype(points.dtype), totals
