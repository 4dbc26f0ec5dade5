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


def test_embeddings_have_sixty_four_dimensions_and_are_never_negative(images: torch.Tensor) -> None:
    embeddings = seeded_network().embed(images)
    assert embeddings.shape == (5, 64)
    assert (embeddings >= 0).all()


@pytest.mark.parametrize("n_classes", [2, 10])
def test_logits_are_the_head_of_the_embeddings(images: torch.Tensor, n_classes: int) -> None:
    network = seeded_network(n_classes=n_classes)
    logits = network(images)
    assert logits.shape == (5, n_classes)
    assert torch.equal(logits, network.head(network.embed(images)))


def test_the_network_is_small() -> None:
    assert sum(parameter.numel() for parameter in SmallCNN().parameters()) == 108_298


def test_the_same_seed_gives_the_same_network(images: torch.Tensor) -> None:
    assert torch.equal(seeded_network(3)(images), seeded_network(3)(images))
    assert not torch.equal(seeded_network(3)(images), seeded_network(4)(images))


def test_an_image_is_judged_alone_whatever_its_batch(images: torch.Tensor) -> None:
    network = seeded_network()
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(alone, network(images))


def test_an_empty_batch_gives_empty_outputs(images: torch.Tensor) -> None:
    assert seeded_network()(images[:0]).shape == (0, 10)


def test_double_precision_is_kept(images: torch.Tensor) -> None:
    assert seeded_network().double()(images.double()).dtype == torch.float64


def test_a_gradient_reaches_every_parameter(images: torch.Tensor) -> None:
    network = seeded_network().train()
    network(images).square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("shape", [(5, 28, 28), (5, 3, 28, 28), (5, 1, 32, 32), (784,)])
def test_other_shapes_are_refused_with_the_shape_that_came(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="images must be a tensor of shape") as error:
        SmallCNN()(torch.zeros(shape))
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("images", [None, "x", [[0.0]], np.zeros((5, 1, 28, 28), dtype=np.float32)])
def test_what_is_no_tensor_is_refused_by_name(images: Any) -> None:
    with pytest.raises(InvalidInputError, match="images must be a tensor of shape"):
        SmallCNN()(images)


@pytest.mark.parametrize("n_classes", [0, -1, 2.5, "ten", None, 10**9])
def test_a_number_of_classes_out_of_bounds_is_refused(n_classes: Any) -> None:
    with pytest.raises(InvalidInputError, match="n_classes must be an integer from 1 to 100,000"):
        SmallCNN(n_classes)


def test_bytes_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInputError, match=r"images.float\(\) / 255"):
        SmallCNN()(torch.zeros(5, 1, 28, 28, dtype=torch.uint8))
