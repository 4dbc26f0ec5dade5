"""A residual network on one-dimensional signals: a strided stem, residual blocks that halve the length, a mean."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn


class SignalResNet(nn.Module):
    """logits = head(mean over time of the last block), for signals (n, n_channels, length).

    The stem has stride 5: a signal of 300 Hz goes on at 60 Hz, which keeps the waves of a heartbeat. The embedding is
    the mean over time, ``widths[-1]`` numbers.
    """

    def __init__(
        self,
        n_channels: int,
        n_classes: int,
        *,
        widths: Sequence[int] = (24, 48, 96, 128),
        kernel: int = 7,
        stem_kernel: int = 15,
        stem_stride: int = 5,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        stem = nn.Conv1d(n_channels, widths[0], stem_kernel, stem_stride, stem_kernel // 2, bias=False)
        inputs = (widths[0], *widths[:-1])
        blocks = [Block(before, after, kernel, dropout) for before, after in zip(inputs, widths, strict=True)]
        self.features = nn.Sequential(stem, *blocks, nn.BatchNorm1d(widths[-1]), nn.ReLU())
        self.head = nn.Linear(widths[-1], n_classes)

    def forward(self, signals: Tensor) -> Tensor:
        """Return the logits, (n, n_classes)."""
        logits: Tensor = self.head(self.features(signals).mean(dim=2))
        return logits


class Block(nn.Module):
    """Two convolutions after batch norm and ReLU each, the first with stride 2, added to a halved input."""

    def __init__(self, n_inputs: int, n_outputs: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm1d(n_inputs),
            nn.ReLU(),
            nn.Conv1d(n_inputs, n_outputs, kernel, 2, kernel // 2, bias=False),
            nn.BatchNorm1d(n_outputs),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv1d(n_outputs, n_outputs, kernel, 1, kernel // 2, bias=False),
        )
        self.skip = nn.Sequential(nn.AvgPool1d(2, ceil_mode=True), nn.Conv1d(n_inputs, n_outputs, 1, bias=False))

    def forward(self, signals: Tensor) -> Tensor:
        """Return signals of half the length, rounded up."""
        added: Tensor = self.body(signals) + self.skip(signals)
        return added
