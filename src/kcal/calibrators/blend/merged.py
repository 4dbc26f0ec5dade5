"""Experts of a blend whose support is merged: in each metric the size of the lowest out-of-fold loss."""

from __future__ import annotations

from dataclasses import replace

import torch

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.fitting import predicted_index
from kcal.calibrators.kcal.compression import CompressionOptions, Trials, of_lowest_loss
from kcal.calibrators.kcal.model import NO_REFERENCE, Compression
from kcal.calibrators.kcal.out_of_fold import FoldedSupport, in_folds
from kcal.calibrators.kcal.samples import Samples
from kcal.support import WeightedPoints


def merged_expert(
    expert: Expert, samples: Samples, options: CompressionOptions, factors: torch.Tensor
) -> tuple[Expert, FoldedSupport] | None:
    """Return the expert of the same metric with a merged support, and its out-of-fold supports.

    None where all samples are better than any smaller number of points.
    """
    points, weights = expert.support.in_original_order(expert.support.points), samples.weights / samples.weights.max()
    weighted = WeightedPoints(points, samples.codes, weights, len(samples.classes))
    folded = in_folds(weighted, samples.groups, n_folds=options.n_folds, seed=options.seed)
    reduction = options.reduction(expert)
    trial = of_lowest_loss(Trials(folded, reduction, expert.bandwidth))
    if trial.size >= len(weighted):
        return None
    reduced, loss = reduction(weighted, trial.size), trial.curve.loss
    fewest, name = int(reduced.members.min()), f"merged {expert.metric}"
    summary = Compression(method=options.method, n_samples=len(weighted), fewest=fewest, loss=loss)
    merged = replace(
        expert,
        metric=name,
        support=reduced.support(),
        bandwidth=trial.curve.bandwidth,
        factors=factors,
        median_evidence=torch.zeros_like(factors),
        reference=NO_REFERENCE,
        compression=summary,
    )
    all_folds = in_folds(
        weighted, samples.groups, n_folds=options.n_folds, seed=options.seed, predicted=predicted_index(samples)
    )
    return merged, all_folds.reduced(reduction, trial.size)
