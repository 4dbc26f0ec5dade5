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
from kcal.calibrators.blend.network import MODELS, NetworkModel
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

PLAIN_FIELDS = (
    "background", "frequencies", "sample_frequencies", "group_efficiency", "min_log_prob", "representation", "prior"
)  # fmt: skip


def model_state(model: BlendModel) -> tuple[dict[str, Any], Tensors]:
    """Return the values and tensors of a model."""
    weights, bias = torch.from_numpy(model.pool.weights), torch.from_numpy(model.pool.bias)
    tensors: Tensors = {"pool.weights": weights, "pool.bias": bias}
    values: dict[str, Any] = {name: getattr(model, name) for name in PLAIN_FIELDS} | {"experts": [], "network": []}
    for expert in model.experts:
        tensors |= support_tensors(expert.support, f"{expert.metric}.support")
        tensors |= projection_tensors(expert.projection, f"{expert.metric}.projection")
        stored = {name: getattr(expert, name) for name in ("metric", "bandwidth", "factors", "median_evidence")}
        values["experts"].append(stored | {"projection": architecture_of(expert.projection)})
    for calibrator in model.network:
        name = next(name for name, kind in MODELS.items() if type(calibrator) is kind)
        numbers, own = calibrator.to_state()
        values["network"].append({"name": name, **numbers})
        tensors |= {f"{name}.{part}": tensor for part, tensor in own.items()}
    gate = {"threshold": None if model.gate.threshold == -np.inf else model.gate.threshold}
    values["gate"] = gate | {"steepness": model.gate.steepness}
    return values | {"loss": model.pool.loss, "sharpness": asdict(model.sharpness)}, tensors


def model_from_state(state: CalibratorState, projection: nn.Module | None) -> BlendModel:
    """Return the model that the values and tensors describe; ``projection`` is the module of a learned metric."""
    values, tensors = state.values, state.tensors
    n_classes = len(values["classes"]["labels"])
    if projection is not None and not any(expert["metric"] == "learned" for expert in values["experts"]):
        raise LoadArgumentError("projection", "is not used: this blend has no learned metric", remedy="Leave it out.")
    threshold = values["gate"]["threshold"]
    model = BlendModel(
        tuple(_read_expert(stored, state, n_classes, projection) for stored in values["experts"]),
        tuple(_read_network(stored, tensors, n_classes) for stored in values["network"]),
        Pool(tensors["pool.weights"].numpy().copy(), tensors["pool.bias"].numpy().copy(), float(values["loss"])),
        Gate(-np.inf if threshold is None else float(threshold), read_positive(values["gate"]["steepness"], "gate")),
        read_positive(values["background"], "background"),
        read_frequencies(values["frequencies"], n_classes),
        read_frequencies(values["sample_frequencies"], n_classes),
        Sharpness(**{name: float(entry) for name, entry in values["sharpness"].items()}),
        read_positive(values["group_efficiency"], "group efficiency"),
        float(values["min_log_prob"]),
        values["representation"],
        None if values["prior"] is None else read_frequencies(values["prior"], n_classes),
    )
    _check(model, n_classes)
    return model


def _read_expert(stored: dict[str, Any], state: CalibratorState, n_classes: int, given: nn.Module | None) -> Expert:
    metric, evidence = stored["metric"], tuple(float(value) for value in stored["median_evidence"])
    with damaged_parameters():
        factors = check_factors(stored["factors"])
    if len(evidence) != len(factors) or not np.isfinite(evidence).all():
        raise FileFormatError("the stored median evidence is damaged.")
    support = read_support(state.tensors, n_classes, f"{metric}.support")
    own = given if metric == "learned" else None
    prefix, n_features = f"{metric}.projection", state.values["n_features"]
    module = read_projection(stored["projection"], state.tensors, n_features, support, own, prefix)
    return Expert(metric, module, support, read_positive(stored["bandwidth"], "bandwidth"), factors, evidence)


def _read_network(stored: dict[str, Any], tensors: Tensors, n_classes: int) -> NetworkModel:
    if stored["name"] not in MODELS:
        raise FileFormatError("the stored calibrators of the network are damaged.")
    prefix = f"{stored['name']}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return MODELS[stored["name"]].from_state(stored, own, n_classes)


def _check(model: BlendModel, n_classes: int) -> None:
    """Raise if the parts of a model do not fit together."""
    pool, sharpness = model.pool, model.sharpness
    numbers = [pool.weights, pool.bias, *asdict(sharpness).values(), max(model.gate.threshold, -1e300)]
    n_members = sum(len(expert.factors) for expert in model.experts) + len(model.network)
    intact = pool.weights.shape == (n_members,) and pool.bias.shape == (n_classes,) and len(model.experts) > 0
    intact = intact and all(np.isfinite(entry).all() for entry in [*numbers, model.min_log_prob])
    intact = intact and abs(sharpness.level) <= MAX_LEVEL and abs(sharpness.slope) <= MAX_SLOPE
    intact = intact and bool((model.frequencies > 0).all()) and model.group_efficiency <= 1
    if not intact or model.representation not in REPRESENTATIONS:
        raise FileFormatError("the stored blend is damaged: its parts do not fit together.")
