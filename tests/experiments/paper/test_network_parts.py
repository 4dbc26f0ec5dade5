"""The pieces of the networks against slow oracles: bands, attention, windows, augmentation, evaluation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal
import torch

from experiments.paper.evaluation import evaluate
from experiments.paper.networks import MINA, SignalResNet, SpectrogramResNet
from experiments.paper.networks.mina import BANDS, split_bands


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("frequency", [0.3, 1.0, 10.0, 80.0])
def test_bands_have_the_gain_of_first_order_butterworth_filters(frequency: float) -> None:
    times = torch.arange(3000) / 300
    bands = split_bands(torch.sin(2 * torch.pi * frequency * times)[None], 300.0)[0]  # (n_bands, 3000)
    for band, (low, high) in zip(bands, BANDS, strict=True):
        gain = 1.0
        for edge, kind in ((low, "highpass"), (high, "lowpass")):
            if 0 < edge < np.inf:
                response = scipy.signal.freqs(*scipy.signal.butter(1, edge, kind, analog=True), worN=[frequency])[1]
                gain *= abs(response[0])
        assert float(band.square().mean().sqrt()) == pytest.approx(gain / np.sqrt(2), rel=1e-3)


def test_mina_equals_its_formula_piece_by_piece() -> None:
    network, signals = MINA(3, n_filters=5, n_hidden=3, dropout=0.0).eval(), torch.randn(2, 1, 150)
    for signal, logits in zip(signals[:, 0], network(signals), strict=True):
        features, powers = [], []
        for band, part in zip(split_bands(signal[None], 300.0)[0], network.networks, strict=True):
            steps = torch.cat([torch.zeros(1), (band[1:] - band[:-1]).abs()])
            sequence, spreads = [], []
            for start in (0, 50, 100):
                places = [slice(start + shift, start + shift + 32) for shift in range(0, 19, 2)]
                beats = torch.stack([part.beats(band[place]) for place in places])
                sharpness = torch.stack([part.sharpness(steps[place]) for place in places])
                sequence.append(part.beat_attention(beats, sharpness))
                spreads.append(band[start : start + 50].numpy().std())
            states = part.rhythm(torch.stack(sequence)[None])[0][0]
            features.append(part.features(part.rhythm_attention(states, torch.tensor(spreads)[:, None])))
            powers.append(band.square().sum() / 150)
        pooled = network.attention(torch.stack(features), torch.stack(powers).log()[:, None])
        torch.testing.assert_close(logits, network.head(pooled))


def test_mina_sees_every_band_and_its_sizes_are_the_published_ones() -> None:
    network = MINA(4).eval()
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    beat, rhythm = 64 * 32 + 64 + 32 + 1 + 8 * 65 + 8, 2 * 4 * 32 * (64 + 32 + 2) + 8 * 65 + 8
    assert n_parameters == 4 * (beat + rhythm + 64 * 8 + 8) + 2 * 9 + 2 + 8 * 4 + 4
    times = torch.arange(3000) / 300
    tones = torch.stack([torch.sin(2 * torch.pi * frequency * times) for frequency in (0.2, 5.0, 100.0)])
    with torch.no_grad():
        logits = network(tones[:, None])
    assert logits.shape == (3, 4)
    assert min(float((logits[i] - logits[j]).abs().max()) for i, j in ((0, 1), (0, 2), (1, 2))) > 1e-4


@pytest.mark.parametrize(("length", "n_places"), [(200, 10), (203, 11), (3000, 150)])
def test_the_embedding_of_residual_networks_is_the_mean_over_all_places(length: int, n_places: int) -> None:
    network, signals = SignalResNet(1, 3, widths=(4, 6)).eval(), torch.randn(2, 1, length)
    features = network.features(signals)
    assert features.shape == (2, 6, n_places)
    torch.testing.assert_close(network(signals), network.head(features.sum(dim=2) / features.shape[2]))
    images = SpectrogramResNet(2, 3, widths=(4, 6)).eval()
    assert images.features(torch.randn(2, 2, 9, 13)).shape == (2, 6, 3, 4)


@pytest.mark.parametrize("by_group", [False, True])
def test_evaluation_equals_counting(by_group: bool) -> None:
    generator = np.random.default_rng(0)
    groups = generator.integers(0, 12, size=60)
    labels = np.array([0, 1, 2, 0, 0, 1, 2, 2, 1, 0, 0, 1])[groups]
    logits = generator.normal(size=(60, 4)) + 2 * np.eye(4)[labels]
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    if by_group:
        names = np.unique(groups)
        rows = [log_probs[groups == name].mean(axis=0) for name in names]
        truth = [labels[groups == name][0] for name in names]
    else:
        rows, truth = list(log_probs), list(labels)
    pairs = [(int(np.argmax(row)), label) for row, label in zip(rows, truth, strict=True)]
    f1 = []
    for k in range(4):
        hits = sum(p == k and t == k for p, t in pairs)
        wrong = sum((p == k) != (t == k) for p, t in pairs)
        f1.append(2 * hits / (2 * hits + wrong) if hits + wrong else 0.0)
    scores = evaluate(logits, labels, groups if by_group else None)
    assert scores.f1 == pytest.approx(f1)
    assert scores.macro_f1 == pytest.approx(np.mean(f1))
    assert scores.accuracy == pytest.approx(np.mean([p == t for p, t in pairs]))
    assert scores.log_loss == pytest.approx(-np.mean([row[t] for row, t in zip(rows, truth, strict=True)]))
