"""Small torch networks with their calibrators, in the files that are served."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kcal

CLASSES = ("cat", "dog", "owl")
N_TOKENS, LENGTH = 40, 5


class ImageNetwork(nn.Module):
    """A convolutional classifier of images, (n, 1, 6, 6)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 6))
        self.fc = nn.Linear(6, len(CLASSES))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(images))


class TextNetwork(nn.Module):
    """A classifier of token ids with a mask, (n, 5) each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.fc = nn.Embedding(N_TOKENS, 6), nn.Linear(6, len(CLASSES))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        words = self.words(input_ids) * attention_mask[..., None]
        return self.fc(words.sum(1) / attention_mask.sum(1, keepdim=True))


def draw_images(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images whose brightest row tells the class, with noise, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASSES), (n,), generator=generator)
    images = torch.randn(n, 1, 6, 6, generator=generator)
    images[torch.arange(n), 0, 2 * labels] += 1.0
    return images, labels


def draw_texts(n: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return token ids that tell the class, with a mask, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(CLASSES), (n,), generator=generator)
    tokens = (torch.randint(16, (n, LENGTH), generator=generator) + 10 * labels[:, None]) % N_TOKENS
    mask = torch.ones_like(tokens)
    mask[::3, -1] = 0
    return {"input_ids": tokens, "attention_mask": mask}, labels


@dataclass(frozen=True)
class Pair:
    """A calibrated network, its files, and inputs that it has not seen."""

    model: kcal.CalibratedClassifier
    path: Path
    network: Path
    inputs: Any

    def outputs(self, n: int) -> kcal.ClassifierOutputs:
        """Return the embeddings and logits of the first inputs, by torch."""
        return self.model.outputs(rows(self.inputs, n), labelled=False)


def rows(inputs: Any, n: int) -> Any:
    """Return the first inputs."""
    return {name: part[:n] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[:n]


def make_pair(folder: Path, kind: str, seed: int = 0) -> Pair:
    """Train a network, calibrate it, and write both to KIND.kcal and KIND.network.onnx."""
    torch.manual_seed(seed)
    draw, network = (draw_images, ImageNetwork()) if kind == "images" else (draw_texts, TextNetwork())
    train(network, *draw(300, 1))
    inputs, labels = draw(120, 2)
    batch = {**inputs, "labels": labels} if isinstance(inputs, dict) else (inputs, labels)
    outputs = kcal.extract(network, [batch], progress=False)
    named = kcal.ClassifierOutputs(
        outputs.embeddings, outputs.logits, outputs.labels, ids=np.array([f"{kind}-{row}" for row in range(120)])
    )
    model = kcal.CalibratedClassifier(network, calibrator(kind)).fit(named, classes=CLASSES)
    unseen, _ = draw(40, 3)
    folder.mkdir(exist_ok=True)
    path = model.save(folder / f"{kind}.kcal")
    return Pair(model, path, model.network_to_onnx(folder / f"{kind}.network.onnx", unseen), unseen)


def calibrator(kind: str) -> Any:
    """Return a calibrator that learns online: of embeddings and logits for images, of embeddings for text."""
    if kind == "images":
        return kcal.KCalBlend()
    return kcal.KCal(projection="identity", bandwidth=0.8)


def train(network: nn.Module, inputs: Any, labels: torch.Tensor) -> None:
    """Train a network for a moment."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    for _ in range(40):
        optimizer.zero_grad()
        logits = network(**inputs) if isinstance(inputs, dict) else network(inputs)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
    optimizer.zero_grad()
