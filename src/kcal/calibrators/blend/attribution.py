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

import torch

from kcal.calibrators.blend.model import EXPERTS, BlendModel, Experts
from kcal.calibrators.blend.pool import pool_log_probs
from kcal.calibrators.kcal.attribution import Attribution, attribution, top_two
from kcal.calibrators.logit_base import to_log_probs
from kcal.kernels import ClassSums, Contributions


def attribute_blend(
    model: BlendModel, embeddings: torch.Tensor, logits: torch.Tensor | None, probs: torch.Tensor, k: int
) -> Attribution:
    """Return the attribution of ``probs``, (n, n_classes) in float64, of embeddings, (n, h), and logits."""
    estimate, formula = model.estimate, model.formula
    points = estimate.project(embeddings)
    contributions = Contributions(estimate.prepared, points)
    sums = contributions.class_sums()
    log_probs = None if logits is None else to_log_probs(logits, formula.representation)
    in_double = ClassSums(sums.sums.cpu().double(), sums.offsets.cpu().double())
    experts = formula.experts(in_double, points.cpu().double(), log_probs)
    parts = divide(model, experts, probs)
    by_samples = parts.pop("samples")
    factors = torch.where(sums.sums > 0, by_samples.T.to(sums.sums) / sums.sums, 0.0)
    top = top_two(probs)
    total = difference(formula.log_probs(experts), top)
    terms = log_odds_terms(model, experts, top)
    return attribution({model.metric: (contributions, factors)}, k, by_samples, parts, terms=terms, log_odds=total)


def divide(model: BlendModel, experts: Experts, probs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return what each expert carries of ``probs``, (n, n_classes), by name."""
    formula = model.formula
    pool = pool_log_probs(formula.exponents, experts.log_probs).exp()
    sizes = formula.exponents.abs() / formula.exponents.abs().sum()
    masses = formula.shares[1:, None, None] * experts.log_probs.exp() + formula.shares[0] * sizes[:, None, None] * pool
    carried = masses / masses.sum(dim=0) * probs  # (3, n, n_classes)
    network, refit, estimate = carried
    samples = estimate * sample_share(model, experts)
    return {"samples": samples, "network": network + estimate - samples, "refit": refit}


def sample_share(model: BlendModel, experts: Experts) -> torch.Tensor:
    """Return the share of the samples in the kernel estimate of each class, (n, n_classes)."""
    prior = model.formula.background * experts.log_probs[0].exp()
    return experts.counts / (experts.counts + prior)


def log_odds_terms(model: BlendModel, experts: Experts, top: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the contributions to the log-odds of the classes ``top``, (n, 2), by name, (n,) each."""
    formula = model.formula
    pool, mixed = pool_log_probs(formula.exponents, experts.log_probs), formula.mixed(experts)
    mean = logarithmic_mean(mixed, top)
    of_experts = logarithmic_mean(experts.log_probs, top)  # (3, n)
    in_pool = formula.shares[0] * logarithmic_mean(pool, top) * formula.exponents[:, None]
    factors = (formula.shares[1:, None] * of_experts + in_pool) / mean  # of the log-odds of each expert
    terms = factors * difference(experts.log_probs, top)
    share = experts.log_probs[2].exp() * sample_share(model, experts)
    samples = factors[2] * difference(share, top) / of_experts[2]
    network, refit, estimate = terms
    named = dict(zip(EXPERTS, (network + estimate - samples, refit, samples), strict=True))
    if formula.prior is not None:
        named["prior"] = difference((formula.prior / formula.frequencies).log().expand_as(mixed), top)
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
