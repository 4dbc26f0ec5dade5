"""Fit a blend on out-of-fold predictions: leave-one-out for network and samples, in folds for the refit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.blend.model import MIN_PROB, BlendModel, LinearHead, log_estimate
from kcal.calibrators.blend.network import OtherSamples, fit_network
from kcal.calibrators.blend.pool import fit_mixture, fit_pool, pool_log_probs
from kcal.calibrators.kernel_model import COMPARED_ROWS, support_values
from kcal.calibrators.logits import lowest_unmasked, to_log_probs
from kcal.calibrators.refit import PrincipalAxes, RidgeModel, RidgeProblem, cross_fit, mean_penalty, solve_average
from kcal.kernels import (
    PreparedSupport,
    SortedSupport,
    get_kernel,
    leave_out_rule,
    search_with_background,
    sorted_support,
)
from kcal.projection import ignores_length
from kcal.samples import Samples, random_folds

KERNEL = "rbf"
POOL_SHARE = 1e-5
"""Background of the estimate in the pool, in units of the median count at a sample from the others."""
MAX_ENTRIES = 5_000_000
"""Samples × classes of out-of-fold predictions, at most: what is fitted on them has few parameters."""
MAX_PRODUCTS = 3_000_000_000
"""Samples × features × classes of the refit of the last layer, at most."""
REFIT_TOLERANCE = 1e-8
MAX_DOUBLE_PRODUCTS, SINGLE_TOLERANCE = 200_000_000, 1e-6
"""The same number, above which the refit is in single precision, and its tolerance then."""
MIN_COUNT = 1e-3
"""Least median number of samples near a sample, by which the background of the pool is measured."""
MIN_RADIUS = 1e-30
"""Least radius of the ball of the points, positive in single precision too."""
FREQUENCY_PRIOR = 2.0
"""Pseudo-samples by which the network's mean prediction enters the class frequencies."""


def fit_blend(
    samples: Samples,
    projection: nn.Module,
    head: LinearHead | None,
    *,
    folds: int,
    seed: int,
    prior: torch.Tensor | None,
    representation: str,
) -> BlendModel:
    """Fit a blend to samples of positive weight, whose embeddings are projected; without logits, f is uniform."""
    points, codes, n_classes = samples.embeddings, torch.from_numpy(samples.codes), samples.n_classes
    scores = torch.zeros(len(codes), n_classes, dtype=torch.float64)
    if samples.logits is not None:
        scores = to_log_probs(samples.logits, representation).cpu()
    groups = None if samples.groups is None else torch.from_numpy(samples.groups)
    others = OtherSamples(torch.from_numpy(samples.weights), groups)
    index = torch.from_numpy(samples.spread_index(max(MAX_ENTRIES // n_classes, 2)))

    network, of_network = fit_network(scores, codes, others, index)
    refit, of_refit = fit_refit(samples, points, scores, network.temperature, index.numpy(), folds, seed)
    own_probs = of_network.gather(1, codes[index, None])[:, 0]
    support, kernel = sorted_support(samples), get_kernel(KERNEL)
    bandwidth, background = search_with_background(
        support, index, own_probs, others.weights[index], kernel=kernel, keys=samples.keys()
    )
    counts = leave_out_counts(support, bandwidth, samples, index)
    weights = others.weights[index] * (len(codes) / len(index))
    combination = combine(of_network, of_refit, counts, background, codes[index], weights)

    totals, expected = torch.from_numpy(samples.class_weights()), network.in_blocks(None, scores).exp_().mean(dim=0)
    return BlendModel(
        projection=projection,
        n_features=points.shape[1],
        bandwidth=bandwidth,
        kernel=KERNEL,
        network=network,
        refit=refit,
        head=head,
        representation=representation,
        has_logits=samples.logits is not None,
        background=background,
        min_log_prob=lowest_unmasked(scores),
        centre=support.centre.cpu().double(),
        radius=max(support.radius, MIN_RADIUS),
        frequencies=(totals + FREQUENCY_PRIOR * expected) / (totals.sum() + FREQUENCY_PRIOR),
        prior=prior,
        **combination,
        **support_values(support, compares_lengths=ignores_length(projection, points[:COMPARED_ROWS])),
    )


def combine(
    network: torch.Tensor,
    log_refit: torch.Tensor,
    counts: torch.Tensor,
    background: float,
    codes: torch.Tensor,
    weights: torch.Tensor,
) -> dict[str, Any]:
    """Return exponents and shares of out-of-fold predictions, (n, n_classes), of samples, and the losses with them."""
    network = network.clamp_min(MIN_PROB)
    pool_background = POOL_SHARE * float(counts.sum(dim=1).median().clamp_min(MIN_COUNT))
    log_refit = log_refit.clamp_min(np.log(MIN_PROB))
    log_experts = torch.stack([network.log(), log_refit, log_estimate(counts, network, pool_background)])
    exponents = fit_pool(log_experts, codes, weights)
    estimate = log_estimate(counts, network, background)
    parts = pool_log_probs(exponents, log_experts), *log_experts[:2], estimate
    own_probs = torch.stack([part.gather(1, codes[:, None])[:, 0] for part in parts]).exp()
    mixture = fit_mixture(own_probs, weights)
    losses = -(torch.stack([mixture @ own_probs, own_probs[1]]).log() @ weights) / weights.sum()
    combination = {"exponents": exponents, "mixture": mixture, "pool_background": pool_background}
    return combination | {"loss": losses[0], "network_loss": losses[1]}


def fit_refit(
    samples: Samples,
    points: torch.Tensor,
    scores: torch.Tensor,
    temperature: float,
    index: np.ndarray,
    folds: int,
    seed: int,
) -> tuple[RidgeModel, torch.Tensor]:
    """Return the refit of the last layer, and log probabilities of the samples of ``index`` without their fold."""
    axes = PrincipalAxes.from_embeddings(points, samples.weights)
    features = axes.features(points)
    codes, weights = samples.codes, samples.weights
    problem = RidgeProblem(scores[index] / temperature, features[index], codes[index], weights[index])
    groups = None if samples.groups is None else samples.groups[index]
    shares, out_of_fold = cross_fit(problem, random_folds(problem.codes, groups, folds, seed), mixed=True)
    if features.numel() * scores.shape[1] <= MAX_PRODUCTS:
        problem = RidgeProblem(scores / temperature, features, codes, weights)
    is_large = problem.features.numel() * scores.shape[1] > MAX_DOUBLE_PRODUCTS
    problem, tolerance = (problem.in_single(), SINGLE_TOLERANCE) if is_large else (problem, REFIT_TOLERANCE)
    point = solve_average(problem, shares, tolerance)
    return axes.model(point, temperature, mean_penalty(shares), scores.shape[1]), out_of_fold


def leave_out_counts(support: SortedSupport, bandwidth: float, samples: Samples, index: torch.Tensor) -> torch.Tensor:
    """Return S at the samples of ``index`` from the others (of other groups), (n_index, n_classes), in float64."""
    place = torch.argsort(support.order)[index.to(support.order.device)]
    rule = leave_out_rule(support, samples.keys()).select(place)
    sums = PreparedSupport(support, [bandwidth], get_kernel(KERNEL)).class_sums(support.points[place], leave_out=rule)
    return sums.in_double().counts(support.log_mean_scale)[0]
