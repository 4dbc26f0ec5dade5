"""Fit a blend on out-of-fold inputs: leave-one-out for the estimates, cross-fitted for the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from kcal.calibrators.blend.class_frequencies import likely_frequencies, likely_strength
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.model import BlendInputs, BlendModel, total_log_mass
from kcal.calibrators.blend.network import NetworkFit
from kcal.calibrators.blend.pool import Pool, PoolProblem
from kcal.calibrators.blend.sharpness import Sharpness, fit_sharpness
from kcal.calibrators.fit_warnings import warn_without_out_of_fold
from kcal.calibrators.kcal.samples import Samples
from kcal.kernels import ClassSums

Index = NDArray[np.int64]
Floats = NDArray[np.float64]

BACKGROUNDS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Background masses, relative to the median mass at a calibration sample; tried upwards while the loss falls."""
EFFICIENCY_ROUNDS = 2
"""Alternations of group efficiency and pool weights, which depend on each other."""
WEIGHT_SPREAD = 0.35
"""Prior standard deviation of the pool weights."""
MIN_MEDIAN_EVIDENCE = -20.0
"""Lowest median log mass at a calibration sample from the others; a sample's own mass is 1."""
MAX_ENTRIES = 5_000_000
"""Samples × classes on which pool, background and sharpness are fitted, at most: they have few parameters."""
EMPTY = 1e-9
"""Share of a class below which nothing of it is left when a sample or group is left out."""


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Out-of-fold inputs of some samples."""

    inputs: BlendInputs
    samples: Samples

    def loss(self, model: BlendModel) -> float:
        """Return the weighted sum of the log-loss of a model among all classes."""
        own = model.log_probs(self.inputs)[torch.arange(len(self.samples.codes)), self.samples.codes]
        return -float(own @ torch.from_numpy(self.samples.weights))

    def network_loss(self) -> float:
        """Return the mean log-loss of the network, temperature scaled, among the classes of the samples."""
        inputs, rows = self.among_own_classes(), torch.arange(len(self.samples.codes))
        scores = inputs.network[0]
        if inputs.excluded is not None:
            scores = torch.log_softmax(scores.masked_fill(inputs.excluded, -torch.inf), dim=1)
        return -float(np.average(scores[rows, self.samples.codes].numpy(), weights=self.samples.weights))

    def among_own_classes(self) -> BlendInputs:
        """Return the inputs without the classes that none of the samples has."""
        missing = torch.from_numpy(self.samples.class_weights() == 0)
        return replace(self.inputs, excluded=missing if missing.any() else None)

    def pool_problem(self, model: BlendModel, bias: float) -> PoolProblem:
        """Return the problem of fitting the pool at the background of the model."""
        inputs, centre = model.pool_inputs(self.among_own_classes()), prior_pool(model.experts, model.network).weights
        weights = torch.from_numpy(self.samples.weights)
        return PoolProblem(inputs, self.samples.codes, weights, centre, WEIGHT_SPREAD, bias)


def fit_blend(
    samples: Samples,
    experts: tuple[Expert, ...],
    network: NetworkFit,
    *,
    bias: float,
    background: str | float,
    fallback_quantile: float,
    sharpness: float,
) -> BlendModel:
    """Fit gate, background, pool and sharpness on out-of-fold inputs; keywords are parameters of ``KCalBlend``."""
    totals = samples.class_weights()
    model = BlendModel(
        experts=experts,
        network=network.models,
        pool=prior_pool(experts, network.models),
        sharpness=Sharpness(),
        frequencies=torch.from_numpy(likely_frequencies(totals)),
        sample_frequencies=torch.from_numpy(totals / totals.sum()),
        background=BACKGROUNDS[0],
        min_log_prob=network.min_log_prob,
    )
    index = samples.spread_index(MAX_ENTRIES // len(samples.classes))
    model, sums = with_leave_out_sums(model, samples, index)
    if fallback_quantile > 0:
        log_mass = total_log_mass(sums[0], model.experts[0].middle)
        threshold = np.quantile(log_mass[torch.isfinite(log_mass)].numpy(), fallback_quantile)
        model = replace(model, gate_threshold=float(threshold))
    seen, unseen = split_by_class_left(model, samples, index, sums, network)
    model = choose_background(model, seen, unseen, background=background, bias=bias)
    if len(seen.samples.codes) == 0:
        warn_without_out_of_fold()
        return model
    model = weigh_groups(model, seen, bias=bias)
    if len(unseen.samples.codes):
        model = shrink_pool(model, seen, unseen)
    elif network.models:
        model = replace(model, network_loss=seen.network_loss())
    inputs = seen.among_own_classes()
    predictions = (model.log_probs(inputs), seen.samples.codes, seen.samples.weights, model.gate(inputs.sums[0]))
    return replace(model, sharpness=fit_sharpness(*predictions, spread=sharpness, efficiency=model.group_efficiency))


def prior_pool(experts: tuple[Expert, ...], network: tuple[object, ...]) -> Pool:
    """Return the pool before any data: the first network calibrator alone, or the best single bandwidth."""
    n_estimates, n_classes = sum(len(expert.factors) for expert in experts), experts[0].support.n_classes
    weights = torch.zeros(n_estimates + len(network), dtype=torch.float64)
    weights[n_estimates if network else experts[0].middle] = 1.0
    return Pool(weights=weights, bias=torch.zeros(n_classes, dtype=torch.float64), loss=float(np.log(n_classes)))


def with_leave_out_sums(model: BlendModel, samples: Samples, index: Index) -> tuple[BlendModel, tuple[ClassSums, ...]]:
    """Return the model with the median evidence of its experts, and class sums at some samples from all others.

    A bandwidth is widened where the median evidence is too low: with few samples the leave-one-out loss may prefer one
    at which the nearest sample alone decides, with a certainty that nothing supports.
    """

    def with_sums(expert: Expert) -> tuple[Expert, ClassSums]:
        sums = expert.leave_out_sums(samples.keys, index)
        whole = whole_class_sums(sums, samples.class_weights(), weights_left(samples, index))
        sums = model.at_estimated_frequencies(whole)
        masses = [total_log_mass(sums, place) for place in range(len(expert.factors))]
        medians = [mass[torch.isfinite(mass)].median() for mass in masses]
        return replace(expert, median_evidence=torch.stack(medians)), sums

    experts, sums = [], []
    for expert in model.experts:
        expert, part = with_sums(expert)
        excess = float(expert.median_evidence[expert.middle]) / MIN_MEDIAN_EVIDENCE
        if excess > 1:
            expert, part = with_sums(replace(expert, bandwidth=expert.bandwidth * excess**0.5))  # exponents ∝ 1/b²
        experts.append(expert)
        sums.append(part)
    return replace(model, experts=tuple(experts)), tuple(sums)


def weights_left(samples: Samples, index: Index) -> Floats:
    """Return the weight of each class that is left without some samples or their groups, (n_index, n_classes)."""
    totals = samples.class_weights()
    left = totals - samples.left_out_weights(index)
    return np.where(left > EMPTY * totals, left, 0.0)


def whole_class_sums(sums: ClassSums, weights: Floats, weights_left: Floats) -> ClassSums:
    """Return leave-out class sums, (n_factors, n_classes, n_index), scaled up to the whole weight of each class.

    ``weights`` are those of the classes, (n_classes,), and ``weights_left`` what each sample sees of them, (n_index,
    n_classes). Otherwise the class that lacks a sample would reveal the sample's own class, the more clearly the fewer
    samples classes have. A class of which nothing is left gets its share of the sum over the other classes.
    """
    totals, left = torch.from_numpy(weights)[:, None], torch.from_numpy(weights_left).T
    gone = left == 0  # (n_classes, n)
    whole = sums.sums * torch.where(gone, 1.0, totals / left)
    if bool(gone.any()):
        present = torch.where(gone, 0.0, totals).sum(dim=0)
        mass = whole.masked_fill(gone, 0.0).sum(dim=1, keepdim=True)
        whole = torch.where(gone, mass * (totals / present), whole)
    return ClassSums(whole, sums.offsets)


def split_by_class_left(
    model: BlendModel, samples: Samples, index: Index, sums: tuple[ClassSums, ...], network: NetworkFit
) -> tuple[OutOfFold, OutOfFold]:
    """Return samples of whose class something is left without them (or their group), and the others.

    The others cannot show which experts to weigh, since the estimates never saw their class; they show how much
    background such classes need, with class frequencies estimated without them.
    """
    left, rows = weights_left(samples, index), np.arange(len(index))
    alone = left[rows, samples.codes[index]] == 0

    def select(some: Index, frequencies: torch.Tensor) -> OutOfFold:
        parts = tuple(ClassSums(part.sums[..., some], part.offsets[..., some]) for part in sums)
        scores = tuple(part[index[some]] for part in network.out_of_fold)
        return OutOfFold(BlendInputs(parts, scores, frequencies), samples.rows(index[some]))

    seen = select(rows[~alone], model.frequencies[None])
    strength = likely_strength(samples.class_weights())
    unseen = select(rows[alone], torch.from_numpy(likely_frequencies(left[alone], strength)))
    for part in unseen.inputs.sums:
        part.sums[:, unseen.samples.codes, torch.arange(len(unseen.samples.codes))] = 0.0
    return seen, unseen


def choose_background(
    model: BlendModel, seen: OutOfFold, unseen: OutOfFold, *, background: str | float, bias: float
) -> BlendModel:
    """Return the model with the background of the lowest loss, and the pool fitted with it."""
    lowest, best = np.inf, model
    for candidate in BACKGROUNDS if isinstance(background, str) else (float(background),):
        tried = replace(model, background=candidate)
        if len(seen.samples.codes):
            tried = replace(tried, pool=seen.pool_problem(tried, bias).solve(best.pool))
        loss = seen.loss(tried) + unseen.loss(tried)
        if loss >= lowest:
            break
        lowest, best = loss, tried
    return best


def weigh_groups(model: BlendModel, seen: OutOfFold, *, bias: float) -> BlendModel:
    """Return the model with the pool fitted by the information that samples of a group carry."""
    groups = seen.samples.groups
    if groups is None or len(np.unique(groups)) < 2:
        return model
    problem = seen.pool_problem(model, bias)
    for _ in range(EFFICIENCY_ROUNDS):
        efficiency = problem.group_efficiency(model.pool, groups)
        model = replace(model, pool=problem.solve(model.pool, efficiency=efficiency), group_efficiency=efficiency)
    return model


def shrink_pool(model: BlendModel, seen: OutOfFold, unseen: OutOfFold) -> BlendModel:
    """Return the model with the pool between its prior and the fitted one, best for all samples together.

    The pool was fitted to ``seen`` only; that some are ``unseen`` shows that new samples will be of rare classes.
    """
    pool, prior = model.pool, prior_pool(model.experts, model.network)

    def between(share: float) -> BlendModel:
        weights, bias = torch.lerp(prior.weights, pool.weights, share), share * pool.bias
        return replace(model, pool=replace(pool, weights=weights, bias=bias))

    def loss(share: float) -> float:
        return seen.loss(between(share)) + unseen.loss(between(share))

    return between(float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded").x))
