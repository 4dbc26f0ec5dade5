"""CIFAR-10 from tiny files in its real formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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


"""In the order of ILSVRC2012_ID 1, 2, 3, which is not alphabetical."""
