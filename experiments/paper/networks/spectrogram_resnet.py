"""A residual network on spectrograms, (n, n_channels, n_frequencies, n_times)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class SpectrogramResNet(nn.Module):
    """logits = head(mean over frequency and time of the last block).

    The paper names "a CNN (ResNet) on the spectrogram" and no sizes; these, 10 layers of the usual residual network
    from 32 to 256 filters, are ours. The embedding has ``widths[-1]`` numbers.
    """

    def __init__(self, n_channels: int, n_classes: int, *, widths: Sequence[int] = (32, 64, 128, 256)) -> None:
        super().__init__()
        stem = nn.Sequential(nn.BatchNorm2d(n_channels), convolution(n_channels, widths[0]), nn.ReLU())
        inputs = (widths[0], *widths[:-1])
        blocks = [Block(before, after) for before, after in zip(inputs, widths, strict=True)]
        self.features = nn.Sequential(stem, *blocks)
        self.head = nn.Linear(widths[-1], n_classes)

    def forward(self, spectrograms: Tensor) -> Tensor:
        """Return the logits, (n, n_classes)."""
        logits: Tensor = self.head(self.features(spectrograms).mean(dim=(2, 3)))
        return logits


class Block(nn.Module):
    """Two 3 × 3 convolutions, the first with stride 2, added to the strided input, then ReLU."""

    def __init__(self, n_inputs: int, n_outputs: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(n_inputs, n_outputs, stride=2), nn.ReLU(), convolution(n_outputs, n_outputs)
        )
        self.skip = convolution(n_inputs, n_outputs, kernel=1, stride=2)
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """Return images of half the height and width, rounded up."""
        activated: Tensor = self.activation(self.body(images) + self.skip(images))
        return activated


def convolution(n_inputs: int, n_outputs: int, *, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    """Return a convolution with batch norm."""
    return nn.Sequential(
        nn.Conv2d(n_inputs, n_outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(n_outputs)
    )
