"""Small networks of many kinds, with random weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

N_CLASSES = 5


class ResNet(nn.Module):
    """As torchvision's, small."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, N_CLASSES)  # registered first, called last
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.avgpool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(torch.flatten(self.avgpool(self.body(x)), 1))


class EcgNetwork(nn.Module):
    """One-dimensional convolutions with a 1 × 1 convolution as the head, on (n, leads, samples)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(2, 12, 7, stride=4), nn.ReLU(), nn.Conv1d(12, 12, 5, stride=4), nn.ReLU()
        )
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Conv1d(12, N_CLASSES, 1)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        pooled = self.features(signal).mean(dim=2, keepdim=True)
        return self.head(self.dropout(pooled)).flatten(1)


class TokenScorer(nn.Module):
    """Scores every token, then takes the last one that is not padding, as decoder-style classifiers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.mix = nn.GRU(16, 16, batch_first=True)
        self.score = nn.Linear(16, N_CLASSES, bias=False)

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        scores = self.score(self.mix(self.embed(input_ids))[0])
        last = (input_ids != 0).sum(dim=1) - 1
        return SimpleNamespace(logits=scores[torch.arange(len(scores)), last])


class TokenMean(nn.Module):
    """Averages the scores of tokens: no row of the layer's output is the network's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.score = nn.Linear(16, N_CLASSES)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.score(torch.tanh(self.embed(input_ids))).mean(dim=1)


class TwoHeads(nn.Module):
    """The mean of two heads, as a distilled vision transformer in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, N_CLASSES)
        self.head_dist = nn.Linear(8, N_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.body(x))
        return (self.head(features) + self.head_dist(features)) / 2


class Returning(nn.Module):
    """A small network whose output is wrapped by a function of features and logits."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.fc = nn.Linear(8, N_CLASSES)
        self.wrap = wrap

    def forward(self, x: torch.Tensor) -> Any:
        features = torch.relu(self.body(x))
        return self.wrap(features, self.fc(features))


def sequential(n_outputs: int = N_CLASSES) -> nn.Sequential:
    """Return a multilayer perceptron with dropout and batch norm."""
    body = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*body, nn.Linear(8, n_outputs))
