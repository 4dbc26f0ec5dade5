"""A small trained network and its data."""

from __future__ import annotations

import pytest
import torch
from small_network import Network, Trained, sample
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


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
