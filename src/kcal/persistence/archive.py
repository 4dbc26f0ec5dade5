"""One file a calibrator: safetensors with JSON metadata; loading never runs code from the file.

A saved KCal holds the projected embeddings of its calibration set. These are personal data if the inputs were.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import nn

from kcal.calibrators import Calibrator, CalibratorState, calibrator_class
from kcal.calibrators.base import LoadArgumentError
from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.persistence.atomic import atomic_path, check_path

FORMAT = "kcal"
FORMAT_VERSION = 1


def save(calibrator: Calibrator, path: str | os.PathLike[str]) -> Path:
    """Write a fitted calibrator to one file, whole or not at all.

    Parameters
    ----------
    calibrator : Calibrator
        Any fitted calibrator of kcal.
    path : path
        Where to; an existing file is replaced.
    """
    if not isinstance(calibrator, Calibrator):
        raise InvalidInputError(f"save expects a calibrator of kcal; got {type(calibrator).__name__}.")
    state = calibrator.state()
    header = {
        "format_version": FORMAT_VERSION,
        "package_version": version("kcal"),
        "method": state.method,
        "parameters": state.parameters,
        "values": state.values,
    }
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"this calibrator's parameters cannot be saved: {error}") from error
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors.items()}
    with atomic_path(path) as temporary:
        temporary.write_bytes(to_bytes(tensors, metadata={FORMAT: text}))
    return check_path(path)


def load(path: str | os.PathLike[str], *, projection: nn.Module | None = None) -> Calibrator:
    """Read a calibrator that :func:`save` wrote.

    Parameters
    ----------
    path : path
        The file.
    projection : nn.Module, optional
        For a KCal with a projection of your own: the module, built as it was; its stored tensors are put into it.
    """
    path = check_path(path)
    header, tensors = _read(path)
    extra = {} if projection is None else {"projection": projection}
    try:
        state = CalibratorState(header["method"], header["parameters"], header["values"], tensors)
        return calibrator_class(state.method).from_state(state, **extra)
    except LoadArgumentError:
        raise
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except InvalidInputError as error:  # what a fit would have refused, so that no fit can have written it
        raise FileFormatError(f"{path}: a stored parameter is damaged: {error}") from error
    except KcalError:
        raise
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise FileFormatError(
            f"{path} is a kcal file, but a part of it is missing or damaged ({type(error).__name__}: {error}). "
            "Save the calibrator again."
        ) from error


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        if not path.is_file():
            raise FileFormatError(f"{path} is not a file.")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if FORMAT not in metadata:
                raise FileFormatError(f"{path} is a safetensors file, but kcal did not write it.")
            header = json.loads(metadata[FORMAT])
            _check_header(header, path)
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileFormatError:
        raise
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a kcal file, or it is truncated or corrupt ({error}).") from error


def _check_header(header: Any, path: Path) -> None:
    if not isinstance(header, dict) or not isinstance(header.get("format_version"), int):
        raise FileFormatError(f"{path} names no format version; it is damaged.")
    if header["format_version"] > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} was written by kcal {header.get('package_version')} in format {header['format_version']}; "
            f"this kcal reads up to {FORMAT_VERSION}. Upgrade kcal."
        )
    for part in ("parameters", "values"):
        if not isinstance(header.get(part), dict):
            raise FileFormatError(f"{path} has no {part}; it is damaged.")
