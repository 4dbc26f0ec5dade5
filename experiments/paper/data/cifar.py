"""CIFAR-10 and CIFAR-100, in the Python version (pickles, read without running them) or the binary version.

45,000 training images, 5,000 for calibration, and the official 10,000 for the test, as in the paper. CIFAR-100 has its
fine labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from experiments.paper.data.image_sets import Images, checked_labels, write_image_set
from experiments.paper.data.pickles import read_pickle
from experiments.paper.data.sources import Layout, Prepare, unreadable
from experiments.paper.prepared import PreparedData
from kcal.progress import progress_bar

HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
N_PIXELS = 3 * 32 * 32
"""Of an image: a plane of 32 rows of 32 for red, one for green, one for blue."""


@dataclass(frozen=True)
class Version:
    """Names of the files and of what is in them."""

    name: str
    layout: Layout
    folders: tuple[str, str]
    train: tuple[str, ...]
    test: str
    names: tuple[str, str]
    labels_key: str
    names_key: str
    n_classes: int
    n_label_bytes: int


CIFAR10 = Version(
    name="cifar10",
    layout=Layout(
        "CIFAR-10",
        HOME,
        "cifar-10-batches-py/\n  batches.meta  data_batch_1 … data_batch_5  test_batch\n"
        "or cifar-10-batches-bin/\n  batches.meta.txt  data_batch_1.bin … data_batch_5.bin  test_batch.bin",
    ),
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    names=("batches.meta", "batches.meta.txt"),
    labels_key="labels",
    names_key="label_names",
    n_classes=10,
    n_label_bytes=1,
)
CIFAR100 = Version(
    name="cifar100",
    layout=Layout(
        "CIFAR-100",
        HOME,
        "cifar-100-python/\n  meta  train  test\nor cifar-100-binary/\n  fine_label_names.txt  train.bin  test.bin",
    ),
    folders=("cifar-100-python", "cifar-100-binary"),
    train=("train",),
    test="test",
    names=("meta", "fine_label_names.txt"),
    labels_key="fine_labels",
    names_key="fine_label_names",
    n_classes=100,
    n_label_bytes=2,
)


def prepare(version: Version, source: Path, out: Path, *, seed: int = 0, show: bool | None = None) -> PreparedData:
    """Read a folder of either version, or the folder that holds it, and write it into ``out``."""
    folder = next((source / name for name in version.folders if (source / name).is_dir()), source)
    names_file = version.layout.existing(folder, *version.names)
    is_binary = names_file.name == version.names[1]
    paths = [folder / f"{name}{'.bin' * is_binary}" for name in (*version.train, version.test)]
    for path in paths:
        version.layout.existing(folder, path.name)
    read = read_binary if is_binary else read_python
    batches = []
    with progress_bar("files", len(paths), show=show) as advance:
        for path in paths:
            batches.append(read(version, path))
            advance(path.name)
    images, labels = zip(*batches[:-1], strict=True)
    train = np.concatenate(images), np.concatenate(labels)
    return write_image_set(version.name, read_names(version, names_file), train, batches[-1], out, seed=seed)


def read_names(version: Version, path: Path) -> tuple[str, ...]:
    """Return the names of the classes."""
    if path.suffix == ".txt":
        names = path.read_text().split()
    else:
        found = read_pickle(path).get(version.names_key, ())
        names = [name.decode("latin1") if isinstance(name, bytes) else str(name) for name in found]
    if len(names) != version.n_classes:
        raise unreadable(path, f"{version.n_classes} names of classes are expected; there are {len(names)}")
    return tuple(names)


def read_python(version: Version, path: Path) -> Images:
    """Return images and labels of a pickle."""
    content = read_pickle(path)
    pixels = content.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (N_PIXELS,):
        raise unreadable(path, f'"data" must be an array of (n, {N_PIXELS:,}) bytes')
    labels = content.get(version.labels_key)
    return as_images(pixels), checked_labels(labels, len(pixels), version.n_classes, path)


def read_binary(version: Version, path: Path) -> Images:
    """Return images and labels of a file of label and pixels, one image after the other.

    CIFAR-100 has the coarse label before the fine one.
    """
    values = np.fromfile(path, np.uint8)
    width = version.n_label_bytes + N_PIXELS
    if not len(values) or len(values) % width:
        raise unreadable(path, f"its size must be a multiple of {width:,} bytes; it is {len(values):,}")
    rows = values.reshape(-1, width)
    labels = checked_labels(rows[:, version.n_label_bytes - 1], len(rows), version.n_classes, path)
    return as_images(rows[:, version.n_label_bytes :]), labels


def as_images(
    pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return (n, 32, 32, 3) images of rows of pixels."""
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


prepare_cifar10: Prepare = partial(prepare, CIFAR10)
prepare_cifar100: Prepare = partial(prepare, CIFAR100)
