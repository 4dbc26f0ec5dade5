"""CIFAR, SVHN and ImageNet from tiny files in their real formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from experiments.paper.data import DATA_SETS
from experiments.paper.prepared import read_prepared
from paper_data_files import write_cifar10, write_cifar100

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def draw(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.integers(256, size=(n, 3072), dtype=np.uint8), generator.integers(n_classes, size=n)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_cifar10_has_its_pixels_labels_and_official_test_set(tmp_path: Path, binary: bool, inside: bool) -> None:
    pixels, labels = draw(48, 10)
    folder = tmp_path / "cifar" / ("cifar-10-batches-bin" if binary else "cifar-10-batches-py")
    write_cifar10(folder, pixels, labels, NAMES, binary=binary)
    DATA_SETS["cifar10"].prepare(folder if inside else folder.parent, tmp_path / "out", seed=3, show=False)
    data = read_prepared(tmp_path / "out")
    assert (data.name, data.kind, data.classes) == ("cifar10", "images", tuple(NAMES))
    assert data.inputs.shape == (48, 32, 32, 3)
    np.testing.assert_array_equal(data.labels, labels)
    for image, row, column, channel in ((0, 0, 0, 0), (5, 3, 17, 1), (47, 31, 31, 2)):
        assert data.inputs[image, row, column, channel] == pixels[image, 1024 * channel + 32 * row + column]
    assert [len(data.rows(part)) for part in ("train", "validation", "pool")] == [36, 0, 4 + 8]
    assert set(range(40, 48)) < set(data.rows("pool").tolist())
    assert data.calibration_share == 4 / 12


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100_has_fine_labels(tmp_path: Path, binary: bool) -> None:
    pixels, fine = draw(20, 100)
    write_cifar100(tmp_path / "source", pixels, fine, binary=binary)
    DATA_SETS["cifar100"].prepare(tmp_path / "source", tmp_path / "out", seed=0, show=False)
    data = read_prepared(tmp_path / "out")
    np.testing.assert_array_equal(data.labels, fine)
    np.testing.assert_array_equal(data.inputs[7, :, :, 2].ravel(), pixels[7, 2048:])
    assert data.classes[:2] == ("fine0", "fine1")


def write_svhn(path: Path, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    images = generator.integers(256, size=(32, 32, 3, n), dtype=np.uint8)
    labels = generator.integers(1, 11, size=(n, 1)).astype(np.uint8)
    scipy.io.savemat(path, {"X": images, "y": labels}, do_compression=True)
    return images, labels.ravel()


def test_svhn_label_10_is_the_digit_0(tmp_path: Path) -> None:
    images, labels = write_svhn(tmp_path / "train_32x32.mat", 30, 0)
    test_images, test_labels = write_svhn(tmp_path / "test_32x32.mat", 10, 1)
    assert 10 in labels
    DATA_SETS["svhn"].prepare(tmp_path, tmp_path / "out", seed=0, show=False)
    data = read_prepared(tmp_path / "out")
    expected = [0 if label == 10 else label for label in (*labels, *test_labels)]
    np.testing.assert_array_equal(data.labels, expected)
    np.testing.assert_array_equal(data.inputs[11], images[..., 11])
    np.testing.assert_array_equal(data.inputs[39], test_images[..., 9])
    assert data.classes[0] == "0"
    assert (len(data.rows("train")), len(data.rows("pool")), data.calibration_share) == (27, 13, 3 / 13)


WORD_NET_IDS = ["n03", "n01", "n02"]
"""In the order of ILSVRC2012_ID 1, 2, 3, which is not alphabetical."""
TRUTH = [3, 1, 2, 3]


def write_imagenet(folder: Path, *, flat: bool) -> None:
    image_module = pytest.importorskip("PIL.Image")
    for number, name in enumerate(sorted(WORD_NET_IDS)):
        (folder / "train" / name).mkdir(parents=True)
        for count in range(number + 1):
            image_module.new("RGB", (4, 4)).save(folder / "train" / name / f"{name}_{count}.JPEG")
    for number, truth in enumerate(TRUTH, 1):
        below = folder / "val" / ("" if flat else WORD_NET_IDS[truth - 1])
        below.mkdir(parents=True, exist_ok=True)
        image_module.new("RGB", (4, 4), (number, 0, 0)).save(below / f"ILSVRC2012_val_{number:08d}.JPEG")
    kit = folder / "ILSVRC2012_devkit_t12" / "data"
    kit.mkdir(parents=True)
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{truth}\n" for truth in TRUTH))
    synsets = np.zeros((3, 1), [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    for number, name in enumerate(WORD_NET_IDS):
        synsets[number, 0] = (np.float64(number + 1), name, "a word")
    scipy.io.savemat(kit / "meta.mat", {"synsets": synsets})


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet_validation_images_have_their_class(tmp_path: Path, flat: bool) -> None:
    write_imagenet(tmp_path / "imagenet", flat=flat)
    DATA_SETS["imagenet"].prepare(tmp_path / "imagenet", tmp_path / "out", seed=0, show=False)
    data = read_prepared(tmp_path / "out")
    assert (data.kind, data.classes) == ("files", ("n01", "n02", "n03"))
    train = [(str(data.inputs[row]), data.labels[row]) for row in data.rows("train")]
    assert train[0] == ("train/n01/n01_0.JPEG", 0)
    assert [label for _, label in train] == [0, 1, 1, 2, 2, 2]
    pool = {Path(str(data.inputs[row])).stem[-1]: data.classes[data.labels[row]] for row in data.rows("pool")}
    assert pool == {"1": "n02", "2": "n03", "3": "n01", "4": "n02"}
    assert data.calibration_share == 25_000 / 50_000
    assert data.root is not None
    assert all((Path(data.root) / str(name)).is_file() for name in data.inputs)
