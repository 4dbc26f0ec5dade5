"""SVHN, cropped digits: ``train_32x32.mat`` and ``test_32x32.mat``; label 10 is the digit 0.

65,931 training images, 7,326 for calibration, and the official 26,032 for the test, as in the paper. The further
images of ``extra_32x32.mat`` are not used.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.paper.data.image_sets import Images, checked_labels, write_image_set
from experiments.paper.data.sources import Layout, read_matlab, unreadable
from experiments.paper.prepared import PreparedData
from kcal.progress import progress_bar

LAYOUT = Layout(
    "SVHN (format 2, cropped digits)",
    "http://ufldl.stanford.edu/housenumbers",
    "svhn/\n  train_32x32.mat\n  test_32x32.mat",
)


def prepare(source: Path, out: Path, *, seed: int = 0, show: bool | None = None) -> PreparedData:
    """Read both files and write them into ``out``."""
    paths = [LAYOUT.existing(source, name) for name in ("train_32x32.mat", "test_32x32.mat")]
    sets = []
    with progress_bar("files", len(paths), show=show) as advance:
        for path in paths:
            sets.append(read_images(path))
            advance(path.name)
    train, test = sets
    return write_image_set("svhn", tuple("0123456789"), train, test, out, seed=seed)


def read_images(path: Path) -> Images:
    """Return images of ``X`` (32, 32, 3, n) and the digits of ``y`` (n, 1), where 10 stands for 0."""
    pixels, labels = read_matlab(path, "X", "y")
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (32, 32, 3):
        raise unreadable(path, f"X must be (32, 32, 3, n) bytes; it is {pixels.shape} {pixels.dtype}")
    digits = checked_labels(labels.ravel(), pixels.shape[3], 11, path)
    return pixels.transpose(3, 0, 1, 2), digits % 10
