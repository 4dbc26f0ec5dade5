"""The numbers that the commands write and show; never their words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from typer.testing import CliRunner

from . import names as n
from .problems import few

Cases = Iterator[tuple[str, np.ndarray]]

WORDS = np.array(["owl", "cat", "dog", "bat"])
NUMBER = r"-?\d+(?:\.\d+)?"
INTERVAL = rf"\[({NUMBER}), ({NUMBER})\]"
CELL = re.compile(rf"[*_†]*({NUMBER})[*_†]*(?: ?± ?({NUMBER}))?(?: ?{INTERVAL})?[*_†]*|{INTERVAL}")


def shown(output: str) -> np.ndarray:
    """The numbers of all cells of a command's tables that hold nothing else, at the end of their line.

    Cells are two blanks apart; a line of a single cell is a sentence.
    """
    numbers: list[float] = []
    for line in output.splitlines():
        cells = [cell for cell in re.split(r"\s{2,}|[│┃|]", line.strip()) if cell.strip()]
        kept: list[float] = []
        for cell in reversed(cells[1:]):
            match = CELL.fullmatch(cell.strip())
            if match is None:
                break
            kept = [float(part) for part in match.groups() if part is not None] + kept
        numbers += kept
    return np.array(numbers)


def run(*words: object) -> str:
    result = CliRunner().invoke(n.app, [str(word) for word in words])
    assert result.exit_code == 0, f"{words}: {result.output} {result.exception!r}"
    return result.stdout


def leaves(tree: Any) -> list[float]:
    """The numbers of nested JSON, in the order of the file."""
    if isinstance(tree, dict | list):
        return [leaf for part in (tree.values() if isinstance(tree, dict) else tree) for leaf in leaves(part)]
    return [float(tree)] if isinstance(tree, int | float) else []


def commands() -> Cases:
    """Fit, predict and evaluate, on files."""
    problem = few()
    with TemporaryDirectory() as name:
        folder = Path(name)
        for part, chosen in ((problem.calibration, "calibration"), (problem.test, "test"), (problem.train, "train")):
            arrays = {"embeddings": part.embeddings, "logits": part.logits, "labels": WORDS[part.labels]}
            np.savez(folder / f"{chosen}.npz", **arrays, classes=WORDS)
        fits: dict[str, tuple[object, ...]] = {
            "kcal": (n.METHOD, "kcal", n.PROJECTION, "identity"),
            "kcal-options": (
                n.METHOD, "kcal", n.PROJECTION, "identity", n.BANDWIDTH, 0.8, n.SMOOTHING, 0.01,
                n.PRIOR, "owl=0.4,cat=0.3,dog=0.2,bat=0.1",
            ),
            "blend": (n.METHOD, "kcal-blend"),
            "blend-options": (n.METHOD, "kcal-blend", n.FOLDS, 3, n.PRIOR, "owl=0.4,cat=0.3,dog=0.2,bat=0.1"),
            "ts": (n.METHOD, "ts"),
            "imax": (n.METHOD, "imax", n.SET, "form=top", n.SET, "bins=8"),
        }  # fmt: skip
        for label, options in fits.items():
            yield from _one_model(folder, label, options)
        calibration, test = folder / "calibration.npz", folder / "test.npz"
        sides = run(*n.COMPARE, calibration, test, n.METHODS, "ts,vector", n.NO_INTERVALS)
        yield "evaluate/two-methods", shown(sides)
        rows = run(*n.COMPARE, calibration, test, n.METHODS, "ts,vector,beta,sms,histogram", n.NO_INTERVALS)
        yield "evaluate/five-methods", shown(rows)
        alone = run(*n.EVALUATE, folder / "ts.csv", n.LABELS, test, n.RESAMPLES, 20)
        yield "evaluate/probabilities", shown(alone)


def _one_model(folder: Path, label: str, options: tuple[object, ...]) -> Cases:
    model, test = folder / f"{label}.kcal", folder / "test.npz"
    yield f"fit/{label}", shown(run(*n.FIT, folder / "calibration.npz", n.OUT, model, *options))
    near = (n.EVIDENCE,) if "kcal" in label or "blend" in label else ()
    run(*n.PREDICT, model, test, n.OUT, folder / f"{label}.npz", *near)
    run(*n.PREDICT, model, test, n.OUT, folder / f"{label}.csv")
    with np.load(folder / f"{label}.npz") as arrays:
        numeric = {key: arrays[key] for key in arrays.files if arrays[key].dtype.kind == "f"}
    for number, values in enumerate(numeric.values()):
        yield f"predict/{label}/{number}", values[:12]
    table = (folder / f"{label}.csv").read_text().splitlines()[1:13]
    yield (
        f"predict/{label}/csv",
        np.array([[float(cell) for cell in re.findall(r",(-?[\d.e-]+)", row)] for row in table]),
    )
    figures = folder / f"{label}.json"
    yield f"evaluate/{label}", shown(run(*n.EVALUATE, model, test, n.NO_INTERVALS, n.JSON, figures))
    yield f"evaluate/{label}/metrics", np.array(leaves(json.loads(figures.read_text())["metrics"]))


def bench() -> Cases:
    """The tables of a short benchmark on the embedded example; seconds are two numbers a cell, and left out."""
    with TemporaryDirectory() as folder:
        output = run(*n.BENCH, n.METHODS, "ts,vector", n.SPLITS, 1, n.JOBS, 1, n.OUT, Path(folder) / "out")
    yield "tables", shown(output)
