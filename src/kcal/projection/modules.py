"""The network Π that maps an embedding to the space in which the kernel measures distances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral

import torch
from torch import nn

from kcal.errors import InvalidInputError

ROWS_AT_ONCE = 16_384
START_SPREAD = 40.0
"""Mean squared distance per dimension at the start; the best bandwidth then lies near 1 on real networks."""


class NormalisedReduction(nn.Module):
    """What the projections of the table share: batch norm on the embedding, then a linear map h → d.

    With ``unit_length`` an embedding is divided by its length first, so that only its direction counts.
    """

    unit_length: torch.Tensor

    def __init__(self, n_features: int, dimension: int, *, bias: bool) -> None:
        super().__init__()
        self.register_buffer("unit_length", torch.tensor(False))
        self.norm = nn.BatchNorm1d(n_features)
        self.reduce = nn.Linear(n_features, dimension, bias=bias)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, d)."""
        rows = torch.where(self.unit_length, at_unit_length(embeddings), embeddings)
        reduced: torch.Tensor = self.reduce(self.norm(rows))
        return reduced

    @torch.no_grad()
    def start_from(self, embeddings: torch.Tensor) -> None:
        """Start as the principal axes of the embeddings, spread so that b = 1 is a fair bandwidth.

        They are the axes of the standardised embeddings, or with ``unit_length`` those of the directions as they are,
        whose features are comparable already.
        """
        rows = at_unit_length(embeddings) if self.unit_length else embeddings
        mean, variance = rows.mean(dim=0), rows.var(dim=0, correction=0)
        deviations = torch.sqrt(variance + self.norm.eps)
        scales = deviations if self.unit_length else torch.ones_like(deviations)
        axes, variances = _principal_axes((rows - mean) * (scales / deviations), self.reduce)
        mean_square = 2.0 * variances.sum() / self.reduce.out_features  # of the distance of two samples, per dimension
        self.norm.running_mean.copy_(mean)  # type: ignore[union-attr]
        self.norm.running_var.copy_(variance)  # type: ignore[union-attr]
        self.reduce.weight.zero_()
        self.reduce.weight[: len(axes)] = axes * scales * torch.sqrt(START_SPREAD / mean_square.clamp_min(1e-12))
        if self.reduce.bias is not None:
            self.reduce.bias.zero_()


def at_unit_length(embeddings: torch.Tensor) -> torch.Tensor:
    """Return rows divided by their length; a row of zeros stays one, and no square overflows."""
    tiny = torch.finfo(embeddings.dtype).tiny
    scaled = embeddings / embeddings.abs().amax(dim=1, keepdim=True).clamp_min(tiny)
    directions: torch.Tensor = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp_min(tiny)
    return directions


def _principal_axes(centred: torch.Tensor, reduce: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the leading axes, (d or fewer, h), and the variances along them; signs are fixed."""
    covariance = (centred.T @ centred / len(centred)).cpu().double()
    variances, vectors = torch.linalg.eigh(covariance)
    count = min(reduce.out_features, len(variances))
    axes = vectors.flip(1)[:, :count].T
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    return axes.to(centred), variances.flip(0)[:count].clamp_min(0.0).to(centred)


class SkipProjection(NormalisedReduction):
    """The paper's Π: batch norm, a linear map h → d, then x + W·ELU(x)."""

    def __init__(self, n_features: int, dimension: int) -> None:
        super().__init__(n_features, dimension, bias=True)
        self.bend = nn.Linear(dimension, dimension, bias=False)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, d)."""
        reduced = super().forward(embeddings)
        bent: torch.Tensor = self.bend(nn.functional.elu(reduced))
        return reduced + bent

    @torch.no_grad()
    def start_from(self, embeddings: torch.Tensor) -> None:
        """Start as the principal axes, unbent."""
        super().start_from(embeddings)
        self.bend.weight.zero_()


class LinearProjection(NormalisedReduction):
    """KCal-Linear's Π: batch norm and a linear map h → d without bias, started small."""

    def __init__(self, n_features: int, dimension: int) -> None:
        super().__init__(n_features, dimension, bias=False)
        with torch.no_grad():
            self.reduce.weight /= max(dimension / 2, 1.0)


class UnitLength(nn.Module):
    """Nothing to learn: embeddings divided by their length, so that only their direction counts."""

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, h)."""
        return at_unit_length(embeddings)


UNTRAINED: dict[str, type[nn.Module]] = {"identity": nn.Identity, "unit": UnitLength}
"""Projections that have nothing to learn."""
ARCHITECTURES: dict[str, type[nn.Module]] = {"skip": SkipProjection, "linear": LinearProjection}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, and leave them afterwards as they were, on every device."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        on_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        torch.manual_seed(seed)
        try:
            yield
        finally:
            if on_mps is not None:
                torch.mps.set_rng_state(on_mps)


def build_projection(name: str, n_features: int, dimension: int, seed: int) -> nn.Module:
    """Return a projection of the table with weights drawn from ``seed``, leaving the global generator as it was."""
    if name not in ARCHITECTURES:
        names = ", ".join(repr(known) for known in (*ARCHITECTURES, *UNTRAINED))
        raise InvalidInputError(f"projection must be {names}, a trained projection or an nn.Module; got {name!r}.")
    with seeded(seed):
        return ARCHITECTURES[name](n_features, dimension)


def choose_dimension(dimension: int | str, n_features: int, largest: int) -> int:
    """Return d: the number given, or min(h, largest) for "auto"."""
    if dimension == "auto":
        return min(n_features, largest)
    if not isinstance(dimension, Integral) or isinstance(dimension, bool) or dimension < 1:
        raise InvalidInputError(f'dimension must be a positive integer or "auto"; got {dimension!r}.')
    return int(dimension)


def project(module: nn.Module, embeddings: torch.Tensor) -> torch.Tensor:
    """Return Π(embeddings) in evaluation mode, a part at a time, as (n, d); the module's mode is left as it was."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            parts = [module(rows) for rows in torch.split(embeddings, ROWS_AT_ONCE)]
    except RuntimeError as error:
        raise InvalidInputError(
            f"the projection does not take embeddings of {embeddings.shape[1]} features: {error}"
        ) from error
    finally:
        for part, mode in modes.items():
            part.training = mode
    projected = torch.cat(parts)
    if projected.ndim != 2 or projected.shape[0] != embeddings.shape[0]:
        raise InvalidInputError(
            f"the projection must map (n, {embeddings.shape[1]}) to (n, d); "
            f"it mapped {tuple(embeddings.shape)} to {tuple(projected.shape)}."
        )
    if not bool(torch.isfinite(projected).all()):
        raise InvalidInputError("the projection gave NaN or infinity; train it with a smaller learning rate.")
    return projected
