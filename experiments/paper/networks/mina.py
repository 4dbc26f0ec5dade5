"""MINA: attention at the levels of beat, rhythm and frequency, guided by features of the signal (Hong et al., 2019).

    bands       x_f = band f of the signal: all of it, baseline wander, heartbeat, muscle and mains noise
    beat        L = relu(conv(x_f[s])) of every short piece s;  o_s = Σ_t α_t L_t,  knowledge: conv(|steps of x_f|)
    rhythm      h = biLSTM(o_1 … o_S);                          c_f = Σ_s β_s h_s,  knowledge: std of the piece
    frequency   q_f = relu(W c_f + b);                          d = Σ_f γ_f q_f,    knowledge: power of the band
    attention   weights = softmax of v · tanh(W values + u knowledge)
    logits      head(d)

The sizes are those of the authors' program. Two things are ours: the bands are cut by a first-order Butterworth
response in the frequency domain, without a delay, and the power of a band enters as its logarithm, which keeps tanh
from saturating for any scale of the signal.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

RATE = 300.0
"""Samples a second."""
BANDS: tuple[tuple[float, float], ...] = ((0.0, torch.inf), (0.0, 0.5), (0.5, 50.0), (50.0, torch.inf))
"""Lowest and highest frequency of each band in Hz."""
MIN_POWER = 1e-6


class MINA(nn.Module):
    """Multilevel attention over the frequency bands of a one-channel signal (n, 1, length).

    Parameters
    ----------
    n_classes : int
    piece : int
        Length of the pieces whose sequence is the rhythm; it divides the length of the signals.
    n_filters, kernel, stride : int
        Of the convolution within a piece.
    n_hidden : int
        Of the LSTM, in each direction.
    n_features : int
        Size of the embedding.
    dropout : float
        Of the features of a band.
    rate : float
        Samples a second.
    """

    def __init__(
        self,
        n_classes: int,
        *,
        piece: int = 50,
        n_filters: int = 64,
        kernel: int = 32,
        stride: int = 2,
        n_hidden: int = 32,
        n_features: int = 8,
        dropout: float = 0.5,
        rate: float = RATE,
    ) -> None:
        super().__init__()
        self.piece, self.rate = piece, rate
        self.networks = nn.ModuleList(
            BandNetwork(n_filters, kernel, stride, n_hidden, n_features, dropout) for _ in BANDS
        )
        self.attention = Attention(n_features, 2)
        self.head = nn.Linear(n_features, n_classes)

    def forward(self, signals: Tensor) -> Tensor:
        """Return the logits, (n, n_classes)."""
        bands = split_bands(signals[:, 0], self.rate)  # (n, n_bands, length)
        pieces = bands.reshape(*bands.shape[:2], -1, self.piece)  # (n, n_bands, n_pieces, piece)
        steps = torch.diff(bands, dim=2, prepend=bands[:, :, :1]).abs().reshape(pieces.shape)
        features = [network(pieces[:, band], steps[:, band]) for band, network in enumerate(self.networks)]
        power = bands.square().mean(dim=2, keepdim=True).clamp_min(MIN_POWER).log()  # (n, n_bands, 1)
        logits: Tensor = self.head(self.attention(torch.stack(features, dim=1), power))
        return logits


class BandNetwork(nn.Module):
    """Beats and rhythm of one band: a convolution, attention, a bidirectional LSTM, attention, a hidden layer."""

    def __init__(self, n_filters: int, kernel: int, stride: int, n_hidden: int, n_features: int, dropout: float):
        super().__init__()
        self.kernel, self.stride = kernel, stride
        self.beats = nn.Sequential(nn.Linear(kernel, n_filters), nn.ReLU())  # of all windows: a convolution
        self.sharpness = nn.Sequential(nn.Linear(kernel, 1), nn.ReLU())
        self.beat_attention = Attention(n_filters, 8)
        self.rhythm = nn.LSTM(n_filters, n_hidden, batch_first=True, bidirectional=True)
        self.rhythm_attention = Attention(2 * n_hidden, 8)
        self.features = nn.Sequential(nn.Linear(2 * n_hidden, n_features), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, pieces: Tensor, steps: Tensor) -> Tensor:
        """Return features, (n, n_features), of the pieces of a band and the size of its steps, (n, n_pieces, piece)."""
        windows, step_windows = (part.unfold(2, self.kernel, self.stride) for part in (pieces, steps))
        beats, sharpness = self.beats(windows), self.sharpness(step_windows)  # (n, n_pieces, n_windows, n_filters or 1)
        states, _ = self.rhythm(self.beat_attention(beats, sharpness))  # (n, n_pieces, 2 · n_hidden)
        spread = pieces.std(dim=2, correction=0)[..., None]  # (n, n_pieces, 1)
        features: Tensor = self.features(self.rhythm_attention(states, spread))
        return features


class Attention(nn.Module):
    """Σ_i a_i values_i with a = softmax_i(v · tanh(W values_i + u knowledge_i))."""

    def __init__(self, n_values: int, n_hidden: int) -> None:
        super().__init__()
        self.of_values = nn.Linear(n_values, n_hidden, bias=False)
        self.of_knowledge = nn.Linear(1, n_hidden, bias=False)
        self.score = nn.Linear(n_hidden, 1, bias=False)

    def forward(self, values: Tensor, knowledge: Tensor) -> Tensor:
        """Return the weighted mean, (…, n_values), of values (…, n_places, n_values); knowledge is (…, n_places, 1)."""
        scores = self.score(torch.tanh(self.of_values(values) + self.of_knowledge(knowledge)))  # (…, n_places, 1)
        mean: Tensor = (torch.softmax(scores, dim=-2).mT @ values).squeeze(-2)
        return mean


def split_bands(signals: Tensor, rate: float) -> Tensor:
    """Return the bands of signals (n, length), (n, n_bands, length).

    Gain of a band from l to h at the frequency f: 1 / sqrt((1 + (l / f)²) (1 + (f / h)²)).
    """
    with torch.autocast(signals.device.type, enabled=False):
        length = signals.shape[1]
        spectrum = torch.fft.rfft(signals.float(), dim=1)[:, None]  # (n, 1, n_frequencies)
        frequencies = torch.fft.rfftfreq(length, 1 / rate, device=signals.device)
        edges = torch.tensor(BANDS, device=signals.device)[:, :, None]
        low, high = edges[:, 0], edges[:, 1]  # (n_bands, 1)
        below = torch.where(low > 0, (low / frequencies) ** 2, 0.0)
        gains = 1 / torch.sqrt((1 + below) * (1 + (frequencies / high) ** 2))
        bands: Tensor = torch.fft.irfft(spectrum * gains, n=length, dim=2)
        return bands
