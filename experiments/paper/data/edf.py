"""Read signals of EDF files (European Data Format, Kemp et al. 1992) with numpy.

A header of 256 bytes, 256 more for each signal, then records: in each, a stretch of 16-bit samples of one signal after
the other. All fields of the header are text of fixed width.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.paper.data.sources import unreadable

FIELDS = {
    "label": 16, "transducer": 80, "unit": 8, "physical minimum": 8, "physical maximum": 8, "digital minimum": 8,
    "digital maximum": 8, "filter": 80, "samples": 8, "reserved": 32,
}  # fmt: skip
"""Characters of each field of a signal; the header has one field of all signals after the other."""


@dataclass(frozen=True)
class Header:
    """What the header states.

    Attributes
    ----------
    labels : tuple of str
        Names of the signals.
    seconds : float
        Duration of a record.
    n_records : int
        Records in the file.
    samples : (n_signals,) array
        Samples of each signal in a record.
    gains, offsets : (n_signals,) array
        Physical value = gain × sample + offset.
    """

    path: Path
    labels: tuple[str, ...]
    seconds: float
    n_records: int
    samples: NDArray[np.int64]
    gains: NDArray[np.float64]
    offsets: NDArray[np.float64]

    def rate(self, signal: int) -> float:
        """Return the samples of a signal per second."""
        return float(self.samples[signal] / self.seconds)

    def read(self, signal: int) -> NDArray[np.float32]:
        """Return the whole of a signal in its physical unit."""
        start = 256 * (1 + len(self.labels))
        shape = (self.n_records, int(self.samples.sum()))
        records = np.memmap(self.path, "<i2", "r", offset=start, shape=shape)
        first = int(self.samples[:signal].sum())
        values = records[:, first : first + self.samples[signal]].ravel()
        physical: NDArray[np.float64] = values * self.gains[signal] + self.offsets[signal]
        return physical.astype(np.float32)


def read_header(path: Path) -> Header:
    """Read the header of an EDF file and check it against the file's size."""
    with path.open("rb") as stream:
        fixed = stream.read(256)
        try:
            n_records, seconds, n_signals = int(fixed[236:244]), float(fixed[244:252]), int(fixed[252:256])
            columns = _columns(stream.read(256 * n_signals).decode("latin1"), n_signals)
            numbers = {name: np.array(columns[name], np.float64) for name in columns if name in _NUMBERS}
            samples = np.array(columns["samples"], np.int64)
        except ValueError as error:
            raise unreadable(path, f"its header is not that of an EDF file ({error})") from error
    if seconds <= 0 or n_signals < 1 or samples.min() < 1:
        raise unreadable(path, "its header states a record without samples")
    digital = numbers["digital maximum"] - numbers["digital minimum"]
    if not digital.all():
        raise unreadable(path, "a signal's digital minimum is its maximum")
    gains = (numbers["physical maximum"] - numbers["physical minimum"]) / digital
    n_bytes = path.stat().st_size - 256 * (1 + n_signals)
    n_complete = n_bytes // (2 * int(samples.sum()))
    if n_complete < max(1, n_records):
        raise unreadable(path, f"its header states {n_records:,} records, it has {max(0, n_complete):,}: it is cut off")
    return Header(
        path=path,
        labels=tuple(columns["label"]),
        seconds=seconds,
        n_records=n_complete if n_records < 0 else n_records,
        samples=samples,
        gains=gains,
        offsets=numbers["physical minimum"] - gains * numbers["digital minimum"],
    )


_NUMBERS = ("physical minimum", "physical maximum", "digital minimum", "digital maximum")


def _columns(text: str, n_signals: int) -> dict[str, list[str]]:
    """Cut the header of the signals into the values of each field."""
    if n_signals < 1 or len(text) < 256 * n_signals:
        raise ValueError("it is too short")
    columns, position = {}, 0
    for name, width in FIELDS.items():
        ends = [position + width * number for number in range(n_signals + 1)]
        columns[name] = [text[start:end].strip() for start, end in pairwise(ends)]
        position = ends[-1]
    return columns
