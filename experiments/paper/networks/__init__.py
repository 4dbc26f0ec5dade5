"""The paper's networks: one module each, one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from experiments.paper.networks import pretrained
from experiments.paper.networks.mina import MINA
from experiments.paper.networks.signal_resnet import SignalResNet
from experiments.paper.networks.spectrogram_resnet import SpectrogramResNet
from experiments.paper.prepared import PreparedData
from kcal.errors import InvalidInputError
from kcal.validation import check_choice

Build = Callable[..., nn.Module]
"""Builds a network from the data that it is for, and sizes."""


def _of_images(network: str, data: PreparedData, **sizes: Any) -> nn.Module:
    return pretrained.create(network, len(data.classes), **sizes)


def _mina(data: PreparedData, **sizes: Any) -> nn.Module:
    return MINA(len(data.classes), **sizes)


def _signal_resnet(data: PreparedData, **sizes: Any) -> nn.Module:
    return SignalResNet(data.inputs.shape[1], len(data.classes), **sizes)


def _spectrogram_resnet(data: PreparedData, **sizes: Any) -> nn.Module:
    return SpectrogramResNet(data.inputs.shape[1], len(data.classes), **sizes)


NETWORKS: dict[str, tuple[tuple[str, ...], Build]] = {
    **{name: (("images", "files"), partial(_of_images, name)) for name in pretrained.NAMES},
    "spectrogram-resnet": (("spectrograms",), _spectrogram_resnet),
    "mina": (("signals",), _mina),
    "signal-resnet": (("signals",), _signal_resnet),
}
"""By name: the kinds of inputs that a network takes, and the function that builds it."""


def build_network(name: str, data: PreparedData, sizes: Mapping[str, Any]) -> nn.Module:
    """Return a network for a data set; raise if it does not take inputs of that kind."""
    kinds, build = NETWORKS[check_choice(name, "network", tuple(NETWORKS))]
    if data.kind not in kinds:
        others = [other for other, (taken, _) in NETWORKS.items() if data.kind in taken]
        raise InvalidInputError(
            "network", f"must take {data.kind}", got=repr(name), remedy=f"Choose {' or '.join(others)}."
        )
    return build(data, **sizes)


__all__ = ["MINA", "NETWORKS", "SignalResNet", "SpectrogramResNet", "build_network"]
