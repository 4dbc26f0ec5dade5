"""Write a fitted blend as JSON values and tensors, and read it back with every part checked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import REPRESENTATIONS, CalibratorState, LoadArgumentError
from kcal.calibrators.blend.experts import Expert
from kcal.calibrators.blend.model import BlendModel, Gate
from kcal.calibrators.blend.network import MODELS, NetworkModel, model_name
from kcal.calibrators.blend.parameters import check_factors
from kcal.calibrators.blend.pool import Pool
from kcal.calibrators.blend.sharpness import MAX_LEVEL, MAX_SLOPE, Sharpness
from kcal.calibrators.kcal.state import (
    Tensors,
    architecture_of,
    damaged_parameters,
    projection_tensors,
    read_frequencies,
    read_positive,
    read_projection,
    read_support,
    support_tensors,
)
from kcal.errors import FileFormatError


def model_state(model: BlendModel) -> tuple[dict[str, Any], Tensors]:
    """Return the values and tensors of a model."""
    tensors: Tensors = {
        "pool.weights": torch.from_numpy(model.pool.weights),
        "pool.bias": torch.from_numpy(model.pool.bias),
    }
    for expert in model.experts:
        tensors |= support_tensors(expert.support, f"{expert.metric}.support")
        tensors |= projection_tensors(expert.projection, f"{expert.metric}.projection")
    network = []
    for calibrator in model.network:
        name, (values, own) = model_name(calibrator), calibrator.to_state()
        network.append({"name": name, **values})
        tensors |= {f"{name}.{part}": tensor for part, tensor in own.items()}
    threshold = model.gate.threshold
    return {
        "experts": [
            {
                "metric": expert.metric,
                "projection": architecture_of(expert.projection),
                "bandwidth": expert.bandwidth,
                "median_evidence": expert.median_evidence,
            }
            for expert in model.experts
        ],
        "bandwidth_factors": model.experts[0].factors,
        "network": network,
        "loss": model.pool.loss,
        "gate": {"threshold": threshold if np.isfinite(threshold) else None, "steepness": model.gate.steepness},
        "background": model.background,
        "sharpness": asdict(model.sharpness),
        "frequencies": model.frequencies,
        "sample_frequencies": model.sample_frequencies,
        "min_log_prob": model.min_log_prob,
        "representation": model.representation,
        "prior": model.prior,
        "group_efficiency": model.group_efficiency,
    }, tensors


def model_from_state(state: CalibratorState, projection: nn.Module | None) -> BlendModel:
    """Return the model that the values and tensors describe; ``projection`` is the module of a learned metric."""
    values, tensors = state.values, state.tensors
    n_classes = len(values["classes"]["labels"])
    if projection is not None and not any(expert["metric"] == "learned" for expert in values["experts"]):
        raise LoadArgumentError("projection", "is not used: this blend has no learned metric", remedy="Leave it out.")
    with damaged_parameters():
        factors = check_factors(values["bandwidth_factors"])
    experts = tuple(_read_expert(stored, state, factors, n_classes, projection) for stored in values["experts"])
    network = tuple(_read_network(stored, tensors, n_classes) for stored in values["network"])
    pool = Pool(tensors["pool.weights"].numpy().copy(), tensors["pool.bias"].numpy().copy(), float(values["loss"]))
    gate, sharpness = values["gate"], Sharpness(**{name: float(entry) for name, entry in values["sharpness"].items()})
    threshold = -np.inf if gate["threshold"] is None else float(gate["threshold"])
    model = BlendModel(
        experts,
        network,
        pool,
        Gate(threshold, read_positive(gate["steepness"], "steepness")),
        read_positive(values["background"], "background"),
        read_frequencies(values["frequencies"], n_classes),
        read_frequencies(values["sample_frequencies"], n_classes),
        sharpness,
        float(values["min_log_prob"]),
        values["representation"],
        None if values["prior"] is None else read_frequencies(values["prior"], n_classes),
        read_positive(values["group_efficiency"], "group_efficiency"),
    )
    numbers = [pool.weights, pool.bias, *asdict(sharpness).values(), max(threshold, -1e300), model.min_log_prob]
    n_members = len(factors) * len(experts) + len(network)
    intact = pool.weights.shape == (n_members,) and pool.bias.shape == (n_classes,) and len(experts) > 0
    intact = intact and all(np.isfinite(entry).all() for entry in numbers) and model.group_efficiency <= 1
    intact = intact and abs(sharpness.level) <= MAX_LEVEL and abs(sharpness.slope) <= MAX_SLOPE
    if not intact or not (model.frequencies > 0).all() or model.representation not in REPRESENTATIONS:
        raise FileFormatError("the stored blend is damaged: its parts do not fit together.")
    return model


def _read_expert(
    stored: dict[str, Any],
    state: CalibratorState,
    factors: tuple[float, ...],
    n_classes: int,
    projection: nn.Module | None,
) -> Expert:
    metric, evidence = stored["metric"], tuple(float(value) for value in stored["median_evidence"])
    if len(evidence) != len(factors) or not np.isfinite(evidence).all():
        raise FileFormatError("the stored median evidence is damaged.")
    support = read_support(state.tensors, n_classes, f"{metric}.support")
    given = projection if metric == "learned" else None
    prefix, n_features = f"{metric}.projection", state.values["n_features"]
    module = read_projection(stored["projection"], state.tensors, n_features, support, given, prefix)
    return Expert(metric, module, support, read_positive(stored["bandwidth"], "bandwidth"), factors, evidence)


def _read_network(stored: dict[str, Any], tensors: Tensors, n_classes: int) -> NetworkModel:
    if stored["name"] not in MODELS:
        raise FileFormatError("the stored calibrators of the network are damaged.")
    prefix = f"{stored['name']}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return MODELS[stored["name"]].from_state(stored, own, n_classes)
