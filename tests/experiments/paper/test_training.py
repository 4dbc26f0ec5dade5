"""Every network of the paper from prepared data to a task of the benchmark, and the pieces of its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.paper import training
from experiments.paper.checkpoints import Checkpoint, read_checkpoint
from experiments.paper.embedding import embed, embed_companion
from experiments.paper.evaluation import Evaluation
from experiments.paper.inputs import Batches, drawn_rows
from experiments.paper.prepared import PreparedData
from experiments.paper.settings import SETTINGS
from experiments.paper.training import Training, cosine_rate, train
from kcal.benchmark import Plan, read_task, run
from kcal.errors import FileFormatError, InvalidInputError
from kcal.losses import mmce, mmce_loss
from toy_data import toy_data, toy_settings

KINDS = {
    "vit": "images",
    "mixer": "images",
    "spectrogram-resnet": "spectrograms",
    "mina": "signals",
    "signal-resnet": "signals",
}


@pytest.fixture(scope="module", autouse=True)
def _toy_mixer() -> None:
    timm = pytest.importorskip("timm")

    def toy_mixer(num_classes: int, **_: Any) -> torch.nn.Module:
        mixer: type[torch.nn.Module] = timm.models.mlp_mixer.MlpMixer
        return mixer(num_classes=num_classes, img_size=32, patch_size=16, num_blocks=1, embed_dim=8)

    timm.models.register_model(toy_mixer)


def the_same(first: Checkpoint, second: Checkpoint) -> bool:
    """Return whether two runs hold the same weights, states and records, apart from seconds."""
    states = [
        (one[name], other[name])
        for one, other in ((first.network, second.network), (first.chosen, second.chosen))
        for name in one
    ]
    records = [[{**record, "seconds": 0} for record in run.history] for run in (first, second)]
    slots = [run.optimizer["state"] for run in (first, second)]
    states += [
        (torch.as_tensor(slots[0][index][name]), torch.as_tensor(slots[1][index][name]))
        for index in slots[0]
        for name in slots[0][index]
        if slots[0][index][name] is not None
    ]
    return all(torch.equal(*pair) for pair in states) and records[0] == records[1] and first.plateau == second.plateau


@pytest.mark.parametrize("network", KINDS)
def test_a_network_trains_resumes_and_becomes_a_task(network: str, tmp_path: Path) -> None:
    data, settings = toy_data(KINDS[network]), toy_settings(network)
    whole = train(data, settings, tmp_path / "whole.pt", seed=3)
    train(data, settings, tmp_path / "parts.pt", seed=3, until=1)
    random_state = torch.get_rng_state()
    resumed = train(data, settings, tmp_path / "parts.pt", seed=3)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert len(resumed.history) == 3
    assert the_same(whole, resumed)
    assert the_same(whole, read_checkpoint(tmp_path / "parts.pt"))
    task = embed(resumed, data, tmp_path / "task.npz")
    pool = data.rows("pool")
    np.testing.assert_array_equal(task.pool.labels, data.labels[pool])
    np.testing.assert_array_equal(task.pool.groups, data.groups[pool])
    chosen = resumed.chosen_network(data)
    with torch.no_grad():
        logits = torch.cat([chosen(inputs) for inputs, _ in Batches(data, pool, settings)])
    np.testing.assert_allclose(task.pool.logits, logits.numpy(), atol=0.02, rtol=2e-3)
    assert task.train.embeddings.shape[1] == task.pool.embeddings.shape[1] > 1


def test_a_task_with_companions_runs_in_the_benchmark(tmp_path: Path) -> None:
    data, settings = toy_data(n=96), toy_settings("signal-resnet", epochs=1)
    place = tmp_path / "toy.npz"
    runs = {loss: train(data, settings, tmp_path / f"{loss}.pt", loss=loss) for loss in ("focal", "mmce")}
    embed(train(data, settings, tmp_path / "net.pt"), data, place, share=0.4)
    assert [embed_companion(one, data, place).name for one in runs.values()] == ["toy@focal.npz", "toy@mmce.npz"]
    results = list(run([read_task(place)], Plan(("uncal", "focal", "mmce"), 1, 0, 1), tmp_path / "bench"))
    assert [result.error for result in results] == [None] * 6  # by row and by group
    assert len({result.metrics["negative_log_likelihood"] for result in results}) == 6
    with pytest.raises(InvalidInputError, match="focal or mmce"):
        embed_companion(read_checkpoint(tmp_path / "net.pt"), data, place)


def test_the_cosine_is_that_of_timm() -> None:
    scheduler_of = pytest.importorskip("timm.scheduler").CosineLRScheduler
    settings = SETTINGS["cifar10"]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], settings.learning_rate)
    reference = scheduler_of(optimizer, t_initial=40, lr_min=1e-5, warmup_t=3, warmup_lr_init=1e-5)
    for epoch in range(50):
        reference.step(epoch)
        assert cosine_rate(epoch, settings) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)


def test_a_plateau_halves_the_rate_also_after_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "PLATEAU_PATIENCE", 1)
    losses = iter(2 * [1.0, 0.9, 0.95, 0.93, 0.8, 0.85, 0.9])
    monkeypatch.setattr(training, "evaluate_part", lambda *_: Evaluation(0.5, 0.5, next(losses), (0.5, 0.5, 0.5)))
    data, settings = toy_data(n=12), toy_settings("signal-resnet", schedule="plateau", learning_rate=0.1, epochs=7)
    whole = train(data, settings, tmp_path / "whole.pt")
    for until in (3, 4, 7):
        parts = train(data, settings, tmp_path / "parts.pt", until=until)
    assert [record["learning_rate"] for record in parts.history] == [0.1, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05]
    assert parts.optimizer["param_groups"][0]["lr"] == 0.025
    assert the_same(whole, parts)


def test_the_last_epoch_is_kept_or_the_best_validation_epoch(tmp_path: Path) -> None:
    data, settings = toy_data(), toy_settings("signal-resnet", epochs=4, keep="last")
    last = train(data, settings, tmp_path / "last.pt")
    assert last.chosen_epoch == 4
    assert all(torch.equal(last.network[name], last.chosen[name]) for name in last.network)
    best = train(data, replace(settings, keep="best"), tmp_path / "best.pt")
    scores = [record["macro_f1"] for record in best.history]
    assert (best.chosen_epoch, best.chosen_score) == (1 + int(np.argmax(scores)), max(scores))
    stopped = train(data, settings, tmp_path / "stopped.pt", until=best.chosen_epoch)
    assert all(torch.equal(stopped.network[name], best.chosen[name]) for name in stopped.network)


@pytest.mark.parametrize("loss", ["cross-entropy", "focal", "mmce"])
def test_losses_are_those_of_timm_and_of_the_library(loss: str) -> None:
    logits, labels = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 1])
    value = run_loss(toy_data(), loss, logits, labels)
    if loss == "cross-entropy":
        smoothed = pytest.importorskip("timm.loss").LabelSmoothingCrossEntropy(0.1)
        torch.testing.assert_close(value, smoothed(logits, labels))
    elif loss == "focal":
        p = torch.softmax(logits, dim=1)[torch.arange(6), labels]
        torch.testing.assert_close(value, (-((1 - p) ** torch.where(p < 0.2, 5, 3)) * p.log()).mean())
    else:
        torch.testing.assert_close(value, mmce_loss(logits, labels), rtol=0, atol=0)
        term = mmce(logits, labels)
        assert term > 0.01
        torch.testing.assert_close(value, torch.nn.functional.cross_entropy(logits, labels) + 0.2 * term)


def run_loss(data: PreparedData, loss: str, logits: torch.Tensor, labels: torch.Tensor, rows: Any = None) -> Any:
    return Training(data, toy_settings("signal-resnet"), loss, 0)._loss(logits, labels, rows)


@pytest.mark.parametrize("balance", [0.0, 0.5, 1.0])
def test_classes_are_drawn_with_the_share_of_their_size_to_a_power(balance: float) -> None:
    data = toy_data(n=24)
    labels = np.repeat([0, 1, 2], [4000, 1000, 3000])
    added = np.arange(8000) >= 5000  # of class 2, 3,000 are added to none: a class without natural samples
    added[5000:5250] = False
    many = replace(
        data, inputs=np.zeros((8000, 1, 1), np.float32), labels=labels, parts=np.zeros(8000, np.int8), oversampled=added
    )
    rows = drawn_rows(many, balance, np.random.default_rng(0))
    assert len(rows) == 5250
    shares = np.array([4000.0, 1000, 250]) ** (1 - balance)
    np.testing.assert_allclose(np.bincount(labels[rows]) / 5250, shares / shares.sum(), atol=0.02)
    assert added[rows].any()


def test_a_damaged_or_missing_file_is_an_error(tmp_path: Path) -> None:
    place = tmp_path / "run.pt"
    train(toy_data(), toy_settings("signal-resnet", epochs=0), place)
    for content in (place.read_bytes()[:-100], b"half a file", b"", None):
        place.unlink() if content is None else place.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"run\.pt"):
            read_checkpoint(place)
