"""The file of a training run, NAME.pt: tensors, numbers and texts, read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.paper.networks import build_network
from experiments.paper.networks.pretrained import NAMES as PRETRAINED
from experiments.paper.prepared import PreparedData
from experiments.paper.settings import Settings
from kcal.errors import FileFormatError, InvalidInputError
from kcal.files import atomic_path, check_path


@dataclass(frozen=True)
class Checkpoint:
    """A training run after some epoch.

    Attributes
    ----------
    description : dict
        Settings, loss, seed and the name of the data set.
    network, optimizer, plateau : mapping
        Their states.
    history : list of dict
        A record for each finished epoch.
    chosen : mapping of str to tensor
        The weights to use.
    chosen_epoch : int
        After which epoch.
    chosen_score : float
        Their validation macro-F1.
    """

    description: dict[str, Any]
    network: Mapping[str, Tensor]
    optimizer: dict[str, Any]
    plateau: dict[str, Any]
    history: list[dict[str, Any]]
    chosen: dict[str, Tensor]
    chosen_epoch: int
    chosen_score: float

    @property
    def settings(self) -> Settings:
        """The settings of the run."""
        return Settings(**self.description["settings"])

    @property
    def is_finished(self) -> bool:
        """Whether all epochs are done."""
        return len(self.history) >= self.settings.all_epochs

    @property
    def summary(self) -> str:
        """The network, the epoch of its weights, and how it was trained."""
        settings = self.settings
        how = f"{settings.optimizer}, {settings.schedule}, balance {settings.balance}"
        return f"{settings.network} after epoch {self.chosen_epoch} of {settings.all_epochs} ({how})"

    def chosen_network(self, data: PreparedData) -> torch.nn.Module:
        """Return the network with the chosen weights; raise if the data set is not that of the run."""
        if data.name != self.description["data"]:
            expected = f"must be {self.description['data']}, which the network was trained on"
            raise InvalidInputError("data", expected, got=data.name)
        sizes = dict(self.settings.sizes)
        if self.settings.network in PRETRAINED:
            sizes["pretrained"] = False  # the weights are here
        network = build_network(self.settings.network, data, sizes)
        network.load_state_dict(self.chosen)
        return network.eval()


def write_checkpoint(checkpoint: Checkpoint, path: str | Path) -> None:
    """Write a checkpoint completely or not at all."""
    with atomic_path(path) as temporary:
        torch.save({field.name: getattr(checkpoint, field.name) for field in fields(checkpoint)}, temporary)


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint; a file can hold nothing but tensors, numbers and texts."""
    place = check_path(path)
    try:
        stored = torch.load(place, map_location="cpu", weights_only=True)
        return Checkpoint(**stored)
    except FileNotFoundError:
        raise FileFormatError(f"{place} does not exist; train it first.") from None
    except Exception as error:  # torch and zipfile raise almost any error on damaged files
        raise FileFormatError(f"{place} is not a training run, or is damaged ({error}).") from error
