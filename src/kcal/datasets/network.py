"""A small convolutional network for 28 x 28 grey images; knows no data set and no training."""

from typing import Final

import torch
from torch import Tensor, nn

from kcal.errors import InvalidInputError

IMAGE_SHAPE: Final = (1, 28, 28)
EMBEDDING_DIMENSION: Final = 64


class SmallCNN(nn.Module):
    """Three strided convolutions, a hidden layer of 64 units and a linear head.

    logits = head(embed(images)); the embedding is the rectified hidden layer, so it is never negative
    and often zero. With ten classes the network has about 108,000 parameters.

    Parameters
    ----------
    n_classes
        How many logits the head gives.
    """

    def __init__(self, n_classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            halving_convolution(1, 32),  # 28 -> 14 pixels
            halving_convolution(32, 48),  # 14 -> 7
            halving_convolution(48, 64),  # 7 -> 4
            nn.Flatten(),
        )
        self.hidden = nn.Linear(64 * 4 * 4, EMBEDDING_DIMENSION)
        self.head = nn.Linear(EMBEDDING_DIMENSION, n_classes)

    def embed(self, images: Tensor) -> Tensor:
        """Give the penultimate layer, (n, 64), of images (n, 1, 28, 28) with values from 0 to 1."""
        check_images(images)
        return torch.relu(self.hidden(self.features(images)))

    def forward(self, images: Tensor) -> Tensor:
        """Give the logits, (n, n_classes)."""
        logits: Tensor = self.head(self.embed(images))
        return logits


def halving_convolution(n_inputs: int, n_outputs: int) -> nn.Sequential:
    """Convolve 3 x 3 with stride 2, normalise, rectify: half the height and width, rounded up."""
    return nn.Sequential(
        # The normalisation that follows has its own shift, so a bias would do nothing.
        nn.Conv2d(n_inputs, n_outputs, kernel_size=3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(n_outputs),
        nn.ReLU(inplace=True),
    )


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of floating-point images of one channel and 28 x 28 pixels."""
    if images.ndim != 4 or tuple(images.shape[1:]) != IMAGE_SHAPE:
        raise InvalidInputError(
            f"images must have shape (n, 1, 28, 28); got {tuple(images.shape)}. "
            "Grey images without a channel become so with images[:, None]."
        )
    if not torch.is_floating_point(images):
        raise InvalidInputError(
            f"images must be floating point, from 0 to 1; got {images.dtype}. "
            "Bytes become so with images.float() / 255."
        )
