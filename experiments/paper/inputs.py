"""Batches of prepared data as tensors, for training (augmented) and for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, pad

from experiments.paper.prepared import PreparedData
from experiments.paper.settings import Settings

IMAGE_MEAN = IMAGE_SPREAD = 0.5
"""Of all three pretrained networks, for values from 0 to 1."""
CROP_AREA, CROP_RATIO = (0.08, 1.0), 4 / 3
"""Share of the area of a random crop, and the largest ratio of its sides."""
FLIPPED_SIGNALS = 0.3
"""Share of the signals whose sign changes: electrodes of hand-held recorders are often held the other way round."""
MAX_SCALE, MAX_STRETCH, NOISE = 1.25, 1.1, 0.05
CLIP = 8.0
"""Values of a standardized signal beyond are artefacts."""


@dataclass(frozen=True)
class Batches:
    """Batches (inputs, labels) of some rows in their order; a generator makes them augmented."""

    data: PreparedData
    rows: NDArray[np.int64]
    settings: Settings
    generator: np.random.Generator | None = None

    def __len__(self) -> int:
        return -(-len(self.rows) // self.settings.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.settings.batch_size
        for start in range(0, len(self.rows), size):
            rows = self.rows[start : start + size]
            yield self.inputs(rows), torch.from_numpy(self.data.labels[rows].astype(np.int64))

    def inputs(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the inputs of some rows as the network takes them."""
        generator = self.generator if self.settings.augment else None
        if self.data.kind == "signals":
            signals = _rows(self.data, rows).clamp(-CLIP, CLIP)
            return signals if generator is None else vary_signals(signals, generator)
        if self.data.kind == "spectrograms":
            return _rows(self.data, rows)
        size = self.settings.image_size
        if self.data.kind == "files":
            images = torch.cat([self._of_file(str(name)) for name in self.data.inputs[rows]])
        else:
            images = _rows(self.data, rows).movedim(3, 1) / 255  # (n, 3, height, width)
        if generator is not None:
            images = random_crops(images, size, generator, flip=self.settings.flip)
        elif images.shape[2:] != (size, size):
            images = interpolate(images, (size, size), mode="bilinear", antialias=True)
        return (images - IMAGE_MEAN) / IMAGE_SPREAD

    def _of_file(self, name: str) -> Tensor:
        """Return the image of a file, (1, 3, size, size): its shorter side resized, its middle cut out."""
        from PIL import Image

        size = self.settings.image_size
        with Image.open(Path(self.data.root or "") / name) as opened:
            image = opened.convert("RGB")
        scale = size / self.settings.crop_share / min(image.size)
        width, height = (max(size, round(side * scale)) for side in image.size)
        left, top = (width - size) // 2, (height - size) // 2
        cut = image.resize((width, height), Image.Resampling.BICUBIC).crop((left, top, left + size, top + size))
        return torch.from_numpy(np.array(cut)).movedim(2, 0)[None].float() / 255


def _rows(data: PreparedData, rows: NDArray[np.int64]) -> Tensor:
    """Return some rows of the inputs in single precision."""
    return torch.from_numpy(np.asarray(data.inputs[rows], dtype=np.float32))


def random_crops(images: Tensor, size: int, generator: np.random.Generator, *, flip: bool) -> Tensor:
    """Cut a random part out of every image (n, 3, height, width), resize it to size × size, and flip half of them."""
    n_images = len(images)
    area = generator.uniform(*CROP_AREA, n_images)
    ratio = CROP_RATIO ** generator.uniform(-1, 1, n_images)
    width, height = (np.minimum(1.0, np.sqrt(area * factor)) for factor in (ratio, 1 / ratio))
    across, down = (generator.uniform(side - 1, 1 - side) for side in (width, height))
    signs = generator.choice([-1.0, 1.0], n_images) if flip else np.ones(n_images)
    zero = np.zeros(n_images)
    rows = [[signs * width, zero, across], [zero, height, down]]
    transforms = torch.from_numpy(np.array(rows, dtype=np.float32)).movedim(2, 0)  # (n, 2, 3)
    grid = affine_grid(transforms, [n_images, 3, size, size], align_corners=False)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def vary_signals(signals: Tensor, generator: np.random.Generator) -> Tensor:
    """Change scale and sign of every signal (n, n_channels, length), tempo and position of all, and add noise."""
    n_signals, _, length = signals.shape
    stretch = MAX_STRETCH ** generator.uniform(-1, 1)
    stretched = interpolate(signals, size=round(length * stretch), mode="linear")
    surplus = stretched.shape[2] - length
    start = int(generator.integers(0, abs(surplus) + 1))
    placed = stretched[:, :, start : start + length] if surplus >= 0 else pad(stretched, (start, -surplus - start))
    scales = MAX_SCALE ** generator.uniform(-1, 1, n_signals)
    signs = np.where(generator.random(n_signals) < FLIPPED_SIGNALS, -1.0, 1.0)
    noise = generator.standard_normal(placed.shape, dtype=np.float32)
    factors = torch.from_numpy((scales * signs).astype(np.float32))[:, None, None]
    return placed * factors + NOISE * torch.from_numpy(noise)


def drawn_rows(data: PreparedData, balance: float | None, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the training rows of an epoch in their order; ``balance`` as in :class:`Settings`."""
    rows = data.rows("train")
    if balance is None:
        return generator.permutation(rows)
    labels = data.labels[rows]
    natural = np.ones(len(rows), bool) if data.oversampled is None else ~data.oversampled[rows]
    sizes = np.bincount(labels[natural], minlength=len(data.classes)).astype(float)
    shares: Any = np.where(sizes > 0, np.maximum(sizes, 1) ** (1 - balance), 0.0)
    weights = (shares / np.maximum(1, np.bincount(labels, minlength=len(data.classes))))[labels]
    return generator.choice(rows, int(natural.sum()), p=weights / weights.sum())
