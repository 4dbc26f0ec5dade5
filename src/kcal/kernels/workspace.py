"""Memory that blocks use one after another."""

from __future__ import annotations

import torch


class Workspace:
    """Named buffers, allocated once: new memory for every block would cost as much time as its exponentials."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def take(self, name: str, like: torch.Tensor, shape: tuple[int, ...] | torch.Size) -> torch.Tensor:
        """Return the buffer ``name`` in the precision and on the device of ``like``, with arbitrary content."""
        size = int(torch.Size(shape).numel())
        buffer = self._buffers.get((name, like.dtype))
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[name, like.dtype] = like.new_empty(size)
        return buffer[:size].view(shape)
