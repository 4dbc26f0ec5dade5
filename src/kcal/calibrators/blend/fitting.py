"""Fit a blend on out-of-fold inputs: leave-one-out for the estimates, cross-fitted for the network."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from kcal.calibrators.blend.class_frequencies import likely_frequencies, likely_strength
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.model import BlendInputs, BlendModel, Gate, frequency_factors, total_log_mass
from kcal.calibrators.blend.network import NetworkFit
from kcal.calibrators.blend.pool import Pool, PoolProblem
from kcal.calibrators.blend.sharpness import fit_sharpness
from kcal.calibrators.fit_warnings import warn_without_out_of_fold
from kcal.errors import InvalidInputError
from kcal.kernels import ClassSums

Floats = NDArray[np.float64]
Index = NDArray[np.int64]

BACKGROUNDS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Background masses, relative to the median mass at a calibration sample; tried upwards while the loss falls."""
EFFICIENCY_ROUNDS = 2
"""Alternations of group efficiency and pool weights, which depend on each other."""
WEIGHT_SPREAD = 0.35
"""Prior standard deviation of the pool weights."""
MIN_MEDIAN_EVIDENCE = -20.0
"""Lowest median log mass at a calibration sample from the others; a sample's own mass is 1."""
EMPTY = 1e-9
"""Share of a class below which nothing of it is left when a sample or group is left out."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Class codes, weights (mean 1) and groups of the calibration samples."""

    codes: Index
    weights: Floats
    groups: Index | None
    n_classes: int

    def totals(self) -> torch.Tensor:
        """Return the weight of each class, (n_classes,)."""
        totals = np.bincount(self.codes, weights=self.weights, minlength=self.n_classes)
        return torch.from_numpy(totals.astype(np.float64))

    def left_out(self) -> torch.Tensor:
        """Return the weight of each class that is left out with a sample or its group, (n, n_classes)."""
        keys = np.arange(len(self.codes)) if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        by_key = np.zeros((int(keys.max()) + 1, self.n_classes))
        np.add.at(by_key, (keys, self.codes), self.weights)
        return torch.from_numpy(by_key[keys])


@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Out-of-fold inputs of some samples, with their classes, weights and groups."""

    inputs: BlendInputs
    codes: Index
    weights: Floats
    groups: Index | None

    def loss(self, model: BlendModel) -> float:
        """Return the weighted sum of the log-loss of a model."""
        if len(self.codes) == 0:
            return 0.0
        log_probs = model.log_probs(self.inputs)
        return -float(log_probs[torch.arange(len(self.codes)), self.codes] @ torch.from_numpy(self.weights))

    def among_own_classes(self) -> OutOfFold:
        """Return the samples with those classes excluded that none of them has."""
        missing = np.bincount(self.codes, minlength=self.inputs.frequencies.shape[-1]) == 0
        excluded = torch.from_numpy(missing) if missing.any() else None
        return replace(self, inputs=replace(self.inputs, excluded=excluded))


def fit_blend(
    targets: Targets,
    experts: tuple[Expert, ...],
    network: NetworkFit | None,
    *,
    bias: float = 0.1,
    background: str | float = "cv",
    fallback_quantile: float = 0.01,
    sharpness: float = 0.5,
    strength: float | None = None,
    group_efficiency: float | None = None,
) -> BlendModel:
    """Fit gate, background, pool and sharpness on out-of-fold inputs.

    Samples of whose class nothing is left without them cannot show which experts to weigh, but how much background
    classes need that were never seen: they take part in the choice of the background only. The others are compared
    among the classes that they can have.

    Parameters
    ----------
    targets : Targets
        The calibration samples of experts and network, in the same order.
    experts : tuple of Expert
        From :func:`~kcal.calibrators.blend.experts.fit_experts`.
    network : NetworkFit or None
        From :func:`~kcal.calibrators.blend.network.cross_fit_network`.
    bias, background, fallback_quantile, sharpness
        As in :class:`KCalBlend`.
    strength : float, optional
        Pseudo-count per class of the class frequencies; by default the likeliest.
    group_efficiency : float, optional
        Information of a sample relative to an independent one; by default estimated from the groups.
    """
    totals, left = targets.totals(), targets.left_out()
    strength = likely_strength(totals.numpy()) if strength is None else strength
    frequencies, counted = likely_frequencies(totals.numpy(), strength), (totals / totals.sum()).numpy()
    factors = torch.from_numpy(frequency_factors(frequencies, counted))
    pairs = [with_leave_out_sums(expert, targets, factors) for expert in experts]
    experts, sums = tuple(expert for expert, _ in pairs), tuple(part for _, part in pairs)
    models, out_of_fold = ((), ()) if network is None else (network.models, network.out_of_fold)
    model = BlendModel(
        experts,
        models,
        prior_pool(experts, len(models), targets.n_classes),
        fit_gate(total_log_mass(sums[0], experts[0].middle), fallback_quantile),
        0.0,
        frequencies,
        counted,
    )

    rows, codes = torch.arange(len(left)), torch.from_numpy(targets.codes)
    alone = (totals - left <= EMPTY * totals)[rows, codes]
    for part in sums:
        part.sums[:, codes[alone], rows[alone]] = 0.0
    inputs = BlendInputs(sums, out_of_fold, torch.from_numpy(frequencies))
    fitted, unseen = _select(targets, inputs, rows[~alone]), _select(targets, inputs, rows[alone])
    without = likely_frequencies((totals - left[alone]).clamp_min(0.0).numpy(), strength)
    unseen = replace(unseen, inputs=replace(unseen.inputs, frequencies=torch.from_numpy(without)))
    model = choose_background(model, fitted, unseen, background=background, bias=float(bias))
    if len(fitted.codes) == 0:
        warn_without_out_of_fold()
        return model
    model = weigh_groups(model, fitted, bias=float(bias), efficiency=group_efficiency)
    if len(unseen.codes):
        model = shrink_pool(model, fitted, unseen)
    inputs = fitted.among_own_classes().inputs
    made = fit_sharpness(
        model.log_probs(inputs),
        fitted.codes,
        fitted.weights,
        model.gate_values(inputs),
        spread=float(sharpness),
        efficiency=model.group_efficiency,
    )
    return replace(model, sharpness=made)


def prior_pool(experts: tuple[Expert, ...], n_network: int, n_classes: int) -> Pool:
    """Return the pool before any data: the last network calibrator alone, or the best single bandwidth."""
    weights = np.zeros(sum(len(expert.factors) for expert in experts) + n_network)
    weights[-n_network if n_network else experts[0].middle] = 1.0
    return Pool(weights, np.zeros(n_classes), float(np.log(n_classes)))


def fit_gate(log_mass: torch.Tensor, quantile: float) -> Gate:
    """Return the gate with g = ½ at a quantile of the log masses; always open for a quantile of 0."""
    finite = log_mass[torch.isfinite(log_mass)]
    if len(finite) == 0:
        raise InvalidInputError("groups", "must let calibration samples predict each other", got="one group")
    return Gate(float(np.quantile(finite.numpy(), quantile)) if quantile > 0 else -np.inf)


def with_leave_out_sums(expert: Expert, targets: Targets, factors: torch.Tensor) -> tuple[Expert, ClassSums]:
    """Return the expert with its median evidence, and class sums at each sample from the others.

    The bandwidth is widened where the median evidence is too low: with few samples the leave-one-out loss may prefer a
    bandwidth at which the nearest sample alone decides, with a certainty that nothing supports.
    """
    totals, left = targets.totals(), targets.left_out()
    keys = None if targets.groups is None else torch.from_numpy(targets.groups)
    for _ in range(2):
        sums = whole_class_sums(expert.leave_out_sums(keys), left, totals)
        sums.sums.mul_(factors[:, None])
        median = _median(total_log_mass(sums, expert.middle))
        if not median < MIN_MEDIAN_EVIDENCE:
            break
        widened = expert.bandwidth * float(np.sqrt(median / MIN_MEDIAN_EVIDENCE))  # exponents go with 1/b²
        expert = replace(expert, bandwidth=widened)
    medians = tuple(_median(total_log_mass(sums, place)) for place in range(len(expert.factors)))
    return replace(expert, median_evidence=medians), sums


def whole_class_sums(sums: ClassSums, left: torch.Tensor, totals: torch.Tensor) -> ClassSums:
    """Return leave-out class sums, (n_factors, n_classes, n), scaled up to the whole weight of each class.

    Otherwise the class that lacks a sample would reveal the sample's own class, the more clearly the fewer samples
    classes have. A class of which nothing is left gets its share of the sum over the other classes.

    Parameters
    ----------
    sums : ClassSums
        Leave-out class sums.
    left : (n, n_classes) tensor
        Weight of each class that is left out.
    totals : (n_classes,) tensor
        Weight of each class.
    """
    rest = totals - left
    gone = (rest <= EMPTY * totals) & (totals > 0)
    factors = torch.where(gone | (totals == 0), 1.0, totals / rest)
    whole = sums.sums * factors.T
    if bool(gone.any()):
        present = torch.where(gone, 0.0, totals).sum(dim=1, keepdim=True)
        mass = whole.masked_fill(gone.T, 0.0).sum(dim=1, keepdim=True)
        whole = torch.where(gone.T, mass * (totals / present).T, whole)
    return ClassSums(whole, sums.offsets)


def choose_background(
    model: BlendModel, fitted: OutOfFold, unseen: OutOfFold, *, background: str | float, bias: float
) -> BlendModel:
    """Return the model with the background of the lowest loss, and the pool fitted with it."""
    lowest, best = np.inf, model
    for candidate in BACKGROUNDS if isinstance(background, str) else (float(background),):
        tried = replace(model, background=candidate)
        if len(fitted.codes):
            problem = pool_problem(tried, fitted, bias)
            tried = replace(tried, pool=problem.solve(best.pool if lowest < np.inf else None))
        loss = fitted.loss(tried) + unseen.loss(tried)
        if loss >= lowest:
            break
        lowest, best = loss, tried
    return best


def pool_problem(model: BlendModel, fitted: OutOfFold, bias: float) -> PoolProblem:
    """Return the problem of fitting the pool at the background of the model."""
    inputs = fitted.among_own_classes().inputs
    estimates = [part.transpose(1, 2) for part in model.estimates(inputs)]
    experts = torch.cat([*estimates, *(scores[None] for scores in inputs.network)])
    centre = prior_pool(model.experts, len(model.network), experts.shape[2]).weights
    fallback = inputs.fallback.expand(experts.shape[1:])
    gate = model.gate_values(inputs)
    return PoolProblem(
        experts, fitted.codes, fitted.weights, gate, fallback, centre, WEIGHT_SPREAD, bias, inputs.excluded
    )


def weigh_groups(model: BlendModel, fitted: OutOfFold, *, bias: float, efficiency: float | None = None) -> BlendModel:
    """Return the model with the pool fitted at the information that samples of a group carry."""
    if fitted.groups is None or len(np.unique(fitted.groups)) < 2:
        return model
    problem = pool_problem(model, fitted, bias)
    for _ in range(EFFICIENCY_ROUNDS):
        found = problem.group_efficiency(model.pool, fitted.groups) if efficiency is None else efficiency
        model = replace(model, pool=problem.solve(model.pool, efficiency=found), group_efficiency=found)
    return model


def shrink_pool(model: BlendModel, fitted: OutOfFold, unseen: OutOfFold) -> BlendModel:
    """Return the model with the pool between its prior and the fitted one, best for all samples together.

    The pool was fitted without the samples whose class the others do not have; that there are some shows that new
    samples will be of classes with few calibration samples, or none.
    """
    pool, prior = model.pool, prior_pool(model.experts, len(model.network), len(model.frequencies))

    def between(share: float) -> BlendModel:
        weights = prior.weights + share * (pool.weights - prior.weights)
        return replace(model, pool=replace(pool, weights=weights, bias=share * pool.bias))

    def loss(share: float) -> float:
        return fitted.loss(between(share)) + unseen.loss(between(share))

    return between(float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded").x))


def _select(targets: Targets, inputs: BlendInputs, rows: torch.Tensor) -> OutOfFold:
    index = rows.numpy()
    groups = None if targets.groups is None else targets.groups[index]
    return OutOfFold(inputs.rows(rows), targets.codes[index], targets.weights[index], groups)


def _median(log_mass: torch.Tensor) -> float:
    """Return the median of the finite values; NaN without any."""
    finite = log_mass[torch.isfinite(log_mass)]
    return float(finite.median()) if len(finite) else float("nan")
