"""Write a fitted KCal as JSON values and tensors, and read it back.

The checksum of a file covers damage; what is checked here is that the parts have shapes that fit together.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.calibrators.base import CalibratorState, LoadArgumentError, decode_classes
from kcal.calibrators.kcal.model import KCalModel, KernelEstimate
from kcal.calibrators.prior import check_prior
from kcal.errors import FileFormatError
from kcal.kernels import BandwidthCurve, SortedSupport, get_kernel
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED, TrainingCurve, build_projection, project
from kcal.validation import check_number

OWN_MODULE = "module"
"""Marks a projection whose architecture is the caller's: only its tensors are stored."""

Tensors = dict[str, torch.Tensor]


def model_state(model: KCalModel) -> tuple[dict[str, Any], Tensors]:
    """Return the values and tensors of a model."""
    values, tensors = estimate_state(model)
    values |= {"frequencies": model.frequencies, "prior": model.prior, "smoothing": model.smoothing}
    return values, tensors if model.groups is None else tensors | {"support.groups": model.groups}


def model_from_state(state: CalibratorState, projection: nn.Module | None) -> KCalModel:
    """Return the model that the values and tensors describe; ``projection`` as in :func:`read_estimate`."""
    values, estimate = state.values, read_estimate(state.values, state, projection)
    groups = state.tensors.get("support.groups")
    if groups is not None and groups.shape != estimate["support"].codes.shape:
        raise FileFormatError("the stored groups do not fit the support.")
    return KCalModel(
        **estimate,
        frequencies=read_frequencies(state, "frequencies"),
        prior=None if values["prior"] is None else read_frequencies(state, "prior"),
        smoothing=check_number(values["smoothing"], "smoothing", minimum=0, maximum=1),
        groups=groups,
    )


def estimate_state(estimate: KernelEstimate, prefix: str = "") -> tuple[dict[str, Any], Tensors]:
    """Return the values and tensors of a kernel density estimate."""
    kinds, module = UNTRAINED | ARCHITECTURES, estimate.projection
    architecture = next((name for name, kind in kinds.items() if type(module) is kind), OWN_MODULE)
    values = {"bandwidth": estimate.bandwidth, "kernel": estimate.kernel, "projection": architecture}
    parts = {name: getattr(estimate.support, name) for name in ("points", "codes", "order", "log_weights")}
    tensors = {f"{prefix}support.{name}": part for name, part in parts.items() if part is not None}
    return values, tensors | {f"{prefix}projection.{name}": part for name, part in module.state_dict().items()}


def read_estimate(
    stored: dict[str, Any], state: CalibratorState, given: nn.Module | None, prefix: str = ""
) -> dict[str, Any]:
    """Return the fields of a stored :class:`KernelEstimate`; ``given`` is its projection if that is the caller's."""
    tensors, n_features = state.tensors, state.values["n_features"]
    points, codes, order = (tensors[f"{prefix}support.{name}"] for name in ("points", "codes", "order"))
    log_weights, n_classes = tensors.get(f"{prefix}support.log_weights"), len(state.values["classes"]["labels"])
    rows = [part for part in (codes, order, log_weights) if part is not None]
    fits = points.ndim == 2 and all(part.shape == points.shape[:1] for part in rows)
    if not fits or codes.dtype != torch.int64 or not 0 <= int(codes.min()) <= int(codes.max()) < n_classes:
        raise FileFormatError("the stored support is damaged: its parts do not fit together.")
    module = _empty_projection(stored["projection"], n_features, points.shape[1], given).to(dtype=points.dtype)
    start = f"{prefix}projection."
    try:
        module.load_state_dict({k.removeprefix(start): t for k, t in tensors.items() if k.startswith(start)})
    except RuntimeError as error:
        raise FileFormatError(f"the stored projection does not fit: {error}") from error
    module = module.eval().requires_grad_(False)
    if project(module, points.new_zeros(1, n_features)).shape[1] != points.shape[1]:
        raise FileFormatError("the stored projection does not lead to the space of the stored support.")
    return {
        "projection": module,
        "support": SortedSupport(points, codes, log_weights, order, n_classes),
        "bandwidth": check_number(stored["bandwidth"], "bandwidth", minimum=0, exclusive=True),
        "kernel": get_kernel(stored["kernel"]).name,
    }


def _empty_projection(architecture: str, n_features: int, dimension: int, given: nn.Module | None) -> nn.Module:
    """Return a projection that can receive the stored tensors: one of kcal's, or a copy of the caller's."""
    if architecture == OWN_MODULE:
        if given is None:
            raise LoadArgumentError(
                "projection",
                "is needed: this calibrator uses a module of your own, of which only the tensors are stored",
                remedy="Build the module again and pass it: kcal.load(path, projection=module).",
            )
        return deepcopy(given)
    if given is not None:
        raise LoadArgumentError(
            "projection", f'is not needed: a "{architecture}" projection is stored whole', remedy="Leave it out."
        )
    if architecture in UNTRAINED:
        return UNTRAINED[architecture]()
    return build_projection(architecture, n_features, dimension, seed=0)


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


def read_parameters(stored: dict[str, Any], projection: nn.Module | str) -> dict[str, Any]:
    """Return constructor parameters from :func:`stored_parameters`; ``projection`` replaces one of the caller's."""
    sequences = ("bandwidth_interval", "bandwidth_reference", "bandwidth_factors")
    parameters = stored | {name: tuple(stored[name]) for name in sequences if isinstance(stored.get(name), list)}
    if not isinstance(stored["recipe"], str):
        numbers = dict(stored["recipe"])
        parameters["recipe"] = RECIPES[numbers.pop("name")](**numbers)
    if stored["projection"] == OWN_MODULE:
        parameters["projection"] = projection
    return parameters


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
    indices, ids = state.tensors["support.indices"].numpy(), state.values["ids"]
    names = None if ids is None else decode_classes(ids)
    if len(indices) != n_support or (names is not None and len(names) != n_support):
        raise FileFormatError("the stored row numbers or identifiers do not fit the support.")
    return indices, names


def read_frequencies(state: CalibratorState, name: str) -> NDArray[np.float64]:
    """Return stored class frequencies, (n_classes,)."""
    frequencies = np.array(state.values[name], dtype=np.float64)
    if frequencies.shape != (len(state.values["classes"]["labels"]),):
        raise FileFormatError(f"the stored {name} do not fit the classes.")
    return frequencies
