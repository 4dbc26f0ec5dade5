"""Image data sets with an official test set: 10% of the training images join it in the pool.

The benchmark draws as many calibration samples from the pool as there are of these, again in every split, like the
paper.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.paper.data.sources import unreadable
from experiments.paper.data.splitting import POOL, TRAIN, reserved
from experiments.paper.prepared import PreparedData, new_inputs, write_prepared

HELD_OUT = 0.1
"""Share of the official training set; drawn without regard to classes, which gives the paper's numbers exactly."""

Images = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""(n, height, width, 3) images and their labels."""


def write_image_set(
    name: str, classes: tuple[str, ...], train: Images, test: Images, out: Path, *, seed: int
) -> PreparedData:
    """Write both official sets; the pool is the test set and the training images that are held out."""
    is_held_out = reserved(len(train[1]), HELD_OUT, seed=seed)
    n_held_out, n_test = int(is_held_out.sum()), len(test[1])
    inputs = new_inputs(out, (len(is_held_out) + n_test, *train[0].shape[1:]), np.uint8)
    inputs[: len(is_held_out)] = train[0]
    inputs[len(is_held_out) :] = test[0]
    parts = np.where(is_held_out, POOL, TRAIN)
    data = PreparedData(
        name=name,
        kind="images",
        classes=classes,
        inputs=inputs,
        labels=np.concatenate((train[1], test[1])),
        parts=np.concatenate((parts, np.full(n_test, POOL))).astype(np.int8),
        calibration_share=n_held_out / (n_held_out + n_test),
    )
    write_prepared(data, out)
    return data


def checked_labels(labels: object, n_images: int, n_classes: int, path: Path) -> NDArray[np.int64]:
    """Return labels as integers, one for each image, each of a class."""
    values = np.asarray(labels)
    if values.dtype.kind not in "iu" or values.shape != (n_images,):
        raise unreadable(path, f"{n_images:,} labels are expected, one for each image; their shape is {values.shape}")
    if n_images and not 0 <= values.min() <= values.max() < n_classes:
        raise unreadable(path, f"labels must be from 0 to {n_classes - 1}; they are {values.min()} to {values.max()}")
    return values.astype(np.int64)
