"""Taking a fitted KCal apart into JSON and tensors, and putting it together again."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import CalibratorState, LoadArgumentError, decode_classes, encode_classes, plain
from kcal.calibrators.kcal.parameters import check_parameters
from kcal.calibrators.prior import check_prior
from kcal.errors import FileFormatError, InvalidInputError
from kcal.kernels import BandwidthCurve
from kcal.projection import ARCHITECTURES, RECIPES, UNTRAINED, Recipe, TrainingCurve, build_projection, project
from kcal.validation import ArrayKind

if TYPE_CHECKING:
    from kcal.calibrators.kcal.estimator import KCal

OWN_MODULE = "module"
"""Marks a projection whose architecture is the caller's: only its tensors are stored."""


def describe(calibrator: KCal) -> CalibratorState:
    """Return the parameters, values and tensors of a fitted KCal."""
    tensors = {
        "support.points": calibrator._points,
        "support.codes": calibrator._codes,
        "support.indices": torch.from_numpy(calibrator.support_indices_),
    }
    if calibrator._weights is not None:
        tensors["support.weights"] = calibrator._weights
    if calibrator._keys is not None:
        tensors["support.keys"] = calibrator._keys
    tensors |= {f"projection.{name}": value for name, value in calibrator.projection_.state_dict().items()}
    curve, training = calibrator.bandwidth_curve_, calibrator.training_curve_
    values = {
        "bandwidth": calibrator.bandwidth_,
        "bandwidth_curve": None if curve is None else plain(asdict(curve)),
        "training_curve": None if training is None else asdict(training),
        "checkpoint_step": calibrator.checkpoint_step_,
        "checkpoint_losses": calibrator.checkpoint_losses_,
        "frequencies": calibrator._frequencies.tolist(),
        "ids": None if calibrator.ids_ is None else encode_classes(calibrator.ids_),
        "projection": _architecture(calibrator.projection_),
        "dimension": calibrator._points.shape[1],
    }
    return calibrator._state(_parameters(calibrator), values, **tensors)


def restore(cls: type[KCal], state: CalibratorState, *, projection: nn.Module | None = None) -> KCal:
    """Return the fitted KCal that ``state`` describes."""
    parameters, values, tensors = dict(state.parameters), state.values, state.tensors
    parameters["recipe"] = recipe_from(parameters["recipe"])
    for name in ("bandwidth_interval", "bandwidth_reference"):
        if parameters[name] is not None:
            parameters[name] = tuple(parameters[name])
    points, codes = tensors["support.points"], tensors["support.codes"]
    classes = decode_classes(values["classes"])
    _check_support(tensors, len(classes), values)
    module = _rebuild_projection(values, tensors, points, projection)
    if parameters["projection"] == OWN_MODULE:
        parameters["projection"] = module
    calibrator = cls(**parameters)._restore(state)
    _check_parameters(calibrator)
    calibrator.bandwidth_ = float(values["bandwidth"])
    calibrator.bandwidth_curve_ = _curve_from(values["bandwidth_curve"])
    calibrator.training_curve_ = _training_curve_from(values["training_curve"])
    calibrator.checkpoint_step_ = values["checkpoint_step"]
    calibrator.checkpoint_losses_ = tuple(values["checkpoint_losses"])
    calibrator.ids_ = None if values["ids"] is None else decode_classes(values["ids"])
    calibrator.support_indices_ = tensors["support.indices"].numpy()
    calibrator.projection_ = module
    calibrator._frequencies = np.array(values["frequencies"])
    calibrator._points, calibrator._codes = points, codes
    calibrator._weights, calibrator._keys = tensors.get("support.weights"), tensors.get("support.keys")
    calibrator._sorted = calibrator._leave_one_out = None
    calibrator._kind = ArrayKind(is_torch=False, device=points.device, dtype=points.dtype)
    calibrator._search_keys = calibrator._keys
    return calibrator


def _check_parameters(calibrator: KCal) -> None:
    try:
        check_parameters(calibrator)
        check_prior(calibrator.prior, calibrator.classes_)
    except InvalidInputError as error:
        raise FileFormatError(f"a stored parameter is damaged: {error}") from error


def _parameters(calibrator: KCal) -> dict[str, Any]:
    parameters = dict(calibrator.get_params(deep=False))
    if not isinstance(parameters["projection"], str):
        parameters["projection"] = OWN_MODULE  # loaded as the frozen module that is in use
    parameters["recipe"] = stored_recipe(parameters["recipe"])
    if parameters["prior"] is not None and not isinstance(parameters["prior"], str):
        parameters["prior"] = check_prior(parameters["prior"], calibrator.classes_)  # JSON has no keys but text
    return {name: plain(value) for name, value in parameters.items()}


def stored_recipe(recipe: str | Recipe) -> str | dict[str, Any]:
    """Return a recipe as JSON can hold it."""
    if isinstance(recipe, str):
        return recipe
    return {"name": next(name for name, kind in RECIPES.items() if type(recipe) is kind), **asdict(recipe)}


def recipe_from(stored: Any) -> str | Recipe:
    """Return the recipe that :func:`stored_recipe` wrote."""
    if isinstance(stored, str):
        return stored
    numbers = dict(stored)
    return RECIPES[numbers.pop("name")](**numbers)


def _architecture(module: nn.Module) -> str:
    known = UNTRAINED | ARCHITECTURES
    return next((name for name, kind in known.items() if type(module) is kind), OWN_MODULE)


def _check_support(tensors: dict[str, torch.Tensor], n_classes: int, values: dict[str, Any]) -> None:
    points, codes = tensors["support.points"], tensors["support.codes"]
    fits = (
        points.ndim == 2 and points.shape[1] == values["dimension"] and points.dtype in (torch.float32, torch.float64)
    )
    for name in ("codes", "weights", "keys", "indices"):
        fits = fits and tensors.get(f"support.{name}", codes).shape == points.shape[:1]
    indices = tensors["support.indices"]
    fits = fits and indices.dtype == torch.int64 and bool((indices >= 0).all())
    fits = fits and (values["ids"] is None or len(values["ids"]["labels"]) == len(points))
    fits = fits and tensors.get("support.weights", points).dtype.is_floating_point
    if not fits or len(points) == 0 or not bool(torch.isfinite(points).all()):
        raise FileFormatError("the stored support is damaged: its parts do not fit together.")
    frequencies = np.array(values["frequencies"], dtype=np.float64)
    if frequencies.shape != (n_classes,) or not (frequencies >= 0).all() or abs(frequencies.sum() - 1) > 1e-6:
        raise FileFormatError("the stored class frequencies are damaged.")
    weights, keys = tensors.get("support.weights"), tensors.get("support.keys")
    if weights is not None and not (
        bool(torch.isfinite(weights).all()) and bool((weights >= 0).all()) and weights.any()
    ):
        raise FileFormatError("the stored weights are damaged.")
    if keys is not None and keys.dtype != torch.int64:
        raise FileFormatError("the stored groups are damaged.")
    if codes.dtype != torch.int64 or int(codes.min()) < 0 or int(codes.max()) >= n_classes:
        raise FileFormatError("the stored support is damaged: it names classes that do not exist.")
    if not (np.isfinite(values["bandwidth"]) and values["bandwidth"] > 0):
        raise FileFormatError(f"the stored bandwidth must be positive; got {values['bandwidth']!r}.")


def _rebuild_projection(
    values: dict[str, Any], tensors: dict[str, torch.Tensor], points: torch.Tensor, given: nn.Module | None
) -> nn.Module:
    kind = values["projection"]
    if kind == OWN_MODULE and given is None:
        raise LoadArgumentError(
            "this calibrator uses a projection of your own; only its tensors are stored. "
            "Build the module again and pass it: kcal.load(path, projection=module)."
        )
    if kind != OWN_MODULE and given is not None:
        raise LoadArgumentError(f'this calibrator has a "{kind}" projection, stored whole; leave projection= out.')
    if given is not None:
        module = deepcopy(given)
    elif kind in UNTRAINED:
        if values["n_features"] != values["dimension"]:
            raise FileFormatError("the stored projection does not lead to the space of the stored support.")
        return UNTRAINED[kind]()
    else:
        reduce = tensors["projection.reduce.weight"]
        if tuple(reduce.shape) != (values["dimension"], values["n_features"]):
            raise FileFormatError("the stored projection does not fit its support.")
        module = build_projection(kind, int(values["n_features"]), int(values["dimension"]), seed=0)
    stored = {name.removeprefix("projection."): t for name, t in tensors.items() if name.startswith("projection.")}
    if kind in ARCHITECTURES:
        stored.setdefault("unit_length", torch.tensor(False))  # older files have none
    module = module.to(dtype=points.dtype)  # before loading, or float64 would pass through float32
    try:
        module.load_state_dict(stored)
    except RuntimeError as error:
        raise FileFormatError(f"the stored projection does not fit: {error}") from error
    module = module.eval().requires_grad_(False)
    if project(module, torch.zeros(1, int(values["n_features"]), dtype=points.dtype)).shape[1] != points.shape[1]:
        raise FileFormatError("the stored projection does not lead to the space of the stored support.")
    return module


def _curve_from(stored: dict[str, Any] | None) -> BandwidthCurve | None:
    if stored is None:
        return None
    arrays = {name: np.array(stored[name]) for name in ("bandwidths", "losses")}
    return BandwidthCurve(**{**stored, **arrays})


def _training_curve_from(stored: dict[str, Any] | None) -> TrainingCurve | None:
    return None if stored is None else TrainingCurve(**{name: tuple(entries) for name, entries in stored.items()})
