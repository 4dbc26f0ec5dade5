"""Calls of layers in a forward pass: what a hook saw of their inputs and outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LayerCall(NamedTuple):
    """The tensors of one call of a layer, by sample and position (token or pixel)."""

    inputs: torch.Tensor  # (n, n_positions, h)
    outputs: torch.Tensor  # (n, n_positions, n_classes)
    place: int  # among the calls of the layer in a forward pass

    def gives(self, logits: torch.Tensor) -> bool:
        """Return whether the output is the logits, (n, n_classes), at one position of each sample.

        Where several positions have the same output, their inputs must be the same, too.
        """
        if self.outputs.shape[::2] != logits.shape:
            return False
        there = self._gives_at(logits)
        same = equal(self.inputs, self.embeddings(logits)[:, None]).all(dim=2)
        return bool((there.any(dim=1)[:, None] & (same | ~there)).all())

    def embeddings(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the input, (n, h), at the only position or at the first one whose output is the logits."""
        if self.inputs.shape[1] == 1:
            return self.inputs[:, 0]
        first = self._gives_at(logits).int().argmax(dim=1)
        return self.inputs[torch.arange(first.shape[0], device=first.device), first]

    def _gives_at(self, logits: torch.Tensor) -> torch.Tensor:
        return equal(self.outputs.to(logits.dtype), logits[:, None]).all(dim=2)  # (n, n_positions)


@contextmanager
def recorded(layers: Mapping[str, nn.Module], *, n_rows: int | None = None) -> Iterator[dict[str, list[LayerCall]]]:
    """Record the calls of some layers in this thread, by name; the hooks are removed at the end.

    With ``n_rows``, only calls with one position for each of so many samples are recorded, which need little memory.
    """
    calls: dict[str, list[LayerCall]] = {name: [] for name in layers}
    counts = dict.fromkeys(layers, 0)
    thread = threading.get_ident()

    def hook(name: str) -> Callable[..., None]:
        def record(layer: nn.Module, inputs: tuple[Any, ...], *more: Any) -> None:
            if threading.get_ident() != thread:  # torch may leave out ``named`` if this thread just removes the hook
                return
            named, output = more
            rows = inputs[0] if inputs else named.get("input")
            if rows is None or rows.is_nested or output.is_nested:  # a head gives one row per sample
                return
            spatial = isinstance(layer, CONVOLUTIONS)
            parts = [by_position(part, spatial) for part in (rows, output)]
            if n_rows is None or parts[0].shape[:2] == (n_rows, 1):
                # Copies: what follows may change the tensors in place.
                calls[name].append(LayerCall(parts[0].clone(), parts[1].clone(), counts[name]))
            counts[name] += 1

        return record

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_hook(hook(name), with_kwargs=True).remove)
        yield calls


def by_position(tensor: torch.Tensor, spatial: bool) -> torch.Tensor:
    """Return a tensor as (n, n_positions, n_features); the features of a convolution are the second axis."""
    if spatial:
        return tensor.flatten(2).transpose(1, 2)
    if tensor.ndim <= 2:
        return tensor.unsqueeze(-2) if tensor.ndim == 2 else tensor[None, None]
    return tensor.flatten(1, -2)


def equal(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return where two tensors are equal; NaN equals NaN, so that the caller can say which batch has some."""
    return (one == other) | (one.isnan() & other.isnan())
