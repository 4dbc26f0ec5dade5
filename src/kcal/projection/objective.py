"""The log-loss that trains Π: every prediction sample given a weighted background, with an analytic gradient.

e_ij = −‖q_i − z_j‖² / (2·d·b²) + log w_j        L_i = logsumexp_j e_ij − logsumexp_{j: y_j = y_i} e_ij

All in log space: however small the share of a sample's own class is, its loss is exact and has a gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

Gradients = tuple[torch.Tensor | None, ...]
"""Gradients of the parameters of a module, in their order; None for one that is frozen or plays no part."""


class _EpisodeLoss(torch.autograd.Function):
    """One matrix product and two softmaxes forward, two products backward."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        background: torch.Tensor,
        log_weights: torch.Tensor,
        same_class: torch.Tensor,
        blocked: torch.Tensor | None,
        bandwidth: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        factor = 1.0 / (queries.shape[1] * bandwidth**2)
        centre = background.mean(dim=0)  # distances stay, rounding errors shrink
        queries, background = queries - centre, background - centre
        bias = log_weights - 0.5 * factor * background.square().sum(dim=1)  # (n_background,) or (n_query, n_background)
        exponents = torch.addmm(bias, queries, background.T, alpha=factor)  # −‖q‖² is common to a row
        if blocked is not None:
            exponents.masked_fill_(blocked, -torch.inf)
        own_exponents = torch.where(same_class, exponents, -torch.inf)
        shares, log_total = softmax_of_rows(exponents)
        own_shares, log_own = softmax_of_rows(own_exponents)
        counted = log_own > -torch.inf
        slope = shares.sub_(own_shares)  # ∂L_i/∂e_ij
        if not bool(counted.all()):
            slope.masked_fill_(~counted[:, None], 0.0)
        ctx.save_for_backward(queries, background, slope)
        ctx.factor = factor
        ctx.mark_non_differentiable(counted)
        return torch.where(counted, log_total - log_own, 0.0), counted

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, background, slope = ctx.saved_tensors
        slope = slope * (ctx.factor * gradients[0])[:, None]
        from_background = slope.T @ queries - slope.sum(dim=0)[:, None] * background
        return slope @ background, from_background, None, None, None, None


def softmax_of_rows(exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the softmax of each row and its log-sum-exp; NaN and −∞ for a row of −∞."""
    shares, largest = torch.softmax(exponents, dim=1), exponents.amax(dim=1)
    return shares, torch.where(largest > -torch.inf, largest - shares.amax(dim=1).log(), -torch.inf)


def episode_losses(
    queries: torch.Tensor,
    background: torch.Tensor,
    query_codes: torch.Tensor,
    background_codes: torch.Tensor,
    log_weights: torch.Tensor,
    *,
    bandwidth: float = 1.0,
    blocked: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return −log p of each query's own class, and whether it counts, as its class has background; (n_query,) each.

    The loss is 0, without gradient, where it does not count. Queries (n_query, d) and background (n_background, d) may
    be one tensor if ``blocked``, (n_query, n_background), hides each sample from itself. ``log_weights``,
    (n_background,) or (n_query, n_background), are the logarithms of the numbers of samples that background samples
    represent. b is fixed in training, since Π can absorb its value.
    """
    same_class = query_codes[:, None] == background_codes
    losses, counted = _EpisodeLoss.apply(  # type: ignore[no-untyped-call]
        queries, background, log_weights, same_class, blocked, bandwidth
    )
    return losses, counted


def mean_loss(losses: torch.Tensor, counted: torch.Tensor, shares: torch.Tensor | None = None) -> torch.Tensor:
    """Return the mean of the losses that count, weighted by ``shares`` if given; 0 if none counts."""
    weights = counted.to(losses.dtype) if shares is None else shares * counted
    return (losses * weights).sum() / weights.sum().clamp_min(torch.finfo(losses.dtype).tiny)


def gradients_of(loss: torch.Tensor, module: nn.Module) -> Gradients:
    """Return the gradients of a loss by automatic differentiation."""
    parameters = list(module.parameters())
    learned = [parameter for parameter in parameters if parameter.requires_grad]
    found = iter(torch.autograd.grad(loss, learned, allow_unused=True))
    return tuple(next(found) if parameter.requires_grad else None for parameter in parameters)
