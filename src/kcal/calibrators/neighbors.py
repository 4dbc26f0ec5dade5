"""Methods on logits that look at the nearest neighbours of an embedding, u = e/‖e‖, among points of length 1.

knn   p = (1 − λ)·softmax(z / T) + λ·q,   q_c = Σ_{i ∈ N_k, y_i = c} v_i / Σ_{i ∈ N_k} v_i
      v_i = w_i·exp(−‖u − u_i‖²/τ)
dac   p = softmax(z / T(x)),   T(x) = w₁·s(x) + w₀,   s(x) = ‖u − u_(k)‖²

N_k are the k nearest calibration samples and w_i their weights; u_(k) is the k-th nearest training sample.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
import torch

from kcal.calibrators.base import Tags, buffer, fitted, option
from kcal.calibrators.fit_warnings import warn_training_rows
from kcal.calibrators.logits import LogitCalibrator, LogitModel, fit_with_embeddings, required
from kcal.calibrators.solvers import minimise
from kcal.calibrators.temperature_prior import fit_temperature, penalty_and_slope
from kcal.projection.modules import at_unit_length
from kcal.samples import Floats, Samples
from kcal.validation import check_integer, check_matrix, parameter, row_fingerprints

SIZES = (4, 8, 16, 32, 64, 128)
"""Values of k that knn compares."""
TAU_WIDTHS = tuple(2.0**power for power in range(-6, 3))
"""Values of τ that knn compares, in units of the median squared distance to the k-th neighbour."""
BISECTIONS = 50
MAX_NEIGHBORS = 1_000_000
MIN_TEMPERATURE = 0.01
PRIOR_MEAN = 0.1
"""Prior mean of w₁·(mean of s), what the distance adds to the temperature on average."""
MAX_DISTANCES = 2**22
"""Size of the largest matrix of distances: blocks of fewer rows would read all points too often."""


class KNNModel(LogitModel):
    """(1 − λ)·softmax(z / T) + λ·(label frequencies of the nearest calibration samples)."""

    max_block_entries: ClassVar[int] = MAX_DISTANCES
    holds_samples = True
    points: torch.Tensor = buffer("n_points", "n_features")
    codes: torch.Tensor = buffer("n_points", dtype=torch.int64)
    weights: torch.Tensor = buffer("n_points")
    temperature: torch.Tensor = buffer()
    share: torch.Tensor = buffer()
    tau: torch.Tensor = buffer()
    k: int = option()

    def entries_per_row(self) -> int:
        """Return the number of distances of a row."""
        return len(self.points)

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        distances, places = nearest(at_unit_length(required(embeddings, "embeddings")), self.points, self.k)
        votes = neighbor_weights(distances, self.weights[places], self.tau)
        frequencies = torch.zeros_like(log_probs).scatter_add(1, self.codes[places], votes)
        seen = frequencies > 0
        of_neighbors = self.share.log() + torch.where(seen, frequencies, 1.0).log()
        of_network = torch.log1p(-self.share) + torch.log_softmax(log_probs / self.temperature, dim=1)
        return torch.where(seen, torch.logsumexp(torch.stack([of_network, of_neighbors]), dim=0), of_network)


class KNNInterpolation(LogitCalibrator):
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

    method = "knn"
    inputs = "both"
    fit = fit_with_embeddings
    _model_class = KNNModel
    temperature_ = fitted("temperature")
    share_ = fitted("share")
    k_ = fitted("k")
    tau_ = fitted("tau")

    def _fit_model(self, samples: Samples) -> KNNModel:
        points = at_unit_length(samples.embeddings.double())
        codes, weights = torch.from_numpy(samples.codes), torch.from_numpy(samples.weights)
        temperature = fit_temperature(samples.logits, samples.codes, samples.weights)
        network = torch.softmax(samples.logits / temperature, dim=1).gather(1, codes[:, None])[:, 0]
        n_others = len(points) - 1
        distances, places = nearest_in_blocks(points, points, min(SIZES[-1], n_others), sample_keys(samples))
        agrees = codes[places] == codes[:, None]

        def typical(k: int) -> float:
            kth = distances[:, k - 1]
            return float(kth[kth.isfinite()].median().nan_to_num(0.0)) or 1.0

        def votes_for_label(k: int, tau: float) -> torch.Tensor:
            return (neighbor_weights(distances[:, :k], weights[places[:, :k]], tau) * agrees[:, :k]).sum(dim=1)

        sizes = [k for k in SIZES if k <= n_others] or [n_others]
        candidates = [(k, width * typical(k)) for k in sizes for width in TAU_WIDTHS]
        votes = torch.stack([votes_for_label(k, tau) for k, tau in candidates])
        best, share = best_mixture(network.numpy(), votes.numpy(), samples.weights)
        k, tau = candidates[best]
        numbers = {"temperature": temperature, "share": share, "tau": tau}
        return KNNModel(points=points, codes=codes, weights=weights, k=k, **numbers)


class DensityModel(LogitModel):
    """softmax(z / (w₁·s + w₀)), s the squared distance to the k-th nearest point.

    The points are the training set, or for want of one the calibration set: the model then ``holds_samples``.
    """

    max_block_entries: ClassVar[int] = MAX_DISTANCES
    points: torch.Tensor = buffer("n_points", "n_features")
    slope: torch.Tensor = buffer()
    intercept: torch.Tensor = buffer()
    k: int = option()
    holds_samples: bool = option()

    def entries_per_row(self) -> int:
        """Return the number of distances of a row."""
        return len(self.points)

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        distances, _ = nearest(at_unit_length(required(embeddings, "embeddings")), self.points, self.k)
        return torch.log_softmax(log_probs / (self.slope * distances[:, -1:] + self.intercept), dim=1)


class DensityAwareCalibration(LogitCalibrator):
    """Divide the logits by a temperature that grows with the distance from the training set.

    s(x) is the squared distance of the embedding, divided by its length, to its k-th nearest neighbour in the training
    set, or in the calibration set without the sample (and its group) if no training set is given. The original (Tomani,
    Waseda, Shen and Cremers, 2023) sums such terms over several layers; here it is the one layer of the embeddings.
    w₁ ≥ 0 and w₀ ≥ 0.01 minimise the log-loss plus the mean penalty of log T(x_i) by the prior of
    :class:`TemperatureScaling`: with w₁ = 0 this is temperature scaling. What the distance adds on average, w₁ times
    the mean of s, has an exponential prior with mean 0.1. It is meant for data unlike the calibration set.

    The model contains the embeddings of the training set, or else of the calibration set, divided by their length.

    Parameters
    ----------
    k : int
        Which neighbour: 50 for CIFAR-10 and 200 for CIFAR-100 in the original; at most the number of samples.
    representation, seed
        As in :class:`TemperatureScaling`.

    Attributes
    ----------
    slope_, intercept_ : float
        w₁ and w₀.
    """

    method = "dac"
    inputs = "both"
    _tags = Tags(uses_training_set=True)
    _model_class = DensityModel
    slope_ = fitted("slope")
    intercept_ = fitted("intercept")
    k: int = parameter(50, check_integer, minimum=1, maximum=MAX_NEIGHBORS)

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        logits: Any = None,
        train_embeddings: Any = None,
        groups: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
    ) -> Self:
        """Fit to the calibration set.

        Parameters
        ----------
        X, y, logits, groups, sample_weight, classes
            As in :meth:`KNNInterpolation.fit`.
        train_embeddings : (m, h) array, tensor or table, optional
            Embeddings of the network's training set.
        """
        options = {"groups": groups, "sample_weight": sample_weight, "classes": classes}
        return self._fit(X, y, logits=logits, train_embeddings=train_embeddings, **options)

    def _fit_model(self, samples: Samples, train_embeddings: Any = None) -> DensityModel:
        rows = at_unit_length(samples.embeddings.double())
        if train_embeddings is None:
            points, keys = rows, sample_keys(samples)
            n_candidates = len(points) - int(np.unique(keys.numpy(), return_counts=True)[1].max())
        else:
            points, keys = at_unit_length(self._check_training_rows(train_embeddings, samples.embeddings)), None
            n_candidates = len(points)
        k = min(int(self.k), n_candidates)
        distances, _ = nearest_in_blocks(rows, points, k, keys)
        slope, intercept = fit_density_temperature(samples, distances[:, -1].numpy())
        options = {"k": k, "holds_samples": keys is not None}
        return DensityModel(points=points, slope=slope, intercept=intercept, **options)

    def _check_training_rows(self, train_embeddings: Any, embeddings: torch.Tensor) -> torch.Tensor:
        self._check_same_columns(train_embeddings, "train_embeddings")
        rows = check_matrix(train_embeddings, "train_embeddings", columns=embeddings.shape[1], owner="X")
        warn_training_rows(embeddings, row_fingerprints(rows))
        return rows.cpu().double()


def nearest(
    queries: torch.Tensor, points: torch.Tensor, k: int, excluded: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return squared distances and positions of the k nearest points of each query, both (n, k), ascending.

    The distance to a point that is ``excluded``, (n, n_points), is infinite.
    """
    lengths = queries.square().sum(dim=1, keepdim=True) + points.square().sum(dim=1)
    distances = torch.relu(lengths - 2.0 * queries @ points.T)
    if excluded is not None:
        distances = distances.masked_fill_(excluded, torch.inf)
    values, places = torch.topk(distances, k, dim=1, largest=False)
    return values, places


def nearest_in_blocks(
    queries: torch.Tensor, points: torch.Tensor, k: int, keys: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same in blocks of queries; with ``keys`` of the points, which then are the queries, of another key."""
    found = []
    for rows in torch.split(torch.arange(len(queries)), max(1, MAX_DISTANCES // len(points))):
        excluded = None if keys is None else keys[rows, None] == keys  # by key: duplicates of a point are others
        found.append(nearest(queries[rows], points, k, excluded))
    return torch.cat([distances for distances, _ in found]), torch.cat([places for _, places in found])


def sample_keys(samples: Samples) -> torch.Tensor:
    """Return a key per sample, (n,): its group, or a number of its own. Samples of one key are not neighbours."""
    return torch.from_numpy(samples.indices if samples.groups is None else samples.groups)


def neighbor_weights(distances: torch.Tensor, weights: torch.Tensor, tau: torch.Tensor | float) -> torch.Tensor:
    """Return w·exp(−d/τ) over their sum, (n, k), of squared distances that ascend in each row."""
    votes = weights * torch.exp((distances[:, :1] - distances) / tau)
    return votes / votes.sum(dim=1, keepdim=True)


def best_mixture(network: Floats, neighbors: Floats, weights: Floats) -> tuple[int, float]:
    """Return the row of ``neighbors``, (n_candidates, n), and the λ with the lowest loss of their mixture.

    loss(λ) = −Σ_i w_i·log((1 − λ)·a_i + λ·b_i) − log(1 − λ), with a (n,) and b the probabilities of the labels; it is
    convex: bisection finds where its derivative is 0.
    """
    network = np.maximum(network, np.finfo(np.float64).tiny)

    def mixed(shares: Floats) -> Floats:
        return (1 - shares)[:, None] * network + shares[:, None] * neighbors

    low, high = np.zeros(len(neighbors)), np.ones(len(neighbors))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        falls = ((neighbors - network) / mixed(middle)) @ weights > 1 / (1 - middle)
        low, high = np.where(falls, middle, low), np.where(falls, high, middle)
    best = int(np.argmin(-np.log(mixed(low)) @ weights - np.log1p(-low)))
    return best, float(low[best])


def fit_density_temperature(samples: Samples, distances: Floats) -> tuple[float, float]:
    """Return w₁ and w₀ of T = w₁·s + w₀, from the s of the samples, (n,).

    They minimise Σ_i w_i·(log-loss of softmax(z_i / T_i)) + the weighted mean of the penalties of log T_i +
    w₁·(mean of s)/0.1, starting at temperature scaling: never worse, though the loss is not convex.
    """
    log_probs, codes, weights = samples.logits, samples.codes, samples.weights
    total, labels = float(weights.sum()), torch.from_numpy(codes)[:, None]
    unit = float(weights @ distances) / total or 1.0  # so that both numbers are of the size of T
    features = np.column_stack([distances / unit, np.ones(len(distances))])

    def loss(point: Floats) -> tuple[float, Floats]:
        temperatures = features @ point
        scaled = log_probs / torch.from_numpy(temperatures)[:, None]
        log_p = torch.log_softmax(scaled, dim=1)
        rise = (scaled.gather(1, labels)[:, 0] - (log_p.exp() * scaled).sum(dim=1)).numpy()  # in log T
        penalties, pulls = penalty_and_slope(np.log(temperatures))
        losses = penalties / total - log_p.gather(1, labels)[:, 0].numpy()
        slopes = weights * (rise + pulls / total) / temperatures
        value, gradient = float(weights @ losses) / total, slopes @ features / total
        gradient[0] += 1 / PRIOR_MEAN / total
        return value + point[0] / PRIOR_MEAN / total, gradient

    start = np.array([0.0, fit_temperature(log_probs, codes, weights)])
    bounds = [(0.0, None), (MIN_TEMPERATURE, None)]
    name = "a temperature by density"
    slope, intercept = minimise(loss, start, name=name, bounds=bounds, ftol=1e-14, gtol=1e-9)
    return float(slope) / unit, float(intercept)
