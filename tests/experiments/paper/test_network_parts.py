"""The pieces of the networks against slow oracles: bands, attention, windows, augmentation, evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import torch
from torch import nn

from experiments.paper.evaluation import evaluate
from experiments.paper.inputs import Batches, random_crops, vary_signals
from experiments.paper.networks import MINA, SignalResNet, SpectrogramResNet
from experiments.paper.networks.mina import BANDS, Attention, split_bands
from experiments.paper.settings import SETTINGS
from toy_data import toy_data


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


def test_attention_is_a_mean_weighted_by_the_softmax_of_scores() -> None:
    attention, values, knowledge = Attention(3, 4), torch.randn(2, 5, 3), torch.randn(2, 5, 1)
    for value, known, result in zip(values, knowledge, attention(values, knowledge), strict=True):
        weight = torch.cat([attention.of_values.weight, attention.of_knowledge.weight], dim=1)
        scores = [
            attention.score.weight @ torch.tanh(weight @ torch.cat([v, k])) for v, k in zip(value, known, strict=True)
        ]
        shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
        torch.testing.assert_close(result, sum(share * v for share, v in zip(shares, value, strict=True)))


def test_the_beat_level_of_mina_is_a_convolution_of_every_piece() -> None:
    network = MINA(3, n_filters=5).networks[0]
    pieces, layer = torch.randn(2, 4, 50), network.beats[0]
    convolution = nn.Conv1d(1, 5, 32, 2)
    convolution.weight.data, convolution.bias.data = layer.weight.data[:, None], layer.bias.data
    expected = torch.relu(convolution(pieces.reshape(8, 1, 50))).mT.reshape(2, 4, 10, 5)
    torch.testing.assert_close(network.beats(pieces.unfold(2, 32, 2)), expected)


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


def test_a_silent_signal_has_the_smallest_power() -> None:
    network, powers = MINA(3, n_filters=4, n_hidden=3).eval(), []
    network.attention.register_forward_pre_hook(lambda _, given: powers.append(given[1]))
    with torch.no_grad():
        logits = network(torch.zeros(1, 1, 200))
    assert torch.isfinite(logits).all()
    assert powers[0].flatten().tolist() == pytest.approx([np.log(1e-6)] * 4)


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


def test_random_crops_are_linear_pieces_of_the_image_and_half_are_flipped() -> None:
    ramp = torch.linspace(0, 1, 64).expand(200, 3, 64, 64)
    crops = random_crops(ramp, 16, np.random.default_rng(0), flip=True)
    steps = crops.diff(dim=3)[:, :, :, 1:-1]
    assert crops.shape == (200, 3, 16, 16)
    assert 60 < int((steps[:, 0, 0, 5] < 0).sum()) < 140
    torch.testing.assert_close(steps, steps[:, :, :, :1].expand_as(steps), atol=1e-3, rtol=0)
    assert float(crops.min()) >= 0
    assert float(crops.max()) <= 1
    upright = random_crops(ramp, 16, np.random.default_rng(0), flip=False)
    assert bool((upright.diff(dim=3) >= -1e-6).all())


def test_varied_signals_keep_their_shape_and_change_in_scale_and_sign() -> None:
    signals = torch.ones(400, 1, 100)
    for seed in range(4):
        varied = vary_signals(signals, np.random.default_rng(seed))
        assert varied.shape == signals.shape
        level = varied[:, 0, 40:60].mean(dim=1)
        assert 0.2 < float((level < 0).float().mean()) < 0.4
        assert 0.75 < float(level.abs().min()) < 0.85
        assert 1.2 < float(level.abs().max()) < 1.3
        torch.testing.assert_close(varied, vary_signals(signals, np.random.default_rng(seed)))


def test_artefacts_of_signals_are_cut_off() -> None:
    data = toy_data()
    loud = replace(data, inputs=20 * data.inputs)
    inputs, _ = next(iter(Batches(loud, np.arange(4), SETTINGS["pn2017"])))
    np.testing.assert_array_equal(inputs.numpy(), np.clip(loud.inputs[:4], -8, 8))
    assert float(inputs.max()) == 8


def test_images_of_files_are_resized_and_cut_in_their_middle(tmp_path: Path) -> None:
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, 30:50] = (255, 0, 128)
    image_module.fromarray(pixels).save(tmp_path / "wide.png")
    image_module.fromarray(pixels[:, :, 0]).save(tmp_path / "grey.png")
    data = replace(
        toy_data("images"),
        kind="files",
        inputs=np.array(["wide.png", "grey.png"]),
        labels=np.array([1, 2]),
        root=str(tmp_path),
    )
    settings = replace(SETTINGS["imagenet"], image_size=20, crop_share=0.5)
    inputs, labels = next(iter(Batches(data, np.arange(2), settings)))
    assert labels.tolist() == [1, 2]
    assert inputs.shape == (2, 3, 20, 20)
    middle = torch.tensor([1.0, -1.0, 128 / 255 * 2 - 1])
    torch.testing.assert_close(inputs[0, :, :, 2:18], middle[:, None, None].expand(3, 20, 16), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs[1, :, :, 2:18], torch.ones(3, 20, 16), atol=1e-5, rtol=0)


def test_images_are_resized_and_scaled_without_augmentation() -> None:
    data = toy_data("images")
    settings = replace(SETTINGS["cifar10"], image_size=10)
    inputs, _ = next(iter(Batches(data, np.arange(3), settings)))
    np.testing.assert_allclose(inputs.numpy(), data.inputs[:3].transpose(0, 3, 1, 2) / 127.5 - 1, atol=1e-6)
    larger, _ = next(iter(Batches(data, np.arange(3), replace(settings, image_size=20))))
    assert larger.shape == (3, 3, 20, 20)
    assert len(Batches(data, np.arange(48), replace(settings, batch_size=10))) == 5
