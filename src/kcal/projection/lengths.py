"""Lengths of embeddings, which some projections ignore."""

from __future__ import annotations

import torch
from torch import nn

from kcal.projection.modules import project

SAME = 1e-3
"""Relative difference up to which projected points are the same: rounding must not decide."""


def log_lengths(embeddings: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of the lengths of embeddings, (n,), in float64."""
    lengths: torch.Tensor = torch.linalg.vector_norm(embeddings.double(), dim=1)
    return lengths.log()


def ignores_length(module: nn.Module, embeddings: torch.Tensor) -> bool:
    """Return whether a projection maps embeddings and their halves to the same points."""
    points, halves = project(module, embeddings), project(module, embeddings / 2)
    return bool((points - halves).abs().max() <= SAME * (points - points.mean(dim=0)).abs().max())
