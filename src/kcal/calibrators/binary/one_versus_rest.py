"""One binary calibration map per class, fitted to "this class or another", and normalisation of the outputs.

s_k = log p_k − log(1 − p_k),   q_k = g_k(s_k),   p′_k = q_k / Σ_j q_j
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass, field, fields
from itertools import product
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators.class_scores import fit_maps, one_versus_rest, rounded_log_odds
from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel
from kcal.samples import stratified_folds
from kcal.validation import check_choice, parameter

Hits = NDArray[np.bool_]

MAPS = ("auto", "class", "shared")
FOLDS = 3
"""For the choice between a map per class and a shared one; the two are rarely close."""


@dataclass(frozen=True)
class OneVersusRestModel(LogitModel):
    """Base class of the models: every ragged field holds one array per map, or one array for all classes."""

    @abstractmethod
    def log_map(self, scores: torch.Tensor) -> torch.Tensor:
        """Return log g_k(s_k), (n, n_classes), finite."""

    @property
    def maps(self) -> Literal["class", "shared"]:
        """Whether every class has a map of its own."""
        return "shared" if len(getattr(self, fields(self)[0].name)) == 1 else "class"

    def scores(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return the inputs of the maps, (n, n_classes)."""
        return rounded_log_odds(log_probs)

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        return torch.log_softmax(self.log_map(self.scores(log_probs)), dim=1)

    def summary(self) -> dict[str, str]:
        """Return the kind of maps for display."""
        return {"maps": "one shared by all classes" if self.maps == "shared" else "one per class"}


@dataclass(kw_only=True, eq=False, repr=False)
class OneVersusRest(LogitCalibrator):
    """Base class of the methods that map the score of each class by itself; parameters as in :class:`PlattScaling`."""

    fits_each_class = True
    pools_network: ClassVar[bool] = True
    model_class: ClassVar[type[OneVersusRestModel]]
    maps_ = fitted("maps")
    maps: str = parameter("auto", check_choice, choices=MAPS)
    model_: OneVersusRestModel = field(init=False)

    @abstractmethod
    def _fit_map(self, scores: Floats, hits: Hits, weights: Floats) -> tuple[Floats, ...]:
        """Return the arrays of a map from scores and whether the label is the class of the score, all (n,)."""

    def _fit_maps(self, log_probs: torch.Tensor, codes: Codes, weights: Floats, *, shared: bool) -> OneVersusRestModel:
        """Return the model with a map per class, or one for the scores of all classes together."""
        scores, targets = rounded_log_odds(log_probs).numpy(), one_versus_rest(codes, log_probs.shape[1])
        return self.model_class(*fit_maps(self._fit_map, scores, targets, weights, shared=shared))

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> OneVersusRestModel:
        shared = self._sharing_is_better(log_probs, codes, weights) if self.maps == "auto" else self.maps == "shared"
        return self._fit_maps(log_probs, codes, weights, shared=shared)

    def _sharing_is_better(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> bool:
        """Return whether a shared map has the lower cross-validated log-loss."""
        if len(codes) < 2 * FOLDS:
            return True
        folds = stratified_folds(codes, FOLDS, self.seed)
        losses = {True: 0.0, False: 0.0}
        for shared, fold in product(losses, range(FOLDS)):
            inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the fit to all samples warns
                model = self._fit_maps(log_probs[inside], codes[inside], weights[inside], shared=shared)
            held_out = model.log_probs(log_probs[outside]).numpy()
            losses[shared] -= float(weights[outside] @ held_out[np.arange(len(outside)), codes[outside]])
        return losses[True] <= losses[False]
