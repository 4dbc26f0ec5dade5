"""The loss of one step of the paper's training: by automatic differentiation, or for the paper's own Π by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import nn

from kcal.projection.episodes import Episode
from kcal.projection.modules import SkipProjection
from kcal.projection.objective import Gradients, episode_losses, gradients_of, mean_loss, softmax_of_rows
from kcal.projection.recipes import PaperRecipe


@dataclass(frozen=True, eq=False)
class Step:
    """The samples of an episode: queries first, then the background, sorted by class."""

    embeddings: torch.Tensor  # (n_query + n_background, h)
    query_codes: torch.Tensor
    background_codes: torch.Tensor
    log_weights: torch.Tensor  # (n_background,)
    recipe: PaperRecipe

    @classmethod
    def of(cls, episode: Episode, embeddings: torch.Tensor, labels: torch.Tensor, recipe: PaperRecipe) -> Step:
        """Return the samples of an episode's rows."""
        rows = torch.from_numpy(np.concatenate([episode.queries, episode.background])).to(embeddings.device)
        codes, n_query = labels.index_select(0, rows), len(episode.queries)
        log_weights = torch.from_numpy(episode.log_weights).to(embeddings)
        return cls(embeddings.index_select(0, rows), codes[:n_query], codes[n_query:], log_weights, recipe)


def paper_gradients(module: nn.Module, step: Step) -> tuple[torch.Tensor, Gradients]:
    """Return the mean log-loss of the queries that have background of their class, and the gradients of the parameters.

    One batch-norm call sees all rows.
    """
    if _is_papers(module):
        return _skip_gradients(module, step)
    projected, n_query = module(step.embeddings), len(step.query_codes)
    losses, counted = episode_losses(
        projected[:n_query], projected[n_query:], step.query_codes, step.background_codes, step.log_weights,
        bandwidth=step.recipe.bandwidth,
    )  # fmt: skip
    loss = mean_loss(losses, counted)
    return loss.detach(), gradients_of(loss, module)


def _is_papers(module: nn.Module) -> TypeGuard[SkipProjection]:
    """Return whether a module is the paper's Π with its own batch norm, whose gradients are known by hand."""
    if type(module) is not SkipProjection or module.unit_length:
        return False
    norm = module.norm
    plain = type(norm) is nn.BatchNorm1d and norm.affine and norm.track_running_stats and norm.momentum is not None
    return plain and norm.training and type(module.reduce) is type(module.bend) is nn.Linear


@torch.no_grad()
def _skip_gradients(module: SkipProjection, step: Step) -> tuple[torch.Tensor, Gradients]:
    """Return the same by hand for the paper's Π, z = r + V·ELU(r) with r = W·(γ·x̂ + β) + c.

    γ is multiplied into W, so that the batch takes part in one product forward and one backward.
    """
    norm, weight, bend = module.norm, module.reduce.weight, module.bend.weight
    running = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
    norm.get_buffer("num_batches_tracked").add_(1)
    assert norm.momentum is not None
    rows, _, _ = torch.native_batch_norm(step.embeddings, None, None, *running, True, norm.momentum, norm.eps)  # x̂
    reduced = torch.addmm(torch.addmv(module.reduce.bias, weight, norm.bias), rows, (weight * norm.weight).T)
    curved = nn.functional.elu(reduced)
    loss, to_points = _loss_and_gradient(torch.addmm(reduced, curved, bend.T), step)
    to_bend = to_points.T @ curved
    to_points += torch.ops.aten.elu_backward(to_points @ bend, 1.0, 1.0, 1.0, True, curved)  # now of r
    product, total = to_points.T @ rows, to_points.sum(dim=0)  # (d, h), (d,)
    to_weight = torch.addr(product * norm.weight, total, norm.bias)
    gradients = (product * weight).sum(dim=0), total @ weight, to_weight, total, to_bend
    learned = (parameter.requires_grad for parameter in module.parameters())
    return loss, tuple(one if learns else None for one, learns in zip(gradients, learned, strict=True))


def _loss_and_gradient(points: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss of the queries that count, and its gradient in the points, queries and background."""
    n_query, factor = len(step.query_codes), 1.0 / (points.shape[1] * step.recipe.bandwidth**2)
    points = points - points.mean(dim=0)  # distances stay, rounding errors shrink
    queries, background = points[:n_query], points[n_query:]
    bias = torch.add(step.log_weights, background.square().sum(dim=1), alpha=-0.5 * factor)
    exponents = torch.addmm(bias, queries, background.T, alpha=factor)
    places, found = _own_places(step)
    shares, log_total = softmax_of_rows(exponents)
    own_shares, log_own = softmax_of_rows(exponents.gather(1, places).masked_fill_(~found, -torch.inf))
    counted = found[:, 0]
    weights = counted.to(points.dtype) / counted.sum().clamp_min(1)
    slope = shares.scatter_add_(1, places, own_shares.masked_fill_(~found, 0.0).neg_())
    slope *= (factor * weights)[:, None]
    gradient = torch.empty_like(points)
    torch.mm(slope, background, out=gradient[:n_query])
    torch.mm(slope.T, queries, out=gradient[n_query:]).addcmul_(slope.sum(dim=0)[:, None], background, value=-1.0)
    return (torch.where(counted, log_total - log_own, 0.0) * weights).sum(), gradient


def _own_places(step: Step) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the background of each query's class is, (n_query, m) with 0 for none, and whether there is any."""
    first = torch.searchsorted(step.background_codes, step.query_codes)
    sizes = torch.searchsorted(step.background_codes, step.query_codes, right=True) - first
    place = torch.arange(step.recipe.background_per_class, device=first.device)
    found = place < sizes[:, None]
    return torch.where(found, first[:, None] + place, 0), found
