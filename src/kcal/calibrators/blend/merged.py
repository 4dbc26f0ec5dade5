"""Experts of a blend whose support is merged: in each metric the size of the lowest out-of-fold loss."""

from __future__ import annotations

from dataclasses import replace

import torch

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.fitting import predicted_index
from kcal.calibrators.kcal.compression import CompressionOptions, Trials, of_lowest_loss, summary_of
from kcal.calibrators.kcal.model import NO_REFERENCE
from kcal.calibrators.kcal.out_of_fold import FoldedSupport, in_folds
from kcal.calibrators.kcal.samples import Samples
from kcal.support import WeightedPoints


def merge_experts(
    experts: tuple[Expert, ...], samples: Samples, options: CompressionOptions
) -> tuple[tuple[Expert, ...], dict[str, FoldedSupport]]:
    """Return an expert with a merged support for each metric, and its out-of-fold supports by the name of the metric.

    A metric is left out where all samples are better than any smaller number of points.
    """
    pairs = [merged_expert(expert, samples, options) for expert in experts]
    merged = [pair for pair in pairs if pair is not None]
    return tuple(expert for expert, _ in merged), {expert.metric: folded for expert, folded in merged}


def merged_expert(expert: Expert, samples: Samples, options: CompressionOptions) -> tuple[Expert, FoldedSupport] | None:
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
    reduced = reduction(weighted, trial.size)
    merged = replace(
        expert,
        metric=f"merged {expert.metric}",
        support=reduced.support(),
        bandwidth=trial.curve.bandwidth,
        median_evidence=torch.zeros_like(expert.factors),  # the fit of the blend measures it
        reference=NO_REFERENCE,
        compression=summary_of(reduced, len(weighted), trial, options),
    )
    predicted = replace(folded, predicted=predicted_index(samples))
    return merged, predicted.reduced(reduction, trial.size)
