"""A small network, and parts of the data of its problem."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader

N_CLASSES = 4


class Network(nn.Module):
    """A classifier with dropout, of points in six dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3))
        self.fc = nn.Linear(16, N_CLASSES)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.fc(self.body(points))


@dataclass(frozen=True)
class Trained:
    """A network, and parts of the data of its problem."""

    network: Network
    train: DataLoader[tuple[torch.Tensor, ...]]
    calibration: DataLoader[tuple[torch.Tensor, ...]]
    points: torch.Tensor  # (60, 6), for tests
    labels: torch.Tensor


def sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = 1.5 * torch.randn(N_CLASSES, 6, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(N_CLASSES, (n,), generator=generator)
    return centres[labels] + torch.randn(n, 6, generator=generator), labels
