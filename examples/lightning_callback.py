"""Calibrate a network of Lightning when its training ends.

trainer = Trainer(callbacks=[Calibrate(calibration_loader)])
trainer.fit(network, train_loader)
probs = trainer.callbacks[0].model(images)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytorch_lightning import Callback, LightningModule, Trainer

from kcal import CalibratedClassifier


class Calibrate(Callback):
    """Fit a calibrator to the network's outputs for a calibration set.

    Parameters
    ----------
    loader : iterable of batches
        The calibration set, which is neither the training nor the validation set.
    method, options
        As in :class:`kcal.CalibratedClassifier`.
    """

    model: CalibratedClassifier

    def __init__(self, loader: Iterable[Any], method: str = "kcal-blend", **options: Any) -> None:
        self.loader, self.method, self.options = loader, method, options

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Calibrate the trained network."""
        if trainer.is_global_zero:
            self.model = CalibratedClassifier(pl_module, self.method, **self.options).fit(self.loader)
