"""The small network embeds, classifies and refuses what it cannot take."""

from typing import Any

import numpy as np
import pytest
import torch

from kcal.datasets.network import SmallCNN
from kcal.errors import InvalidInputError


def seeded_network(seed: int = 0, n_classes: int = 10) -> SmallCNN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmallCNN(n_classes).eval()


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("n_classes", [2, 10])
def test_logits_are_the_head_of_the_embeddings(images: torch.Tensor, n_classes: int) -> None:
    network = seeded_network(n_classes=n_classes)
    logits = network(images)
    assert logits.shape == (5, n_classes)
    assert network.embed(images).shape == (5, 64)
    assert torch.equal(logits, network.head(network.embed(images)))


def test_image_is_classified_alone_whatever_its_batch(images: torch.Tensor) -> None:
    network = seeded_network()
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(alone, network(images))


@pytest.mark.parametrize(
    "images",
    [torch.zeros(5, 28, 28), torch.zeros(5, 3, 28, 28), None, np.zeros((5, 1, 28, 28), dtype=np.float32),
     torch.zeros(5, 1, 28, 28, dtype=torch.uint8)],
)  # fmt: skip
def test_other_images_raise_by_name(images: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^images must be"):
        SmallCNN()(images)
