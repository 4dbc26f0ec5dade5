"""What KCal and its blend with the network share: a fit from embeddings, and a state with a projection."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, check_at_least_two
from kcal.calibrators.kcal.samples import Samples, TrainingSet, check_samples, check_training_set, known_labels
from kcal.calibrators.kcal.state import Tensors, stored_parameters
from kcal.errors import InvalidInputError
from kcal.projection import needs_training


class EmbeddingCalibrator(Calibrator):
    """Base class of the methods with kernel density estimates over projected embeddings."""

    columns_are_classes: ClassVar[bool] = False
    has_evidence: ClassVar[bool] = True
    projection: Any

    @abstractmethod
    def _model_state(self) -> tuple[dict[str, Any], Tensors]:
        """Return the values and tensors of the fitted calibrator."""

    @property
    def uses_training_set(self) -> bool:
        """Whether ``fit``, with the present parameters, learns from the network's training set."""
        return needs_training(self.projection)

    def as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings that the projection works on, (n, h), from rows of ``X``."""
        return rows

    def log_evidence(self, X: Any) -> Any:
        """Return the log density of the calibration set (in the first metric of a blend) at each row, (n,).

        Low values mark queries far from all calibration samples; compare with the values of held-out data.
        """
        rows, kind = self._check_rows(X)
        return kind.give_back(self.model_.log_evidence(self.as_embeddings(rows)))

    def to(self, device: str | torch.device) -> Self:
        """Move the fitted calibrator to a device; kernel sums then run there."""
        check_is_fitted(self)
        self.model_ = self.model_.to(device)
        return self

    def state(self) -> CalibratorState:
        """Return the content of the fitted calibrator."""
        check_is_fitted(self)
        self._check_parameters()
        values, tensors = self._model_state()
        return self._state(stored_parameters(self.get_params(deep=False), self.classes_), values, **tensors)

    def _check_fit_data(
        self, rows: torch.Tensor, y: Any, embeddings: Any, labels: Any, train_groups: Any, **options: Any
    ) -> tuple[Samples, TrainingSet | None]:
        """Return the checked samples of a fit, and its training set; ``options`` are those of ``check_samples``."""
        columns, names = (
            [str(name) for name in getattr(embeddings, "columns", [])],
            getattr(self, "feature_names_in_", []),
        )
        if columns and len(names) and columns != list(names):
            raise InvalidInputError("train_embeddings", "must have the columns of X, in the same order")
        training = check_training_set(
            embeddings, labels, train_groups, rows, self.projection, logits=self.inputs == "logits"
        )
        if training is not None:
            training = replace(training, embeddings=self.as_embeddings(training.embeddings))
        known = known_labels(training, self.projection)
        samples = check_samples(self.as_embeddings(rows), y, known_labels=known, **options)
        check_at_least_two(samples.classes, type(self).__name__)
        return samples, training
