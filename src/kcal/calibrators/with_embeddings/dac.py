"""Density-aware calibration: a temperature that grows with the distance to the training set.

p = softmax(z / T(x)),   T(x) = w₁·s(x) + w₀,   s(x) = ‖u − u_(k)‖²
with u = e/‖e‖ and u_(k) its k-th nearest neighbour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

from kcal.calibrators.fit_warnings import warn_of_training_rows
from kcal.calibrators.kcal.samples import Samples
from kcal.calibrators.logit_base import Codes, Floats, fitted
from kcal.calibrators.model_state import tensor
from kcal.calibrators.quasi_newton import minimise_convex
from kcal.calibrators.temperature_prior import fit_temperature, penalty_and_slope
from kcal.calibrators.with_embeddings.base import TwoInputCalibrator, TwoInputModel
from kcal.calibrators.with_embeddings.neighbours import BLOCK_NUMBERS, near_points, nearest, nearest_others
from kcal.errors import InvalidInputError
from kcal.projection.modules import at_unit_length
from kcal.validation import check_integer, check_matrix, column_names, parameter, row_fingerprints

MIN_TEMPERATURE = 0.01
PRIOR_MEAN = 0.1
"""Prior mean of w₁·(mean of s), what the distance adds to the temperature on average."""
MAX_NEIGHBOURS = 1_000_000


@dataclass(frozen=True, eq=False)
class DensityModel(TwoInputModel):
    """softmax(z / (w₁·s + w₀)), s the squared distance to the k-th nearest of the reference points."""

    slope: float
    intercept: float
    k: int
    is_calibration_set: bool  # whether the points are the calibration set, for want of a training set
    points: torch.Tensor = tensor("samples", "features")  # of length 1

    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        distances, _ = nearest(at_unit_length(embeddings), self.points, self.k)
        return torch.log_softmax(log_probs / (self.slope * distances[:, -1:] + self.intercept), dim=1)

    def example_embeddings(self, noise: torch.Tensor) -> torch.Tensor:
        """Return rows near reference points, (n, h)."""
        return near_points(self.points, noise)

    @property
    def numbers_per_row(self) -> int:
        """Number of distances per row."""
        return len(self.points)

    @property
    def holds_calibration_rows(self) -> bool:
        """A row of the calibration set is its own neighbour there."""
        return self.is_calibration_set

    def summary(self) -> dict[str, str]:
        """Return the temperature for display."""
        where = "calibration" if self.is_calibration_set else "training"
        temperature = f"{self.intercept:.4g} + {self.slope:.4g}·(squared distance to neighbour {self.k:,})"
        return {"temperature": temperature, "neighbours": f"{len(self.points):,} samples of the {where} set"}


@dataclass(kw_only=True, eq=False, repr=False)
class DensityAwareCalibration(TwoInputCalibrator):
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

    method: ClassVar[str] = "dac"
    fit_options: ClassVar[frozenset[str]] = TwoInputCalibrator.fit_options | {"train_embeddings"}
    model_class = DensityModel
    slope_ = fitted("slope")
    intercept_ = fitted("intercept")
    k: int = parameter(50, check_integer, minimum=1, maximum=MAX_NEIGHBOURS)

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit`` uses the classifier's training set: always, if it is given."""
        return True

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
        return self._fit(X, y, logits, groups, sample_weight, classes, train_embeddings=train_embeddings)

    def _fit_model(self, samples: Samples, log_probs: torch.Tensor, train_embeddings: Any = None) -> DensityModel:
        points = at_unit_length(samples.embeddings.cpu().double())
        if train_embeddings is None:
            left_out = 1 if samples.groups is None else int(np.unique(samples.groups, return_counts=True)[1].max())
            reference, k = points, min(int(self.k), len(points) - left_out)
            distances, _ = nearest_others(points, samples.keys, k)
        else:
            reference = at_unit_length(self._check_training_rows(train_embeddings, samples.embeddings))
            k = min(int(self.k), len(reference))
            blocks = torch.split(points, max(1, BLOCK_NUMBERS // len(reference)))
            distances = torch.cat([nearest(block, reference, k)[0][:, -1:] for block in blocks])
        slope, intercept = fit_density_temperature(log_probs, distances[:, -1].numpy(), samples.codes, samples.weights)
        return DensityModel(slope, intercept, k, train_embeddings is None, reference)

    def _check_training_rows(self, train_embeddings: Any, embeddings: torch.Tensor) -> torch.Tensor:
        names, known = column_names(train_embeddings), list(getattr(self, "feature_names_in_", []))
        if names and known and names != known:
            raise InvalidInputError("train_embeddings", "must have the columns of X, in the same order")
        columns = embeddings.shape[1]
        rows = check_matrix(train_embeddings, "train_embeddings", columns=columns, owner="the calibration set")
        warn_of_training_rows(embeddings, row_fingerprints(rows))
        return rows.cpu().double()


def fit_density_temperature(
    log_probs: torch.Tensor, distances: Floats, codes: Codes, weights: Floats
) -> tuple[float, float]:
    """Return w₁ and w₀ of T = w₁·s + w₀, from the s of the samples, (n,).

    They minimise Σ_i w_i·(log-loss of softmax(z_i / T_i)) + the weighted mean of the penalties of log T_i +
    w₁·(mean of s)/0.1, from temperature scaling on: never worse, though the loss is not convex.
    """
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
    options = {"ftol": 1e-14, "gtol": 1e-9}
    slope, intercept = minimise_convex(loss, start, name="a temperature by density", bounds=bounds, **options)
    return float(slope) / unit, float(intercept)
