"""A smaller support, whose size and bandwidth out-of-fold predictions choose.

A reduced support contains every sample, if only as a part of a centroid: leaving out a point of it leaves out no
sample. So each sample is predicted from the reduced samples of the other folds, reduced as all samples are, to
the same share of their number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.kernel_model import Compression, KernelModel
from kcal.errors import BandwidthWarning, InvalidInputError, KcalWarning, warn
from kcal.kernels import (
    BandwidthCurve,
    ClassSums,
    MotherKernel,
    PreparedSupport,
    SortedSupport,
    get_kernel,
    mean_log_loss,
    search_bandwidth,
)
from kcal.progress import progress_bar
from kcal.samples import cross_folds
from kcal.support import REDUCTIONS, Reduction, WeightedPoints
from kcal.validation import ALMOST_ZERO, check_choice, check_integer, check_number, shown

Index = NDArray[np.int64]
Floats = NDArray[np.float64]
ModelT = TypeVar("ModelT", bound=KernelModel)

FOLDS = 5
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
MAX_POINTS = 10**12


@dataclass(frozen=True, eq=False)
class FoldedSamples:
    """Samples of a support with a fold each, and those that are predicted, by their positions."""

    samples: WeightedPoints
    folds: Index  # (n,)
    predicted: Index
    groups: Index | None = None  # (n,)

    def reduced(self, reduction: Reduction, size: int) -> FoldedSupport:
        """Return the supports without each fold, reduced to the share that ``size`` is of all samples."""
        share, parts = size / len(self.samples), self._parts()
        supports = [(reduction(others, round(share * len(others))).support(), rows) for others, rows in parts]
        return FoldedSupport(self, tuple(supports), reduction.kernel)

    def unreduced(self, kernel: MotherKernel) -> FoldedSupport:
        """Return the supports without each fold."""
        return FoldedSupport(self, tuple((others.support(), rows) for others, rows in self._parts()), kernel)

    def _parts(self) -> Iterator[tuple[WeightedPoints, Index]]:
        """Yield the samples of the other folds and the positions of the predicted samples, fold by fold."""
        fold_of = self.folds[self.predicted]
        for fold in np.unique(fold_of):
            yield self.samples.rows(np.flatnonzero(self.folds != fold)), self.predicted[fold_of == fold]


@dataclass(frozen=True, eq=False)
class FoldedSupport:
    """Reduced supports, each with the positions of the samples that are left out of it and predicted from it."""

    folded: FoldedSamples
    parts: tuple[tuple[SortedSupport, Index], ...]
    kernel: MotherKernel

    @property
    def samples(self) -> WeightedPoints:
        """All samples."""
        return self.folded.samples

    @property
    def predicted(self) -> Index:
        """Positions of the predicted samples, in the order of the results."""
        return self.folded.predicted

    def class_sums(self, bandwidths: list[float]) -> ClassSums:
        """Return class sums at the predicted samples, (n_bandwidths, n_classes, n_predicted), in float64 on the CPU."""
        parts = [self._prepared(part, bandwidths).class_sums(self._points(rows)) for part, rows in self.parts]
        sums = torch.cat([part.sums for part in parts], dim=2)[..., self._order].cpu().double()
        return ClassSums(sums, torch.cat([part.offsets for part in parts], dim=1)[:, self._order].cpu().double())

    def log_densities(self, bandwidth: float) -> torch.Tensor:
        """Return the log density of the other folds at the predicted samples, (n_predicted,), in float64."""
        parts = [self._prepared(part, [bandwidth]).log_densities(self._points(rows))[0] for part, rows in self.parts]
        return torch.cat(parts)[self._order].cpu().double()

    @cached_property
    def weights_left(self) -> Floats:
        """Weight of each class that a predicted sample sees, (n_predicted, n_classes)."""
        left = [WeightedPoints.of(part).class_weights for part, _ in self.parts]
        return np.repeat(left, [len(rows) for _, rows in self.parts], axis=0)[self._order]

    @cached_property
    def _order(self) -> Index:
        """Places of the predicted samples in the concatenation of the parts."""
        places = np.concatenate([rows for _, rows in self.parts])
        return np.argsort(places)[np.argsort(np.argsort(self.predicted))]

    def own_log_probs(self, bandwidth: float) -> torch.Tensor:
        """Return the log probability of the own class of each predicted sample, (n_predicted,), at least about −23."""
        codes = torch.from_numpy(self.samples.codes[self.predicted])
        posteriors = self.class_sums([bandwidth]).posteriors()[0]
        return posteriors.gather(1, codes[:, None]).squeeze(1).clamp_min(ALMOST_ZERO).log()

    def loss(self, bandwidth: float) -> float:
        """Return the mean log-loss of the predicted samples."""
        return mean_log_loss(self.own_log_probs(bandwidth), torch.from_numpy(np.log(self._weights)))

    def mean_and_error(self, values: Floats) -> tuple[float, float]:
        """Return the weighted mean of values of the predicted samples, and its standard error.

        Samples of a group are not independent: with groups, it is that of the group means.
        """
        shares = self._weights / self._weights.sum()
        mean = float(shares @ values)
        deviations = shares * (values - mean)
        if self.folded.groups is not None:
            groups = np.unique(self.folded.groups[self.predicted], return_inverse=True)[1]
            deviations = np.bincount(groups, weights=deviations)
        return mean, float(np.sqrt((deviations**2).sum()))

    @property
    def _weights(self) -> Floats:
        return self.samples.weights[self.predicted]

    def _prepared(self, support: SortedSupport, bandwidths: list[float]) -> PreparedSupport:
        return PreparedSupport(support, bandwidths, self.kernel)

    def _points(self, rows: Index) -> torch.Tensor:
        return self.samples.points[torch.from_numpy(rows).to(self.samples.points.device)]


def in_folds(samples: WeightedPoints, groups: Index | None, *, n_folds: int = FOLDS, seed: int = 0) -> FoldedSamples:
    """Return samples with folds, stratified by class or of whole groups, and at most ``MAX_PREDICTED`` to predict.

    Of very many samples, those to predict are of one fold.
    """
    n = len(samples)
    if groups is not None and len(np.unique(groups)) < 2:
        groups = None  # no other group is left
    folds = cross_folds(samples.codes, groups, n_folds, seed)
    candidates = np.flatnonzero(folds == 0) if n > MANY_SAMPLES else np.arange(n)
    predicted = np.random.default_rng([seed, 3]).permutation(candidates)[:MAX_PREDICTED]
    return FoldedSamples(samples, folds, np.sort(predicted), groups)


@dataclass(frozen=True, eq=False)
class Trial:
    """A size of the support, with its out-of-fold predictions and the bandwidths that were tried."""

    size: int
    folded: FoldedSupport
    curve: BandwidthCurve

    @property
    def own_log_probs(self) -> torch.Tensor:
        """Out-of-fold log probability of the own class of each predicted sample, (n_predicted,)."""
        return self.folded.own_log_probs(self.curve.bandwidth)


class Trials:
    """The trial of every size that is asked for, made once.

    Parameters
    ----------
    samples : FoldedSamples
        Samples of the support, with folds.
    reduction : Reduction
        How they are made fewer.
    bandwidth : float
        That of all samples, near which the search begins; with ``fixed`` that of every size.
    """

    def __init__(
        self,
        samples: FoldedSamples,
        reduction: Reduction,
        bandwidth: float,
        *,
        fixed: bool = False,
        after_each: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.samples, self.reduction, self.bandwidth, self.fixed = samples, reduction, bandwidth, fixed
        self._after_each, self._trials = after_each, dict[int, Trial]()

    @property
    def n_samples(self) -> int:
        """Number of samples, the largest size."""
        return len(self.samples.samples)

    @property
    def smallest(self) -> int:
        """One point for each class that has samples."""
        return self.samples.samples.n_present

    @cached_property
    def full_loss(self) -> float:
        """Out-of-fold loss with all samples of the other folds, at their bandwidth."""
        return self._full.loss(self.bandwidth)

    def increase(self, trial: Trial) -> tuple[float, float]:
        """Return how much higher the loss of a trial is than that with all samples, and the standard error."""
        return trial.folded.mean_and_error((self._full_log_probs - trial.own_log_probs).numpy())

    @cached_property
    def _full(self) -> FoldedSupport:
        return self.samples.unreduced(self.reduction.kernel)

    @cached_property
    def _full_log_probs(self) -> torch.Tensor:
        return self._full.own_log_probs(self.bandwidth)

    @property
    def grid(self) -> list[int]:
        """Sizes from the smallest to the largest, each at most ``GRID_STEP`` times the one before."""
        ratio = self.n_samples / self.smallest
        n_steps = int(np.ceil(np.log(ratio) / np.log(GRID_STEP)))
        sizes = np.round(self.smallest * ratio ** np.linspace(0.0, 1.0, n_steps + 1))
        return [int(size) for size in np.unique(sizes)]

    def __getitem__(self, size: int) -> Trial:
        if size not in self._trials:
            self._trials[size] = self._try(size)
            self._after_each(f"{size:,} points, loss {self._trials[size].curve.loss:.4f}")
        return self._trials[size]

    def _try(self, size: int) -> Trial:
        unreduced = size == self.n_samples and self.reduction.min_cluster_size == 1
        folded = self.samples.reduced(self.reduction, size)
        if self.fixed or unreduced:
            loss = folded.loss(self.bandwidth)
            curve = BandwidthCurve(np.array([self.bandwidth]), np.array([loss]), self.bandwidth, loss, at_edge=False)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", BandwidthWarning)  # the search with all samples has warned
                interval = (self.bandwidth / SEARCHED, self.bandwidth * SEARCHED)
                curve = search_bandwidth(folded.loss, interval=interval)
        return Trial(size, folded, replace(curve, n_folds=len(folded.parts)))


FindSize = Callable[[Trials], Trial]


def of_size(size: int, trials: Trials) -> Trial:
    """Return the trial of a number of points."""
    if size < trials.smallest:
        expected = f"must be at least {trials.smallest:,}, one point for each class that has samples"
        raise InvalidInputError("size", expected, got=str(size))
    _warn_of_no_change(size >= trials.n_samples, size, trials)
    return trials[min(size, trials.n_samples)]


def of_share(share: float, trials: Trials) -> Trial:
    """Return the trial of a share of the samples, but at least one point per class."""
    _warn_of_no_change(share == 1, share, trials)
    return trials[max(round(share * trials.n_samples), trials.smallest)]


def _warn_of_no_change(is_whole: bool, size: int | float, trials: Trials) -> None:
    if is_whole and trials.reduction.min_cluster_size == 1:
        warn(f"The support has {trials.n_samples:,} samples, so that size={size:,} leaves it as it is.", KcalWarning)


def of_lowest_loss(trials: Trials) -> Trial:
    """Return the trial of the lowest loss."""
    return min((trials[size] for size in trials.grid), key=lambda trial: trial.curve.loss)


def select_one_se(trials: Trials) -> Trial:
    """Return the trial of the lowest loss, but that of all samples if no loss is lower by more than a standard error.

    Where clusters have a smallest size, all samples are no choice.
    """
    best = of_lowest_loss(trials)
    if trials.reduction.min_cluster_size > 1:
        return best
    increase, error = trials.increase(best)
    return best if increase < -error else trials[trials.n_samples]


def of_loss_within(share: float, trials: Trials) -> Trial:
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


def check_target(size: Any, max_loss_increase: Any) -> FindSize:
    """Return how the size is found; raise unless exactly one of both is given, and valid."""
    if (size is None) == (max_loss_increase is None):
        expected = "or max_loss_increase must be given, and not both"
        raise InvalidInputError("size", expected, remedy="Pass size=0.1, for example.")
    if size is None:
        return partial(of_loss_within, check_number(max_loss_increase, "max_loss_increase", minimum=0))
    if isinstance(size, float | np.floating):
        expected = "must be an integer, or a share of the samples above 0 and at most 1"
        return partial(of_share, check_number(float(size), "size", minimum=TINY, maximum=1, expected=expected))
    return partial(of_size, check_integer(size, "size", minimum=1, maximum=MAX_POINTS))


@dataclass(frozen=True)
class CompressionOptions:
    """How an estimate gets a smaller support: parameters of ``compress``."""

    method: str = "kmeans"
    min_cluster_size: int = 1
    seed: int = 0
    progress: bool | None = None
    n_folds: int = FOLDS
    fixed_bandwidth: bool = False

    def checked(self) -> CompressionOptions:
        """Return the options; raise if they are invalid."""
        check_choice(self.method, "method", tuple(REDUCTIONS))
        check_integer(self.min_cluster_size, "min_cluster_size", minimum=1, maximum=MAX_POINTS)
        if self.min_cluster_size > 1 and self.method != "kmeans":
            got = shown(self.min_cluster_size)
            raise InvalidInputError("min_cluster_size", 'applies to method="kmeans" only', got=got)
        return self

    def reduction(self, estimate: KernelModel) -> Reduction:
        """Return how the support of an estimate is made smaller."""
        kernel = get_kernel(estimate.kernel)
        return Reduction(self.method, self.seed, self.min_cluster_size, kernel, estimate.bandwidth)

    def folded(self, estimate: KernelModel, groups: Index | None) -> FoldedSamples:
        """Return the samples of an estimate with folds; ``groups`` are those of its points in the original order."""
        if estimate.compression is not None:
            expected = "must not have been compressed before: its points are no samples"
            raise InvalidInputError("support", expected, remedy="Compress the calibrator with all samples.")
        support = estimate.support
        if groups is not None:
            groups = groups[support.order.cpu().numpy()][support.counted.numpy()]
        return in_folds(WeightedPoints.of(support), groups, n_folds=self.n_folds, seed=self.seed)


def compress_model(
    model: ModelT, groups: Index | None, find_size: FindSize, options: CompressionOptions
) -> tuple[ModelT, Trial]:
    """Return the model with the support that ``find_size`` chooses, and its trial.

    ``groups`` are those of the points in the original order. Where no smaller support is chosen, the model is
    returned as it is.
    """
    samples, reduction = options.folded(model, groups), options.reduction(model)
    with progress_bar("Compressing the support", None, show=options.progress) as advance:
        bandwidth, fixed = model.bandwidth, options.fixed_bandwidth
        trial = find_size(Trials(samples, reduction, bandwidth, fixed=fixed, after_each=advance))
    n_samples = len(samples.samples)
    if trial.size >= n_samples and options.min_cluster_size == 1:
        return model, trial
    reduced = reduction(samples.samples, trial.size)
    fewest = int(reduced.members.min())
    compression = Compression(method=options.method, n_samples=n_samples, fewest=fewest, loss=trial.curve.loss)
    config = {"bandwidth": trial.curve.bandwidth, "compression": asdict(compression), "n_samples": n_samples}
    compressed = model.with_support(reduced.support())
    references, n = model.log_densities, len(model.log_densities)
    if n:  # out-of-fold densities in place of those of single samples; their lengths stay
        densities = trial.folded.log_densities(trial.curve.bandwidth).numpy()
        quantiles = np.quantile(densities, (np.arange(n) + 0.5) / n, method="inverted_cdf")
        references = torch.from_numpy(quantiles).to(references.device)
    tensors = {"log_densities": references, "log_lengths": model.log_lengths}
    return compressed.changed(tensors, n_references=n, **config), trial
