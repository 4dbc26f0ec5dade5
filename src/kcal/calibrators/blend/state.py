"""Write a fitted blend as JSON values and tensors, and read it back; its parts must fit together."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from torch import nn

from kcal.calibrators.base import CalibratorState, LoadArgumentError
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.model import BlendModel
from kcal.calibrators.blend.network import MODELS, NetworkModel
from kcal.calibrators.blend.pool import Pool
from kcal.calibrators.blend.sharpness import Sharpness
from kcal.calibrators.kcal.state import Tensors, estimate_state, read_estimate, read_frequencies
from kcal.errors import FileFormatError

NUMBERS = ("background", "gate_threshold", "group_efficiency", "min_log_prob", "representation")
FREQUENCIES = ("frequencies", "sample_frequencies", "prior")


def model_state(model: BlendModel) -> tuple[dict[str, Any], Tensors]:
    """Return the values and tensors of a model."""
    values: dict[str, Any] = {name: getattr(model, name) for name in NUMBERS + FREQUENCIES}
    values |= {"pool": asdict(model.pool), "sharpness": asdict(model.sharpness), "experts": [], "network": []}
    tensors: Tensors = {}
    for expert in model.experts:
        numbers, own = estimate_state(expert, f"{expert.metric}.")
        numbers |= {name: getattr(expert, name) for name in ("metric", "factors", "median_evidence")}
        values["experts"].append(numbers)
        tensors |= own
    for name, calibrator in zip(model.network_names, model.network, strict=True):
        numbers, own = calibrator.to_state()
        values["network"].append({"name": name, **numbers})
        tensors |= {f"{name}.{part}": tensor for part, tensor in own.items()}
    return values, tensors


def model_from_state(state: CalibratorState, projection: nn.Module | None) -> BlendModel:
    """Return the model that the values and tensors describe; ``projection`` is the module of a learned metric."""
    values, pool = state.values, state.values["pool"]
    if projection is not None and not any(expert["metric"] == "learned" for expert in values["experts"]):
        raise LoadArgumentError("projection", "is not used: this blend has no learned metric", remedy="Leave it out.")
    arrays: dict[str, Any] = {
        name: None if values[name] is None else read_frequencies(state, name) for name in FREQUENCIES
    }
    model = BlendModel(
        tuple(_read_expert(stored, state, projection) for stored in values["experts"]),
        tuple(_read_network(stored, state) for stored in values["network"]),
        Pool(np.array(pool["weights"]), np.array(pool["bias"]), pool["loss"]),
        sharpness=Sharpness(**values["sharpness"]),
        **{name: values[name] for name in NUMBERS},
        **arrays,
    )
    n_members = sum(len(expert.factors) for expert in model.experts) + len(model.network)
    if model.pool.weights.shape != (n_members,) or model.bias.shape != model.frequencies.shape:
        raise FileFormatError("the stored blend is damaged: its parts do not fit together.")
    return model


def _read_expert(stored: dict[str, Any], state: CalibratorState, projection: nn.Module | None) -> Expert:
    metric, factors, evidence = stored["metric"], tuple(stored["factors"]), tuple(stored["median_evidence"])
    if len(evidence) != len(factors):
        raise FileFormatError("the stored median evidence does not fit the bandwidths.")
    estimate = read_estimate(stored, state, projection if metric == "learned" else None, f"{metric}.")
    return Expert(**estimate, metric=metric, factors=factors, median_evidence=evidence)


def _read_network(stored: dict[str, Any], state: CalibratorState) -> NetworkModel:
    prefix = f"{stored['name']}."
    own = {name.removeprefix(prefix): part for name, part in state.tensors.items() if name.startswith(prefix)}
    return MODELS[stored["name"]].from_state(stored, own, len(state.values["classes"]["labels"]))
