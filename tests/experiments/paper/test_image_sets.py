"""CIFAR, SVHN and ImageNet from tiny files in their real formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io

from experiments.paper.data import DATA_SETS
from experiments.paper.prepared import PreparedData, read_prepared
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


def prepared(name: str, source: Path) -> PreparedData:
    DATA_SETS[name].prepare(source, source / "out", seed=0, show=False)
    return read_prepared(source / "out")


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100_has_fine_labels(tmp_path: Path, binary: bool) -> None:
    pixels, fine = draw(20, 100)
    write_cifar100(tmp_path, pixels, fine, binary=binary)
    data = prepared("cifar100", tmp_path)
    np.testing.assert_array_equal(data.labels, fine)
    np.testing.assert_array_equal(data.inputs[7, :, :, 2].ravel(), pixels[7, 2048:])
    assert data.classes[:2] == ("fine0", "fine1")


def test_svhn_label_10_is_the_digit_0(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(256, size=(32, 32, 3, 40), dtype=np.uint8)
    labels = np.arange(40, dtype=np.uint8)[:, None] % 10 + 1
    for name, rows in (("train", slice(30)), ("test", slice(30, 40))):
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", {"X": images[..., rows], "y": labels[rows]})
    data = prepared("svhn", tmp_path)
    np.testing.assert_array_equal(data.labels, labels.ravel() % 10)
    np.testing.assert_array_equal(data.inputs, images.transpose(3, 0, 1, 2))
    assert data.classes[0] == "0"
    assert (len(data.rows("train")), len(data.rows("pool")), data.calibration_share) == (27, 13, 3 / 13)


@pytest.mark.parametrize("flat", [False, True])
def test_imagenet_validation_images_have_their_class(tmp_path: Path, flat: bool) -> None:
    names, truth = ["n03", "n01", "n02"], [3, 1, 2, 3]  # in the order of ILSVRC2012_ID, which is not alphabetical
    kit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    validation = [tmp_path / "val" / ("" if flat else names[number - 1]) for number in truth]
    for folder in (kit, *(tmp_path / "train" / name for name in names), *validation):
        folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (tmp_path / "train" / name / f"{name}_0.JPEG").touch()
    for number, folder in enumerate(validation, 1):
        (folder / f"ILSVRC2012_val_{number:08d}.JPEG").touch()
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(f"{number}\n" for number in truth))
    synsets = np.zeros((3, 1), [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)])
    synsets[:, 0] = [(np.float64(number), name, "a word") for number, name in enumerate(names, 1)]
    scipy.io.savemat(kit / "meta.mat", {"synsets": synsets})
    data = prepared("imagenet", tmp_path)
    assert (data.kind, data.classes, data.calibration_share) == ("files", ("n01", "n02", "n03"), 0.5)
    assert [str(data.inputs[row])[:9] for row in data.rows("train")] == ["train/n01", "train/n02", "train/n03"]
    np.testing.assert_array_equal(data.labels[data.rows("train")], [0, 1, 2])
    pool = {Path(str(data.inputs[row])).stem[-1]: data.classes[data.labels[row]] for row in data.rows("pool")}
    assert pool == {"1": "n02", "2": "n03", "3": "n01", "4": "n02"}
    assert all((Path(str(data.root)) / str(name)).is_file() for name in data.inputs)
