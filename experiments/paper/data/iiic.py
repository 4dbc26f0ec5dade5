"""IIIC: patterns of the ictal-interictal-injury continuum in EEG, from experts' votes.

The data of the Massachusetts General Hospital are available from their owners on request, in no one form. This module
reads a layout of ours, so that any form can be brought here: a folder with

- ``signals.npy``: (n, channels, samples) float32 or int16, EEG segments at 200 Hz (the paper: 16 channels, 10 s), and
- ``segments.csv``: a line for each segment with a header of these names: ``patient``, any text; ``spread``, 1 if the
  segment's classes are a distribution by label spreading and 0 if they are numbers of votes; and the six classes
  ``seizure, lpd, gpd, lrda, grda, other``. A further column ``part``, train or pool, fixes the split of patients.

As in the paper: segments with fewer than 3 votes are dropped; the label is the majority's; the network is trained on
the distribution (``targets``); spread labels are in the training set only; the split is by patient (1,936 of 2,697
for training), and no patient is for validation. Our choice: among equal votes the first class of the list above; and
spectrograms, on which the paper is silent, of windows of 1 s every 0.25 s, 1 to 40 Hz, in decibels.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.paper.data.sources import Layout, unreadable
from experiments.paper.data.spectrograms import Spectrogram
from experiments.paper.data.splitting import POOL, TRAIN, group_parts
from experiments.paper.prepared import PreparedData, new_inputs, write_prepared
from kcal.progress import progress_bar

LAYOUT = Layout(
    "IIIC",
    "https://bdsp.io (Massachusetts General Hospital, on request)",
    "\n".join(
        (
            "iiic/",
            "  signals.npy    (n, channels, samples) EEG segments at 200 Hz",
            "  segments.csv   patient,spread,seizure,lpd,gpd,lrda,grda,other[,part]",
            "                 p0001,0,1,0,9,0,0,2: votes; p0002,1,0.1,0,0.7,0,0,0.2: spread labels",
        )
    ),
)
CLASSES = ("seizure", "lpd", "gpd", "lrda", "grda", "other")
RATE = 200
SPECTROGRAM = Spectrogram(rate=RATE, window=RATE, step=RATE // 4, highest=40.0)
TRAIN_PATIENTS, PATIENTS = 1_936, 1_936 + 77 + 684
"""As in the paper's table, where 77 of 761 patients calibrate: a tenth, where ISRUC has 6 of 30, a fifth."""
MIN_VOTES = 3
BLOCK = 256
"""Segments whose spectrograms are computed at once."""


@dataclass(frozen=True)
class Segments:
    """The table of segments."""

    votes: NDArray[np.float64]
    patients: NDArray[np.int64]
    is_spread: NDArray[np.bool_]
    parts: NDArray[np.int8] | None


def prepare(source: Path, out: Path, *, seed: int = 0, show: bool | None = None) -> PreparedData:
    """Write the spectrograms of the segments that count into ``out``."""
    table = LAYOUT.existing(source, "segments.csv")
    signals = read_signals(LAYOUT.existing(source, "signals.npy"))
    segments = read_segments(table)
    if len(segments.votes) != len(signals):
        raise unreadable(table, f"it has {len(segments.votes):,} lines for {len(signals):,} segments")
    parts = segments.parts
    if parts is None:
        parts = group_parts(segments.patients, TRAIN_PATIENTS, PATIENTS, seed=seed)
    rows = kept_rows(segments, parts)
    if not len(rows):
        raise unreadable(table, f"no segment has {MIN_VOTES} votes")
    shape = (signals.shape[1], SPECTROGRAM.n_frequencies, SPECTROGRAM.n_times(signals.shape[2]))
    inputs = new_inputs(out, (len(rows), *shape), np.float32)
    starts = range(0, len(rows), BLOCK)
    with progress_bar("blocks of segments", len(starts), show=show) as advance:
        for start in starts:
            block = rows[start : start + BLOCK]
            inputs[start : start + BLOCK] = SPECTROGRAM.of(np.asarray(signals[block], np.float32))
            advance("")
    votes = segments.votes[rows]
    data = PreparedData(
        name="iiic",
        kind="spectrograms",
        classes=CLASSES,
        inputs=inputs,
        labels=votes.argmax(axis=1),
        parts=parts[rows],
        groups=segments.patients[rows],
        targets=(votes / votes.sum(axis=1, keepdims=True)).astype(np.float32),
    )
    write_prepared(data, out)
    return data


def kept_rows(segments: Segments, parts: NDArray[np.int8]) -> NDArray[np.int64]:
    """Return the segments with at least 3 votes, and those with spread labels in the training set."""
    has_votes = ~segments.is_spread & (segments.votes.sum(axis=1) >= MIN_VOTES)
    return np.flatnonzero(has_votes | (segments.is_spread & (parts == TRAIN)))


def read_signals(path: Path) -> NDArray[np.float32]:
    """Return the segments, memory-mapped."""
    try:
        signals: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise unreadable(path, f"it is not an array ({error})") from error
    if signals.ndim != 3 or signals.dtype.kind not in "fi" or signals.shape[2] < SPECTROGRAM.window:
        raise unreadable(path, f"(n, channels, samples) with {RATE} samples or more; it is {signals.shape}")
    return signals


def read_segments(path: Path) -> Segments:
    """Read ``segments.csv``."""
    with path.open(newline="") as stream:
        reader = csv.DictReader(stream)
        absent = [name for name in ("patient", "spread", *CLASSES) if name not in (reader.fieldnames or ())]
        if absent:
            raise unreadable(path, f"it has no column {', '.join(absent)}")
        rows = list(reader)
        has_parts = "part" in (reader.fieldnames or ())
    try:
        votes = np.array([[float(row[name]) for name in CLASSES] for row in rows]).reshape(-1, len(CLASSES))
        is_spread = np.array([("0", "1").index(row["spread"].strip()) for row in rows], np.bool_)
        parts = [("train", "pool").index(row["part"].strip()) for row in rows] if has_parts else None
    except (ValueError, TypeError, AttributeError) as error:
        raise unreadable(path, f"votes are numbers, spread is 0 or 1, part is train or pool ({error})") from error
    is_valid = np.isfinite(votes).all(axis=1) & (votes >= 0).all(axis=1) & ~(is_spread & (votes.sum(axis=1) == 0))
    if not is_valid.all():
        raise unreadable(path, f"votes must be 0 or more and not all 0: segment {np.argmin(is_valid) + 1}")
    patients = np.unique([row["patient"] for row in rows], return_inverse=True)[1].astype(np.int64)
    fixed = None if parts is None else np.array([TRAIN, POOL], np.int8)[parts]
    if fixed is not None and set(patients[fixed == TRAIN]) & set(patients[fixed == POOL]):
        raise unreadable(path, "a patient is in both train and pool")
    return Segments(votes=votes, patients=patients, is_spread=is_spread, parts=fixed)
