"""The projection Π: the network that maps an embedding to the space in which the kernel measures distances."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import nn

from kcal.errors import InvalidInputError
from kcal.kernels import START_SPREAD
from kcal.threads import map_blocks
from kcal.validation import check_choice, check_integer

ROWS_AT_ONCE = 16_384
FEW_ROWS = 64
"""Rows that are projected at once, without threads."""
MAX_DIMENSION = 16_384
SAME_POINT = 1e-3
"""Relative difference up to which projected points are the same: rounding must not decide."""


class NormalisedReduction(nn.Module):
    """Base of the built-in projections: batch norm on the embedding, then a linear map h → d.

    With ``unit_length`` an embedding is first divided by its length: only its direction matters.
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
        """Initialise with the principal axes of the embeddings, scaled so that b = 1 is a fair bandwidth.

        These are the axes of the standardised embeddings or, with ``unit_length``, of the directions without
        standardisation, since their features are comparable.
        """
        rows = at_unit_length(embeddings) if self.unit_length else embeddings
        mean, variance = rows.mean(dim=0), rows.var(dim=0, correction=0)
        deviations = torch.sqrt(variance + self.norm.eps)
        scales = deviations if self.unit_length else torch.ones_like(deviations)
        axes, variances = _principal_axes((rows - mean) * (scales / deviations), self.reduce)
        mean_square = 2.0 * variances.sum() / self.reduce.out_features  # of the distance of two samples, per dimension
        self.norm.get_buffer("running_mean").copy_(mean)
        self.norm.get_buffer("running_var").copy_(variance)
        self.reduce.weight.zero_()
        self.reduce.weight[: len(axes)] = axes * scales * torch.sqrt(START_SPREAD / mean_square.clamp_min(1e-12))
        if self.reduce.bias is not None:
            self.reduce.bias.zero_()


def at_unit_length(embeddings: torch.Tensor) -> torch.Tensor:
    """Return rows divided by their length, without overflow; a row of zeros stays as it is."""
    largest = embeddings.abs().amax(dim=1, keepdim=True)
    scaled = embeddings / torch.where(largest > 0, largest, 1.0)  # gradients of a row of zeros are finite
    lengths: torch.Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / torch.where(lengths > 0, lengths, 1.0)


def elu(values: torch.Tensor) -> torch.Tensor:
    """Return x above 0 and exp(x) − 1 below; torch's own operator has no double precision in onnxruntime."""
    return torch.where(values > 0, values, torch.expm1(values.clamp_max(0.0)))


def _principal_axes(centred: torch.Tensor, reduce: nn.Linear) -> tuple[torch.Tensor, torch.Tensor]:
    """Return at most d leading axes, (≤ d, h), with fixed signs, and the variances along them."""
    covariance = (centred.T @ centred / len(centred)).cpu().double()
    variances, vectors = torch.linalg.eigh(covariance)
    count = min(reduce.out_features, len(variances))
    axes = vectors.flip(1)[:, :count].T
    axes = axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()
    return axes.to(centred), variances.flip(0)[:count].clamp_min(0.0).to(centred)


class ResidualProjection(NormalisedReduction):
    """The paper's Π: batch norm, a linear map h → d, then x + W·ELU(x)."""

    def __init__(self, n_features: int, dimension: int) -> None:
        super().__init__(n_features, dimension, bias=True)
        self.bend = nn.Linear(dimension, dimension, bias=False)

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, d)."""
        reduced = super().forward(embeddings)
        bent: torch.Tensor = self.bend(elu(reduced))
        return reduced + bent

    @torch.no_grad()
    def start_from(self, embeddings: torch.Tensor) -> None:
        """Initialise with the principal axes and without the nonlinear part."""
        super().start_from(embeddings)
        self.bend.weight.zero_()


class LinearProjection(NormalisedReduction):
    """KCal-Linear's Π: batch norm and a linear map h → d without bias, with small initial weights."""

    def __init__(self, n_features: int, dimension: int) -> None:
        super().__init__(n_features, dimension, bias=False)
        with torch.no_grad():
            self.reduce.weight /= max(dimension / 2, 1.0)


class UnitLength(nn.Module):
    """Divide embeddings by their length: only their direction matters, and there is nothing to learn."""

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Map (n, h) to (n, h)."""
        return at_unit_length(embeddings)


OWN_MODULE = "module"
"""Stands for a projection whose architecture is the caller's: only its tensors are stored."""
UNTRAINED: dict[str, type[nn.Module]] = {"identity": nn.Identity, "unit": UnitLength}
"""Projections without parameters."""
ARCHITECTURES: dict[str, type[nn.Module]] = {"residual": ResidualProjection, "linear": LinearProjection}
BUILT_IN = ARCHITECTURES | UNTRAINED


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's generators, and restore their state afterwards, on every device."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        on_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
        torch.manual_seed(seed)
        try:
            yield
        finally:
            if on_mps is not None:
                torch.mps.set_rng_state(on_mps)


def needs_training(projection: Any) -> bool:
    """Return whether a ``projection`` parameter asks for training: an architecture, or a module that is not frozen."""
    if isinstance(projection, nn.Module):
        return any(parameter.requires_grad for parameter in projection.parameters())
    return isinstance(projection, str) and projection not in UNTRAINED


def build_projection(name: str, n_features: int, dimension: int, seed: int = 0) -> nn.Module:
    """Return a built-in projection with weights drawn from ``seed``; the global generator is not changed."""
    check_choice(name, "projection", tuple(BUILT_IN))
    with seeded(seed):
        return UNTRAINED[name]() if name in UNTRAINED else ARCHITECTURES[name](n_features, dimension)


def architecture_of(module: nn.Module) -> str:
    """Return the name of the architecture of a projection: one of kcal's, or "module" for one of the caller's own."""
    return next((name for name, kind in BUILT_IN.items() if type(module) is kind), OWN_MODULE)


def check_dimension(dimension: Any) -> int | None:
    """Return the dimension, None for "auto"; raise if it is neither "auto" nor an integer within bounds."""
    if isinstance(dimension, str) and dimension == "auto":
        return None
    return check_integer(dimension, "dimension", minimum=1, maximum=MAX_DIMENSION)


def choose_dimension(dimension: int | str, n_features: int, largest: int) -> int:
    """Return d: the given number, which is at most h, or min(h, largest) for "auto"."""
    given = check_dimension(dimension)
    if given is not None and given > n_features:
        expected = f"must be at most the number of features of the embeddings, {n_features:,}"
        raise InvalidInputError("dimension", expected, got=f"{given:,}")
    return min(n_features, largest) if given is None else given


def project(module: nn.Module, embeddings: torch.Tensor) -> torch.Tensor:
    """Return Π(embeddings), (n, d), computed in blocks in evaluation mode; the module's mode is restored."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            if len(embeddings) <= FEW_ROWS:
                parts = [module(embeddings)]
            else:
                parts = map_blocks(module, torch.split(embeddings, ROWS_AT_ONCE), embeddings.device)
    except RuntimeError as error:
        raise InvalidInputError(
            "projection", f"must take embeddings of {embeddings.shape[1]} features", got=f"this error from it: {error}"
        ) from error
    finally:
        for part in training:
            part.training = True
    projected = parts[0] if len(parts) == 1 else torch.cat(parts)
    if projected.ndim != 2 or projected.shape[0] != embeddings.shape[0]:
        raise InvalidInputError(
            "projection",
            f"must map (n, {embeddings.shape[1]}) to (n, d)",
            got=f"{tuple(embeddings.shape)} mapped to {tuple(projected.shape)}",
        )
    if projected.numel() and not all(isfinite(float(end)) for end in torch.aminmax(projected)):  # NaN if there is any
        raise InvalidInputError(
            "projection", "must give finite numbers", got="NaN or infinity", remedy="Train it with a smaller rate."
        )
    return projected


def log_lengths(embeddings: torch.Tensor) -> torch.Tensor:
    """Return the logarithms of the lengths of embeddings, (n,), in float64."""
    lengths: torch.Tensor = torch.linalg.vector_norm(embeddings.double(), dim=1)
    return lengths.log()


def ignores_length(module: nn.Module, embeddings: torch.Tensor) -> bool:
    """Return whether a projection maps embeddings and their halves to the same points."""
    points, halves = project(module, embeddings), project(module, embeddings / 2)
    return bool((points - halves).abs().max() <= SAME_POINT * (points - points.mean(dim=0)).abs().max())
