"""A trained projection as JSON values and tensors, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import CalibratorState, decode_classes, encode_classes
from kcal.calibrators.kcal.state import (
    projection_state,
    read_module,
    read_recipe,
    refuse_unused_projection,
    stored_recipe,
)
from kcal.calibrators.model_state import Stored
from kcal.errors import FileFormatError
from kcal.projection import TrainedProjection, TrainingCurve

METHOD = "projection"
"""Marks the file of a trained projection, in place of the name of a method."""


def projection_to_state(trained: TrainedProjection) -> CalibratorState:
    """Return the content of a trained projection: its checkpoints, and how they were trained."""
    states = [projection_state(module) for module in trained.checkpoints]
    tensors = {f"{place}.{name}": tensor for place, (_, own) in enumerate(states) for name, tensor in own.items()}
    values: dict[str, Any] = {
        "checkpoints": [architecture for architecture, _ in states],
        "steps": list(trained.steps),
        "curve": asdict(trained.curve),
        "recipe": stored_recipe(trained.recipe),
        "classes": encode_classes(trained.classes),
    }
    prints = torch.from_numpy(trained.fingerprints.view(np.int64))
    return CalibratorState(METHOD, {}, values, {**tensors, "fingerprints": prints})


def projection_from_state(state: CalibratorState, *, projection: nn.Module | None = None) -> TrainedProjection:
    """Return the trained projection; ``projection`` is its module, if the architecture is not one of kcal's."""
    values, tensors = state.values, state.tensors
    architectures, steps, prints = values["checkpoints"], values["steps"], tensors["fingerprints"]
    if not (architectures and len(architectures) == len(steps) and all(type(step) is int for step in steps)):
        raise FileFormatError("the stored checkpoints and their steps are damaged.")
    if prints.dtype != torch.int64 or prints.ndim != 1:
        raise FileFormatError("the stored fingerprints are damaged.")
    refuse_unused_projection(projection, architectures[0])
    stored = Stored({str(place): name for place, name in enumerate(architectures)}, tensors, 0, 0, projection)
    return TrainedProjection(
        checkpoints=tuple(_read_checkpoint(stored, name) for name in stored.values),
        steps=tuple(steps),
        curve=TrainingCurve(**{name: tuple(entries) for name, entries in values["curve"].items()}),
        recipe=read_recipe(values["recipe"]),
        classes=decode_classes(values["classes"]),
        fingerprints=prints.numpy().view(np.uint64),
    )


def _read_checkpoint(stored: Stored, name: str) -> nn.Module:
    """Return a checkpoint; the sizes of a projection of kcal are those of its linear map."""
    own = stored.part(name, None).tensors
    dimension, n_features = own["reduce.weight"].shape if "reduce.weight" in own else (1, 1)
    dtype = next(tensor.dtype for tensor in own.values() if tensor.is_floating_point())
    return read_module(stored, name, (n_features, dimension), dtype)
