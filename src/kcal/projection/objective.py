"""The log-loss that trains Π: every prediction sample given a weighted background, with an analytic gradient.

e_ij = −‖q_i − z_j‖² / (2·d·b²) + log w_j        L = Σ_i v_i·(logsumexp_j e_ij − logsumexp_{j: y_j = y_i} e_ij)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

LEAST_SHARE = 1e-30
"""A sample whose own class has less than this share of the mass gets no gradient in the step."""


class _EpisodeLoss(torch.autograd.Function):
    """One matrix product and one exponential forward, two products backward."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        background: torch.Tensor,
        log_weights: torch.Tensor,
        same_class: torch.Tensor,
        blocked: torch.Tensor | None,
        bandwidth: float,
    ) -> torch.Tensor:
        factor = 1.0 / (queries.shape[1] * bandwidth**2)
        centre = background.mean(dim=0)  # distances stay, rounding errors shrink
        queries, background = queries - centre, background - centre
        bias = log_weights - 0.5 * factor * background.square().sum(dim=1)  # (n_background,) or (n_query, n_background)
        shares = torch.addmm(bias, queries, background.T, alpha=factor)  # −‖q‖² is common to a row
        if blocked is not None:
            shares.masked_fill_(blocked, -torch.inf)
        shares = torch.softmax(shares, dim=1)  # (n_query, n_background)
        if blocked is not None and bool(blocked.all(dim=1).any()):
            shares.nan_to_num_(nan=0.0)  # rows without any background
        own_shares = shares * same_class
        own = own_shares.sum(dim=1)  # (n_query,)
        ctx.save_for_backward(queries, background, shares, own_shares, own)
        ctx.factor = factor
        return -torch.log(own.clamp_min(LEAST_SHARE))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, background, shares, own_shares, own = ctx.saved_tensors
        reached = own > LEAST_SHARE
        gradient = gradients[0] * reached
        slope = shares * gradient[:, None]  # ∂L/∂e
        slope -= own_shares * (gradient / own.clamp_min(LEAST_SHARE))[:, None]
        from_queries = ctx.factor * (slope @ background)
        from_background = ctx.factor * (slope.T @ queries - slope.sum(dim=0)[:, None] * background)
        return from_queries, from_background, None, None, None, None


def episode_losses(
    queries: torch.Tensor,
    background: torch.Tensor,
    query_codes: torch.Tensor,
    background_codes: torch.Tensor,
    log_weights: torch.Tensor,
    *,
    bandwidth: float = 1.0,
    blocked: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return −log p of each query's own class, (n_query,); 0, without gradient, where its class has no background.

    Queries (n_query, d) and background (n_background, d) may be one tensor if ``blocked``, (n_query, n_background),
    hides each sample from itself. ``log_weights``, (n_background,) or (n_query, n_background), are the logarithms of
    the numbers of samples that background samples represent. b is fixed in training, since Π can absorb its value.
    """
    same_class = query_codes[:, None] == background_codes[None, :]
    visible = same_class if blocked is None else same_class & ~blocked
    losses: torch.Tensor = _EpisodeLoss.apply(  # type: ignore[no-untyped-call]
        queries, background, log_weights, same_class, blocked, bandwidth
    )
    return torch.where(visible.any(dim=1), losses, torch.zeros_like(losses))
