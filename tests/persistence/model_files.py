"""Read and rewrite the parts of a saved calibrator, with a checksum that matches."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as read_tensors
from safetensors.torch import save as write_tensors

from kcal.persistence.archive import checksum


def header_end(content: bytes) -> int:
    return 8 + int(struct.unpack("<Q", content[:8])[0])


def header_of(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    header: dict[str, Any] = json.loads(json.loads(content[8 : header_end(content)])["__metadata__"]["kcal"])
    return header


def rewrite(path: Path, header: Any, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """Write a file of this header (text as it is, anything else as JSON), with its old tensors if none are given."""
    tensors = read_tensors(path.read_bytes()) if tensors is None else tensors
    text = header if isinstance(header, str) else json.dumps(header)
    path.write_bytes(write_tensors(tensors, metadata={"kcal": text, "sha256": checksum(text, tensors)}))
    return path
