"""PhysioNet/CinC challenge 2017: single-lead ECG, cut into segments of 10 s.

The paper cuts "with the same processing method" as MINA. Segments of 3,000 samples whose starts are the multiples of
3,000 below length − 3,000 give the paper's 15,087 + 253 + 4,813 = 20,153 exactly, so these are its segments: a
recording of 9,000 samples gives two, one of 3,000 or less none. Recordings have mean 0 and variance 1, as in MINA.

Rare classes are oversampled in the training set by further segments between these, as MINA does by a smaller stride.
Our choice: as many times as makes the classes most nearly equal in number; ``oversampled`` marks the added ones.

Our choice: 65% of the recordings of each class for training, 10% for choosing the checkpoint and 25% for the pool;
the paper trains on 75% and names no validation set. A segment's group is its recording.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.paper.data.sources import Layout, class_index, read_matlab, unreadable
from experiments.paper.data.splitting import TRAIN, stratified_parts
from experiments.paper.prepared import PreparedData, new_inputs, write_prepared
from kcal.progress import progress_bar

LAYOUT = Layout(
    "PhysioNet/CinC challenge 2017",
    "https://physionet.org/content/challenge-2017 (training2017.zip)",
    "\n".join(
        (
            "training2017/",
            "  REFERENCE.csv            A00001,N (REFERENCE-v3.csv is preferred where it is there)",
            "  A00001.hea  A00001.mat   … A08528",
            "or one file .npz with signal_differences, length, record and label",
        )
    ),
)
CLASSES = ("normal", "atrial fibrillation", "other", "noise")
CODES = ("N", "A", "O", "~")
RATE, SEGMENT = 300, 3_000
"""Samples a second, and samples of a segment."""
SHARES = (0.65, 0.10, 0.25)
"""Of the recordings of a class: training, validation and pool."""


@dataclass(frozen=True)
class Recordings:
    """Names, labels and signals of the recordings; signals of a folder are read when they are needed."""

    names: tuple[str, ...]
    labels: NDArray[np.int64]
    lengths: NDArray[np.int64]
    folder: Path | None = None
    samples: NDArray[np.int16] | None = None

    def signals(self) -> Iterator[NDArray[np.int16]]:
        """Yield the signal of each recording."""
        ends = np.cumsum(self.lengths)
        for name, length, end in zip(self.names, self.lengths, ends, strict=True):
            if self.samples is not None:
                yield self.samples[end - length : end]
            elif self.folder is not None:
                yield read_signal(self.folder, name)


def prepare(source: Path, out: Path, *, seed: int = 0, show: bool | None = None) -> PreparedData:
    """Cut the recordings of a folder, or of an ``.npz`` file, into segments and write them into ``out``."""
    recordings = read_recordings(source)
    parts = stratified_parts(recordings.labels, SHARES, seed=seed)
    starts = segment_starts(recordings.lengths, recordings.labels, parts)
    n_segments = [len(of_recording) for of_recording in starts]
    if not sum(n_segments):
        raise unreadable(source, f"no recording is longer than {SEGMENT:,} samples")
    inputs = new_inputs(out, (sum(n_segments), 1, SEGMENT), np.float32)
    row = 0
    with progress_bar("recordings", len(starts), show=show) as advance:
        for signal, of_recording in zip(recordings.signals(), starts, strict=True):
            scaled = standardized(signal)
            for start in of_recording:
                inputs[row, 0] = scaled[start : start + SEGMENT]
                row += 1
            advance("")
    groups = np.repeat(np.arange(len(starts)), n_segments)
    data = PreparedData(
        name="pn2017",
        kind="signals",
        classes=CLASSES,
        inputs=inputs,
        labels=recordings.labels[groups],
        parts=parts[groups],
        groups=groups,
        oversampled=np.concatenate(starts) % SEGMENT != 0,
    )
    write_prepared(data, out)
    return data


def segment_starts(
    lengths: NDArray[np.int64], labels: NDArray[np.int64], parts: NDArray[np.int8]
) -> list[NDArray[np.int64]]:
    """Return where the segments of each recording start.

    The multiples of 3,000 below length − 3,000; in the training set also f_k − 1 starts evenly between two of them,
    f_k = round(max_j n_j / n_k) with n_k the number of multiples in training recordings of class k.
    """
    n_multiples = np.maximum(0, -(-(lengths - SEGMENT) // SEGMENT))
    is_train = parts == TRAIN
    sizes = np.bincount(labels[is_train], n_multiples[is_train], minlength=len(CODES))
    factors = np.rint(sizes.max() / np.maximum(1, sizes)).astype(int)
    starts = []
    for length, label, number, train in zip(lengths, labels, n_multiples, is_train, strict=True):
        factor = factors[label] if train else 1
        between = np.arange(factor) * SEGMENT // factor
        candidates = (np.arange(number)[:, None] * SEGMENT + between).ravel()
        starts.append(candidates[candidates < length - SEGMENT])
    return starts


def standardized(signal: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return a signal with mean 0 and variance 1; a constant one is all 0."""
    centred = signal.astype(np.float64)
    centred -= centred.mean()
    return (centred / (centred.std() or 1.0)).astype(np.float32)


def read_recordings(source: Path) -> Recordings:
    """Read labels and lengths of a folder as PhysioNet distributes it, or of one ``.npz`` file."""
    if source.is_file() and source.suffix == ".npz":
        return _from_arrays(source)
    folder = source / "training2017" if (source / "training2017").is_dir() else source
    table = LAYOUT.existing(folder, "REFERENCE-v3.csv", "REFERENCE.csv")
    with table.open(newline="") as stream:
        rows = [row for row in csv.reader(stream) if row]
    if any(len(row) != 2 for row in rows):
        raise unreadable(table, "every line must be RECORD,CLASS")
    of = class_index(CODES)
    return Recordings(
        names=tuple(name for name, _ in rows),
        labels=np.array([of(code, table) for _, code in rows], np.int64),
        lengths=np.array([read_length(folder, name) for name, _ in rows], np.int64),
        folder=folder,
    )


def _from_arrays(source: Path) -> Recordings:
    """Read an archive whose ``signal_differences`` are first differences of all recordings end to end, in int16."""
    with np.load(source, allow_pickle=False) as arrays:
        needed = ("signal_differences", "length", "record", "label")
        if absent := [name for name in needed if name not in arrays]:
            raise LAYOUT.missing(source, " and ".join(absent))
        of = class_index(CODES)
        lengths = arrays["length"].astype(np.int64)
        samples = np.cumsum(arrays["signal_differences"], dtype=np.int16)
        if lengths.sum() != len(samples):
            raise unreadable(source, f"length sums to {lengths.sum():,}, but there are {len(samples):,} samples")
        return Recordings(
            names=tuple(map(str, arrays["record"])),
            labels=np.array([of(str(code), source) for code in arrays["label"]], np.int64),
            lengths=lengths,
            samples=samples,
        )


def read_length(folder: Path, name: str) -> int:
    """Return the number of samples that a WFDB header states: "NAME 1 300 9000 …", then a line for the signal."""
    path = folder / f"{name}.hea"
    if not path.is_file():
        raise LAYOUT.missing(folder, path.name)
    fields = path.read_text().split("\n", 1)[0].split()
    try:
        n_signals, rate, length = int(fields[1]), float(fields[2].split("/")[0]), int(fields[3])
    except (IndexError, ValueError):
        raise unreadable(path, "the first line must be NAME, number of signals, rate, samples") from None
    if n_signals != 1 or rate != RATE:
        raise unreadable(path, f"one signal at {RATE} Hz is expected; it has {n_signals} at {rate:g} Hz")
    return length


def read_signal(folder: Path, name: str) -> NDArray[np.int16]:
    """Return the samples of a recording, variable ``val`` of its ``.mat`` file."""
    path = folder / f"{name}.mat"
    if not path.is_file():
        raise LAYOUT.missing(folder, path.name)
    (values,) = read_matlab(path, "val")
    signal: NDArray[np.int16] = values.ravel()
    if len(signal) != (stated := read_length(folder, name)):
        raise unreadable(path, f"it has {len(signal):,} samples, its header states {stated:,}")
    return signal
