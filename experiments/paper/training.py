"""Train the network of a data set; a run that was stopped resumes after its last finished epoch, bit for bit.

Everything random in an epoch, its samples, their augmentation and dropout, follows from the seed and the number of the
epoch, so that a checkpoint needs no state of a generator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau

from experiments.paper.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from experiments.paper.evaluation import evaluate_part
from experiments.paper.inputs import Batches, drawn_rows
from experiments.paper.networks import build_network
from experiments.paper.prepared import PreparedData
from experiments.paper.settings import LOSSES, Settings
from kcal.errors import InvalidInputError
from kcal.losses import focal_loss, mmce_loss
from kcal.progress import Advance, progress_bar
from kcal.validation import check_choice

MIN_RATE = 1e-5
PLATEAU_PATIENCE, PLATEAU_FACTOR = 10, 0.5
Report = Callable[[dict[str, Any]], None]
"""Called with the record of every finished epoch."""


def train(
    data: PreparedData,
    settings: Settings,
    out: str | Path,
    *,
    loss: str = "cross-entropy",
    seed: int = 0,
    until: int | None = None,
    report: Report | None = None,
    progress: bool | None = None,
) -> Checkpoint:
    """Train a network and keep it in a file; if the file is there already, go on from it.

    Parameters
    ----------
    data : PreparedData
    settings : Settings
    out : path
        NAME.pt, written after every epoch.
    loss : "cross-entropy", "focal" or "mmce"
    seed : int
        Of the first weights, the samples, their augmentation and dropout.
    until : int, optional
        Stop after this epoch; the same call without it goes on.
    report : callable, optional
        Called with the record of every finished epoch.
    progress : bool, optional
        Show a progress bar; by default in a terminal only.

    Returns
    -------
    Checkpoint
        With the last weights, or those of the best validation macro-F1 if the settings keep the best.
    """
    check_choice(loss, "loss", LOSSES)
    training = Training(data, settings, loss, seed)
    description = {"settings": asdict(settings), "loss": loss, "seed": seed, "data": data.name}
    path = Path(out)
    checkpoint = read_checkpoint(path) if path.exists() else training.checkpoint(description)
    if checkpoint.description != description:
        changed = [key for key in description if checkpoint.description.get(key) != description[key]]
        remedy = "Choose another file, or delete this one."
        raise InvalidInputError("out", "must hold the same run", got=f"another {' and '.join(changed)}", remedy=remedy)
    training.restore(checkpoint)
    last = settings.all_epochs if until is None else min(until, settings.all_epochs)
    if not path.exists():
        write_checkpoint(checkpoint, path)
    n_steps = (last - training.epoch) * len(Batches(data, training.epoch_rows(), settings))
    with progress_bar(f"Training {settings.network}", n_steps, show=progress) as advance:
        while training.epoch < last:
            record = training.run_epoch(advance)
            checkpoint = training.checkpoint(description)
            write_checkpoint(checkpoint, path)
            if report is not None:
                report(record)
    return checkpoint


@dataclass
class Chosen:
    """The weights to keep, after which epoch, and their validation score."""

    epoch: int
    score: float
    weights: dict[str, Tensor]


class Training:
    """A network, its optimizer and what was measured after each epoch."""

    def __init__(self, data: PreparedData, settings: Settings, loss: str, seed: int) -> None:
        self.data, self.settings, self.loss, self.seed = data, settings, loss, seed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        with seeded([seed, 0]):
            self.network = build_network(settings.network, data, settings.sizes).to(self.device)
        self.optimizer = new_optimizer(self.network, settings)
        self.plateau = ReduceLROnPlateau(self.optimizer, factor=PLATEAU_FACTOR, patience=PLATEAU_PATIENCE)
        self.history: list[dict[str, Any]] = []
        self.chosen = Chosen(0, -math.inf, weights_of(self.network))

    @property
    def epoch(self) -> int:
        """The number of finished epochs."""
        return len(self.history)

    def epoch_rows(self) -> Any:
        """Return the training rows of the next epoch."""
        return drawn_rows(self.data, self.settings.balance, np.random.default_rng([self.seed, 1, self.epoch]))

    def run_epoch(self, advance: Advance) -> dict[str, Any]:
        """Train for one epoch, evaluate, choose; return the record of the epoch."""
        started = time.perf_counter()
        train_loss = self._run_batches(advance)
        rate = self.optimizer.param_groups[0]["lr"]
        validation = evaluate_part(self.network, self.data, self.settings, "validation")
        if self.settings.schedule == "plateau":
            self.plateau.step(train_loss if validation is None else validation.log_loss)
        record = {"epoch": self.epoch + 1, "learning_rate": rate, "train_loss": train_loss}
        record |= {} if validation is None else asdict(validation)
        record["seconds"] = time.perf_counter() - started
        self.history.append(record)
        score = -math.inf if validation is None else validation.macro_f1
        if self.settings.keep == "last" or validation is None or score > self.chosen.score:
            self.chosen = Chosen(self.epoch, score, weights_of(self.network))
        return record

    def _run_batches(self, advance: Advance) -> float:
        """Train on all batches of an epoch; return the mean loss."""
        rows = self.epoch_rows()
        batches = Batches(self.data, rows, self.settings, np.random.default_rng([self.seed, 2, self.epoch]))
        total, size = 0.0, self.settings.batch_size
        self.network.train()
        with seeded([self.seed, 3, self.epoch]):
            for index, (inputs, labels) in enumerate(batches):
                if len(labels) < 2:  # batch norm needs two
                    continue
                if self.settings.schedule == "cosine":
                    self._set_rate(cosine_rate(self.epoch + index / len(batches), self.settings))
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.settings.bfloat16):
                    logits = self.network(inputs.to(self.device))
                loss = self._loss(logits.float(), labels, rows[index * size : index * size + len(labels)])
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                if self.settings.max_gradient is not None:
                    nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_gradient)
                self.optimizer.step()
                total += loss.item() * len(labels)
                advance(f"epoch {self.epoch + 1}, loss {loss.item():.3f}")
        if not math.isfinite(total):
            raise InvalidInputError("learning_rate", "must keep the loss finite", remedy="Choose a lower one.")
        return total / len(rows)

    def _set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def _loss(self, logits: Tensor, labels: Tensor, rows: Any) -> Tensor:
        """Return the loss of a batch; the cross-entropy is that of the votes where the data set has them."""
        labels = labels.to(logits.device)
        if self.loss == "focal":
            return focal_loss(logits, labels)
        if self.loss == "mmce":
            return mmce_loss(logits, labels)
        if self.data.targets is not None:
            votes = torch.from_numpy(np.asarray(self.data.targets[rows], np.float32))
            return cross_entropy(logits, votes.to(logits.device))
        return cross_entropy(logits, labels, label_smoothing=self.settings.smoothing)

    def checkpoint(self, description: dict[str, Any]) -> Checkpoint:
        """Return everything that a run needs to go on."""
        return Checkpoint(
            description=description,
            network=weights_of(self.network),
            optimizer=self.optimizer.state_dict(),
            plateau={key: value for key, value in self.plateau.state_dict().items() if isinstance(value, int | float)},
            history=list(self.history),
            chosen=self.chosen.weights,
            chosen_epoch=self.chosen.epoch,
            chosen_score=self.chosen.score,
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to a checkpoint."""
        self.network.load_state_dict(checkpoint.network)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.plateau.load_state_dict(checkpoint.plateau)
        self.history = list(checkpoint.history)
        self.chosen = Chosen(checkpoint.chosen_epoch, checkpoint.chosen_score, checkpoint.chosen)


def new_optimizer(network: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return SGD without momentum, or AdamW."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if check_choice(settings.optimizer, "optimizer", ("sgd", "adamw")) == "sgd":
        return torch.optim.SGD(network.parameters(), rate, weight_decay=decay)
    return torch.optim.AdamW(network.parameters(), rate, weight_decay=decay)


def cosine_rate(epoch: float, settings: Settings) -> float:
    """Return the learning rate after this many epochs, fractions included.

    Linear from 1e-5 in the warm-up, then 1e-5 + (η − 1e-5) (1 + cos(π epoch / epochs)) / 2, then 1e-5.
    """
    highest, lowest = settings.learning_rate, min(MIN_RATE, settings.learning_rate)
    if epoch < settings.warmup_epochs:
        return lowest + (highest - lowest) * epoch / settings.warmup_epochs
    if epoch >= settings.epochs:
        return lowest
    return lowest + (highest - lowest) * (1 + math.cos(math.pi * epoch / settings.epochs)) / 2


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the weights and buffers, on the CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in network.state_dict().items()}


@contextmanager
def seeded(numbers: list[int]) -> Iterator[None]:
    """Draw torch's random numbers from these seeds, and leave its own state as it was."""
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))
        yield
