"""The network Π that maps an embedding to the space in which the kernel measures distances."""

from __future__ import annotations

import torch
from torch import nn

from kcal.errors import InvalidInputError

ROWS_AT_ONCE = 16_384


class SkipProjection(nn.Module):
    """The paper's Π: batch norm, a linear map h → d, then x + W·ELU(x)."""

    def __init__(self, n_features: int, dimension: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.reduce = nn.Linear(n_features, dimension)
        self.bend = nn.Linear(dimension, dimension, bias=False)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, d)."""
        reduced: torch.Tensor = self.reduce(self.norm(embeddings))
        bent: torch.Tensor = self.bend(nn.functional.elu(reduced))
        return reduced + bent


class LinearProjection(nn.Module):
    """KCal-Linear's Π: batch norm and a linear map h → d without bias, started small."""

    def __init__(self, n_features: int, dimension: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.reduce = nn.Linear(n_features, dimension, bias=False)
        with torch.no_grad():
            self.reduce.weight /= max(dimension / 2, 1.0)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, d)."""
        mapped: torch.Tensor = self.reduce(self.norm(embeddings))
        return mapped


ARCHITECTURES: dict[str, type[nn.Module]] = {"skip": SkipProjection, "linear": LinearProjection}


def build_projection(name: str, n_features: int, dimension: int, seed: int) -> nn.Module:
    """Return a projection of the table with weights drawn from ``seed``, leaving the global generator as it was."""
    if name not in ARCHITECTURES:
        names = ", ".join(repr(known) for known in (*ARCHITECTURES, "identity"))
        raise InvalidInputError(f"projection must be {names}, a trained projection or an nn.Module; got {name!r}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ARCHITECTURES[name](n_features, dimension)


def choose_dimension(dimension: int | str, n_features: int) -> int:
    """Return d: the number given, or min(h, 32) for "auto"."""
    if dimension == "auto":
        return min(n_features, 32)
    if not isinstance(dimension, int) or isinstance(dimension, bool) or dimension < 1:
        raise InvalidInputError(f'dimension must be a positive integer or "auto"; got {dimension!r}.')
    return dimension


def project(module: nn.Module, embeddings: torch.Tensor) -> torch.Tensor:
    """Return Π(embeddings) in evaluation mode, a part at a time, as (n, d); the module's mode is left as it was."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            parts = [module(rows) for rows in embeddings.split(ROWS_AT_ONCE)]
    finally:
        module.train(was_training)
    projected = torch.cat(parts)
    if projected.ndim != 2 or projected.shape[0] != embeddings.shape[0]:
        raise InvalidInputError(
            f"the projection must map (n, {embeddings.shape[1]}) to (n, d); "
            f"it mapped {tuple(embeddings.shape)} to {tuple(projected.shape)}."
        )
    if not bool(torch.isfinite(projected).all()):
        raise InvalidInputError("the projection gave NaN or infinity; train it with a smaller learning rate.")
    return projected
