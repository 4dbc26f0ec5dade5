"""ImageNet, ILSVRC2012: the training folders and the 50,000 validation images, which are the pool (25,000 + 25,000).

Files stay where they are: inputs are paths below the source. Classes are the WordNet ids in alphabetical order, which
is the order of the outputs of pretrained networks. Validation images are either in a folder for each class, or all in
one folder as distributed; then the development kit gives their labels: line i of its ground truth is the
``ILSVRC2012_ID`` of image i, and ``meta.mat`` the WordNet id of that number.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.paper.data.sources import Layout, class_index, read_matlab, unreadable
from experiments.paper.data.splitting import POOL, TRAIN
from experiments.paper.prepared import PreparedData, write_prepared
from kcal.progress import progress_bar

LAYOUT = Layout(
    "ImageNet (ILSVRC2012)",
    "https://image-net.org/download.php",
    "\n".join(
        (
            "imagenet/",
            "  train/n01440764/n01440764_10026.JPEG  …",
            "  val/n01440764/ILSVRC2012_val_00000293.JPEG  …",
            "or val/ILSVRC2012_val_00000001.JPEG  … with",
            "  ILSVRC2012_devkit_t12/data/",
            "    ILSVRC2012_validation_ground_truth.txt",
            "    meta.mat",
        )
    ),
)
SUFFIXES = {".jpeg", ".jpg"}
CALIBRATION_SHARE = 0.5
"""25,000 of the 50,000 validation images."""


def prepare(source: Path, out: Path, *, seed: int = 0, show: bool | None = None) -> PreparedData:
    """List the images of both folders and write their paths and labels into ``out``; no part is drawn by ``seed``."""
    train, validation = LAYOUT.existing(source, "train"), LAYOUT.existing(source, "val")
    classes = tuple(sorted(folder.name for folder in train.iterdir() if folder.is_dir()))
    if not classes:
        raise LAYOUT.missing(train, "folder of a class, such as n01440764/")
    names, labels = list_folders(source, train, classes, show)
    has_folders = any(path.is_dir() for path in validation.iterdir())
    if has_folders:
        more_names, more_labels = list_folders(source, validation, classes, show)
    else:
        more_names, more_labels = list_numbered(source, validation, classes)
    data = PreparedData(
        name="imagenet",
        kind="files",
        classes=classes,
        inputs=np.array(names + more_names),
        labels=np.array(labels + more_labels, np.int64),
        parts=np.repeat(np.array([TRAIN, POOL], np.int8), [len(names), len(more_names)]),
        calibration_share=CALIBRATION_SHARE,
        root=str(source.resolve()),
    )
    write_prepared(data, out)
    return data


def list_folders(
    source: Path, folder: Path, classes: tuple[str, ...], show: bool | None
) -> tuple[list[str], list[int]]:
    """Return paths and labels of the images in the folders of classes."""
    of = class_index(classes)
    names: list[str] = []
    labels: list[int] = []
    below = sorted(path for path in folder.iterdir() if path.is_dir())
    with progress_bar(f"folders of {folder.name}", len(below), show=show) as advance:
        for path in below:
            found = list_images(source, path)
            names += found
            labels += [of(path.name, folder)] * len(found)
            advance(path.name)
    if not names:
        raise LAYOUT.missing(folder, "image")
    return names, labels


def list_numbered(source: Path, folder: Path, classes: tuple[str, ...]) -> tuple[list[str], list[int]]:
    """Return paths and labels of images in one folder, in the order of the ground truth of the development kit."""
    names = list_images(source, folder)
    if not names:
        raise LAYOUT.missing(folder, "image")
    kit = LAYOUT.existing(source, "ILSVRC2012_devkit_t12") / "data"
    truth = LAYOUT.existing(kit, "ILSVRC2012_validation_ground_truth.txt")
    word_net = read_word_net_ids(LAYOUT.existing(kit, "meta.mat"))
    numbers = truth.read_text().split()
    if len(numbers) != len(names):
        raise unreadable(truth, f"it has {len(numbers):,} labels for {len(names):,} images")
    if unknown := set(numbers) - set(word_net):
        raise unreadable(truth, f"{min(unknown)!r} is not an ILSVRC2012_ID of meta.mat")
    of = class_index(classes)
    return names, [of(word_net[number], truth) for number in numbers]


def list_images(source: Path, folder: Path) -> list[str]:
    """Return the paths of a folder's images below the source, in alphabetical order."""
    return sorted(path.relative_to(source).as_posix() for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def read_word_net_ids(path: Path) -> dict[str, str]:
    """Return the WordNet id of each ILSVRC2012_ID, from ``synsets`` of ``meta.mat``."""
    (synsets,) = read_matlab(path, "synsets")
    if not {"ILSVRC2012_ID", "WNID"} <= set(synsets.dtype.names or ()):
        raise unreadable(path, "synsets must have the columns ILSVRC2012_ID and WNID")
    rows = synsets.ravel()
    return {str(int(row["ILSVRC2012_ID"].item())): str(row["WNID"].item()) for row in rows}
