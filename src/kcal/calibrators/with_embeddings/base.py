"""What the methods on embeddings and logits share: the border of ``fit``, predictions in blocks, module and state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import EXAMPLE_ROWS, Calibrator, CalibratorState, example_logits, refuse_extra
from kcal.calibrators.blend.head import check_logit_names, check_logits
from kcal.calibrators.class_scores import network_log_probs
from kcal.calibrators.fit_warnings import warn_of_known_rows, warn_without_errors
from kcal.calibrators.kcal.module import as_embeddings
from kcal.calibrators.logit_base import encode_columns, to_log_probs
from kcal.calibrators.model_state import Stored, StoredModel
from kcal.calibrators.modules import ModelTensors, PredictionModule, required
from kcal.errors import InvalidInputError
from kcal.modes import with_gradients
from kcal.samples import Samples, check_samples
from kcal.threads import threads_for
from kcal.validation import ArrayKind, checked_parameters, column_names, unchecked_logits

BLOCK_NUMBERS = 2**22
"""Largest size of a tensor in a block of predictions."""


@dataclass(frozen=True)
class TwoInputModel(StoredModel, ABC):
    """Base class of the models: tensors, numbers, and the formula of the prediction."""

    @abstractmethod
    def log_probs(self, embeddings: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities of embeddings, (n, h), and the network's, (n, n_classes), in float64."""

    @abstractmethod
    def example_embeddings(self, noise: torch.Tensor) -> torch.Tensor:
        """Return embeddings like those of the calibration set from standard normal noise, both (n, h)."""

    @property
    def numbers_per_row(self) -> int:
        """Size of the largest tensor of the formula per row, unless that has one column per class."""
        return 1

    @property
    def holds_calibration_rows(self) -> bool:
        """Whether a row of the calibration set would find itself in the model."""
        return False

    @abstractmethod
    def summary(self) -> dict[str, str]:
        """Return the main results for display, label to text."""


class TwoInputModule(PredictionModule):
    """The prediction of a method on embeddings and logits."""

    def __init__(self, model: TwoInputModel, representation: str) -> None:
        super().__init__()
        self.tensors, self.representation = ModelTensors(model), representation

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes), of embeddings (n, h) and logits (n, n_classes)."""
        rows = as_embeddings(embeddings)
        scores = unchecked_logits(required(logits, "logits"), self.representation)
        log_probs = network_log_probs(scores, self.representation)
        return torch.exp(self.tensors.model().log_probs(rows.double(), log_probs)).to(rows.dtype)


@dataclass(kw_only=True, eq=False, repr=False)
class TwoInputCalibrator(Calibrator):
    """Base class: a method declares its parameters as fields, names its ``model_class`` and fits in ``_fit_model``."""

    inputs: ClassVar[str] = "both"
    columns_are_classes: ClassVar[bool] = False
    fit_options: ClassVar[frozenset[str]] = frozenset({"logits", "groups", "sample_weight", "classes"})
    model_class: ClassVar[type[TwoInputModel]]
    """Class of ``model_``."""
    representation: str = "logits"
    seed: int = 0
    model_: TwoInputModel = field(init=False)
    representation_: str = field(init=False)
    logit_names_in_: NDArray[np.object_] = field(init=False)

    def fit(
        self, X: Any, y: Any, *, logits: Any = None, groups: Any = None, sample_weight: Any = None, classes: Any = None
    ) -> Self:
        """Fit to the calibration set.

        Parameters
        ----------
        X : (n, h) array, tensor or table
            Embeddings.
        y : (n,) array
            Labels: integers are columns of ``logits``, as in :meth:`TemperatureScaling.fit`.
        logits : (n, n_classes) array, tensor or table
            The network's logits for the rows of ``X``, or its probabilities with ``representation="probabilities"``.
        groups : (n,) array, optional
            Patients, speakers, sites: no sample is predicted from its own group when parameters are chosen.
        sample_weight, classes
            As in :meth:`TemperatureScaling.fit`.
        """
        return self._fit(X, y, logits, groups, sample_weight, classes)

    @with_gradients()
    def _fit(
        self, X: Any, y: Any, logits: Any, groups: Any, sample_weight: Any, classes: Any, **reference: Any
    ) -> Self:
        """Check the data and fit; ``reference`` is passed on to ``_fit_model``."""
        self._begin_fit()
        rows, _ = self._check_rows(X, fitting=True)
        scores = _required_logits(logits, rows, self.representation)
        known = encode_columns(y, logits, scores.shape, classes)[1]
        samples = check_samples(rows, y, classes=known, groups=groups, sample_weight=sample_weight)
        samples = samples.select(samples.counted)
        if samples.n_parts < 2:
            name, unit = ("X", "samples") if groups is None else ("groups", "groups")
            raise InvalidInputError(name, f"must hold at least two {unit} of positive weight", got="1")
        log_probs = to_log_probs(scores[samples.indices], self.representation)
        warn_without_errors(log_probs, samples.codes)
        with threads_for(samples.embeddings.numel() * log_probs.shape[1]):
            model = self._fit_model(samples, log_probs, **reference)
        self._remember(samples.embeddings)
        self.representation_, self.logit_names_in_ = self.representation, np.array(column_names(logits), dtype=object)
        self.model_, self.classes_ = model, known
        return self

    @abstractmethod
    def _fit_model(self, samples: Samples, log_probs: torch.Tensor) -> TwoInputModel:
        """Return the model, from samples of positive weight and log probabilities of the network, (n, n_classes)."""

    def _check_parameters(self) -> None:
        super()._check_parameters()
        checked_parameters(self)

    @property
    def needs_logits_(self) -> bool:
        """Whether predictions need the logits of the classifier: always."""
        check_is_fitted(self)
        return True

    def summary(self) -> dict[str, str]:
        """Return the main results of the fit for display, label to text."""
        check_is_fitted(self)
        return self.model_.summary()

    def as_module(self) -> TwoInputModule:
        """Return the prediction as a torch module of embeddings and logits."""
        check_is_fitted(self)
        return TwoInputModule(self.model_, self.representation_)

    def example_inputs(self, n_rows: int = EXAMPLE_ROWS) -> dict[str, torch.Tensor]:
        """Return made-up embeddings like those of the calibration set, and random logits."""
        check_is_fitted(self)
        noise = torch.randn(n_rows, self.n_features_in_, generator=torch.Generator().manual_seed(0))
        logits = example_logits(n_rows, len(self.classes_), self.representation_)
        return {"embeddings": self.model_.example_embeddings(noise.double()).float(), "logits": logits}

    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values, tensors = self.model_.to_state()
        values |= {"representation": self.representation_, "logit_names": self.logit_names_in_}
        return self._state(self.get_params(), values, **tensors)

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)
        cls._restore(calibrator, state)
        calibrator.representation_ = state.values["representation"]
        calibrator.logit_names_in_ = np.array(state.values["logit_names"], dtype=object)
        sizes = len(calibrator.classes_), calibrator.n_features_in_
        calibrator.model_ = cls.model_class.from_state(Stored(state.values, state.tensors, *sizes))
        return calibrator

    def _check_inputs(self, X: Any, logits: Any) -> tuple[tuple[torch.Tensor, torch.Tensor], ArrayKind]:
        rows, kind = self._check_rows(X)
        check_logit_names(logits, self.logit_names_in_.tolist())
        return (rows, _required_logits(logits, rows, self.representation_, n_classes=len(self.classes_))), kind

    def _log_probabilities(self, inputs: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        rows, scores = inputs
        model = self.model_
        if model.holds_calibration_rows:
            warn_of_known_rows(self._knows(rows))
        log_probs = to_log_probs(scores, self.representation_)
        n_rows = max(1, BLOCK_NUMBERS // max(model.numbers_per_row, log_probs.shape[1]))
        blocks = zip(torch.split(rows.cpu().double(), n_rows), torch.split(log_probs, n_rows), strict=True)
        return torch.cat([model.log_probs(*block) for block in blocks])


def _required_logits(logits: Any, rows: torch.Tensor, representation: str, **options: Any) -> torch.Tensor:
    scores = check_logits(logits, rows, representation, None, **options)
    if scores is None:
        raise InvalidInputError("logits", "are needed beside the embeddings", got="None", remedy="Pass logits=.")
    return scores
