"""Out-of-fold sums of a smaller support: each sample is predicted from the reduced samples of the other folds.

A reduced support contains every sample, if only as a part of a centroid, so that leaving out a point of it leaves out
no sample. The folds are reduced as all samples are, to the same share of their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.kernels import ClassSums, MotherKernel, PreparedSupport, SortedSupport, mean_log_loss
from kcal.samples import fold_codes, stratified_folds
from kcal.support import Reduction, WeightedPoints
from kcal.validation import ALMOST_ZERO

Index = NDArray[np.int64]
Floats = NDArray[np.float64]

FOLDS = 5
MAX_PREDICTED = 5_000
"""Samples that are predicted to choose a bandwidth and a size; of more so many are chosen at random."""
MANY_SAMPLES = 50_000
"""Number of samples from which one fold alone is left out and predicted: its samples are enough."""


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
    if groups is None:
        folds = stratified_folds(samples.codes, min(n_folds, n), seed)
    else:
        folds = fold_codes(samples.codes, min(n_folds, len(np.unique(groups))), groups, seed)
    candidates = np.flatnonzero(folds == 0) if n > MANY_SAMPLES else np.arange(n)
    predicted = np.random.default_rng([seed, 3]).permutation(candidates)[:MAX_PREDICTED]
    return FoldedSamples(samples, folds, np.sort(predicted), groups)
