"""Write the parts of a fitted KCal as JSON values and tensors, and read them back.

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
from kcal.calibrators.model_state import Stored, Tensors
from kcal.calibrators.online.updates import BandwidthRecord, Updates
from kcal.calibrators.prior import check_prior
from kcal.errors import FileFormatError
from kcal.kernels import BandwidthCurve, SortedSupport
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED, Recipe, TrainingCurve, build_projection, project

OWN_MODULE = "module"
"""Marks a projection whose architecture is the caller's: only its tensors are stored."""


def support_state(support: SortedSupport) -> tuple[None, Tensors]:
    """Return the tensors of a support."""
    parts = {name: getattr(support, name) for name in ("points", "codes", "order", "log_weights")}
    return None, {name: part for name, part in parts.items() if part is not None}


def read_support(stored: Stored, name: str) -> SortedSupport:
    """Return a stored support; its parts must fit together."""
    dtype = stored.tensors[f"{name}.points"].dtype
    points = stored.tensor(f"{name}.points", ("support", "dimension"), dtype)
    codes, order = (stored.tensor(f"{name}.{part}", ("support",), torch.int64) for part in ("codes", "order"))
    weighted = f"{name}.log_weights" in stored.tensors
    log_weights = stored.tensor(f"{name}.log_weights", ("support",), dtype) if weighted else None
    if not 0 <= int(codes.min()) <= int(codes.max()) < stored.n_classes:
        raise FileFormatError("the stored support does not fit the classes.")
    return SortedSupport(points, codes, log_weights, order, stored.n_classes)


def projection_state(module: nn.Module) -> tuple[str, Tensors]:
    """Return the architecture and the tensors of a projection."""
    kinds = UNTRAINED | ARCHITECTURES
    return next((name for name, kind in kinds.items() if type(module) is kind), OWN_MODULE), module.state_dict()


def read_projection(stored: Stored, name: str) -> nn.Module:
    """Return a stored projection, one of kcal's or a copy of the caller's; it must lead to the stored support."""
    points = stored.tensors["support.points"]
    module = read_module(stored, name, (stored.n_features, points.shape[-1]), points.dtype)
    if project(module, points.new_zeros(1, stored.n_features)).shape[1:] != points.shape[1:]:
        raise FileFormatError("the stored projection does not lead to the space of the stored support.")
    return module


def read_module(stored: Stored, name: str, sizes: tuple[int, int], dtype: torch.dtype) -> nn.Module:
    """Return a stored module, frozen: one of kcal's of the ``sizes`` (h, d), or a copy of the caller's."""
    part = stored.part(name, stored.values[name])
    if part.values == OWN_MODULE:
        if stored.projection is None:
            raise LoadArgumentError(
                "projection",
                "is needed: the projection is a module of your own, of which only the tensors are stored",
                remedy="Build the module again and pass it: kcal.load(path, projection=module).",
            )
        module = deepcopy(stored.projection)
    elif part.values in UNTRAINED:
        module = UNTRAINED[part.values]()
    else:
        module = build_projection(part.values, *sizes, seed=0)
    module = module.to(dtype=dtype)
    try:
        module.load_state_dict(part.tensors)
    except RuntimeError as error:
        raise FileFormatError(f"the stored projection does not fit: {error}") from error
    return module.eval().requires_grad_(False)


def refuse_unused_projection(projection: nn.Module | None, architecture: str) -> None:
    """Raise if a module was given, and the projection is stored whole."""
    if projection is not None and architecture != OWN_MODULE:
        raise LoadArgumentError(
            "projection", f'is not needed: "{architecture}" is stored whole', remedy="Leave it out."
        )


def stored_parameters(parameters: dict[str, Any], classes: NDArray[Any]) -> dict[str, Any]:
    """Return constructor parameters in a form that JSON can represent."""
    stored = dict(parameters)
    stored.pop("head", None)  # of a blend; its model has it
    if not isinstance(stored.get("projection", ""), str):
        stored["projection"] = OWN_MODULE
    if not isinstance(stored.get("recipe", ""), str):
        stored["recipe"] = stored_recipe(stored["recipe"])
    if stored["updates"] is not None:
        stored["updates"] = asdict(stored["updates"])
    prior = check_prior(stored["prior"], classes)
    if prior is not None and not isinstance(stored["prior"], str):
        stored["prior"] = prior.tolist()  # a mapping would need text as keys
    return stored


def stored_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the name and the numbers of a recipe."""
    name = next(name for name, kind in RECIPES.items() if type(recipe) is kind)
    return {"name": name, **asdict(recipe)}


def read_recipe(stored: dict[str, Any]) -> Recipe:
    """Return the recipe that :func:`stored_recipe` wrote."""
    numbers = dict(stored)
    return RECIPES[numbers.pop("name")](**numbers)


def read_parameters(stored: dict[str, Any], model: Any) -> dict[str, Any]:
    """Return constructor parameters from :func:`stored_parameters`; a projection of the caller's is the model's."""
    sequences = ("bandwidth_interval", "bandwidth_reference")
    parameters = stored | {name: tuple(stored[name]) for name in sequences if isinstance(stored.get(name), list)}
    if not isinstance(stored.get("recipe", ""), str):
        parameters["recipe"] = read_recipe(stored["recipe"])
    if stored["updates"] is not None:
        parameters["updates"] = Updates(**stored["updates"])
    if stored.get("projection") == OWN_MODULE:
        parameters["projection"] = model.projection
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


def read_history(stored: list[dict[str, Any]]) -> tuple[BandwidthRecord, ...]:
    """Return the records of the bandwidths."""
    history = tuple(BandwidthRecord(**{**record, "classes": tuple(record["classes"])}) for record in stored)
    for record in history:
        counts = (record.n_samples, record.n_classes, record.n_updates)
        numbers = (record.bandwidth, record.size)
        valid = all(type(count) is int for count in counts) and all(type(number) in (int, float) for number in numbers)
        if not valid or min(*counts, *numbers) < 0 or record.source not in ("search", "law", "given"):
            raise FileFormatError("the stored history of the bandwidth is damaged.")
    return history


def read_indices(state: CalibratorState, n_support: int) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Return the rows of ``X`` that are support, and their identifiers; none if the support was compressed."""
    if state.values["records"] is None:
        return np.empty(0, dtype=np.int64), None
    indices, ids = state.tensors["support.indices"].numpy(), state.values.get("ids")
    names = None if ids is None else decode_classes(ids)
    if len(indices) != n_support or (names is not None and len(names) != n_support):
        raise FileFormatError("the stored row numbers or identifiers do not fit the support.")
    return indices, names
