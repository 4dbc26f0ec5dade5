"""The embedded example: outputs of a small network on Fashion-MNIST."""

from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from io import BytesIO
from typing import Any, Final

import numpy as np
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from kcal.datasets.network import SmallCNN
from kcal.errors import InvalidInputError
from kcal.validation import check_choice

NAME: Final = "fashion_mnist_small_cnn"
IMAGES: Final = "fashion_mnist_test_images.npz"
PARTS: Final = ("train", "calibration", "test")
COMPANIONS: Final = ("focal", "mmce", "smooth")
"""Other losses that the same network was trained with: FLSD-53, weighted MMCE, label smoothing."""


@dataclass(frozen=True, eq=False, repr=False)
class ExamplePart:
    """Outputs of the network for one part of the images, and their labels."""

    embeddings: NDArray[np.float32]  # (n, 64), outputs of the penultimate layer
    logits: NDArray[np.float32]  # (n, 10), outputs of the last layer
    labels: NDArray[np.int64]  # (n,), the true classes as column indices of the logits
    rows: NDArray[np.int64]  # (n,), of the original file
    original_file: str  # of Fashion-MNIST: "train" or "test"; the images of "test" are in the package

    @cached_property
    def images(self) -> NDArray[np.uint8]:
        """The images, (n, 28, 28), from 0 to 255; read when first asked for. Not of the training part.

        Examples
        --------
        >>> from kcal.datasets import load_example
        >>> load_example().test.images.shape
        (7000, 28, 28)
        """
        if self.original_file != "test":
            remedy = "Use its stored outputs: kcal.ClassifierOutputs(train.embeddings, train.logits, train.labels)."
            raise InvalidInputError("images", "are in the package for calibration and test only", remedy=remedy)
        images: NDArray[np.uint8] = read_arrays(IMAGES)["images"][self.rows]
        return images

    def inputs(self) -> Tensor:
        """Return the images as the network takes them, (n, 1, 28, 28), from 0 to 1."""
        return torch.from_numpy(self.images)[:, None].float() / 255

    def loader(self, batch_size: int = 250) -> DataLoader[tuple[Tensor, ...]]:
        """Return a loader of (inputs, labels), in the order of the rows."""
        return DataLoader(TensorDataset(self.inputs(), torch.from_numpy(self.labels)), batch_size=batch_size)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        outputs = f"embeddings of {self.embeddings.shape[1]} dimensions, {self.logits.shape[1]} logits"
        return f"ExamplePart({len(self):,} rows: {outputs}, labels)"


@dataclass(frozen=True, eq=False, repr=False)
class Companion:
    """Logits of the same network for the same images, trained with another loss."""

    name: str  # of the example and the loss: fashion_mnist_small_cnn@focal
    calibration_logits: NDArray[np.float32]  # (n, 10), rows as in the part of the example
    test_logits: NDArray[np.float32]
    provenance: str  # source and licence of the data, and the loss

    def __repr__(self) -> str:
        rows = f"{len(self.calibration_logits):,} and {len(self.test_logits):,} rows"
        return f"Companion {self.name}: {self.test_logits.shape[1]} logits, calibration and test of {rows}"


@dataclass(frozen=True, eq=False, repr=False)
class Example:
    """Outputs of a trained classifier for its training images, and for unseen images, which were split at random."""

    name: str
    classes: tuple[str, ...]  # in the order of the logits
    train: ExamplePart
    calibration: ExamplePart
    test: ExamplePart
    provenance: str  # source and licence of the data

    def network(self) -> SmallCNN:
        """Return the trained network, in evaluation mode."""
        network = SmallCNN(len(self.classes))
        network.load_state_dict(self.network_weights())
        return network.eval()

    def network_weights(self) -> dict[str, Tensor]:
        """Return the weights of the network, for ``kcal.datasets.SmallCNN().load_state_dict``."""
        return safetensors.torch.load(read_resource(f"{self.name}.safetensors"))

    def companion(self, loss: str) -> Companion:
        """Return the logits of the network trained with another loss: "focal", "mmce" or "smooth".

        Examples
        --------
        >>> from kcal.datasets import load_example
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
    >>> from kcal.datasets import load_example
    >>> example = load_example()
    >>> example.test
    ExamplePart(7,000 rows: embeddings of 64 dimensions, 10 logits, labels)
    >>> network, loader = example.network(), example.calibration.loader()
    """
    arrays = read_arrays(f"{NAME}.npz")
    return Example(
        name=NAME,
        classes=tuple(str(name) for name in arrays["classes"]),
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
        original_file="train" if name == "train" else "test",
    )


def read_arrays(filename: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of an npz file in this package."""
    with np.load(BytesIO(read_resource(filename)), allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def read_resource(filename: str) -> bytes:
    """Return the content of a file in this package, also if the package is in a zip file."""
    return (resources.files("kcal.datasets") / filename).read_bytes()
