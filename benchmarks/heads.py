"""Survey of last layers: timm architectures with random weights, beside what timm itself calls their classifier."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from benchmarks.torchvision_operators import define_missing_operators
from kcal import InvalidInputError, extract
from kcal.embeddings import find_head

PER_FAMILY = 2
"""Architectures of each module of timm."""
SMALL = (
    "atto",
    "femto",
    "pico",
    "nano",
    "xxtiny",
    "xxs",
    "tiny",
    "_t0",
    "_s0",
    "small",
    "_s_",
    "18",
    "b0",
    "_050",
    "26",
)
"""Parts of the names of small models, the smallest first."""
N_CLASSES, MAX_PARAMETERS = 13, 120e6
"""Number of classes, and number of parameters beyond which an architecture is left out."""


def architectures(timm: Any) -> list[str]:
    """Return the names of some small models of each family."""

    def rank(name: str) -> tuple[int, int]:
        return next((place for place, part in enumerate(SMALL) if part in name), len(SMALL)), len(name)

    names = [sorted(timm.list_models(module=module), key=rank)[:PER_FAMILY] for module in timm.list_modules()]
    return sorted({name for family in names for name in family})


def verdict(network: nn.Module, images: torch.Tensor) -> tuple[str, str]:
    """Return "found", "refused" or "wrong" with an explanation.

    A head is found if it is the classifier that timm names, gives the network's logits from the embeddings, and if
    the embeddings are timm's own features, unless these are taken before further layers of the head.
    """
    try:
        outputs = extract(network, [images])
    except InvalidInputError as error:
        return "refused", error.got
    network.eval()
    known, embeddings = network.default_cfg.get("classifier", ""), torch.from_numpy(outputs.embeddings)
    with torch.inference_mode():
        head = find_head(network, images)[0].name
        features = network.forward_head(network.forward_features(images), pre_logits=True).flatten(1)
        layer, logits = network.get_submodule(head), network(images)
        weight = torch.as_tensor(layer.weight).flatten(1)
        again = nn.functional.linear(embeddings, weight, layer.bias)
    is_named = head == known or head.startswith(f"{known}.")
    is_head = torch.allclose(again, logits, rtol=1e-3, atol=1e-4)
    is_feature = features.shape != embeddings.shape or torch.allclose(features, embeddings, rtol=1e-3, atol=1e-4)
    text = f"{head}, {tuple(embeddings.shape)}; timm: {known}, features {tuple(features.shape)}"
    return ("found" if is_named and is_head and is_feature else "wrong"), text


def main(console: Console) -> None:
    """Print how many heads were found, refused and wrong, with every one that was not found."""
    library = define_missing_operators()
    import timm

    counts = {"found": 0, "refused": 0, "wrong": 0, "cannot run": 0}
    table = Table("architecture", "", "", title="Heads that were not found")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in track(architectures(timm), "Building networks", console=console, transient=True):
            try:
                torch.manual_seed(0)
                network = timm.create_model(name, num_classes=N_CLASSES)
                if sum(parameter.numel() for parameter in network.parameters()) > MAX_PARAMETERS:
                    continue
                images = torch.randn(2, *network.default_cfg.get("input_size", (3, 224, 224)))
                result, text = verdict(network, images)
            except Exception as error:
                result, text = "cannot run", f"{type(error).__name__}: {error}"
            counts[result] += 1
            if result != "found":
                table.add_row(name, result, text[:200])
            gc.collect()
    console.print(table)
    console.print(", ".join(f"{result} {count}" for result, count in counts.items()), "(wrong must be 0)")
    del library
    if counts["wrong"]:
        raise SystemExit(1)
