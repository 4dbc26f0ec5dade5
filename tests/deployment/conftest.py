"""A small trained network and its data."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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


@pytest.fixture(scope="session")
def trained() -> Trained:
    torch.manual_seed(0)
    network, (points, labels) = Network(), sample(300, 1)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(points), labels).backward()
        optimizer.step()
    optimizer.zero_grad()
    train = DataLoader(TensorDataset(points, labels), batch_size=100)
    calibration = DataLoader(TensorDataset(*sample(240, 2)), batch_size=50)
    return Trained(network, train, calibration, *sample(60, 3))
