"""The embedded example, a small network's outputs on Fashion-MNIST; reads files, computes nothing."""

from dataclasses import dataclass
from importlib import resources
from io import BytesIO
from typing import Any, Final

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from kcal.errors import InvalidInputError

NAME: Final = "fashion_mnist_small_cnn"
COMPANIONS: Final = ("focal", "mmce", "smooth")
"""Losses that the same network was trained with on the same images: FLSD-53, weighted MMCE, label smoothing."""


@dataclass(frozen=True, eq=False, repr=False)
class ExamplePart:
    """What the network says about one part of the images, and what they show.

    Attributes
    ----------
    embeddings
        The penultimate layer, (n, 64), float32.
    logits
        The last layer, (n, 10), float32.
    labels
        The true classes as columns of the logits, (n,), int64.
    rows
        The row of each image in its original file, (n,), int64: the file of training images for the
        training part, the file of test images for the calibration and test parts.
    """

    embeddings: NDArray[np.float32]
    logits: NDArray[np.float32]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return (
            f"ExamplePart({len(self):,} rows: embeddings of {self.embeddings.shape[1]} dimensions, "
            f"{self.logits.shape[1]} logits, labels)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Companion:
    """The same images under the same network, trained with another loss.

    Attributes
    ----------
    name
        Of the example and the loss: ``fashion_mnist_small_cnn@focal``.
    calibration_logits, test_logits
        Rows as in the example's parts, (n, 10), float32.
    provenance
        Where the data come from, their licence, and the loss.
    """

    name: str
    calibration_logits: NDArray[np.float32]
    test_logits: NDArray[np.float32]
    provenance: str

    def __repr__(self) -> str:
        rows = f"{len(self.calibration_logits):,} and {len(self.test_logits):,} rows"
        return f"Companion {self.name}: {self.test_logits.shape[1]} logits, calibration and test of {rows}"


@dataclass(frozen=True, eq=False, repr=False)
class Example:
    """A trained classifier's outputs on what it was trained on and on images that it never saw.

    Attributes
    ----------
    name
        The name of the example.
    classes
        The names of the classes, in the order of the logits.
    train
        The images that the network was trained on.
    calibration, test
        Images that the network never saw, drawn at random from the same file.
    images
        The images of the first rows of the test part, (64, 28, 28), bytes from 0 to 255.
    provenance
        Where the data come from, and their licence.
    """

    name: str
    classes: tuple[str, ...]
    train: ExamplePart
    calibration: ExamplePart
    test: ExamplePart
    images: NDArray[np.uint8]
    provenance: str

    def network_weights(self) -> dict[str, Tensor]:
        """Read the network's tensors, for ``kcal.datasets.SmallCNN().load_state_dict``."""
        return safetensors.torch.load(read_resource(f"{self.name}.safetensors"))

    def companion(self, loss: str) -> Companion:
        """Read the logits of the network that was trained with another loss: "focal", "mmce" or "smooth".

        Examples
        --------
        >>> load_example().companion("focal")
        Companion fashion_mnist_small_cnn@focal: 10 logits, calibration and test of 3,000 and 7,000 rows
        """
        if loss not in COMPANIONS:
            raise InvalidInputError(f"loss must be one of {', '.join(COMPANIONS)}; got {loss!r}.")
        arrays = read_arrays(f"{self.name}@{loss}.npz")
        return Companion(
            name=f"{self.name}@{loss}",
            calibration_logits=arrays["calibration_logits"].astype(np.float32),
            test_logits=arrays["test_logits"].astype(np.float32),
            provenance=str(arrays["provenance"]),
        )

    def __repr__(self) -> str:
        return "\n".join(
            (
                f"Example {self.name}: {len(self.classes)} classes ({', '.join(self.classes)})",
                f"  train        {self.train!r}",
                f"  calibration  {self.calibration!r}",
                f"  test         {self.test!r}",
            )
        )


def load_example() -> Example:
    """Read the example that comes with the package.

    A small convolutional network was trained on 20,000 images of Fashion-MNIST until it was
    overconfident; 3,000 images that it never saw are there to calibrate it with and 7,000 to test it.
    Each call gives arrays of its own.

    Examples
    --------
    >>> load_example().test
    ExamplePart(7,000 rows: embeddings of 64 dimensions, 10 logits, labels)
    """
    arrays = read_arrays(f"{NAME}.npz")
    return Example(
        name=NAME,
        classes=tuple(str(name) for name in arrays["classes"]),
        train=part_of(arrays, "train"),
        calibration=part_of(arrays, "calibration"),
        test=part_of(arrays, "test"),
        images=arrays["images"],
        provenance=str(arrays["provenance"]),
    )


def part_of(arrays: dict[str, NDArray[Any]], name: str) -> ExamplePart:
    """Give one part in the precision to compute with; the file keeps floats in half precision."""
    return ExamplePart(
        embeddings=arrays[f"{name}_embeddings"].astype(np.float32),
        logits=arrays[f"{name}_logits"].astype(np.float32),
        labels=arrays[f"{name}_labels"].astype(np.int64),
        rows=arrays[f"{name}_rows"].astype(np.int64),
    )


def read_arrays(filename: str) -> dict[str, NDArray[Any]]:
    """Read the arrays of an npz file that lies beside this module."""
    with np.load(BytesIO(read_resource(filename)), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def read_resource(filename: str) -> bytes:
    """Read a file that lies beside this module, also when the package is a zip file."""
    return (resources.files("kcal.datasets") / filename).read_bytes()
