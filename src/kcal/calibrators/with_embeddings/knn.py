"""k-nearest-neighbour interpolation: the network's probabilities mixed with the labels of similar samples.

p = (1 − λ)·softmax(z / T) + λ·q,   q_c = Σ_{i ∈ N_k, y_i = c} v_i / Σ_{i ∈ N_k} v_i,   v_i = w_i·exp(−‖u − u_i‖²/τ)
with u = e/‖e‖ and N_k the k nearest calibration samples of u; w_i is the weight of a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log, log1p
from typing import ClassVar

import numpy as np
import torch

from kcal.calibrators.logit_base import Floats, fitted
from kcal.calibrators.model_state import tensor
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.calibrators.with_embeddings.base import TwoInputCalibrator, TwoInputModel
from kcal.calibrators.with_embeddings.neighbours import near_points, nearest, nearest_others
from kcal.projection.modules import at_unit_length
from kcal.samples import Samples

NEIGHBOURS = (4, 8, 16, 32, 64, 128)
WIDTHS = tuple(2.0**power for power in range(-6, 3))
"""Values of τ, in units of the median squared distance to the k-th neighbour."""
BISECTIONS = 50


@dataclass(frozen=True, eq=False)
class KNNModel(TwoInputModel):
    """The network mixed with the labels of the nearest calibration samples."""

    temperature: float
    share: float
    k: int
    tau: float
    points: torch.Tensor = tensor("samples", "features")  # of length 1
    codes: torch.Tensor = tensor("samples", dtype=torch.int64)
    weights: torch.Tensor = tensor("samples")

    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        distances, places = nearest(at_unit_length(embeddings), self.points, self.k)
        votes = neighbour_weights(distances, self.weights[places], self.tau)
        frequencies = torch.zeros_like(log_probs).scatter_add(1, self.codes[places], votes)
        return mix(torch.log_softmax(log_probs / self.temperature, dim=1), frequencies, self.share)

    def example_embeddings(self, noise: torch.Tensor) -> torch.Tensor:
        """Return rows near points of the calibration set, (n, h)."""
        return near_points(self.points, noise)

    @property
    def numbers_per_row(self) -> int:
        """Number of distances per row."""
        return len(self.points)

    @property
    def holds_calibration_rows(self) -> bool:
        """A row of the calibration set is its own neighbour."""
        return True

    def summary(self) -> dict[str, str]:
        """Return the chosen numbers for display."""
        names = {"temperature": self.temperature, "neighbours' share": self.share, "neighbours": self.k, "τ": self.tau}
        return {name: f"{value:.4g}" for name, value in names.items()}


class KNNInterpolation(TwoInputCalibrator):
    """Mix the network's probabilities with the labels of the nearest calibration samples.

    T is that of temperature scaling. k, τ and λ have the lowest leave-one-out log-loss on the calibration set: k and τ
    on a grid, λ by its convex loss. One more sample, of a class that none of its neighbours has, counts in that loss: λ
    is at most n/(n + 1), and no class gets probability 0.
    The same mixture over a language model's contexts is kNN-LM (Khandelwal et al., 2020).

    The model contains the embeddings of the calibration set, divided by their length.

    Parameters
    ----------
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    temperature_, share_, k_, tau_ : float, float, int and float
        T, λ, k and τ.
    """

    method: ClassVar[str] = "knn"
    model_class = KNNModel
    model_: KNNModel
    temperature_ = fitted("temperature")
    share_ = fitted("share")
    k_ = fitted("k")
    tau_ = fitted("tau")

    def _fit_model(self, samples: Samples, log_probs: torch.Tensor) -> KNNModel:
        points = at_unit_length(samples.embeddings.cpu().double())
        codes, weights = torch.from_numpy(samples.codes), torch.from_numpy(samples.weights)
        temperature = fit_temperature(log_probs, samples.codes, samples.weights)
        scaled = torch.softmax(log_probs / temperature, dim=1)
        own = scaled.gather(1, codes[:, None])[:, 0].numpy()
        n_others = len(points) - 1
        distances, places = nearest_others(points, samples.keys(), min(NEIGHBOURS[-1], n_others))
        candidates, votes = [], []
        for k in [k for k in NEIGHBOURS if k <= n_others] or [n_others]:
            typical = float(distances[:, k - 1][distances[:, k - 1].isfinite()].median().nan_to_num(0.0)) or 1.0
            for tau in (width * typical for width in WIDTHS):
                shares = neighbour_weights(distances[:, :k], weights[places[:, :k]], tau)
                candidates.append((k, tau))
                votes.append((shares * (codes[places[:, :k]] == codes[:, None])).sum(dim=1).numpy())
        best, share = best_mixture(own, np.stack(votes), samples.weights)
        return KNNModel(temperature, share, *candidates[best], points, codes, weights)


def neighbour_weights(distances: torch.Tensor, weights: torch.Tensor, tau: float) -> torch.Tensor:
    """Return w·exp(−d/τ) over their sum, (n, k), of squared distances that ascend in each row."""
    votes = weights * torch.exp((distances[:, :1] - distances) / tau)
    return votes / votes.sum(dim=1, keepdim=True)


def mix(network: torch.Tensor, frequencies: torch.Tensor, share: float) -> torch.Tensor:
    """Return log((1 − λ)·p + λ·q), (n, n_classes), of log p and q."""
    seen = frequencies > 0
    of_neighbours = (log(share) if share else -inf) + torch.log(torch.where(seen, frequencies, 1.0))
    of_network = log1p(-share) + network
    return torch.where(seen, torch.logsumexp(torch.stack([of_network, of_neighbours]), dim=0), of_network)


def best_mixture(network: Floats, neighbours: Floats, weights: Floats) -> tuple[int, float]:
    """Return the row of ``neighbours``, (n_candidates, n), and the λ with the lowest loss of their mixture.

    loss(λ) = −Σ_i w_i·log((1 − λ)·a_i + λ·b_i) − log(1 − λ), with a (n,) and b the probabilities of the labels; it is
    convex, so that bisection finds where its derivative is 0.
    """
    network = np.maximum(network, np.finfo(np.float64).tiny)
    low, high = np.zeros(len(neighbours)), np.ones(len(neighbours))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        mixed = (1 - middle)[:, None] * network + middle[:, None] * neighbours
        falls = ((neighbours - network) / mixed) @ weights > 1 / (1 - middle)
        low, high = np.where(falls, middle, low), np.where(falls, high, middle)
    mixed = (1 - low)[:, None] * network + low[:, None] * neighbours
    best = int(np.argmin(-np.log(mixed) @ weights - np.log1p(-low)))
    return best, float(low[best])
