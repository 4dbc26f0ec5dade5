"""One file per calibrator or projection: safetensors with a JSON header and a checksum; loading runs no code of it.

The metadata of the safetensors file has one entry, "kcal": a line with the SHA-256 of the header and of the name,
dtype, shape and bytes of every tensor, then the header as JSON. It is one because safetensors writes several in random
order, and equal calibrators give equal files.

A saved KCal holds the projected embeddings of its calibration set. These are personal data if the inputs were.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_tensors
from safetensors.torch import save as safetensors_bytes
from torch import nn

from kcal.calibrators import Calibrator, CalibratorState, calibrator_class
from kcal.calibrators.base import LoadArgumentError
from kcal.calibrators.kernel_calibrator import KernelCalibrator
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import check_path, write_whole
from kcal.persistence.projections import METHOD, projection_from_state, projection_to_state
from kcal.projection import TrainedProjection
from kcal.validation import check_device, shown

METADATA = "kcal"
FORMAT_VERSION = 1
LENGTH_BYTES = 8
"""A safetensors file begins with the length of its header."""
LARGEST_NUMBER = 1e18
"""No fit gives a tensor with a larger entry; with one, probabilities can become NaN."""
LABEL_BYTES, LABEL_BYTES_PER_FILE_BYTE = 2**26, 64
"""Bound on the memory of decoded labels: a constant plus a multiple of the size of the file."""
FEW_FEATURES = 10**6
"""A file with more features than this has at least one byte for each."""


def save(
    calibrator: Calibrator | TrainedProjection,
    path: str | os.PathLike[str],
    *,
    network: Mapping[str, Any] | None = None,
) -> Path:
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


def to_bytes(calibrator: Calibrator | TrainedProjection, *, network: Mapping[str, Any] | None = None) -> bytes:
    """Return the content of the file that :func:`save` writes."""
    if isinstance(calibrator, TrainedProjection):
        state = projection_to_state(calibrator)
    elif hasattr(calibrator, "state"):
        state = calibrator.state()
    else:
        expected = "must be a calibrator of kcal or a TrainedProjection"
        raise InvalidInputError("calibrator", expected, got=shown(calibrator))
    header = {
        "format_version": FORMAT_VERSION,
        "package_version": version("kcal"),
        "method": state.method,
        "parameters": state.parameters,
        "values": state.values,
    }
    if network is not None:
        header["network"] = dict(network)
    try:
        text = json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("calibrator", f"must have parameters that JSON can hold ({error})") from error
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.tensors.items()}
    if damaged := _first_damaged(tensors):
        raise InvalidInputError("calibrator", "must be fitted to finite numbers", got=damaged, remedy="Fit it again.")
    content: bytes = safetensors_bytes(tensors, metadata=to_metadata(text, tensors))
    return content


def from_bytes(content: bytes) -> Calibrator:
    """Return the calibrator whose file has this content."""
    return _check_calibrator(_restore(*_parse(content, "The content"), "The content"), "The content")


def load(
    path: str | os.PathLike[str], *, projection: nn.Module | None = None, device: str | torch.device | None = None
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
    loaded = _restore(*_parse(_read(path), path), path, {} if projection is None else {"projection": projection})
    if place is None:
        return loaded
    if not isinstance(loaded, KernelCalibrator):
        raise LoadArgumentError("device", f"is not used by a saved {type(loaded).__name__}", remedy="Leave it out.")
    return loaded.to(place)


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator that :func:`save` wrote; raise if the file holds a trained projection."""
    return _check_calibrator(load(path), path)


def load_with_network(path: str | os.PathLike[str]) -> tuple[Calibrator, dict[str, Any] | None]:
    """Read a calibrator and the description of its network, None if there is none, from one and the same file."""
    place = check_path(path)
    header, tensors = _parse(_read(place), place)
    network = header.get("network")
    if network is not None and not isinstance(network, dict):
        raise FileFormatError(f"{place} is damaged: its description of the network is.")
    return _check_calibrator(_restore(header, tensors, place), place), network


def _check_calibrator(loaded: Calibrator | TrainedProjection, path: str | os.PathLike[str]) -> Calibrator:
    if not isinstance(loaded, Calibrator):
        raise FileFormatError(f"{path} holds a trained projection, not a calibrator. Pass it to KCal(projection=...).")
    return loaded


def _restore(
    header: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    path: str | os.PathLike[str],
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> Calibrator | TrainedProjection:
    """Return what a file holds; ``extra`` are the arguments that what is stored needs."""
    try:
        state = CalibratorState(header["method"], header["parameters"], header["values"], tensors)
        if state.method == METHOD:
            return projection_from_state(state, **extra)
        return calibrator_class(state.method).from_state(state, **extra)
    except LoadArgumentError:
        raise
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from error
    except InvalidInputError as error:  # fit would have raised it, so no fit can have written the file
        raise FileFormatError(f"{path}: a stored parameter is damaged: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OverflowError) as error:
        raise FileFormatError(
            f"{path} is a kcal file, but a part of it is missing or damaged ({type(error).__name__}: {error}). "
            "Save the calibrator again."
        ) from error


def to_metadata(header: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the metadata of a file: the checksum and the header."""
    return {METADATA: f"{checksum(header, tensors)}\n{header}"}


def checksum(header: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of a file's header and tensors, as hexadecimal text."""
    digest = hashlib.sha256()
    parts: list[bytes | memoryview] = [header.encode()]
    for name, tensor in sorted(tensors.items()):
        parts.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.contiguous().reshape(-1)  # an empty one may have a stride of 0, which no view takes
        parts.append(flat.view(torch.uint8).numpy().data if len(flat) else b"")
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))  # so that bytes cannot move from one part to the next
        digest.update(part)
    return digest.hexdigest()


def _read(path: Path) -> bytes:
    """Return the content of a file, opened once: it may be replaced at any time, but one open file is always whole."""
    try:
        if not path.is_file():
            raise FileFormatError(f"{path} is not a file.")
        with path.open("rb") as file:
            if int.from_bytes(file.read(LENGTH_BYTES), "little") > os.fstat(file.fileno()).st_size:
                raise FileFormatError(f"{path} is not a kcal file, or it is truncated or corrupt.")
            file.seek(0)
            return file.read()
    except PermissionError as error:
        raise FileFormatError(f"{path} cannot be read: its permissions do not allow it to this user.") from error
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error}).") from error


def _parse(content: bytes, path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return the checked header and tensors of a file's content."""
    try:
        tensors = safetensors_tensors(content)
        end = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
        metadata = json.loads(content[LENGTH_BYTES:end]).get("__metadata__") or {}
        if METADATA not in metadata:
            raise FileFormatError(f"{path} is a safetensors file, but kcal did not write it.")
        text = metadata[METADATA].partition("\n")[2]
        header = json.loads(text, parse_constant=_refuse_constant)
        _check_version(header, path)
        if metadata != to_metadata(text, tensors):
            raise FileFormatError(f"{path} is damaged: its checksum does not match. Save the calibrator again.")
        _check_content(header, tensors, len(content), path)
        return header, tensors
    except FileFormatError:
        raise
    except (SafetensorError, ValueError, KeyError, RuntimeError, RecursionError) as error:
        raise FileFormatError(f"{path} is not a kcal file, or it is truncated or corrupt ({error}).") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} in the header")


def _check_version(header: Any, path: str | os.PathLike[str]) -> None:
    number = header.get("format_version") if isinstance(header, dict) else None
    if type(number) is not int or number < 1:
        raise FileFormatError(f"{path} has no valid format version; it is damaged.")
    if number > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} was written by kcal {header.get('package_version')} in format {number}; "
            f"this kcal reads format {FORMAT_VERSION}. Upgrade kcal."
        )


def _check_content(
    header: dict[str, Any], tensors: Mapping[str, torch.Tensor], n_bytes: int, path: str | os.PathLike[str]
) -> None:
    for part in ("parameters", "values"):
        if not isinstance(header.get(part), dict):
            raise FileFormatError(f"{path} has no {part}; it is damaged.")
    if damaged := _first_damaged(tensors):
        raise FileFormatError(f"{path} is damaged: it holds {damaged}.")
    n_features = header["values"].get("n_features", 0)  # a trained projection has them in its tensors
    if not isinstance(n_features, int) or n_features > max(FEW_FEATURES, n_bytes):
        raise FileFormatError(f"{path} is damaged: {shown(n_features)} is not the number of its features.")
    limit = LABEL_BYTES + LABEL_BYTES_PER_FILE_BYTE * n_bytes
    if sum(_label_bytes(header["values"])) > limit:
        raise FileFormatError(f"{path} is damaged: its labels would need more than {limit:,} bytes of memory.")


def _first_damaged(tensors: Mapping[str, torch.Tensor]) -> str:
    """Describe the first tensor with an entry that is not finite or too large; empty text if there is none."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            lowest, highest = (float(end) for end in torch.aminmax(tensor))  # NaN if any entry is
            log_of_zero = lowest == -torch.inf and name.rpartition(".")[2].startswith("log_")
            if not ((lowest >= -LARGEST_NUMBER or log_of_zero) and highest <= LARGEST_NUMBER):
                return f"a tensor {name!r} with entries from {lowest:.3g} to {highest:.3g}"
    return ""


def _label_bytes(value: Any) -> Iterator[int]:
    """Yield the decoded size of every array of labels in the header's values."""
    if isinstance(value, dict):
        labels, dtype = value.get("labels"), value.get("dtype")
        if isinstance(labels, list) and isinstance(dtype, str):
            with suppress(TypeError):  # what decodes the labels raises
                yield len(labels) * np.dtype(dtype).itemsize
        for entry in value.values():
            yield from _label_bytes(entry)
