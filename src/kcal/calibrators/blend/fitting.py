"""Fit a blend on out-of-fold predictions: leave-one-out for network and samples, in folds for the refit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.blend.head import LinearHead
from kcal.calibrators.blend.kernel import POOL_SHARE, choose_bandwidth, leave_out_counts, log_estimate, log_scale_of
from kcal.calibrators.blend.model import MIN_PROB, BlendModel
from kcal.calibrators.blend.network import LeaveOut, fit_network, group_efficiency
from kcal.calibrators.blend.pool import fit_mixture, fit_pool, pool_log_probs
from kcal.calibrators.kernel_model import KernelModel, sorted_support
from kcal.calibrators.refit import PrincipalAxes, RidgeModel, RidgeProblem, cross_fit, mean_penalty, solve_average
from kcal.samples import Samples, cross_folds

KERNEL = "rbf"
MAX_ENTRIES = 5_000_000
"""Samples × classes of out-of-fold predictions, at most: what is fitted on them has few parameters."""
MAX_PRODUCTS = 3_000_000_000
"""Samples × features × classes of the refit of the last layer, at most."""
REFIT_TOLERANCE = 1e-8
MIN_COUNT = 1e-3
"""Least median number of samples near a sample, by which the background of the pool is measured."""
FREQUENCY_PRIOR = 2.0
"""Pseudo-samples by which the network's mean prediction enters the class frequencies."""


def fit_blend(
    samples: Samples,
    points: torch.Tensor,
    log_probs: torch.Tensor | None,
    projection: nn.Module,
    *,
    folds: int,
    seed: int,
    prior: torch.Tensor | None,
    head: LinearHead | None,
    **config: Any,
) -> BlendModel:
    """Fit a blend to samples of positive weight.

    ``points``, (n, d), are their projected embeddings; ``log_probs``, (n, n_classes) in float64, are those of the
    network, None without logits; ``config`` is the metric and the representation of logits.
    """
    n_classes = samples.n_classes
    codes = torch.from_numpy(samples.codes)
    scores = torch.zeros(len(codes), n_classes, dtype=torch.float64) if log_probs is None else log_probs
    groups = None
    if samples.groups is not None:
        groups = torch.from_numpy(np.unique(samples.groups, return_inverse=True)[1].reshape(-1))
    efficiency = group_efficiency(scores, codes, groups)
    leave_out = LeaveOut(efficiency * torch.from_numpy(samples.weights), groups)
    index = torch.from_numpy(samples.spread_index(max(MAX_ENTRIES // n_classes, 2)))

    network, of_network = fit_network(scores, codes, leave_out, index)
    refit, of_refit = fit_refit(samples, points, scores, network.temperature, index.numpy(), folds, seed)
    support = sorted_support(samples, points)
    bandwidth, background = choose_bandwidth(support, samples, of_network, index, KERNEL)
    estimate = KernelModel.of(projection, support, points.shape[1], bandwidth=bandwidth, kernel=KERNEL)
    log_scale = log_scale_of(support, len(codes))
    counts = leave_out_counts(estimate, samples, index, log_scale)

    of_network = of_network.clamp_min(MIN_PROB)
    pool_background = POOL_SHARE * float(counts.sum(dim=1).median().clamp_min(MIN_COUNT))
    log_experts = torch.stack(
        [of_network.log(), of_refit.clamp_min(np.log(MIN_PROB)), log_estimate(counts, of_network, pool_background)]
    )
    estimated = log_estimate(counts, of_network, background)
    own, weights = codes[index], leave_out.weights[index]
    weights = weights * (len(codes) / len(index))
    exponents = fit_pool(log_experts, own, weights)
    parts = torch.stack([pool_log_probs(exponents, log_experts), *log_experts[:2], estimated]).exp()
    own_probs = parts.gather(2, own.expand(4, -1)[:, :, None])[:, :, 0]
    shares = fit_mixture(own_probs, weights)
    mean_loss, centre = weights / weights.sum(), points.cpu().double().mean(dim=0)
    totals, expected = torch.from_numpy(samples.class_weights()), network.probs(scores).mean(dim=0)
    config |= {
        "radius": float((points.cpu().double() - centre).norm(dim=1).max()),
        "background": background,
        "pool_background": pool_background,
        "log_scale": log_scale,
        "min_log_prob": float(scores.min()),
        "loss": -float(mean_loss @ (shares @ own_probs).log()),
        "network_loss": -float(mean_loss @ own_probs[1].log()),
        "group_efficiency": efficiency,
        "has_logits": log_probs is not None,
        "has_prior": prior is not None,
    }
    tensors = {
        "exponents": exponents,
        "shares_of_parts": shares,
        "centre": centre,
        "frequencies": (totals + FREQUENCY_PRIOR * expected) / (totals.sum() + FREQUENCY_PRIOR),
        "prior": prior,
    }
    named = {"estimate": estimate, "network": network, "refit": refit, "head": head}
    return BlendModel.of(tensors, named, **config)


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
    axes = PrincipalAxes.of(points.cpu().double(), samples.weights)
    features = axes.features(points.cpu().double())
    problem = RidgeProblem(scores / temperature, features, samples.codes, samples.weights)
    some = problem.rows(index)
    groups = None if samples.groups is None else samples.groups[index]
    shares, out_of_fold = cross_fit(some, cross_folds(some.codes, groups, folds, seed))
    if features.numel() * scores.shape[1] > MAX_PRODUCTS:
        problem = some
    point = solve_average(problem, shares, REFIT_TOLERANCE)
    return axes.model(point, temperature, mean_penalty(shares), scores.shape[1]), out_of_fold
