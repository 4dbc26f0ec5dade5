"""The command ``kcal demo``: a real network's probabilities, before and after, and what to type next."""

from __future__ import annotations

import io
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.markup import escape

from kcal.calibrators import Calibrator, KCal, TemperatureScaling, Uncalibrated
from kcal.cli import options as o
from kcal.cli.arrays_out import check_writable, named_output, write_arrays
from kcal.cli.tables import METHODS, console, metrics_table
from kcal.datasets import Example, ExamplePart, load_example
from kcal.datasets.network import SmallCNN
from kcal.errors import InvalidInputError, MissingExtraError
from kcal.metrics import Evaluation, reliability
from kcal.metrics import evaluate as measure
from kcal.persistence import save, write_whole

SHOWN = (
    "accuracy",
    "classwise_calibration_error",
    "expected_calibration_error",
    "top_label_brier_loss",
    "negative_log_likelihood",
)


@dataclass(frozen=True)
class Outcome:
    """What the demo shows: fitted calibrators and their probabilities for the test part, by method."""

    calibrators: dict[str, Calibrator]
    probabilities: dict[str, NDArray[Any]]

    def evaluations(self, labels: NDArray[np.int64]) -> dict[str, Evaluation]:
        """Return the metrics of every method."""
        return {name: measure(found, labels) for name, found in self.probabilities.items()}


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder for the picture, the model and the data.")
    ] = Path("kcal-demo"),
    quiet: o.Quiet = False,
) -> None:
    """Repair the probabilities of a real, overconfident network, and show what changed.

    A small network that was trained on pictures of clothes comes with kcal. The demo fits KCal and temperature scaling
    on its outputs, prints the metrics before and after, and writes a picture, a model and data to go on with. It takes
    less than a minute.

    [bold]Example[/]

    [green]kcal demo --out kcal-demo[/]
    """
    if out.exists() and not out.is_dir():
        raise InvalidInputError(f"{out} is not a folder; give the name of one.")
    with named_output(out):
        out.mkdir(parents=True, exist_ok=True)
    check_writable(out / "model.kcal")
    began = perf_counter()
    example = load_example()
    with one_thread():
        outcome = calibrate(example, quiet=quiet)
        with named_output(out):
            picture = draw(example, outcome, out / "reliability.png")
            save(outcome.calibrators["kcal"], out / "model.kcal")
            write_parts(example, out)
        if not quiet:
            tell(example, outcome, out, picture, perf_counter() - began)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one core: with arrays as small as these, threads wait for each other, longest on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def calibrate(example: Example, *, quiet: bool) -> Outcome:
    """Fit every method on the calibration part and predict the test part."""
    names = np.array(example.classes)
    calibration, labels = example.calibration, names[example.calibration.labels]
    calibrators = {
        "uncal": Uncalibrated().fit(calibration.logits, labels, classes=names),
        "ts": TemperatureScaling().fit(calibration.logits, labels, classes=names),
        "kcal": KCal(progress=False if quiet else None).fit(
            calibration.embeddings,
            labels,
            train_embeddings=example.train.embeddings,
            train_labels=names[example.train.labels],
            classes=names,
        ),
    }
    probabilities = {
        name: found.predict_proba(example.test.embeddings if name == "kcal" else example.test.logits)
        for name, found in calibrators.items()
    }
    return Outcome(calibrators, probabilities)


def draw(example: Example, outcome: Outcome, path: Path) -> Path | None:
    """Write the reliability of every class under every method; without matplotlib there is no picture."""
    try:
        from kcal.plots import reliability_grid
    except MissingExtraError:
        return None
    rows = {
        METHODS[name]: [
            reliability(probs, example.test.labels, of=k, bins=10, adaptive=False, threshold="max")
            for k in range(len(example.classes))
        ]
        for name, probs in outcome.probabilities.items()
    }
    title = f"Every class on {len(example.test):,} test images: bars that end on the diagonal are honest probabilities"
    axes = reliability_grid(rows, example.classes, title=title)
    buffer = io.BytesIO()
    axes[0, 0].get_figure(root=True).savefig(buffer, format="png", dpi=110)
    return write_whole(path, buffer.getvalue())


def write_parts(example: Example, folder: Path) -> None:
    """Write the example as files that the other commands take; half precision holds it without loss."""
    names = np.array(example.classes)
    train = {f"train_{key}": array for key, array in _arrays(example.train, names).items()}
    write_arrays(folder / "calibration.npz", {**_arrays(example.calibration, names), **train, "classes": names})
    write_arrays(folder / "test.npz", {**_arrays(example.test, names), "ids": example.test.rows, "classes": names})


def tell(example: Example, outcome: Outcome, folder: Path, picture: Path | None, seconds: float) -> None:
    """Print the table, what it means, the times and what to type next."""
    screen = console()
    screen.print(
        f"\nA small network for pictures of clothes (Fashion-MNIST), trained on {len(example.train):,} of them; "
        f"calibrated on {len(example.calibration):,} others, tested on {len(example.test):,} more.\n"
    )
    evaluations = outcome.evaluations(example.test.labels)
    screen.print(metrics_table(evaluations, SHOWN))
    screen.print("↑ higher is better, ↓ lower is better, bold is best.\n")
    before, after = (_sureness(outcome.probabilities[name], evaluations[name]) for name in ("uncal", "kcal"))
    screen.print(f"The network alone was on average {before}; with KCal it is {after}.")
    if picture is None:
        screen.print("There is no picture, because matplotlib is not installed. To have it:")
        screen.print("  pip install 'kcal\\[plots]'", style="green")
    else:
        screen.print(
            f"In [cyan]{escape(str(picture))}[/], bars that end on the diagonal are probabilities that can be taken at "
            "their word; hatching shows what was promised too much or too little."
        )
    network, kernel = time_per_prediction(example, outcome.calibrators["kcal"])
    screen.print(
        f"\nTime per prediction on one core, in batches of {len(example.images)}: the network {network:.0f} µs, KCal "
        f"{kernel:.0f} µs on top. The demo took {seconds:.0f} s."
    )
    screen.print("\n[bold]What to type next[/] (the same with files of your own; --help explains each):\n")
    for command in next_commands(folder):
        screen.print(f"  {escape(command)}", style="green", soft_wrap=True)


def next_commands(folder: Path) -> list[str]:
    """Return commands that can be pasted as they are."""
    kcal = program()
    model, calibration, test, probabilities = (
        shlex.quote(str(folder / name)) for name in ("mine.kcal", "calibration.npz", "test.npz", "probabilities.csv")
    )
    return [
        f"{kcal} fit {calibration} --out {model}",
        f"{kcal} evaluate {model} {test}",
        f"{kcal} predict {model} {test} --out {probabilities}",
    ]


def program() -> str:
    """Return what to type to run this program: its name, or its path where the shell would not find it."""
    here, found = Path(sys.argv[0]), shutil.which("kcal")
    if here.stem != "kcal" or (found is not None and Path(found).resolve() == here.resolve()):
        return "kcal"
    return shlex.quote(sys.argv[0])


def time_per_prediction(example: Example, calibrator: Calibrator) -> tuple[float, float]:
    """Return microseconds a sample, of the network and of the calibrator, in batches of the example's images."""
    network = SmallCNN(len(example.classes))
    network.load_state_dict(example.network_weights())
    network.eval()
    images = torch.from_numpy(example.images)[:, None].float() / 255
    embeddings = example.test.embeddings[: len(images)]
    with torch.inference_mode():
        by_network = _seconds(lambda: network(images))
    return 1e6 * by_network / len(images), 1e6 * _seconds(lambda: calibrator.predict_proba(embeddings)) / len(images)


def _seconds(work: Callable[[], object], repeats: int = 15) -> float:
    times = []
    for _ in range(repeats + 1):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times[1:])  # the first call also prepares


def _sureness(probabilities: NDArray[Any], found: Evaluation) -> str:
    return f"{probabilities.max(axis=1).mean():.1%} sure of its answers and right in {found.accuracy:.1%} of them"


def _arrays(part: ExamplePart, names: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {
        "embeddings": part.embeddings.astype(np.float16),
        "logits": part.logits.astype(np.float16),
        "labels": names[part.labels],
    }
