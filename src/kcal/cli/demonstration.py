"""The steps of ``kcal demo``: a real network's probabilities, before and after, and what to run next."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from timeit import repeat
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kcal.calibrators import Calibrator, fit_on, make_calibrator, predict_on
from kcal.cli.output import check_writable, console, shown, write_arrays
from kcal.cli.tables import method_title, methods_table
from kcal.datasets import Example, ExamplePart, load_example
from kcal.embeddings import ClassifierOutputs
from kcal.errors import InvalidInputError, MissingExtraError
from kcal.files import atomic_path
from kcal.metrics import Evaluation, reliability
from kcal.metrics import evaluate as measure
from kcal.persistence import save
from kcal.projection import train_projection

BLEND = "KCalBlend"
BLEND_WITHOUT_TRAINING = "KCalBlend, no training data"
DRAWN = ("uncal", "ts", BLEND)
"""The rows of the picture."""


def run_demo(out: Path, *, quiet: bool) -> None:
    """Fit the methods on the example, and write and show what they change."""
    if out.exists() and not out.is_dir():
        raise InvalidInputError(str(out), "is not a folder", remedy="Give the name of a folder with --out.")
    out.mkdir(parents=True, exist_ok=True)
    check_writable(out / "model.kcal")
    start = perf_counter()
    example = load_example()
    torch.set_num_threads(1)  # with arrays this small, threads wait for each other, most of all on a busy machine
    calibrators = fit_calibrators(example, quiet=quiet)
    probs = predict_test(calibrators, example)
    picture = draw(example, probs, out / "reliability.png")
    save(calibrators[BLEND], out / "model.kcal")
    write_parts(example, out)
    if not quiet:
        show(example, probs, picture)
        show_times(example, calibrators[BLEND], perf_counter() - start)
        show_next_commands(out)


def outputs_of(part: ExamplePart, example: Example) -> ClassifierOutputs:
    """Return a part of the example with its labels by name."""
    return ClassifierOutputs(part.embeddings, part.logits, np.array(example.classes)[part.labels])


def fit_calibrators(example: Example, *, quiet: bool) -> dict[str, Calibrator]:
    """Return every method of the demo, fitted on the calibration part; one projection serves KCal and the blend."""
    train = example.train
    projection = train_projection(train.embeddings, train.labels, progress=False if quiet else None)
    calibrators = {name: make_calibrator(name) for name in ("uncal", "ts", "sms", "dircal")}
    calibrators["kcal"] = make_calibrator("kcal", projection=projection)
    calibrators[BLEND_WITHOUT_TRAINING] = make_calibrator("kcal-blend", projection=None)
    calibrators[BLEND] = make_calibrator("kcal-blend", projection=projection)
    for calibrator in calibrators.values():
        fit_on(calibrator, outputs_of(example.calibration, example), classes=np.array(example.classes))
    return calibrators


def predict_test(calibrators: dict[str, Calibrator], example: Example) -> dict[str, NDArray[Any]]:
    """Return the probabilities of every method for the test part."""
    test = outputs_of(example.test, example)
    return {name: predict_on(calibrator, test) for name, calibrator in calibrators.items()}


def evaluate_test(probs: dict[str, NDArray[Any]], example: Example) -> dict[str, Evaluation]:
    """Return the metrics of every method on the test part."""
    return {name: measure(values, example.test.labels) for name, values in probs.items()}


def draw(example: Example, probs: dict[str, NDArray[Any]], path: Path) -> Path | None:
    """Write reliability diagrams of every class before, after the usual method and after the blend.

    Without matplotlib there is no picture.
    """
    try:
        from kcal.plots import reliability_grid
    except MissingExtraError:
        return None
    labels, columns = example.test.labels, range(len(example.classes))
    rows = {
        method_title(name): [
            reliability(probs[name], labels, of=k, bins=10, adaptive=False, threshold="max") for k in columns
        ]
        for name in DRAWN
    }
    title = f"Every class on {len(example.test):,} test images: bars that end on the diagonal are calibrated"
    axes = reliability_grid(rows, example.classes, title=title)
    with atomic_path(path) as temporary:
        axes[0, 0].get_figure(root=True).savefig(temporary, format="png", dpi=110)
    return path


def write_parts(example: Example, folder: Path) -> None:
    """Write the example as files that the other commands take; half precision represents it without loss."""
    classes, parts = np.array(example.classes), []
    for part in (example.train, example.calibration, example.test):
        scores = {"embeddings": part.embeddings.astype(np.float16), "logits": part.logits.astype(np.float16)}
        parts.append({**scores, "labels": classes[part.labels]})
    train = {f"train_{key}": array for key, array in parts[0].items()}
    write_arrays(folder / "calibration.npz", {**parts[1], **train, "classes": classes})
    write_arrays(folder / "test.npz", {**parts[2], "ids": example.test.rows, "classes": classes})


def show(example: Example, probs: dict[str, NDArray[Any]], picture: Path | None) -> None:
    """Print the table and what it means."""
    screen = console()
    screen.print(
        f"\nA small network for pictures of clothes (Fashion-MNIST), trained on {len(example.train):,} of them; "
        f"calibrated on {len(example.calibration):,} others, tested on {len(example.test):,} more.\n"
    )
    evaluations = evaluate_test(probs, example)
    screen.print(methods_table(evaluations))
    screen.print(
        "↑ higher is better, ↓ lower is better, bold is best. ECE: expected calibration error; CECE: of each class; "
        "Brier: loss of the predicted class; NLL: log-loss.\n"
    )
    before, after = (
        f"a mean confidence of {probs[name].max(axis=1).mean():.1%} and an accuracy of {evaluations[name].accuracy:.1%}"
        for name in ("uncal", BLEND)
    )
    screen.print(f"The network alone has {before}; with KCalBlend, {after}.")
    screen.print(
        "The methods in rows 2 to 4 use the network's logits, KCal its embeddings; KCalBlend uses both. The data that "
        "the network was trained on help KCalBlend little here; KCal needs them."
    )
    if picture is None:
        screen.print("There is no picture, because matplotlib is not installed. To install it:")
        screen.print("  pip install 'kcal\\[plots]'", style="green")
    else:
        screen.print(f"In [cyan]{shown(picture)}[/], bars that end on the diagonal are calibrated probabilities.")


def show_times(example: Example, calibrator: Calibrator, seconds: float) -> None:
    """Print the time per prediction of the network and of the calibrator, in batches of the example's images."""
    network, images = example.network(), example.test.inputs()[:64]
    embeddings, logits = (array[: len(images)] for array in (example.test.embeddings, example.test.logits))
    with torch.inference_mode():
        network_time, blend_time = (
            f"{1e6 / len(images) * median(repeat(call, number=1, repeat=15)):.0f} µs"
            for call in (lambda: network(images), lambda: calibrator.predict_proba(embeddings, logits=logits))
        )
    console().print(
        f"\nTime per prediction on one core, in batches of {len(images)}: {network_time} for the network, "
        f"{blend_time} more for KCalBlend. The demo took {seconds:.0f} s."
    )


def show_next_commands(folder: Path) -> None:
    """Print commands that can be pasted as they are."""
    screen, kcal = console(), program()
    model, calibration, test, probabilities = (
        shlex.quote(str(folder / name)) for name in ("mine.kcal", "calibration.npz", "test.npz", "probabilities.csv")
    )
    screen.print("\n[bold]What to run next[/] (the same with your own files; --help explains each command):\n")
    for command in (
        f"{kcal} fit {calibration} --out {model}",
        f"{kcal} evaluate {model} {test}",
        f"{kcal} predict {model} {test} --out {probabilities}",
    ):
        screen.print(f"  {shown(command)}", style="green", soft_wrap=True)


def program() -> str:
    """Return the command that runs this program: its name, or its path if the shell would not find it."""
    here, installed = Path(sys.argv[0]), shutil.which("kcal")
    if here.stem != "kcal" or (installed is not None and Path(installed).resolve() == here.resolve()):
        return "kcal"
    return shlex.quote(sys.argv[0])
