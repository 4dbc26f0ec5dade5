"""Calibrate a network of skorch: train on one part of the data, calibrate on another.

calibrated = calibrate(net, x_calibration, y_calibration)
probs = calibrated.predict_proba([x_new])
"""

from __future__ import annotations

from typing import Any

from skorch import NeuralNetClassifier

from kcal import CalibratedClassifier


def calibrate(net: NeuralNetClassifier, X: Any, y: Any, method: str = "kcal-blend") -> CalibratedClassifier:
    """Return the trained network of skorch with calibrated probabilities.

    Parameters
    ----------
    net : NeuralNetClassifier
        Trained, with a network that returns logits (``criterion=torch.nn.CrossEntropyLoss``).
    X, y
        The calibration set, which the network was not trained on.
    method : str
        As in :class:`kcal.CalibratedClassifier`.
    """
    loader = net.get_iterator(net.get_dataset(X, y), training=False)
    return CalibratedClassifier(net.module_, method).fit(loader, classes=net.classes_)
