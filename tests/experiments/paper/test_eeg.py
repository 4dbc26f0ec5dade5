"""EDF files, spectrograms, and the two EEG data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.signal

from experiments.paper.data import DATA_SETS, isruc
from experiments.paper.data.edf import read_header
from experiments.paper.data.spectrograms import Spectrogram
from experiments.paper.prepared import read_prepared
from paper_data_files import edf_bytes

GENERATOR = np.random.default_rng(0)


def test_edf_signals_have_their_rate_and_physical_values(tmp_path: Path) -> None:
    rates = [8, 2, 4]
    signals = [GENERATOR.integers(-2048, 2048, size=10 * rate) for rate in rates]
    path = tmp_path / "night.rec"
    names = ["C3-A2", "Pulse", "X1"]
    path.write_bytes(edf_bytes(names, signals, rates, seconds=2, physical=(-100, 300), digital=(-2048, 2047)))
    header = read_header(path)
    assert (header.labels, header.n_records) == (tuple(names), 5)
    for number, (samples, rate) in enumerate(zip(signals, rates, strict=True)):
        assert header.rate(number) == rate
        np.testing.assert_allclose(header.read(number), -100 + (samples + 2048) * 400 / 4095, rtol=1e-5)


def test_spectrogram_is_that_of_scipy() -> None:
    signals = GENERATOR.normal(size=(2, 3, 1_000)).astype(np.float32) * 20 + 7
    found = Spectrogram(rate=100, window=128, step=32, highest=30.0)
    _, _, power = scipy.signal.spectrogram(
        signals.astype(np.float64), fs=100, window="hann", nperseg=128, noverlap=96, detrend="constant"
    )
    expected = 10 * np.log10(power[..., 1 : 1 + 38, :])  # 38 · 100/128 = 29.7 Hz
    assert found.of(signals).shape == (2, 3, found.n_frequencies, found.n_times(1_000))
    np.testing.assert_allclose(found.of(signals), expected, atol=1e-3)


ELECTRODES = ["F3-A2", "C3-A2", "O1-A2", "F4-A1", "C4-A1", "O2-A1", "X1"]


def write_patient(folder: Path, patient: int, codes: str, n_epochs: int, labels: list[str] | None = None) -> None:
    """Write n_epochs epochs, all signals noise but C3, which is a sine of 10 Hz."""
    labels = labels or ELECTRODES
    folder = folder / str(patient)
    folder.mkdir(parents=True, exist_ok=True)
    n_samples = n_epochs * 6_000
    noise = list(np.random.default_rng(patient).integers(-50, 50, size=(len(labels), n_samples)))
    noise[1] = 1_000 * np.sin(2 * np.pi * 10 * np.arange(n_samples) / 200)
    (folder / f"{patient}.rec").write_bytes(edf_bytes(labels, noise, [200] * len(labels), seconds=30))
    (folder / f"{patient}_1.txt").write_text("\n".join(codes) + "\n\n")
    (folder / f"{patient}_2.txt").write_text("0\n" * len(codes))


def test_isruc_takes_the_first_expert_and_splits_by_patient(tmp_path: Path) -> None:
    source = tmp_path / "subgroupI"
    write_patient(source, 2, "0125", 4)
    write_patient(source, 10, "3355", 2)  # more labels than signal
    write_patient(source, 1, "01", 3, [name.replace("A", "M") for name in ELECTRODES])  # more signal than labels
    DATA_SETS["isruc"].prepare(source, tmp_path / "out", seed=0, show=False)
    data = read_prepared(tmp_path / "out")
    assert data.kind == "spectrograms"
    assert [data.classes[label] for label in data.labels] == ["Wake", "N1", "Wake", "N1", "N2", "REM", "N3", "N3"]
    assert data.groups is not None
    np.testing.assert_array_equal(data.groups, [1, 1, 2, 2, 2, 2, 10, 10])
    assert data.inputs.shape == (8, 6, 80, 29)
    assert {len(set(data.parts[data.groups == patient])) for patient in (1, 2, 10)} == {1}
    assert len(np.unique(data.groups[data.rows("train")])) == 2
    assert len(np.unique(data.groups[data.rows("pool")])) == 1
    peak = data.inputs[5].mean(axis=2).argmax(axis=1)  # of F3, F4, C3, C4, O1, O2
    assert (peak[2] + 1) / 2 == 10.0
    recording = read_header(source / "2" / "2.rec")
    for place, signal in enumerate((0, 3, 1, 4, 2, 5)):
        epoch = recording.read(signal)[6_000:12_000]
        np.testing.assert_allclose(data.inputs[3, place], isruc.SPECTROGRAM.of(epoch), atol=1e-4)


def test_iiic_drops_segments_of_few_votes_and_spread_labels_outside_training(tmp_path: Path) -> None:
    lines = [
        "patient,spread,seizure,lpd,gpd,lrda,grda,other,part",
        "a,0,2,0,1,0,0,0,train", "a,0,1,1,0,0,0,0,train", "a,1,.1,0,.2,0,0,.7,train",
        "b,0,0,2,2,0,0,1,pool", "b,1,0,0,1,0,0,0,pool", "c,0,0,0,0,0,9,1,pool",
    ]  # fmt: skip
    signals = (1_000 * GENERATOR.normal(size=(6, 2, 400))).astype(np.float32)  # all above the least power
    np.save(tmp_path / "signals.npy", signals)
    (tmp_path / "segments.csv").write_text("\n".join(lines))
    DATA_SETS["iiic"].prepare(tmp_path, tmp_path / "out", seed=0, show=False)
    data = read_prepared(tmp_path / "out")
    assert [data.classes[label] for label in data.labels] == ["seizure", "other", "lpd", "grda"]
    np.testing.assert_array_equal(data.parts, [0, 0, 2, 2])
    np.testing.assert_array_equal(data.groups, [0, 0, 1, 2])
    np.testing.assert_allclose(data.targets[0], [2 / 3, 0, 1 / 3, 0, 0, 0], rtol=1e-6)
    kept = signals[[0, 2, 3, 5]].astype(float)
    _, _, power = scipy.signal.spectrogram(kept, fs=200, window="hann", nperseg=200, noverlap=150)
    np.testing.assert_allclose(data.inputs, 10 * np.log10(power[:, :, 1:41]), atol=1e-3)
