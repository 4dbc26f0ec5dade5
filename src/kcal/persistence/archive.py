"""One file a calibrator: safetensors with JSON metadata; loading never runs code from the file.

A saved KCal holds the projected embeddings of its calibration set. These are personal data if the inputs were.
"""

from __future__ import annotations

import json
import os
import tempfile
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
    return write_whole(_as_path(path), to_bytes(tensors, metadata={FORMAT: text}))


def load(path: str | os.PathLike[str], *, projection: nn.Module | None = None) -> Calibrator:
    """Read a calibrator that :func:`save` wrote.

    Parameters
    ----------
    path : path
        The file.
    projection : nn.Module, optional
        For a KCal with a projection of your own: the module, built as it was; its stored tensors are put into it.
    """
    path = _as_path(path)
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


def _as_path(path: Any) -> Path:
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or "\0" in text or not text:
        raise InvalidInputError(f"path must be the name of a file, text or a pathlib.Path; got {path!r}.")
    return Path(text).expanduser()


def write_whole(path: Path, content: bytes) -> Path:
    """Write ``content`` beside ``path`` first and rename, so that nothing is ever half written."""
    try:
        return _write_and_rename(path, content)
    except OSError as error:  # its file name may be that of the temporary file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write_and_rename(path: Path, content: bytes) -> Path:
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise InvalidInputError(f"{path} is not a regular file; give the name of one.")
    if not path.parent.is_dir():
        raise InvalidInputError(f"{path.parent} is not a folder; make it first.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


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
