"""Tiny data sets of every kind that the paper's networks take, and settings that train on them in a moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.paper.prepared import PreparedData
from experiments.paper.settings import SETTINGS, SHORT, Settings

CLASSES = ("cat", "dog", "owl")
TOY_VIT = {"pretrained": False, "img_size": 32, "depth": 1, "embed_dim": 12, "num_heads": 2}
SHAPES = {"images": (10, 10, 3), "spectrograms": (2, 9, 12), "signals": (1, 200)}


def toy_data(kind: str = "signals", *, name: str = "pn2017", n: int = 48, votes: bool = False) -> PreparedData:
    """Return samples of three classes that differ in scale; a group has two samples of one class."""
    generator = np.random.default_rng(0)
    groups = np.arange(n) // 2
    labels = groups % 3
    parts = np.select([groups % 8 < 4, groups % 8 < 5], [0, 1], 2).astype(np.int8)
    scales = (1 + labels).reshape(-1, *[1] * len(SHAPES[kind]))
    inputs = (scales * generator.normal(size=(n, *SHAPES[kind]))).astype(np.float32)
    if kind == "images":
        inputs = np.clip(128 + 30 * inputs, 0, 255).astype(np.uint8)
    targets = (np.eye(3, dtype=np.float32)[labels] * 0.7 + 0.1) if votes else None
    return PreparedData(name, kind, CLASSES, inputs, labels, parts, groups, targets)


def toy_settings(network: str, **changes: Any) -> Settings:
    """Return the settings of a data set for this network, made short."""
    table: dict[str, tuple[Settings, dict[str, Any]]] = {
        "vit": (SETTINGS["cifar10"], TOY_VIT),
        "mixer": (SETTINGS["svhn"], {"pretrained": False, "name": "toy_mixer"}),
        "spectrogram-resnet": (SETTINGS["isruc"], {"widths": [4, 6]}),
        "mina": (SETTINGS["pn2017"], {"n_filters": 4, "n_hidden": 3}),
        "signal-resnet": (SHORT["pn2017"], {"widths": [4, 6]}),
    }
    settings, sizes = table[network]
    short = {"epochs": 3, "cooldown_epochs": 0, "warmup_epochs": 1, "batch_size": 8, "image_size": 32}
    return replace(settings, network=network, sizes=sizes, **{**short, **changes})
