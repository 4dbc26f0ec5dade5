"""A small convolutional network for grey images of 28 x 28 pixels."""

from typing import Final

import torch
from torch import Tensor, nn

IMAGE_SHAPE: Final = (1, 28, 28)
EMBEDDING_DIMENSION: Final = 64


class SmallCNN(nn.Module):
    """Three strided convolutions, a hidden layer of 64 units and a linear head.

    logits = head(embed(images)); the embedding is the output of the hidden layer after its ReLU. With ten classes the
    network has about 108,000 parameters.
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
        """Return the embeddings, (n, 64), of images (n, 1, 28, 28) with values from 0 to 1."""
        return torch.relu(self.hidden(self.features(images)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, (n, n_classes)."""
        logits: Tensor = self.head(self.embed(images))
        return logits


def halving_convolution(n_inputs: int, n_outputs: int) -> nn.Sequential:
    """Return a 3 x 3 convolution of stride 2 with batch norm and ReLU: half the height and width, rounded up."""
    return nn.Sequential(
        # No bias: the batch norm that follows has its own.
        nn.Conv2d(n_inputs, n_outputs, kernel_size=3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(n_outputs),
        nn.ReLU(inplace=True),
    )
