"""The examples run with the libraries that they are for."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EXAMPLES = Path(__file__).parent.parent / "examples"
POINTS = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
LABELS = (POINTS[:, 0] + 0.5 * POINTS[:, 1] > 0).long() + (POINTS[:, 2] > 1).long()


@pytest.fixture(autouse=True)
def _examples_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 3))


def test_lightning_calibrates_at_the_end_of_training(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("pytorch_lightning")
        from lightning_callback import Calibrate

        class Network(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.layers = layers()

            def forward(self, points: torch.Tensor) -> torch.Tensor:
                return self.layers(points)

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                return nn.functional.cross_entropy(self(batch[0]), batch[1])

            def configure_optimizers(self) -> torch.optim.Optimizer:
                return torch.optim.Adam(self.parameters(), lr=0.01)

        train = DataLoader(TensorDataset(POINTS[:200], LABELS[:200]), batch_size=50)
        calibration = DataLoader(TensorDataset(POINTS[200:350], LABELS[200:350]), batch_size=50)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
        callback = Calibrate(calibration)
        trainer = lightning.Trainer(max_epochs=3, callbacks=[callback], default_root_dir=tmp_path, **quiet)
        trainer.fit(Network(), train)
    probs = callback.model(POINTS[350:]).detach().numpy()
    np.testing.assert_allclose(probs, callback.model.predict_proba(POINTS[350:]), atol=1e-6)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-5)


def test_skorch_is_calibrated_on_its_own_arrays() -> None:
    skorch = pytest.importorskip("skorch")
    from skorch_classifier import calibrate

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = skorch.NeuralNetClassifier(
            layers, criterion=nn.CrossEntropyLoss, max_epochs=3, lr=0.1, train_split=None, verbose=0
        )
        net.fit(POINTS[:200].numpy(), LABELS[:200].numpy())
        calibrated = calibrate(net, POINTS[200:350].numpy(), LABELS[200:350].numpy())
    probs = calibrated.predict_proba([POINTS[350:]])
    assert probs.shape == (50, 3)
    assert (probs.argmax(axis=1) == LABELS[350:].numpy()).mean() > 0.6
