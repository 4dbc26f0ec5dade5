"""The embedded example: outputs of a small network on Fashion-MNIST."""

from dataclasses import dataclass
from importlib import resources
from io import BytesIO
from typing import Any, Final

import numpy as np
import safetensors.torch
from numpy.typing import NDArray
from torch import Tensor

from kcal.validation import check_choice

NAME: Final = "fashion_mnist_small_cnn"
PARTS: Final = ("train", "calibration", "test")
COMPANIONS: Final = ("focal", "mmce", "smooth")
"""Other losses that the same network was trained with: FLSD-53, weighted MMCE, label smoothing."""


@dataclass(frozen=True, eq=False, repr=False)
class ExamplePart:
    """Outputs of the network for one part of the images, and their labels.

    Attributes
    ----------
    embeddings
        Outputs of the penultimate layer, (n, 64), float32.
    logits
        Outputs of the last layer, (n, 10), float32.
    labels
        The true classes as column indices of the logits, (n,), int64.
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
        outputs = f"embeddings of {self.embeddings.shape[1]} dimensions, {self.logits.shape[1]} logits"
        return f"ExamplePart({len(self):,} rows: {outputs}, labels)"


@dataclass(frozen=True, eq=False, repr=False)
class Companion:
    """Logits of the same network for the same images, trained with another loss.

    Attributes
    ----------
    name
        Name of the example and the loss: ``fashion_mnist_small_cnn@focal``.
    calibration_logits, test_logits
        Logits, (n, 10), float32; rows as in the parts of the example.
    provenance
        Source and licence of the data, and the loss.
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
    """Outputs of a trained classifier for its training images and for unseen images.

    Attributes
    ----------
    name
        The name of the example.
    classes
        The names of the classes, in the order of the logits.
    train
        The training images of the network.
    calibration, test
        Unseen images, split at random.
    images
        The images of the first rows of the test part, (64, 28, 28), uint8 from 0 to 255.
    provenance
        Source and licence of the data.
    """

    name: str
    classes: tuple[str, ...]
    train: ExamplePart
    calibration: ExamplePart
    test: ExamplePart
    images: NDArray[np.uint8]
    provenance: str

    def network_weights(self) -> dict[str, Tensor]:
        """Return the weights of the network, for ``kcal.datasets.SmallCNN().load_state_dict``."""
        return safetensors.torch.load(read_resource(f"{self.name}.safetensors"))

    def companion(self, loss: str) -> Companion:
        """Return the logits of the network trained with another loss: "focal", "mmce" or "smooth".

        Examples
        --------
        >>> load_example().companion("focal")
        Companion fashion_mnist_small_cnn@focal: 10 logits, calibration and test of 3,000 and 7,000 rows
        """
        check_choice(loss, "loss", COMPANIONS)
        arrays = read_arrays(f"{self.name}@{loss}.npz")
        return Companion(
            name=f"{self.name}@{loss}",
            calibration_logits=arrays["calibration_logits"].astype(np.float32),
            test_logits=arrays["test_logits"].astype(np.float32),
            provenance=str(arrays["provenance"]),
        )

    def __repr__(self) -> str:
        lines = [f"Example {self.name}: {len(self.classes)} classes ({', '.join(self.classes)})"]
        lines += [f"  {name:<11}  {getattr(self, name)!r}" for name in PARTS]
        return "\n".join(lines)


def load_example() -> Example:
    """Return the example that comes with the package.

    A small convolutional network was trained on 20,000 images of Fashion-MNIST until it was overconfident; 3,000 unseen
    images are for calibration and 7,000 for testing. Each call returns new arrays.

    Examples
    --------
    >>> load_example().test
    ExamplePart(7,000 rows: embeddings of 64 dimensions, 10 logits, labels)
    """
    arrays = read_arrays(f"{NAME}.npz")
    return Example(
        name=NAME,
        classes=tuple(str(name) for name in arrays["classes"]),
        images=arrays["images"],
        provenance=str(arrays["provenance"]),
        **{name: part_of(arrays, name) for name in PARTS},
    )


def part_of(arrays: dict[str, NDArray[Any]], name: str) -> ExamplePart:
    """Return one part in float32; the file stores float16."""
    return ExamplePart(
        embeddings=arrays[f"{name}_embeddings"].astype(np.float32),
        logits=arrays[f"{name}_logits"].astype(np.float32),
        labels=arrays[f"{name}_labels"].astype(np.int64),
        rows=arrays[f"{name}_rows"].astype(np.int64),
    )


def read_arrays(filename: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file in this package."""
    with np.load(BytesIO(read_resource(filename)), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def read_resource(filename: str) -> bytes:
    """Return the content of a file in this package, also if the package is in a zip file."""
    return (resources.files("kcal.datasets") / filename).read_bytes()
