"""A blend with a smaller support in each metric; its pool weights stay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.fitting import whole_class_sums
from kcal.calibrators.blend.model import BlendModel, total_log_mass
from kcal.calibrators.kcal.compression import CompressionOptions, FindSize, compress_estimate
from kcal.calibrators.kcal.out_of_fold import FoldedSupport
from kcal.kernels import get_kernel

Index = NDArray[np.int64]


def compress_blend(
    model: BlendModel, groups: Index | None, find_size: FindSize, options: CompressionOptions
) -> BlendModel:
    """Return the blend with the support that ``find_size`` chooses in each metric; ``groups`` in the original order.

    Median masses and the threshold of the gate are measured anew, out of fold. The pool weights stay.
    """
    experts, threshold = [], model.gate_threshold
    for place, expert in enumerate(model.experts):
        compressed, trial = compress_estimate(expert, groups, find_size, options)
        if compressed is not expert:
            masses = log_masses(model, compressed, trial.folded)
            medians = torch.stack([mass[torch.isfinite(mass)].median() for mass in masses])
            compressed = replace(compressed, median_evidence=medians)
            if place == 0 and threshold is not None:
                before = log_masses(model, expert, trial.folded.folded.unreduced(get_kernel(expert.kernel)))
                threshold = same_quantile(threshold, before[expert.middle], masses[expert.middle])
        experts.append(compressed)
    return replace(model, experts=tuple(experts), gate_threshold=threshold)


def log_masses(model: BlendModel, expert: Expert, folded: FoldedSupport) -> list[torch.Tensor]:
    """Return the log mass of all classes at out-of-fold samples, (n_predicted,), at each bandwidth of an expert."""
    sums = folded.class_sums(expert.bandwidths)
    whole = whole_class_sums(sums, folded.samples.class_weights, folded.weights_left)
    scaled = model.at_estimated_frequencies(whole)
    return [total_log_mass(scaled, place) for place in range(len(expert.factors))]


def same_quantile(value: float, before: torch.Tensor, after: torch.Tensor) -> float:
    """Return the quantile of ``after`` that has the level of ``value`` among ``before``, both (n,)."""
    level = float((before <= value).double().mean())
    return float(np.quantile(after[torch.isfinite(after)].numpy(), level))
