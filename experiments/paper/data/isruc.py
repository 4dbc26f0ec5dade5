"""ISRUC-Sleep, subgroup I: sleep stages of 30-second epochs from six EEG signals; 69 patients train the network.

The first expert's label counts, as in the paper. It is silent on signals and spectrograms: here the six EEG signals
against the mastoids and, after SLEEPNET, windows of 2 s every second; our choice: 0.5 to 40 Hz, in decibels. Where
labels and signal differ in length, the shorter one counts. The paper has 99 of the 100 patients and does not say which
is missing; here a patient who lacks a signal is left out, with a warning. No patient is for validation, as the paper
names none. An epoch's group is its patient.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.paper.data.edf import Header, read_header
from experiments.paper.data.sources import Layout, SkippedWarning, class_index, unreadable
from experiments.paper.data.spectrograms import Spectrogram
from experiments.paper.data.splitting import group_parts
from experiments.paper.prepared import PreparedData, new_inputs, write_prepared
from kcal.errors import warn
from kcal.progress import progress_bar

LAYOUT = Layout(
    "ISRUC-Sleep (subgroup I)",
    "https://sleeptight.isr.uc.pt",
    "\n".join(
        (
            "subgroupI/",
            "  1/1.rec     EDF",
            "  1/1_1.txt   stages by the first expert, one number a line: 0 W, 1 N1, 2 N2, 3 N3, 5 REM",
            "  …           (1_2.txt, by the second expert, is not used)",
            "  100/100.rec  100/100_1.txt",
        )
    ),
)
CLASSES = ("Wake", "N1", "N2", "N3", "REM")
CODES = ("0", "1", "2", "3", "5")
ELECTRODES = ("F3", "F4", "C3", "C4", "O1", "O2")
RATE, EPOCH = 200, 30 * 200
"""Samples a second, and samples of an epoch."""
SPECTROGRAM = Spectrogram(rate=RATE, window=2 * RATE, step=RATE, highest=40.0)
TRAIN_PATIENTS, PATIENTS = 69, 99
BLOCK = 64
"""Epochs whose spectrograms are computed at once."""


@dataclass(frozen=True)
class Night:
    """One patient: the recording, its signals of the six electrodes, and the labels of the epochs that it covers."""

    patient: int
    header: Header
    signals: tuple[int, ...]
    labels: NDArray[np.int64]


def prepare(source: Path, out: Path, *, seed: int = 0, show: bool | None = None) -> PreparedData:
    """Write the spectrograms of all patients' epochs into ``out``."""
    nights = [night for path in label_files(source) if (night := read_night(path)) is not None]
    n_epochs = [len(night.labels) for night in nights]
    if not sum(n_epochs):
        raise unreadable(source, "no patient has an epoch with a label and all six signals")
    shape = (len(ELECTRODES), SPECTROGRAM.n_frequencies, SPECTROGRAM.n_times(EPOCH))
    inputs = new_inputs(out, (sum(n_epochs), *shape), np.float32)
    with progress_bar("patients", len(nights), show=show) as advance:
        for night, end in zip(nights, np.cumsum(n_epochs), strict=True):
            _fill(inputs[end - len(night.labels) : end], night)
            advance(f"patient {night.patient}")
    groups = np.repeat([night.patient for night in nights], n_epochs)
    data = PreparedData(
        name="isruc",
        kind="spectrograms",
        classes=CLASSES,
        inputs=inputs,
        labels=np.concatenate([night.labels for night in nights]),
        parts=group_parts(groups, TRAIN_PATIENTS, PATIENTS, seed=seed),
        groups=groups.astype(np.int64),
    )
    write_prepared(data, out)
    return data


def _fill(inputs: NDArray[np.float32], night: Night) -> None:
    """Write the spectrograms of a patient's epochs."""
    n_samples = len(night.labels) * EPOCH
    signals = np.stack([night.header.read(signal)[:n_samples] for signal in night.signals])
    epochs = signals.reshape(len(ELECTRODES), -1, EPOCH).swapaxes(0, 1)
    for start in range(0, len(epochs), BLOCK):
        inputs[start : start + BLOCK] = SPECTROGRAM.of(epochs[start : start + BLOCK])


def label_files(source: Path) -> list[Path]:
    """Return the first expert's files of all patients, in the order of their numbers."""
    found = {int(path.name[: -len("_1.txt")]): path for path in source.rglob("*_1.txt") if path.name[:-6].isdigit()}
    if not found:
        raise LAYOUT.missing(source, "1/1_1.txt, labels of an expert")
    return [found[patient] for patient in sorted(found)]


def read_night(path: Path) -> Night | None:
    """Read the labels in ``path`` and the header of the recording beside; None if it lacks one of the six signals."""
    patient = path.name[: -len("_1.txt")]
    header = read_header(LAYOUT.existing(path.parent, f"{patient}.rec", f"{patient}.edf"))
    signals = tuple(find_signal(header, electrode) for electrode in ELECTRODES)
    absent = [electrode for electrode, signal in zip(ELECTRODES, signals, strict=True) if signal is None]
    if absent:
        warn(f"Patient {patient} is left out: the recording has no signal of {', '.join(absent)}.", SkippedWarning)
        return None
    chosen = tuple(signal for signal in signals if signal is not None)
    if other := [header.rate(signal) for signal in chosen if header.rate(signal) != RATE]:
        raise unreadable(header.path, f"EEG at {RATE} Hz is expected; it has {other[0]:g} Hz")
    of = class_index(CODES)
    labels = np.array([of(code, path) for code in path.read_text().split()], np.int64)
    n_epochs = int(header.n_records * header.seconds * RATE) // EPOCH
    return Night(patient=int(patient), header=header, signals=chosen, labels=labels[:n_epochs])


def find_signal(header: Header, electrode: str) -> int | None:
    """Return the signal of an electrode, whose label is such as "C3-A2", "C3-M2", "C3A2" or "C3"."""
    pattern = re.compile(rf"(EEG\s+)?{electrode}([-\s]*[AM][12])?", re.IGNORECASE)
    return next((number for number, label in enumerate(header.labels) if pattern.fullmatch(label)), None)
