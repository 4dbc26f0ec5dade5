"""The kernel density estimates of a blend: one expert per metric, at several bandwidths that share their distances."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.base import plain
from kcal.calibrators.kcal.learning import EstimateOptions, fit_projection
from kcal.calibrators.kcal.model import KernelEstimate
from kcal.calibrators.kcal.parameters import is_number
from kcal.calibrators.kcal.samples import Samples, TrainingSet
from kcal.calibrators.model_state import tensor
from kcal.errors import BandwidthWarning, InvalidInputError
from kcal.kernels import ClassSums, SortedSupport, leave_out_rule
from kcal.projection import TrainedProjection
from kcal.projection.recipes import FEATURES_OF_A_DIRECTION
from kcal.validation import shown

COMPARED_SAMPLES = 100
"""Number of samples, roughly, by whose distances two metrics are compared."""
SAME_METRIC = 1e-3
"""Difference of distances, relative to the largest, up to which two metrics are the same."""
MAX_FACTOR = 1000.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Expert(KernelEstimate):
    """A kernel density estimate per class in one metric, at several multiples of the best single bandwidth."""

    metric: str  # "unit", "identity" or "learned"
    factors: torch.Tensor = tensor("factors")  # the bandwidths in use, in units of ``bandwidth``; 1 is among them
    median_evidence: torch.Tensor = tensor("factors")  # median log mass at a calibration sample from the others

    @property
    def middle(self) -> int:
        """Position of the best single bandwidth among the factors."""
        return self.factors.tolist().index(1.0)

    @property
    def bandwidths(self) -> list[float]:
        """The bandwidths in use."""
        return [self.bandwidth * factor for factor in self.factors.tolist()]

    def class_sums(self, embeddings: torch.Tensor) -> ClassSums:
        """Return class sums at new samples, (n_factors, n_classes, n), and their offsets, on the CPU."""
        result = self.prepared.class_sums(self.project(embeddings))
        return ClassSums(result.sums.cpu(), result.offsets.cpu())

    def leave_out_sums(self, keys: torch.Tensor | None, index: NDArray[np.int64]) -> ClassSums:
        """Return class sums at some calibration samples from the others (of other keys), in float64."""
        place = torch.argsort(self.support.order)[torch.from_numpy(index).to(self.support.order.device)]
        rule = leave_out_rule(self.support, keys).select(place)
        result = self.prepared.class_sums(self.support.points[place], leave_out=rule)
        return ClassSums(result.sums.cpu().double(), result.offsets.cpu().double())


def fit_experts(
    samples: Samples,
    training: TrainingSet | None,
    options: EstimateOptions,
    *,
    projection: str | TrainedProjection | None,
    factors: torch.Tensor,
) -> tuple[Expert, ...]:
    """Return the expert of the directions (of the embeddings, if they are short) and that of the learned metric.

    The latter is left out without anything to learn it from, and where both metrics have the same distances.
    """
    direct = "unit" if samples.embeddings.shape[1] >= FEATURES_OF_A_DIRECTION else "identity"
    metrics: dict[str, str | TrainedProjection] = {direct: direct}
    if projection is not None and (training is not None or isinstance(projection, TrainedProjection)):
        metrics["learned"] = projection
    experts: list[Expert] = []
    for metric, given in metrics.items():
        module = fit_projection(given, training if metric == "learned" else None, samples, options).module
        support = samples.support(module)
        if experts and is_same_metric(experts[0].support, support):
            continue
        evidence = torch.zeros_like(factors)  # the fit of the blend measures it
        expert = Expert(
            projection=module,
            support=support,
            bandwidth=1.0,
            kernel=options.kernel.name,
            metric=metric,
            factors=factors,
            median_evidence=evidence,
        )
        experts.append(at_best_bandwidth(expert, samples, options))
    return tuple(experts)


def at_best_bandwidth(expert: Expert, samples: Samples, options: EstimateOptions) -> Expert:
    """Return an expert with the single bandwidth of the lowest leave-one-out loss."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BandwidthWarning)  # a pool combines several bandwidths
        bandwidth = options.choose_bandwidth(expert.support, samples.keys)[0]
    return replace(expert, bandwidth=bandwidth)


def is_same_metric(one: SortedSupport, other: SortedSupport) -> bool:
    """Return whether the same samples have the same distances in two metrics, up to a common factor."""
    some = slice(0, None, max(len(one) // COMPARED_SAMPLES, 1))
    first, second = (torch.pdist(support.points[some].double().cpu()) for support in (one, other))
    factor = float(first @ second) / max(float(first @ first), torch.finfo(torch.float64).tiny)
    return bool((second - factor * first).abs().max() <= SAME_METRIC * second.max())


def check_factors(factors: Any) -> torch.Tensor:
    """Return the bandwidth factors in ascending order."""
    values, bounds = plain(factors), (1 / MAX_FACTOR, MAX_FACTOR)
    valid = isinstance(values, list) and all(is_number(value, *bounds) for value in values) and 1.0 in values
    if not valid or len({f"{value:.3g}" for value in values}) != len(values):
        raise InvalidInputError(
            "bandwidth_factors",
            f"must be a sequence of numbers from {bounds[0]:g} to {bounds[1]:g} that differ in their first three "
            "digits, 1 among them",
            got=shown(factors),
            remedy="Pass (0.5, 1, 2), for example.",
        )
    return torch.tensor(sorted(values), dtype=torch.float64)
