"""Structured matrix scaling: matrix scaling whose penalty knows the diagonal from the rest.

output = softmax((I + diag(v) + M)·z/T + b),   M with an empty diagonal
loss = mean log-loss + (K·‖b‖² + K·‖v‖² + K·(K − 1)·‖M‖²)·penalty/n
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from kcal.calibrators.scaling.linear import Floats, MatrixScaling


class StructuredMatrixScaling(MatrixScaling):
    """Map the logits linearly, the more freely the fewer numbers a part of the map has and the more samples there are.

    Temperature scaling first; then a bias and a factor for every class, and a matrix of what each class takes from the
    others, each with a ridge penalty in proportion to how many numbers it has, over the number of samples
    (Berta, Holzmüller, Jordan and Bach, 2026). Nothing is tuned, and the loss is convex.

    Parameters
    ----------
    penalty : float
        Factor of all penalties; 1 is the published one.
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Accepted by every calibrator; nothing here is random.

    Attributes
    ----------
    weights_ : array, (n_classes, n_classes)
        The whole matrix, for logits whose softmax sums to 1 without normalising.
    bias_ : array, (n_classes,)
        b.
    """

    method: ClassVar[str] = "sms"

    def _size(self, logits: Floats, weights: Floats, steepness: float) -> float:
        return 1 / steepness

    def _strengths(self, n_classes: int) -> Floats:
        matrix = np.full((n_classes, n_classes), 2.0 * n_classes * (n_classes - 1))
        np.fill_diagonal(matrix, 2.0 * n_classes)
        return np.concatenate([matrix.ravel(), np.full(n_classes, 2.0 * n_classes)])
