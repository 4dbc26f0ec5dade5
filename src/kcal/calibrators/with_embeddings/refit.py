"""Ridge refit of the last layer, shrunk towards the network: p = softmax(b·z + Wᵀe + a)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import torch

from kcal.calibrators.logit_base import LARGEST_PENALTY, fitted
from kcal.calibrators.model_state import nested, tensor
from kcal.calibrators.ridge import FINE, PrincipalAxes, RidgeModel, RidgeProblem, cross_fit, mean_penalty, solve_average
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.calibrators.with_embeddings.base import TwoInputCalibrator, TwoInputModel
from kcal.samples import Samples, cross_folds
from kcal.validation import check_number, parameter

FOLDS = 5
PENALTY = 'must be "cv" or a positive number'


@dataclass(frozen=True, eq=False)
class RefitModel(TwoInputModel):
    """The refitted layer, with the mean and the spread of the embeddings."""

    scale: float
    mean: torch.Tensor = tensor("features")
    ridge: RidgeModel = nested(RidgeModel)

    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        return self.ridge.log_probs(embeddings, log_probs)

    def example_embeddings(self, noise: torch.Tensor) -> torch.Tensor:
        """Return rows with the mean and the spread of the calibration set, (n, h)."""
        return self.mean + self.scale / sqrt(len(self.mean)) * noise

    def summary(self) -> dict[str, str]:
        """Return the chosen penalty and the factor of the logits for display."""
        return {"penalty": f"{self.ridge.penalty:.4g}", "factor of the logits": f"{self.ridge.factor:.4g}"}


@dataclass(kw_only=True, eq=False, repr=False)
class LastLayerRefit(TwoInputCalibrator):
    """Add a linear map of the embeddings to the scaled logits, with a ridge penalty towards the network alone.

    T is that of temperature scaling, and c has at most the standard deviation of its prior. Without data, or with a
    large λ, the prediction is that of the scaled network. The embeddings are centred and divided by the root mean
    square of their distance from the mean, so that λ has no unit: each logit's change has a prior standard deviation
    of about 1/√λ. The loss is convex.

    Parameters
    ----------
    penalty : "cv" or float
        λ; "cv" averages the solutions of 1,000 to 0.01, in steps of √10, each with its share of the likelihood in
        5-fold cross-validation, stratified by class, or by whole groups.
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds.

    Attributes
    ----------
    factor_, penalty_ : float
        b and λ; with "cv" the geometric mean of λ.
    weights_, bias_ : array, (h, n_classes) and (n_classes,)
        W and a.
    """

    method: ClassVar[str] = "refit"
    model_class = RefitModel
    factor_ = fitted("ridge.factor")
    penalty_ = fitted("ridge.penalty")
    weights_ = fitted("ridge.weights")
    bias_ = fitted("ridge.bias")
    penalty: str | float = parameter(
        "cv", check_number, minimum=np.finfo(np.float64).tiny, maximum=LARGEST_PENALTY, expected=PENALTY
    )

    def _fit_model(self, samples: Samples, log_probs: torch.Tensor) -> RefitModel:
        embeddings, codes, weights = samples.embeddings.cpu().double(), samples.codes, samples.weights
        axes = PrincipalAxes.of(embeddings, weights)
        temperature = fit_temperature(log_probs, codes, weights)
        problem = RidgeProblem(log_probs / temperature, axes.features(embeddings), codes, weights)
        if self.penalty == "cv":
            shares, _ = cross_fit(problem, cross_folds(codes, samples.groups, FOLDS, self.seed))
        else:
            shares = {float(self.penalty): 1.0}
        point = solve_average(problem, shares, FINE)
        ridge = axes.model(point, temperature, mean_penalty(shares), log_probs.shape[1])
        return RefitModel(axes.scale, axes.mean, ridge)
