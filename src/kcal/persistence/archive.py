"""One file per calibrator or projection: safetensors with a JSON header and a checksum; loading runs no code of it.

The tensors are those of a ``state_dict``. The header has the method, its parameters, and values such as the classes and
the configuration of the module that takes the tensors. The metadata of the safetensors file have one entry, "kcal": a
line with the SHA-256 of the header and of the name, dtype, shape and bytes of every tensor, then the header as JSON. It
is one because safetensors writes several in random order, and equal calibrators give equal files.

A saved KCal has the projected embeddings of its calibration set. These are personal data if the inputs were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_tensors
from safetensors.torch import save as safetensors_bytes
from torch import nn

from kcal.calibrators import Calibrator, CalibratorState, calibrator_from_state, calibrator_state
from kcal.calibrators.kernel_model import restore_projection
from kcal.calibrators.state import LoadArgumentError, below, decode_classes, encode_classes, from_json, to_json
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import check_path, write_whole
from kcal.projection import OWN_MODULE, Recipe, TrainedProjection, TrainingCurve, architecture_of
from kcal.validation import check_device, shown

METADATA = "kcal"
FORMAT_VERSION = 1
PROJECTION = "projection"
"""Method in the header of a trained projection."""
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
MAX_NUMBER = 1e18
"""No fit gives a tensor with a larger entry; with one, probabilities can become NaN."""

Source = str | os.PathLike[str]
Tensors = Mapping[str, torch.Tensor]


def save(calibrator: Calibrator | TrainedProjection, path: Source, *, network: Mapping[str, Any] | None = None) -> Path:
    """Write a fitted calibrator or a trained projection to one file, completely or not at all; return the path.

    Parameters
    ----------
    calibrator : Calibrator or TrainedProjection
        Any fitted calibrator of kcal, or what :func:`kcal.train_projection` returned.
    path : path
        The file; an existing one is replaced.
    network : mapping, optional
        A description of the network that the calibrator belongs to, of text and numbers.
    """
    return write_whole(path, to_bytes(calibrator, network=network))


def load(
    path: Source, *, projection: nn.Module | None = None, device: str | torch.device | None = None
) -> Calibrator | TrainedProjection:
    """Read a calibrator or a trained projection that :func:`save` wrote.

    Parameters
    ----------
    path : path
        The file.
    projection : nn.Module, optional
        For a KCal with a custom projection: a module of the same architecture. A copy of it receives the stored
        tensors.
    device : str or torch.device, optional
        Where a KCal or a KCalBlend computes its kernel sums; by default on the CPU.
    """
    path = check_path(path)
    place = None if device is None else check_device(device)
    if projection is not None and not isinstance(projection, nn.Module):
        raise InvalidInputError("projection", "must be a torch module", got=shown(projection))
    loaded = from_parts(*_read(path), path, projection)
    if place is None:
        return loaded
    if not (isinstance(loaded, Calibrator) and loaded.tags.has_support):
        raise LoadArgumentError("device", f"is not used by a saved {type(loaded).__name__}", remedy="Leave it out.")
    moved: Calibrator = loaded.to(place)
    return moved


def load_calibrator(path: Source) -> Calibrator:
    """Read a calibrator that :func:`save` wrote; raise if the file has a trained projection."""
    return load_with_network(path)[0]


def load_with_network(path: Source) -> tuple[Calibrator, dict[str, Any] | None]:
    """Read a calibrator and the description of its network, None if there is none, from one and the same file."""
    path = check_path(path)
    text, tensors = _read(path)
    calibrator, network = from_parts(text, tensors, path), json.loads(text).get("network")
    if not isinstance(calibrator, Calibrator):
        raise FileFormatError(f"{path} has a trained projection, not a calibrator. Pass it to KCal(projection=...).")
    if network is not None and not isinstance(network, dict):
        raise FileFormatError(f"{path} is damaged: its description of the network is not an object.")
    return calibrator, network


def to_bytes(calibrator: Calibrator | TrainedProjection, *, network: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of the file that :func:`save` writes."""
    text, tensors = to_parts(calibrator, network=network)
    content: bytes = safetensors_bytes(tensors, metadata=to_metadata(text, tensors))
    return content


def to_parts(
    calibrator: Calibrator | TrainedProjection, *, network: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the header, as JSON, and the tensors of a file; those of the model are named as in its ``state_dict``."""
    state = calibrator_state(calibrator)
    versions = {"format_version": FORMAT_VERSION, "package_version": version("kcal")}
    header = {**versions, "method": state.method, "parameters": state.parameters, "values": state.values}
    try:
        text = json.dumps(header if network is None else header | {"network": dict(network)}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("calibrator", f"must have parameters that JSON can represent ({error})") from error
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors.items()}
    if damaged := _first_damaged(tensors):
        raise InvalidInputError("calibrator", "must be fitted to finite numbers", got=damaged, remedy="Fit it again.")
    return text, tensors


def from_parts(
    text: str, tensors: Tensors, source: Source, projection: nn.Module | None = None
) -> Calibrator | TrainedProjection:
    """Return what a header and tensors describe; ``source`` names them in errors, ``projection`` is as in load."""
    parts = {} if projection is None else {"projection": projection}
    header = _read_header(text, source)
    if damaged := _first_damaged(tensors):
        raise FileFormatError(f"{source} is damaged: it has {damaged}.")
    try:
        state = CalibratorState(header["method"], header["parameters"], header["values"], dict(tensors))
        if state.method == PROJECTION:
            return trained_projection(state, **parts)
        return calibrator_from_state(state, **parts)
    except LoadArgumentError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError) as error:
        what = "" if isinstance(error, FileFormatError) else f"a part is missing or damaged ({type(error).__name__}): "
        raise FileFormatError(f"{source}: {what}{error}") from error


def to_metadata(header: str, tensors: Tensors) -> dict[str, str]:
    """Return the metadata of a file: the checksum and the header."""
    return {METADATA: f"{content_hash(header, tensors)}\n{header}"}


def content_hash(header: str, tensors: Tensors) -> str:
    """Return the SHA-256 of a file's header and tensors, as hexadecimal text."""
    digest = hashlib.sha256()
    parts: list[bytes | memoryview] = [header.encode()]
    for name, tensor in sorted(tensors.items()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        if tensor.numel():  # the strides of an empty one may not allow a view
            parts.append(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # bytes cannot move from one part to the next
        digest.update(part)
    return digest.hexdigest()


def _read(path: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """Return the header and the tensors of a file, as they were written.

    It is opened once: it may be replaced at any time, but one open file is always whole.
    """
    try:
        if not path.is_file():
            raise FileFormatError(f"{path} is not a file.")
        content = path.read_bytes()
        tensors = safetensors_tensors(content)
        end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
        metadata = json.loads(content[LENGTH_BYTES:end]).get("__metadata__") or {}
        if METADATA not in metadata:
            raise FileFormatError(f"{path} is a safetensors file, but kcal did not write it.")
        text = metadata[METADATA].partition("\n")[2]
        _read_header(text, path)  # a later version may have another checksum
        if metadata != to_metadata(text, tensors):
            raise FileFormatError(f"{path} is damaged: its checksum does not match. Save the calibrator again.")
        return text, tensors
    except FileFormatError:
        raise
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error}).") from error
    except (SafetensorError, ValueError, LookupError, RuntimeError) as error:
        raise FileFormatError(f"{path} is not a kcal file, or it is truncated or corrupt ({error}).") from error


def _read_header(text: str, source: Source) -> dict[str, Any]:
    """Return a header of the present format."""
    try:
        header = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{source} is damaged: its header is not valid JSON ({error}).") from error
    number = header.get("format_version") if isinstance(header, dict) else None
    if type(number) is not int or number < 1:
        raise FileFormatError(f"{source} has no valid format version; it is damaged.")
    if number > FORMAT_VERSION:
        written = f"{source} was written by kcal {header.get('package_version')} in format {number}"
        raise FileFormatError(f"{written}; this kcal reads format {FORMAT_VERSION}. Upgrade kcal.")
    return dict(header)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} in the header")


def _first_damaged(tensors: Tensors) -> str:
    """Describe the first tensor with an entry that is not finite or too large; empty text if there is none."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            lowest, highest = (float(end) for end in torch.aminmax(tensor))  # NaN if any entry is
            log_of_zero = lowest == -torch.inf and name.rpartition(".")[2].startswith("log_")
            if not ((lowest >= -MAX_NUMBER or log_of_zero) and highest <= MAX_NUMBER):
                return f"a tensor {name!r} with entries from {lowest:.3g} to {highest:.3g}"
    return ""


@calibrator_state.register
def projection_state(trained: TrainedProjection) -> CalibratorState:
    """Return the content of a trained projection: its checkpoints, and how they were trained."""
    values: dict[str, Any] = {
        "checkpoints": [architecture_of(module) for module in trained.checkpoints],
        "steps": trained.steps,
        "curve": trained.curve,
        "recipe": trained.recipe,
        "classes": encode_classes(trained.classes),
    }
    tensors = nn.ModuleList(trained.checkpoints).state_dict()
    fingerprints = torch.from_numpy(trained.fingerprints.view(np.int64))
    return CalibratorState(PROJECTION, {}, to_json(values), {**tensors, "fingerprints": fingerprints})


def trained_projection(state: CalibratorState, *, projection: nn.Module | None = None) -> TrainedProjection:
    """Return the trained projection; ``projection`` is its module, if the architecture is not one of kcal's."""
    values, tensors = from_json(state.values), dict(state.tensors)
    architectures, steps, prints = values["checkpoints"], values["steps"], tensors.pop("fingerprints")
    if not (architectures and len(architectures) == len(steps) and all(type(step) is int for step in steps)):
        raise FileFormatError("the stored checkpoints and their steps are damaged.")
    if prints.dtype != torch.int64 or prints.ndim != 1:
        raise FileFormatError("the stored fingerprints are damaged.")
    if not isinstance(values["curve"], TrainingCurve) or not isinstance(values["recipe"], Recipe):
        raise FileFormatError("the stored training is damaged.")
    modules = []
    for place, architecture in enumerate(architectures):
        own = below(tensors, f"{place}.")
        dimension, n_features = own["reduce.weight"].shape if architecture != OWN_MODULE else (0, 0)
        config = {"architecture": architecture, "n_features": n_features, "dimension": dimension}
        modules.append(restore_projection(config, own, projection=projection))
    if len(nn.ModuleList(modules).state_dict()) != len(tensors):
        raise FileFormatError("the stored tensors are not those of the checkpoints.")
    return TrainedProjection(
        checkpoints=tuple(modules),
        steps=steps,
        curve=values["curve"],
        recipe=values["recipe"],
        classes=decode_classes(state.values["classes"]),
        fingerprints=prints.numpy().view(np.uint64),
    )
