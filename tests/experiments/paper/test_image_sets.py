"""CIFAR, SVHN and ImageNet from tiny files in their real formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from experiments.paper.data import DATA_SETS
from experiments.paper.prepared import read_prepared
from paper_data_files import write_cifar10

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


"""In the order of ILSVRC2012_ID 1, 2, 3, which is not alphabetical."""
