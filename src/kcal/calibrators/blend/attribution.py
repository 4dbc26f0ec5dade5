"""Divide the predictions of a blend among calibration samples, the network and its refitted last layer.

Shares of probabilities
    The mixture gives the share λ_m·m_k/p_k of the probability of class k to its part m. That of the pool is divided
    among the experts by the absolute values of their exponents, and that of the kernel estimate among the samples,
    S_k/(β·f_k + S_k), and the network.

Log-odds of the two most probable classes a and b
    With the logarithmic mean L(x, y) = (x − y)/(log x − log y), every difference is divided without a remainder:
    log p_a − log p_b = Σ_m λ_m·(m_a − m_b)/L(p_a, p_b), and for the pool m_a − m_b = L(m_a, m_b)·Σ_j w_j·(log j_a −
    log j_b) over the experts j. The kernel estimate is d = (β·f + S)/(β + Σ S).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kcal.calibrators.blend.pool import pool_log_probs
from kcal.calibrators.explain import attribute, top_two
from kcal.kernels import Contributions

if TYPE_CHECKING:
    from kcal.calibrators.blend.model import BlendModel, Experts

NETWORK, REFIT, SAMPLES = "network", "refitted layer", "similar samples"


def attribute_blend(
    model: BlendModel, embeddings: torch.Tensor, logits: torch.Tensor | None, probs: torch.Tensor, k: int
) -> dict[str, Any]:
    """Return the attribution of ``probs``, (n, n_classes) in float64, of embeddings, (n, h), and logits."""
    points = model.project(embeddings)
    contributions = Contributions(model.prepared, points)
    experts = model.experts(contributions.class_sums(), points.double(), embeddings, logits)
    parts = divide(model, experts, probs)
    by_samples = parts.pop(SAMPLES)
    return attribute(contributions, by_samples, k, parts, log_odds_terms(model, experts, top_two(probs)))


def divide(model: BlendModel, experts: Experts, probs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what each expert carries of ``probs``, (n, n_classes), by name."""
    pool = pool_log_probs(model.exponents, experts.pooled).exp()
    sizes = model.exponents.abs() / model.exponents.abs().sum()
    in_pool = model.mixture[0] * sizes[:, None, None] * pool
    mixed = model.mixture[1:, None, None] * experts.mixed.exp()
    scale = probs / (in_pool + mixed).sum(dim=0)
    samples = sum(
        part[2] * sample_share(experts, background)
        for part, background in ((in_pool, model.pool_background), (mixed, model.background))
    )
    network, refit, estimate = in_pool + mixed
    parts = {SAMPLES: samples, NETWORK: network + estimate - samples, REFIT: refit}
    return {name: scale * part for name, part in parts.items()}


def sample_share(experts: Experts, background: torch.Tensor) -> torch.Tensor:
    """Return the share of the samples in a kernel estimate of each class, (n, n_classes)."""
    return experts.counts / (experts.counts + background * experts.pooled[0].exp())


def log_odds_terms(model: BlendModel, experts: Experts, top: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the contributions to the log-odds of the classes ``top``, (n, 2), by name, (n,) each."""
    pool, mixed = pool_log_probs(model.exponents, experts.pooled), model.log_mixture(experts)
    mean = logarithmic_mean(mixed, top)
    in_pool = model.exponents[:, None] * model.mixture[0] * logarithmic_mean(pool, top) / mean
    in_mixture = model.mixture[1:, None] * logarithmic_mean(experts.mixed, top) / mean
    network, refit, estimate = in_pool * difference(experts.pooled, top) + in_mixture * difference(experts.mixed, top)
    samples = torch.zeros_like(estimate)
    kinds = ((in_pool, experts.pooled[2], model.pool_background), (in_mixture, experts.estimate, model.background))
    for factors, log_probs, background in kinds:
        share = log_probs.exp() * sample_share(experts, background)
        samples += factors[2] * difference(share, top) / logarithmic_mean(log_probs, top)
    named = {NETWORK: network + estimate - samples, REFIT: refit, SAMPLES: samples}
    if model.prior is not None:
        named["prior"] = difference(model.log_prior_ratio.expand_as(mixed), top)
    named["masked"] = torch.where(experts.excluded.gather(1, top)[:, 1], torch.inf, 0.0)
    return named


def difference(scores: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Return the scores, (…, n, n_classes), of the first class less those of the second, (…, n)."""
    first, second = scores.gather(-1, top.expand(*scores.shape[:-1], 2)).unbind(dim=-1)
    return first - second


def logarithmic_mean(log_values: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Return (x − y)/(log x − log y) of the two classes, (…, n), of logarithms (…, n, n_classes)."""
    pair = log_values.gather(-1, top.expand(*log_values.shape[:-1], 2))
    high, gap = pair.amax(dim=-1), (pair[..., 0] - pair[..., 1]).abs()
    return high.exp() * torch.where(gap > 0, -torch.expm1(-gap) / torch.where(gap > 0, gap, 1.0), 1.0)
