"""Taking a fitted blend apart into JSON and tensors, and putting it together again."""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import Calibrator, CalibratorState, plain, refuse_extra
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.network import Partner
from kcal.calibrators.blend.parameters import check_blend_parameters, check_scales
from kcal.calibrators.blend.pool import Pool
from kcal.calibrators.blend.sharpness import LARGEST_LEVEL, LARGEST_SLOPE, Sharpness
from kcal.calibrators.kcal.estimator import KCal
from kcal.calibrators.kcal.state import recipe_from, stored_recipe
from kcal.calibrators.prior import check_prior
from kcal.calibrators.scaling.linear import StructuredMatrixScaling
from kcal.calibrators.scaling.temperature import TemperatureScaling
from kcal.errors import FileFormatError, InvalidInputError

if TYPE_CHECKING:
    from kcal.calibrators.blend.estimator import KCalBlend

PARTNERS: dict[str, type[Calibrator]] = {kind.method: kind for kind in (TemperatureScaling, StructuredMatrixScaling)}


def describe(blend: KCalBlend) -> CalibratorState:
    """Return the parameters, values and tensors of a fitted blend, its parts with names before theirs."""
    tensors = {"pool.weights": torch.from_numpy(blend._pool.weights), "pool.bias": torch.from_numpy(blend._pool.bias)}
    parts = [(expert.metric, expert.estimate) for expert in blend._experts]
    parts += [(partner.calibrator.method, partner.calibrator) for partner in blend._partners]
    stored = {}
    for name, part in parts:
        state = part.state()
        stored[name] = {"parameters": state.parameters, "values": state.values}
        tensors |= {f"{name}.{key}": tensor for key, tensor in state.tensors.items()}
    values = {
        "parts": stored,
        "experts": [{"metric": expert.metric, "typical": expert.typical} for expert in blend._experts],
        "partners": [partner.calibrator.method for partner in blend._partners],
        "bandwidth_factors": blend._experts[0].bandwidth_factors,
        "background": blend.background_,
        "sharpness": asdict(blend.sharpness_),
        "worth": blend.group_efficiency_,
        "least_evidence": blend._least_evidence if np.isfinite(blend._least_evidence) else None,
        "steepness": blend._steepness,
        "least_logarithm": blend._least_logarithm,
        "frequencies": blend._frequencies.tolist(),
        "loss": blend._pool.loss,
        "logit_names": blend.logit_names_in_.tolist(),
    }
    return blend._state(_parameters(blend), values, **tensors)


def restore(
    cls: type[KCalBlend], state: CalibratorState, *, projection: nn.Module | None = None, **extra: Any
) -> KCalBlend:
    """Return the fitted blend that ``state`` describes; ``projection`` is the module of a metric of your own."""
    refuse_extra(cls, extra)
    own = {} if projection is None else {"projection": projection}
    parameters, values = dict(state.parameters), state.values
    parameters["recipe"] = recipe_from(parameters["recipe"])
    parameters["bandwidth_factors"] = tuple(parameters["bandwidth_factors"])
    blend = cls(**parameters)._restore(state)
    bandwidth_factors = tuple(float(scale) for scale in values["bandwidth_factors"])
    if own and not any(each["metric"] == "learned" for each in values["experts"]):
        refuse_extra(cls, own)
    blend._experts = [
        Expert(
            each["metric"],
            KCal.from_state(_part(state, each["metric"], "kcal"), **(own if each["metric"] == "learned" else {})),
            bandwidth_factors,
            list(each["typical"]),
        )
        for each in values["experts"]
    ]
    blend._partners = [
        Partner(PARTNERS[name].from_state(_part(state, name, name)), torch.empty(0)) for name in values["partners"]
    ]
    blend._pool = Pool(
        state.tensors["pool.weights"].numpy().copy(), state.tensors["pool.bias"].numpy().copy(), float(values["loss"])
    )
    made = values["sharpness"]
    blend.sharpness_ = Sharpness(float(made["level"]), float(made["slope"]), float(made["middle"]))
    blend.group_efficiency_ = float(values["worth"])
    least = values["least_evidence"]
    blend.background_, blend._least_evidence = float(values["background"]), -np.inf if least is None else float(least)
    blend._steepness, blend._least_logarithm = float(values["steepness"]), float(values["least_logarithm"])
    blend._frequencies = np.array(values["frequencies"], dtype=np.float64)
    blend.logit_names_in_ = np.array(values["logit_names"], dtype=object)
    _check(blend)
    return blend


def _parameters(blend: KCalBlend) -> dict[str, Any]:
    parameters = dict(blend.get_params(deep=False))
    if parameters["projection"] is not None and not isinstance(parameters["projection"], str):
        parameters["projection"] = "skip"  # the learned metric is stored with its tensors
    parameters["recipe"] = stored_recipe(parameters["recipe"])
    parameters["bandwidth_factors"] = check_scales(parameters["bandwidth_factors"])
    if parameters["prior"] is not None and not isinstance(parameters["prior"], str):
        parameters["prior"] = check_prior(parameters["prior"], blend.classes_)
    return {name: plain(value) for name, value in parameters.items()}


def _part(state: CalibratorState, name: str, method: str) -> CalibratorState:
    stored = state.values["parts"][name]
    tensors = {key.removeprefix(f"{name}."): t for key, t in state.tensors.items() if key.startswith(f"{name}.")}
    return CalibratorState(method, stored["parameters"], stored["values"], tensors)


def _check(blend: KCalBlend) -> None:
    """Refuse parts that do not fit together."""
    n_classes = len(blend.classes_)
    try:
        check_blend_parameters(blend)
        check_prior(blend.prior, blend.classes_)
        check_scales(blend._experts[0].bandwidth_factors if blend._experts else ())
    except InvalidInputError as error:
        raise FileFormatError(f"a stored parameter is damaged: {error}") from error
    n_weights = sum(len(expert.names) for expert in blend._experts) + len(blend._partners)
    pool, frequencies = blend._pool, blend._frequencies
    numbers = [pool.weights, pool.bias, frequencies, np.array([blend.background_, max(blend._least_evidence, -1e300)])]
    numbers += [
        np.array([*astuple(blend.sharpness_), blend.group_efficiency_, blend._steepness, blend._least_logarithm])
    ]
    numbers += [np.array(expert.typical) for expert in blend._experts]
    fits = pool.weights.shape == (n_weights,) and pool.bias.shape == (n_classes,) and frequencies.shape == (n_classes,)
    fits = fits and 0 < blend.group_efficiency_ <= 1 and blend._steepness > 0 and abs(frequencies.sum() - 1.0) < 1e-6
    fits = fits and abs(blend.sharpness_.level) <= LARGEST_LEVEL and abs(blend.sharpness_.slope) <= LARGEST_SLOPE
    fits = fits and blend.background_ > 0 and bool((frequencies > 0).all()) and len(blend._experts) > 0
    fits = fits and all(
        len(expert.typical) == len(expert.bandwidth_factors) and 1.0 in expert.bandwidth_factors
        for expert in blend._experts
    )
    parts: list[Calibrator] = [expert.estimate for expert in blend._experts]
    parts += [partner.calibrator for partner in blend._partners]
    fits = fits and all(len(part.classes_) == n_classes for part in parts)
    fits = fits and all(expert.estimate.n_features_in_ == blend.n_features_in_ for expert in blend._experts)
    names = blend.logit_names_in_.tolist()
    fits = fits and len(names) in (0, n_classes) and all(isinstance(name, str) for name in names)
    if not fits or not all(np.isfinite(values).all() for values in numbers):
        raise FileFormatError("the stored blend is damaged: its parts do not fit together.")
