"""Train the network of the embedded example on Fashion-MNIST and write the example's files.

    python scripts/train_example.py
    python scripts/train_example.py --loss focal      # and smooth, mmce: the companions, same data, another loss
    python scripts/train_example.py --images-only     # the images of calibration and test, without any training

The folder holds the four idx files, as Debian's package dataset-fashion-mnist installs them or as
https://github.com/zalandoresearch/fashion-mnist offers them. The figures that the script shows are the
ones that src/kcal/datasets/README.md states; the validation images are there to choose a training with.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from safetensors.torch import save
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional

from kcal.datasets.network import SmallCNN
from kcal.losses import FocalLoss, MMCELoss

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
PROVENANCE = (
    "Outputs of a small convolutional network on Fashion-MNIST (Xiao, Rasul and Vollgraf 2017; copyright "
    "2017 Zalando SE, MIT licence). The training part is what the network was trained on, from the original "
    "training images; calibration and test parts are the original test images, which it never saw."
)
N_TRAINING = 20_000
N_VALIDATION = 5_000
N_CALIBRATION = 3_000
BATCH_SIZE = 128
NAME = "fashion_mnist_small_cnn"
IMAGES = "fashion_mnist_test_images.npz"
Loss = Callable[[Tensor, Tensor], Tensor]
FIGURES = ("accuracy", "confidence", "ECE", "NLL", "best T", "NLL at T")


class LossName(StrEnum):
    """What the network is trained with."""

    CROSS_ENTROPY = "cross-entropy"
    SMOOTH = "smooth"
    FOCAL = "focal"
    MMCE = "mmce"


@dataclass(frozen=True)
class Images:
    """Images as bytes, their labels, and the row of the original file each one comes from."""

    pixels: NDArray[np.uint8]  # (n, 28, 28)
    labels: NDArray[np.int64]  # (n,)
    rows: NDArray[np.int64]  # (n,)

    def take(self, rows: NDArray[np.int64]) -> "Images":
        """Give some of the images, in the order of the rows."""
        return Images(self.pixels[rows], self.labels[rows], self.rows[rows])

    def inputs(self) -> Tensor:
        """Give what the network takes: one channel, values from 0 to 1."""
        return torch.from_numpy(self.pixels)[:, None].float() / 255  # (n, 1, 28, 28)


@dataclass(frozen=True)
class Outputs:
    """What the network says about some images."""

    embeddings: Tensor  # (n, 64)
    logits: Tensor  # (n, 10)


def main(
    source: Annotated[Path, typer.Option(help="Folder of the four idx files.")] = Path(
        "/usr/share/datasets/fashion-mnist"
    ),
    target: Annotated[Path, typer.Option(help="Folder that the example is written to.")] = Path("src/kcal/datasets"),
    loss: Annotated[
        LossName, typer.Option(help="What to minimise; all but cross-entropy write a companion of the example.")
    ] = LossName.CROSS_ENTROPY,
    smoothing: Annotated[float, typer.Option(help="Label smoothing of the loss smooth.")] = 0.05,
    coefficient: Annotated[float, typer.Option(help="λ of the loss mmce.")] = 0.2,
    epochs: Annotated[int, typer.Option(help="Passes over the training images.")] = 12,
    learning_rate: Annotated[float, typer.Option(help="Constant, as in a first training script.")] = 3e-3,
    weight_decay: Annotated[float, typer.Option(help="As in AdamW.")] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of the parts, the first weights and the batches.")] = 0,
    threads: Annotated[int, typer.Option(help="Threads of the processor.")] = 2,
    validate_only: Annotated[bool, typer.Option(help="Show validation figures, write nothing.")] = False,
    images_only: Annotated[bool, typer.Option(help="Write the test images, train nothing.")] = False,
) -> None:
    """Train the network, show its figures, write the example or a companion of it."""
    torch.set_num_threads(threads)
    console = Console()
    if images_only:
        write_images(target, read_images(source, "t10k"))
        console.print(f"Written to {target}.")
        return
    parts = split(read_images(source, "train"), read_images(source, "t10k"), seed=seed)
    network = train(
        parts["train"],
        loss_of(loss, smoothing=smoothing, coefficient=coefficient),
        epochs=epochs,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        seed=seed,
        console=console,
    )
    shown = ("train", "validation") if validate_only else tuple(parts)
    outputs = {name: network_outputs(network, parts[name]) for name in shown}
    console.print(figures_table({name: figures(outputs[name].logits, parts[name]) for name in shown}))
    if not validate_only:
        if loss is LossName.CROSS_ENTROPY:
            write_example(target, network, parts, outputs)
            write_images(target, read_images(source, "t10k"))
        else:
            write_companion(target, loss, parts, outputs)
        console.print(f"Written to {target}.")


def loss_of(name: LossName, *, smoothing: float, coefficient: float) -> Loss:
    """Give the function of logits and labels that is minimised; focal is FLSD-53, MMCE is weighted."""
    if name is LossName.FOCAL:
        return FocalLoss()
    if name is LossName.MMCE:
        return MMCELoss(coefficient=coefficient)
    return nn.CrossEntropyLoss(label_smoothing=smoothing if name is LossName.SMOOTH else 0.0)


def read_images(folder: Path, prefix: str) -> Images:
    pixels = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz").astype(np.int64)
    return Images(pixels, labels, np.arange(len(labels)))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, their lengths, the bytes."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\x00\x00\x08":
        raise typer.BadParameter(f"{path} must be an idx file of bytes; it begins with {content[:3]!r}.")
    n_axes = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=n_axes, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def split(training: Images, unseen: Images, *, seed: int) -> dict[str, Images]:
    """Draw train and validation from the original training images, calibration and test from the rest."""
    generator = np.random.default_rng(seed)
    drawn = generator.permutation(len(training.labels))
    drawn_unseen = generator.permutation(len(unseen.labels))
    return {
        "train": training.take(drawn[:N_TRAINING]),
        "validation": training.take(drawn[N_TRAINING : N_TRAINING + N_VALIDATION]),
        "calibration": unseen.take(drawn_unseen[:N_CALIBRATION]),
        "test": unseen.take(drawn_unseen[N_CALIBRATION:]),
    }


def train(
    images: Images,
    loss_of_batch: Loss,
    *,
    epochs: int,
    learning_rate: float,
    weight_decay: float,
    seed: int,
    console: Console,
) -> SmallCNN:
    """Minimise a loss without augmentation, for longer than calibration would like."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    network = SmallCNN(n_classes=len(CLASSES))
    inputs, labels = images.inputs(), torch.from_numpy(images.labels)
    optimizer = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=weight_decay)
    with Progress(console=console, transient=True) as progress:
        for epoch in progress.track(range(epochs), description="Training"):
            for batch in torch.randperm(len(labels), generator=generator).split(BATCH_SIZE):
                loss = loss_of_batch(network(inputs[batch]), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            progress.console.print(f"epoch {epoch + 1:2d}: loss of the last batch {loss.item():.4f}")
    return network.eval()


@torch.inference_mode()
def network_outputs(network: SmallCNN, images: Images) -> Outputs:
    """Embed the images in blocks; the logits are the head's, of the embeddings before they are rounded."""
    embeddings = torch.cat([network.embed(block) for block in images.inputs().split(1000)])
    return Outputs(embeddings=embeddings, logits=network.head(embeddings))


def figures(logits: Tensor, images: Images) -> tuple[float, ...]:
    """Give the figures named in FIGURES; the best temperature is the one of these very images."""
    labels = torch.from_numpy(images.labels)
    logits = logits.half().double()  # as they are stored
    confidences, predictions = logits.softmax(dim=1).max(dim=1)
    hits = (predictions == labels).double()

    def tempered_loss(temperature: float) -> float:
        return functional.cross_entropy(logits / temperature, labels).item()

    best = minimize_scalar(tempered_loss, bounds=(0.05, 20), method="bounded")
    return (
        hits.mean().item(),
        confidences.mean().item(),
        expected_calibration_error(confidences, hits),
        tempered_loss(1.0),
        float(best.x),
        float(best.fun),
    )


def expected_calibration_error(confidences: Tensor, hits: Tensor, *, n_bins: int = 15) -> float:
    """Σ over bins of equal width of (share of the bin) · |accuracy - mean confidence|."""
    bins = (confidences * n_bins).ceil().long().clamp(1, n_bins) - 1
    gaps = torch.zeros(n_bins, dtype=confidences.dtype).index_add_(0, bins, hits - confidences)
    return float(gaps.abs().sum()) / len(hits)


def figures_table(rows: dict[str, tuple[float, ...]]) -> Table:
    table = Table("part", *FIGURES)
    for name, values in rows.items():
        table.add_row(name, *(f"{value:.4f}" for value in values))
    return table


def write_example(folder: Path, network: SmallCNN, parts: dict[str, Images], outputs: dict[str, Outputs]) -> None:
    arrays: dict[str, NDArray[np.generic]] = {
        "classes": np.array(CLASSES),
        "provenance": np.array(PROVENANCE),
    }
    for name in ("train", "calibration", "test"):
        arrays[f"{name}_embeddings"] = outputs[name].embeddings.half().numpy()
        arrays[f"{name}_logits"] = outputs[name].logits.half().numpy()
        arrays[f"{name}_labels"] = parts[name].labels.astype(np.int16)
        arrays[f"{name}_rows"] = parts[name].rows.astype(np.uint16)
    np.savez_compressed(folder / f"{NAME}.npz", **arrays)
    (folder / f"{NAME}.safetensors").write_bytes(save(network.state_dict()))


def write_images(folder: Path, images: Images) -> None:
    """Write the images in the order of the original file, so that the rows of every part are their places."""
    np.savez_compressed(folder / IMAGES, images=images.pixels)


def write_companion(folder: Path, loss: LossName, parts: dict[str, Images], outputs: dict[str, Outputs]) -> None:
    """Write the logits of the same unseen images under a network that was trained with another loss."""
    arrays: dict[str, NDArray[np.generic]] = {"provenance": np.array(f"{PROVENANCE} Trained with the loss {loss}.")}
    for name in ("calibration", "test"):
        arrays[f"{name}_logits"] = outputs[name].logits.half().numpy()
        arrays[f"{name}_rows"] = parts[name].rows.astype(np.uint16)
    np.savez_compressed(folder / f"{NAME}@{loss}.npz", **arrays)


if __name__ == "__main__":
    typer.run(main)
