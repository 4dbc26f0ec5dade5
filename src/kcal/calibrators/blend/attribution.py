"""Divide the predictions of a blend among calibration samples, network and the rest of its formula.

Shares of probabilities
    A_jk = S_jk/m_j + ε·π_k is the mass of class k in estimate j, S_jk that of its samples. Estimate j has the share
    s_j = |g·w_j|/Z of every probability, network calibrator i |g·v_i|/Z and the fallback (1 − g)/Z, with Z the sum of
    all of these. So sample i has the share p_k·Σ_j s_j·(its part of A_jk), k being its class.

Log-odds of the two most probable classes a and b
    log p_a − log p_b = Σ_j g·w_j·(log A_ja − log A_jb) + g·Σ_i v_i·(n_ia − n_ib) + g·(bias_a − bias_b)
                        + (1 − g)·(fallback_a − fallback_b) + sharpness + prior

    With τ the exponent of the sharpness, its contribution is τ − 1 times the terms before. A difference of logarithms
    is divided among samples and background by the logarithmic mean L of its two masses, without a remainder:
    log A_a − log A_b = (A_a − A_b)/L = (S_a − S_b)/(m·L) + ε·(π_a − π_b)/L.
"""

from __future__ import annotations

import torch

from kcal.calibrators.blend.model import BlendInputs, BlendModel, mass_factors
from kcal.calibrators.blend.pool import PoolInputs
from kcal.calibrators.kcal.attribution import Attribution, attribution, top_two
from kcal.calibrators.logit_base import to_log_probs
from kcal.kernels import ClassSums, Contributions


def attribute_blend(
    model: BlendModel,
    embeddings: torch.Tensor,
    logits: torch.Tensor | None,
    probs: torch.Tensor,
    k: int,
    *,
    n_samples: int,
) -> Attribution:
    """Return the attribution of ``probs``, (n, n_classes) in float64, of embeddings, (n, h), and logits.

    A support of ``n_samples`` points has the samples, in the same order in every metric. The points of another one
    stand for several samples; they are explained in the first metric only.
    """
    contributions = [Contributions(expert.prepared, expert.project(embeddings)) for expert in model.experts]
    class_sums = [part.class_sums() for part in contributions]
    log_probs = None if logits is None else to_log_probs(logits, model.representation)
    copies = tuple(ClassSums(part.sums.cpu().clone(), part.offsets.cpu()) for part in class_sums)
    inputs = model.inputs_of(copies, log_probs)  # which scales the sums in place
    pooled = model.pool_inputs(inputs)
    within = sample_shares(model, inputs, pooled)
    carried, parts = divide(model, pooled, within, probs)
    metrics, n_first = {}, len(model.experts[0].support)
    by_samples, by_merged = torch.zeros_like(probs), torch.zeros_like(probs)
    by_metric = torch.split(carried, [len(part.sums) for part in class_sums])
    for expert, part, own, share in zip(model.experts, contributions, class_sums, by_metric, strict=True):
        if expert is model.experts[0] or len(expert.support) == n_first == n_samples:
            metrics[expert.metric] = part, torch.where(own.sums > 0, share.transpose(1, 2).to(own.sums) / own.sums, 0.0)
            by_samples += share.sum(dim=0)
        else:
            by_merged += share.sum(dim=0)
    top = top_two(probs)
    terms, total = log_odds_terms(model, pooled, within, top), difference(model.log_probs(inputs), top)
    return attribution(metrics, k, by_samples, parts | {"merged": by_merged}, terms=terms, log_odds=total)


def divide(
    model: BlendModel, pooled: PoolInputs, within: torch.Tensor, probs: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return what the samples of each estimate carry of ``probs``, (n_estimates, n, n_classes), and the other parts.

    ``within`` is the share of the samples in the masses of the estimates.
    """
    weights, missing, n_estimates = pool_shares(model, pooled), model.sample_frequencies == 0, len(within)
    estimates = weights[:n_estimates, :, None] * probs
    carried = estimates * within
    parts = {
        "network": weights[n_estimates:-1].sum(dim=0)[:, None] * probs,
        "background": (estimates - carried).sum(dim=0).masked_fill(missing, 0.0),
        "fallback": weights[-1][:, None] * probs + torch.where(missing, estimates.sum(dim=0), 0.0),
    }
    return carried, parts


def sample_shares(model: BlendModel, inputs: BlendInputs, pooled: PoolInputs) -> torch.Tensor:
    """Return the share of the samples in the mass A of each estimate and class, (n_estimates, n, n_classes)."""
    masses = [
        part.sums * mass_factors(part.offsets, median)[0][:, None]
        for part, median in zip(inputs.sums, model.medians, strict=True)
    ]
    own = torch.cat(masses).transpose(1, 2)
    return (own / pooled.experts[: len(own)].exp()).clamp_max(1.0)


def pool_shares(model: BlendModel, pooled: PoolInputs) -> torch.Tensor:
    """Return the share of each estimate, network calibrator and, last, of the fallback, (n_experts + 1, n)."""
    gate = pooled.gate[:, 0]
    sizes = torch.cat([model.pool.weights.abs()[:, None] * gate, 1.0 - gate[None]])
    sizes[-1] = torch.where(sizes.sum(dim=0) > 0, sizes[-1], 1.0)  # without any weight there are only biases
    return sizes / sizes.sum(dim=0)


def log_odds_terms(
    model: BlendModel, pooled: PoolInputs, within: torch.Tensor, top: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return the contributions to the log-odds of the classes ``top``, (n, 2), by name, (n,) each.

    ``within`` is the share of the samples in the masses of the estimates.
    """
    n_estimates, gate, missing = len(within), pooled.gate[:, 0], model.sample_frequencies == 0
    weights = model.pool.weights[:, None] * gate  # (n_experts, n)
    of_estimates, log_masses = weights[:n_estimates], pooled.experts[:n_estimates]
    samples = of_estimates * mass_difference(log_masses, within, top)
    network = weights[n_estimates:] * difference(pooled.experts[n_estimates:], top)
    background = of_estimates * mass_difference(log_masses, (1.0 - within).masked_fill(missing, 0.0), top)
    filled = of_estimates * mass_difference(log_masses, missing.to(within).expand_as(within), top)
    fallback = pooled.fallback.expand_as(pooled.experts[0])
    terms = dict(zip(model.names, [*samples, *network], strict=True))
    terms |= {
        "bias": gate * difference(model.pool.bias.expand_as(fallback), top),
        "background": background.sum(dim=0),
        "fallback": (1.0 - gate) * difference(fallback, top) + filled.sum(dim=0),
    }
    log_probs = pooled.log_probs(model.pool.weights, model.pool.bias)
    exponents = model.sharpness.exponents(log_probs, pooled.gate)[:, 0]
    terms["sharpness"] = (exponents - 1.0) * torch.stack(list(terms.values())).sum(dim=0)
    if model.prior is not None:
        terms["prior"] = difference((model.prior / model.frequencies).log().expand_as(fallback), top)
    if pooled.excluded is not None:
        second_is_masked = pooled.excluded.expand(fallback.shape).gather(1, top)[:, 1]
        terms["masked"] = torch.where(second_is_masked, torch.inf, 0.0)
    return terms


def difference(scores: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Return the scores, (…, n, n_classes), of the first class less those of the second, (…, n)."""
    first, second = scores.gather(-1, top.expand(*scores.shape[:-1], 2)).unbind(dim=-1)
    return first - second


def mass_difference(log_masses: torch.Tensor, shares: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Return what ``shares`` of the masses add to the difference of log masses, all (…, n, n_classes), (…, n).

    It is (r_a·A_a − r_b·A_b)/L, r being the shares and L = (A_a − A_b)/(log A_a − log A_b) the logarithmic mean.
    """
    places = top.expand(*log_masses.shape[:-1], 2)
    pair = log_masses.gather(-1, places)
    relative = torch.exp(pair - pair.amax(dim=-1, keepdim=True)) * shares.gather(-1, places)
    gap = (pair[..., 0] - pair[..., 1]).abs()
    mean = torch.where(gap > 0, -torch.expm1(-gap) / torch.where(gap > 0, gap, 1.0), 1.0)
    return (relative[..., 0] - relative[..., 1]) / mean
