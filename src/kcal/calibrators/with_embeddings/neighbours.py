"""Nearest neighbours among embeddings of length 1, in torch operations that can be exported."""

from __future__ import annotations

import torch

BLOCK_NUMBERS = 2**22
"""Largest size of a matrix of distances."""
EXAMPLE_NOISE = 0.1
"""Standard deviation of the noise of made-up rows, in units of that of the points."""


def squared_distances(queries: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Return ‖q − p‖², (n, m), of queries (n, h) and points (m, h)."""
    lengths = queries.square().sum(dim=1, keepdim=True) + points.square().sum(dim=1)
    return torch.relu(lengths - 2.0 * queries @ points.T)


def nearest(queries: torch.Tensor, points: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return squared distances and positions of the k nearest points, both (n, k), ascending."""
    distances, places = torch.topk(squared_distances(queries, points), k, dim=1, largest=False)
    return distances, places


def nearest_others(points: torch.Tensor, keys: torch.Tensor | None, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same for each of the points among those with another key; without keys, among all others.

    Where fewer than k are left, the distances after them are infinite.
    """
    keys = torch.arange(len(points)) if keys is None else keys.to(points.device)
    found = []
    for rows in torch.split(torch.arange(len(points)), max(1, BLOCK_NUMBERS // len(points))):
        distances = squared_distances(points[rows], points)
        distances.masked_fill_(keys[rows][:, None] == keys, torch.inf)  # by key: duplicates of a point are others
        found.append(torch.topk(distances, k, dim=1, largest=False))
    return torch.cat([values for values, _ in found]), torch.cat([places for _, places in found])


def near_points(points: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return made-up rows near some of the points, (n, h)."""
    chosen = torch.linspace(0, len(points) - 1, len(noise)).long()
    return points[chosen] + EXAMPLE_NOISE * points.std(dim=0, correction=0) * noise
