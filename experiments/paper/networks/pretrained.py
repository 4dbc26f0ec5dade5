"""Networks for images with pretrained weights, by timm."""

from __future__ import annotations

from typing import Any

from torch import nn

from kcal.errors import InvalidInputError

NAMES = {
    "vit": "vit_base_patch16_224.augreg_in21k",
    "mixer": "mixer_b16_224.goog_in21k",
    "inception-resnet-v2": "inception_resnet_v2.tf_in1k",
}
"""The paper's networks by the present names of timm; it calls the first two ``vit_base_patch16_224_in21k`` and
``mixer_b16_224_in21k``."""


def create(
    network: str, n_classes: int, *, name: str | None = None, pretrained: bool = True, **sizes: Any
) -> nn.Module:
    """Return a network of timm with a new last layer of ``n_classes``, or with its own if it has as many classes.

    Parameters
    ----------
    network : str
        A key of ``NAMES``.
    n_classes : int
    name : str, optional
        Another name of timm, such as a small variant.
    pretrained : bool
        Download the weights, or start at random ones.
    **sizes
        Passed to timm.
    """
    try:
        import timm
    except ImportError as error:
        raise InvalidInputError(
            "network", "needs timm", got=f"{network!r} without it", remedy='Install it: pip install "kcal[dev]".'
        ) from error
    created: nn.Module = timm.create_model(
        name or NAMES[network], pretrained=pretrained, num_classes=n_classes, **sizes
    )
    return created
