"""The network's own probabilities, as a calibrator, so that they can stand in every comparison."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch

from kcal.calibrators.base import Calibrator, CalibratorState, decode_classes, encode_classes, refuse_extra
from kcal.calibrators.logits import encode_columns, log_probabilities


class Uncalibrated(Calibrator):
    """Softmax of the logits, unchanged.

    Parameters
    ----------
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "uncal"

    def __init__(self, *, representation: str = "logits", seed: int = 0) -> None:
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, classes: Any = None) -> Self:
        """Learn the classes; integer labels are columns."""
        rows, _ = self._check_rows(X, fitting=True)
        log_probabilities(rows, self.representation)
        _, self.classes_ = encode_columns(y, rows.shape[0], rows.shape[1], classes)
        return self

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return log_probabilities(rows, self.representation)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        values = {"classes": encode_classes(self.classes_), "n_features": self.n_features_in_}
        return CalibratorState(self.method, self.get_params(), values, {})

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)
        calibrator.classes_ = decode_classes(state.values["classes"])
        calibrator.n_features_in_ = int(state.values["n_features"])
        return calibrator
