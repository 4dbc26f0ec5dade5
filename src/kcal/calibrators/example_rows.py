"""Rows like those of a calibration set, made from its kernel density estimate, which does not hold the rows."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import nn

from kcal.calibrators.kernel_model import KernelModel

NOISE = 0.1
"""Standard deviation of the noise, in units of that of the calibration samples."""
SAME = 1e-3
ITERATIONS = 100
Rows = Callable[[torch.Tensor], torch.Tensor]


def example_rows(estimate: KernelModel, n_rows: int, n_features: int, as_embeddings: Rows) -> torch.Tensor:
    """Return rows, (n_rows, n_features), whose projections lie among the support points.

    Where the projection keeps the points (it is the identity, or divides by the length), they are the rows, with some
    noise; otherwise rows are searched that the projection maps to them. Where it ignores lengths, these are those of
    calibration samples. ``as_embeddings`` is what the projection works on, from rows.
    """
    support = estimate.support
    points = support.points[support.counted.to(support.points.device)].cpu()
    chosen = torch.linspace(0, len(points) - 1, n_rows).long()
    noise = torch.randn(n_rows, points.shape[1], generator=torch.Generator().manual_seed(0)).to(points)
    targets = points[chosen] + NOISE * points.std(dim=0, correction=0) * noise
    projection = deepcopy(estimate.projection).cpu().eval()

    def project(rows: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = projection(as_embeddings(rows))
        return projected

    rows = targets
    if points.shape[1] != n_features or not _keeps(project, points[chosen]):
        rows = _search(project, _start(projection, targets, n_features), targets)
    if estimate.log_lengths is not None:
        lengths = estimate.log_lengths.cpu().exp()
        order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))
        places = (0.25 + 0.5 * order / n_rows) * (len(lengths) - 1)  # the middle half
        rows = nn.functional.normalize(rows, dim=1) * lengths[places.long()][:, None].to(rows)
    return rows.detach()


@torch.no_grad()
def _keeps(project: Rows, points: torch.Tensor) -> bool:
    """Return whether a projection maps points to themselves."""
    projected = project(points)
    return projected.shape == points.shape and bool((projected - points).abs().max() <= SAME * points.abs().max())


def _start(projection: nn.Module, targets: torch.Tensor, n_features: int) -> torch.Tensor:
    """Return random rows, with the means and variances that a batch norm of the embeddings has stored."""
    rows = torch.randn(len(targets), n_features, generator=torch.Generator().manual_seed(1)).to(targets)
    for part in projection.modules():
        if isinstance(part, nn.BatchNorm1d) and part.num_features == n_features and part.running_var is not None:
            return part.get_buffer("running_mean") + part.running_var.sqrt() * rows
    return rows


def _search(project: Rows, start: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return rows near ``start`` that a projection maps to targets; ``start`` itself if it has no derivative."""
    scale = start.std(dim=0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    steps = torch.zeros_like(start, requires_grad=True)
    optimizer = torch.optim.LBFGS([steps], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = (project(start + scale * steps) - targets).square().sum(dim=1).mean()
        torch.autograd.backward(value, inputs=[steps])
        return value

    try:
        with torch.inference_mode(False), torch.enable_grad():
            optimizer.step(loss)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return start
    rows = start + scale * steps.detach()
    return rows if bool(torch.isfinite(rows).all()) else start
