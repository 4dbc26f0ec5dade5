"""The network's own probabilities, as a calibrator, so that they can stand in every comparison."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.logits import encode_columns, log_probabilities
from kcal.validation import check_weights


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
    preserves_order: ClassVar[bool] = True

    def __init__(self, *, representation: str = "logits", seed: int = 0) -> None:
        self.representation = representation
        self.seed = seed

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Learn the classes; integer labels are columns.

        ``sample_weight`` changes nothing: it is taken so that weighted data can be compared with no calibration.
        """
        rows, _ = self._check_rows(X, fitting=True)
        self._remember(rows)
        log_probabilities(rows, self.representation)
        _, self.classes_ = encode_columns(y, rows.shape[0], rows.shape[1], classes)
        if sample_weight is not None:
            check_weights(sample_weight, len(rows))
        return self

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return log_probabilities(rows, self.representation)

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        return self._state(self.get_params(), {})

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        return cls(**state.parameters)._restore(state)
