"""Tiny files in the formats in which the owners of the paper's data sets distribute them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io


def python2_pickle(value: Any) -> bytes:
    """Return a pickle of protocol 2 as Python 2 wrote CIFAR's: text as byte strings, arrays through _reconstruct."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, str | bytes):
        text = value.encode("latin1") if isinstance(value, str) else value
        return b"T" + struct.pack("<i", len(text)) + text
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_opcodes(key) + _opcodes(entry) for key, entry in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    number_type = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(map(_opcodes, map(int, value.shape))) + b"t"
    return empty + b"(K\x01" + shape + number_type + b"\x89" + _opcodes(value.tobytes()) + b"tb"


def write_cifar10(folder: Path, pixels: np.ndarray, labels: np.ndarray, names: list[str], *, binary: bool) -> None:
    """Write six batches of equal size, the last of them the test batch; pixels are (n, 3072)."""
    folder.mkdir(parents=True)
    if binary:
        (folder / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    else:
        content = {"num_cases_per_batch": 2, "label_names": names, "num_vis": 3072}
        (folder / "batches.meta").write_bytes(python2_pickle(content))
    stems = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for stem, rows, of in zip(stems, np.split(pixels, 6), np.split(labels, 6), strict=True):
        if binary:
            np.column_stack([of.astype(np.uint8), rows]).tofile(folder / f"{stem}.bin")
        else:
            batch = {
                "batch_label": stem,
                "labels": list(map(int, of)),
                "data": rows,
                "filenames": [f"{k}.png" for k in of],
            }
            (folder / stem).write_bytes(python2_pickle(batch))


def write_cifar100(folder: Path, pixels: np.ndarray, fine: np.ndarray, *, binary: bool) -> None:
    """Write a training set and a test set of half the images each; the coarse label is the fine one / 5."""
    names = [f"fine{number}" for number in range(100)]
    content = python2_pickle({"fine_label_names": names, "coarse_label_names": ["coarse"] * 20})
    name, content = ("fine_label_names.txt", "\n".join(names).encode()) if binary else ("meta", content)
    (folder / name).write_bytes(content)
    for stem, rows, of in zip(("train", "test"), np.split(pixels, 2), np.split(fine, 2), strict=True):
        if binary:
            np.column_stack([(of // 5).astype(np.uint8), of.astype(np.uint8), rows]).tofile(folder / f"{stem}.bin")
        else:
            labels = {"fine_labels": of.tolist(), "coarse_labels": (of // 5).tolist()}
            (folder / stem).write_bytes(python2_pickle({"data": rows, **labels}))


def write_wfdb(folder: Path, name: str, signal: np.ndarray, *, rate: int = 300) -> None:
    """Write a recording as PhysioNet 2017 does: a header, and samples in a MATLAB 4 file, 24 bytes before them."""
    (folder / f"{name}.hea").write_text(
        f"{name} 1 {rate} {len(signal)} 05:05:15 1/05/2014 \n{name}.mat 16+24 1000/mV 16 0 -127 0 0 ECG \n"
    )
    scipy.io.savemat(folder / f"{name}.mat", {"val": signal[None].astype(np.int16)}, format="4")


def edf_bytes(
    labels: list[str],
    signals: list[np.ndarray],
    rates: list[int],
    *,
    seconds: int = 1,
    physical: tuple[float, float] = (-3276.8, 3276.7),
    digital: tuple[int, int] = (-32768, 32767),
    n_records: int | None = None,
) -> bytes:
    """Return an EDF file of 16-bit samples; ``n_records`` is what the header states."""
    actual = len(signals[0]) // (rates[0] * seconds)

    def column(values: list[Any], width: int) -> bytes:
        return b"".join(str(value).ljust(width).encode() for value in values)

    n_signals = len(labels)
    stated = actual if n_records is None else n_records
    head = [("0", 8), ("X", 80), ("X", 80), ("01.02.10", 8), ("22.00.00", 8), (256 * (1 + n_signals), 8), ("", 44)]
    fixed = b"".join(column([value], width) for value, width in [*head, (stated, 8), (seconds, 8), (n_signals, 4)])
    per_signal = [
        (labels, 16), ([""] * n_signals, 80), (["uV"] * n_signals, 8), ([physical[0]] * n_signals, 8),
        ([physical[1]] * n_signals, 8), ([digital[0]] * n_signals, 8), ([digital[1]] * n_signals, 8),
        ([""] * n_signals, 80), ([rate * seconds for rate in rates], 8), ([""] * n_signals, 32),
    ]  # fmt: skip
    records = []
    for record in range(actual):
        for signal, rate in zip(signals, rates, strict=True):
            size = rate * seconds
            records.append(signal[record * size : (record + 1) * size].astype("<i2").tobytes())
    return fixed + b"".join(column(values, width) for values, width in per_signal) + b"".join(records)
