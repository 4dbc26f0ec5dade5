"""The command ``kcal demo``: a real network's probabilities, before and after, and what to run next."""

from __future__ import annotations

import shlex
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import kcal
from kcal.cli import options
from kcal.cli.evaluate import fit_methods, method_title, metrics_table
from kcal.cli.output import Result, check_writable, console, make_folder, shown
from kcal.errors import MissingExtraError

if TYPE_CHECKING:
    from kcal.datasets import Example

BLEND = "KCalBlend"
METHODS = ["ts", "sms", "dircal", "kcal"]
"""Methods that the blend is compared with."""
DRAWN = ("uncal", "ts", BLEND)
"""The rows of the figure."""
CODE = """\
import kcal
example = kcal.load_example()

network, loader = example.network(), example.calibration.loader()
model = kcal.CalibratedClassifier(network).fit(loader)
probs = model.predict_proba(example.test.loader())
"""
"""What the demo does, in Python; it is printed without indentation, to be pasted."""


@options.takes(options.OUTPUT)
def demo(out: options.DemoOut = Path("kcal-demo"), **shared: options.Shared) -> Result:
    """Calibrate a real, overconfident network, and show what changed.

    A small torch network for images of clothes comes with kcal. The demo prints the lines of Python that calibrate
    it, fits KCalBlend, KCal and the best methods on logits to its outputs for new images, prints their metrics, and
    writes a figure, a model and data to continue with. It takes less than a minute.

    [bold]Example[/]

    [green]kcal demo --out kcal-demo[/]
    """
    check_writable(make_folder(out) / "model.kcal")
    import torch

    start = perf_counter()
    example = kcal.load_example()
    torch.set_num_threads(1)  # with arrays this small, threads wait for each other, most of all on a busy machine
    is_shown = not shared["quiet"] and shared["json_file"] != "-"
    if is_shown:
        show_code(example)
    classifier, probs = run_methods(example, out, quiet=not is_shown)
    figure = draw(example, probs, out / "reliability.png")
    model = classifier.save(out / "model.kcal")
    evaluations = {name: kcal.evaluate(values, example.test.labels) for name, values in probs.items()}
    seconds = perf_counter() - start

    def show_all() -> None:
        show(evaluations, probs, figure)
        console().print(f"\nThe demo took {seconds:.0f} s.")
        show_next_commands(out, model)

    return Result({name: evaluation.metrics for name, evaluation in evaluations.items()}, show_all)


def run_methods(example: Example, folder: Path, *, quiet: bool) -> tuple[Any, dict[str, Any]]:
    """Fit every method on the calibration part; return the classifier with the blend, and test probabilities by method.

    The network's outputs are written into ``folder``.
    """
    classifier = kcal.CalibratedClassifier(example.network(), progress=False if quiet else None)
    calibration, test = (classifier.outputs(part.loader()) for part in (example.calibration, example.test))
    write_parts(example, calibration, test, folder)
    files = folder / "calibration.npz", folder / "test.npz"
    probs = fit_methods(METHODS, *files, {"allow_overlap": False}, (None, None), skip_failures=False).probs
    probs[BLEND] = classifier.fit(calibration, classes=example.classes).predict_proba(test)
    return classifier, probs


def draw(example: Example, probs: dict[str, Any], path: Path) -> Path | None:
    """Write reliability diagrams of every class before, after the usual method and after the blend.

    Without matplotlib there is no figure.
    """
    try:
        from kcal.plots import reliability_grid
    except MissingExtraError:
        return None
    labels, reliability = example.test.labels, kcal.metrics.reliability
    columns = range(len(example.classes))
    rows = {method_title(name): [reliability(probs[name], labels, of=k) for k in columns] for name in DRAWN}
    title = f"Every class on {len(example.test):,} test images: bars that end on the diagonal are calibrated"
    axes = reliability_grid(rows, example.classes, title=title)
    with kcal.files.atomic_path(path) as temporary:
        axes[0, 0].get_figure(root=True).savefig(temporary, format="png", dpi=110)
    return path


def write_parts(example: Example, calibration: Any, test: Any, folder: Path) -> None:
    """Write the network's outputs as files that the other commands take."""
    import numpy as np

    write_arrays = kcal.files.write_arrays
    classes, train = np.array(example.classes), example.train
    parts = [{**part.parts(), "labels": classes[part.labels], "classes": classes} for part in (calibration, test)]
    training = {  # half precision represents them without loss
        "train_embeddings": train.embeddings.astype(np.float16),
        "train_logits": train.logits.astype(np.float16),
        "train_labels": classes[train.labels],
    }
    write_arrays(folder / "calibration.npz", {**parts[0], **training})
    write_arrays(folder / "test.npz", {**parts[1], "ids": example.test.rows})


def show_code(example: Example) -> None:
    """Print what the demo is about to do, in prose and in Python."""
    screen = console()
    screen.print(
        f"\nA small network for images of clothes (Fashion-MNIST), trained on {len(example.train):,} of them, is "
        f"calibrated on {len(example.calibration):,} others and tested on {len(example.test):,} more. In Python this "
        "takes three lines, the same for any torch classifier and its loader of (inputs, labels):\n"
    )
    screen.print(CODE, style="green", soft_wrap=True, markup=False)
    screen.print(f"This is {BLEND} in the table.\n")


def show(evaluations: dict[str, Any], probs: dict[str, Any], figure: Path | None) -> None:
    """Print the table and what it means."""
    screen = console()
    screen.print(metrics_table(evaluations, transposed=True))
    screen.print(
        "↑ higher is better, ↓ lower is better, bold is best. ECE: expected calibration error over 15 bins; "
        "class-wise ECE: the mean of that of every class.\n"
    )
    before, after = (
        f"a mean confidence of {probs[name].max(axis=1).mean():.1%} and an accuracy of {evaluations[name].accuracy:.1%}"
        for name in ("uncal", BLEND)
    )
    screen.print(f"The network alone has {before}; with KCalBlend, {after}.")
    screen.print(
        "The methods in rows 2 to 4 use the network's logits, KCal its embeddings; KCalBlend uses both. KCal learns "
        "its projection from the data that the network was trained on; the others do not use them."
    )
    if figure is None:
        screen.print("There is no figure, because matplotlib is not installed. To install it:")
        screen.print("  pip install 'kcal\\[plots]'", style="green")
    else:
        screen.print(f"In [cyan]{shown(figure)}[/], bars that end on the diagonal are calibrated probabilities.")


def show_next_commands(folder: Path, saved: Path) -> None:
    """Print code and commands that can be pasted as they are."""
    screen = console()
    model, calibration, test, probabilities = (
        shlex.quote(str(folder / name)) for name in ("mine.kcal", "calibration.npz", "test.npz", "probabilities.npz")
    )
    line = f"model = kcal.CalibratedClassifier.load({str(saved)!r}, network)"
    screen.print("\nKCalBlend is saved. To use it after the lines of Python above:\n")
    screen.print(shown(line), style="green", soft_wrap=True)
    screen.print("\n[bold]What to run next[/] (the same with your own files; --help explains each command):\n")
    for command in (
        f"kcal fit {calibration} --out {model}",
        f"kcal evaluate {model} {test}",
        f"kcal predict {model} {test} --out {probabilities}",
    ):
        screen.print(f"  {shown(command)}", style="green", soft_wrap=True)
