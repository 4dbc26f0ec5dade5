"""A trained projection as JSON values and tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import CalibratorState, LoadArgumentError, decode_classes, encode_classes
from kcal.errors import FileFormatError
from kcal.projection import (
    OWN_MODULE,
    TrainedProjection,
    TrainingCurve,
    architecture_of,
    frozen_copy,
    new_projection,
    recipe_from_dict,
    recipe_to_dict,
)

METHOD = "projection"
"""Marks the file of a trained projection, in place of the name of a method."""


def projection_to_state(trained: TrainedProjection) -> CalibratorState:
    """Return the content of a trained projection: its checkpoints, and how they were trained."""
    states = [module.state_dict() for module in trained.checkpoints]
    tensors = {f"{place}.{name}": tensor for place, own in enumerate(states) for name, tensor in own.items()}
    values: dict[str, Any] = {
        "checkpoints": [architecture_of(module) for module in trained.checkpoints],
        "steps": list(trained.steps),
        "curve": asdict(trained.curve),
        "recipe": recipe_to_dict(trained.recipe),
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
    if (projection is None) == (architectures[0] == OWN_MODULE):
        expected = (
            "is needed: its architecture is your own" if projection is None else "is not needed: it is stored whole"
        )
        raise LoadArgumentError("projection", expected, remedy="Pass a module of its architecture, or leave it out.")
    return TrainedProjection(
        checkpoints=tuple(
            _read_checkpoint(tensors, f"{place}.", name, projection) for place, name in enumerate(architectures)
        ),
        steps=tuple(steps),
        curve=TrainingCurve(**{name: tuple(entries) for name, entries in values["curve"].items()}),
        recipe=recipe_from_dict(values["recipe"]),
        classes=decode_classes(values["classes"]),
        fingerprints=prints.numpy().view(np.uint64),
    )


def _read_checkpoint(
    tensors: Mapping[str, torch.Tensor], prefix: str, name: str, projection: nn.Module | None
) -> nn.Module:
    """Return a checkpoint; the sizes of a projection of kcal are those of its linear map."""
    own = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    dimension, n_features = own["reduce.weight"].shape if "reduce.weight" in own else (1, 1)
    like = next(tensor for tensor in own.values() if tensor.is_floating_point())
    if projection is None:
        module = new_projection(name, n_features, dimension, str(like.dtype).removeprefix("torch."))
    else:
        module = frozen_copy(projection, like)
    try:
        module.load_state_dict(own)
    except RuntimeError as error:
        raise FileFormatError(f"the stored projection does not fit: {error}") from error
    return module
