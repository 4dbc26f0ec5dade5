"""Write a fitted KCal as JSON values and tensors, and read it back with every part checked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.base import CalibratorState, LoadArgumentError, decode_classes
from kcal.calibrators.kcal.model import KCalModel
from kcal.calibrators.prior import check_prior
from kcal.errors import FileFormatError, InvalidInputError
from kcal.kernels import KERNELS, BandwidthCurve, SortedSupport
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED, Recipe, TrainingCurve, build_projection, project

OWN_MODULE = "module"
"""Marks a projection whose architecture is the caller's: only its tensors are stored."""
LOG_ZERO = -1e4
"""Stored in place of the logarithm of a weight of 0."""

Tensors = dict[str, torch.Tensor]


def model_state(model: KCalModel) -> tuple[dict[str, Any], Tensors]:
    """Return the values and tensors of a model."""
    values = {
        "bandwidth": model.bandwidth,
        "kernel": model.kernel,
        "frequencies": model.frequencies,
        "prior": model.prior,
        "smoothing": model.smoothing,
        "projection": architecture_of(model.projection),
    }
    tensors = support_tensors(model.support) | projection_tensors(model.projection)
    if model.groups is not None:
        tensors["support.groups"] = model.groups
    return values, tensors


def model_from_state(state: CalibratorState, projection: nn.Module | None) -> KCalModel:
    """Return the model that the values and tensors describe."""
    values, tensors = state.values, state.tensors
    n_classes = len(values["classes"]["labels"])
    support = read_support(tensors, n_classes)
    groups = tensors.get("support.groups")
    if groups is not None and (groups.dtype != torch.int64 or groups.shape != (len(support),)):
        raise FileFormatError("the stored groups are damaged.")
    if values["kernel"] not in KERNELS or not 0 <= values["smoothing"] < 1:
        raise FileFormatError("the stored kernel or smoothing is damaged.")
    module = read_projection(values["projection"], tensors, values["n_features"], support, projection)
    return KCalModel(
        module,
        support,
        read_positive(values["bandwidth"], "bandwidth"),
        values["kernel"],
        read_frequencies(values["frequencies"], n_classes),
        prior=None if values["prior"] is None else read_frequencies(values["prior"], n_classes),
        smoothing=float(values["smoothing"]),
        groups=groups,
    )


def stored_parameters(parameters: dict[str, Any], classes: NDArray[Any]) -> dict[str, Any]:
    """Return constructor parameters in a form that JSON can represent."""
    stored = dict(parameters)
    if stored["projection"] is not None and not isinstance(stored["projection"], str):
        stored["projection"] = OWN_MODULE
    if not isinstance(stored["recipe"], str):
        name = next(name for name, kind in RECIPES.items() if type(stored["recipe"]) is kind)
        stored["recipe"] = {"name": name, **asdict(stored["recipe"])}
    if stored["prior"] is not None and not isinstance(stored["prior"], str):
        stored["prior"] = check_prior(stored["prior"], classes)  # JSON has text keys only
    return stored


@contextmanager
def damaged_parameters() -> Iterator[None]:
    """Turn the error of a stored parameter into one of the file."""
    try:
        yield
    except InvalidInputError as error:
        raise FileFormatError(f"a stored parameter is damaged: {error}") from error


def read_parameters(stored: dict[str, Any], module: nn.Module | None) -> dict[str, Any]:
    """Return constructor parameters from :func:`stored_parameters`; ``module`` replaces a projection of one's own."""
    pairs = ("bandwidth_interval", "bandwidth_reference", "bandwidth_factors")
    tuples = {name: tuple(stored[name]) for name in pairs if isinstance(stored.get(name), list)}
    parameters = {**stored, **tuples}
    parameters["recipe"] = read_recipe(stored["recipe"])
    if stored["projection"] == OWN_MODULE:
        parameters["projection"] = module
    return parameters


def read_recipe(stored: Any) -> str | Recipe:
    """Return a recipe by name, or with its own numbers."""
    if isinstance(stored, str):
        return stored
    numbers = dict(stored)
    return RECIPES[numbers.pop("name")](**numbers)


def read_curves(values: dict[str, Any]) -> tuple[BandwidthCurve | None, TrainingCurve | None]:
    """Return the curves of the bandwidth search and of the training."""
    search, training = values["bandwidth_curve"], values["training_curve"]
    if search is not None:
        arrays = {name: np.array(search[name], dtype=np.float64) for name in ("bandwidths", "losses")}
        search = BandwidthCurve(**{**search, **arrays})
    if training is not None:
        training = TrainingCurve(**{name: tuple(entries) for name, entries in training.items()})
    return search, training


def read_indices(state: CalibratorState, n_support: int) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Return the rows of ``X`` that are support, and their identifiers."""
    indices, ids = state.tensors["support.indices"], state.values["ids"]
    names = None if ids is None else decode_classes(ids)
    if indices.dtype != torch.int64 or indices.shape != (n_support,) or bool((indices < 0).any()):
        raise FileFormatError("the stored row numbers of the support are damaged.")
    if names is not None and len(names) != n_support:
        raise FileFormatError("the stored identifiers are damaged.")
    return indices.numpy(), names


def support_tensors(support: SortedSupport, prefix: str = "support") -> Tensors:
    """Return the tensors of a support."""
    tensors = {"points": support.points, "codes": support.codes, "order": support.order}
    if support.log_weights is not None:  # −inf for a weight of 0; stored numbers are finite
        tensors["log_weights"] = support.log_weights.clamp_min(LOG_ZERO)
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def read_support(tensors: Tensors, n_classes: int, prefix: str = "support") -> SortedSupport:
    """Return the support that :func:`support_tensors` wrote."""
    points, codes, order = (tensors[f"{prefix}.{name}"] for name in ("points", "codes", "order"))
    log_weights, n = tensors.get(f"{prefix}.log_weights"), len(points)
    intact = (
        points.ndim == 2
        and points.numel() > 0
        and points.dtype in (torch.float32, torch.float64)
        and bool(torch.isfinite(points).all())
        and codes.dtype == order.dtype == torch.int64
        and codes.shape == order.shape == (n,)
        and int(codes[0]) >= 0
        and int(codes[-1]) < n_classes
        and bool((codes.diff() >= 0).all())
        and torch.equal(order.sort().values, torch.arange(n))
    )
    if log_weights is not None:
        intact = intact and log_weights.dtype == points.dtype and log_weights.shape == (n,)
        intact = intact and bool(torch.isfinite(log_weights).all())
    if not intact:
        raise FileFormatError("the stored support is damaged: its parts do not fit together.")
    if log_weights is not None:
        log_weights = log_weights.masked_fill(log_weights <= LOG_ZERO, -torch.inf)
    return SortedSupport(points, codes, log_weights, order, n_classes)


def architecture_of(module: nn.Module) -> str:
    """Return the name of a projection's architecture; ``OWN_MODULE`` if it is not one of kcal's."""
    known = UNTRAINED | ARCHITECTURES
    return next((name for name, kind in known.items() if type(module) is kind), OWN_MODULE)


def projection_tensors(module: nn.Module, prefix: str = "projection") -> Tensors:
    """Return the tensors of a projection."""
    return {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def read_projection(
    architecture: str,
    tensors: Tensors,
    n_features: int,
    support: SortedSupport,
    given: nn.Module | None,
    prefix: str = "projection",
) -> nn.Module:
    """Return the projection that :func:`projection_tensors` wrote; ``given`` is the module if it is the caller's."""
    if architecture == OWN_MODULE and given is None:
        raise LoadArgumentError(
            "projection",
            "is needed: this calibrator uses a module of your own, of which only the tensors are stored",
            remedy="Build the module again and pass it: kcal.load(path, projection=module).",
        )
    if architecture != OWN_MODULE and given is not None:
        raise LoadArgumentError(
            "projection", f'is not needed: a "{architecture}" projection is stored whole', remedy="Leave it out."
        )
    if architecture in UNTRAINED:
        module = UNTRAINED[architecture]()
    elif given is not None:
        module = deepcopy(given)
    else:
        if tensors[f"{prefix}.reduce.weight"].shape != (support.dimension, n_features):
            raise FileFormatError("the stored projection does not fit its support.")
        module = build_projection(architecture, n_features, support.dimension, seed=0)
    module = module.to(dtype=support.points.dtype)  # before loading, or float64 would pass through float32
    start = f"{prefix}."
    try:
        module.load_state_dict({k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)})
    except RuntimeError as error:
        raise FileFormatError(f"the stored projection does not fit: {error}") from error
    module = module.eval().requires_grad_(False)
    if project(module, support.points.new_zeros(1, n_features)).shape[1] != support.dimension:
        raise FileFormatError("the stored projection does not lead to the space of the stored support.")
    return module


def read_frequencies(values: Any, n_classes: int) -> NDArray[np.float64]:
    """Return class frequencies, (n_classes,)."""
    frequencies = np.array(values, dtype=np.float64)
    if frequencies.shape != (n_classes,) or not (frequencies >= 0).all() or not abs(frequencies.sum() - 1) < 1e-6:
        raise FileFormatError("the stored class frequencies are damaged.")
    return frequencies


def read_positive(value: Any, name: str) -> float:
    """Return a positive finite number."""
    if not (isinstance(value, int | float) and 0 < value < np.inf):
        raise FileFormatError(f"the stored {name} is damaged: it must be positive; got {value!r}.")
    return float(value)
