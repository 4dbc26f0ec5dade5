"""Methods of kcal and of other libraries on the same splits: python -m experiments.neighbors FOLDER [TASK...].

Needs ``pip install netcal 'probmetrics[extra]' 'torch-uncertainty[cpu]'`` beside kcal, in an environment of its own.
Every library gets the outputs of the same calibration rows in the form that it documents: scikit-learn, netcal and
probmetrics softmax probabilities in double precision, the others logits; KCalBlend also gets the embeddings. Variants
get logits as decision function, or single precision. Metrics are computed here, the same for all.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from time import process_time
from typing import Annotated, Any, NamedTuple

import numpy as np
import pandas
import torch
import typer
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

import kcal
from benchmarks.torchvision_operators import define_missing_operators

Array = NDArray[Any]
LIBRARIES = ("kcal", "scikit-learn", "netcal", "probmetrics", "torch-uncertainty")
MIN_PROB = 1e-12
"""Smaller probabilities of the true class count as this: some methods give exact zeros."""
BINS = 15


class Rows(NamedTuple):
    """The outputs of a network for some samples."""

    embeddings: Array  # (n, h)
    logits: Array  # (n, n_classes), float32
    labels: Array  # (n,)


def probabilities(rows: Rows) -> Array:
    """Return the softmax of the logits, in double precision."""
    return np.asarray(softmax(rows.logits.astype(np.float64), axis=1))


class Scores(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier for scikit-learn whose inputs are the logits of a network."""

    def fit(self, X: Array, y: Array) -> Scores:
        """Take the classes."""
        self.classes_ = np.arange(X.shape[1])
        return self

    def predict_proba(self, X: Array) -> Array:
        """Return the softmax."""
        return np.asarray(softmax(X.astype(np.float64), axis=1))

    def predict(self, X: Array) -> Array:
        """Return the class of the largest logit."""
        return np.asarray(X.argmax(axis=1))


class Decisions(Scores):
    """The same with the logits as its decision function, which scikit-learn prefers to probabilities."""

    def decision_function(self, X: Array) -> Array:
        """Return the logits; of two classes, their difference."""
        return X[:, 1] - X[:, 0] if X.shape[1] == 2 else X


def with_scikit(method: str, kind: type[Scores] = Scores) -> Callable[[Rows, Rows], Array]:
    def run(calibration: Rows, test: Rows) -> Array:
        scores = FrozenEstimator(kind().fit(calibration.logits, calibration.labels))
        calibrator = CalibratedClassifierCV(scores, method=method).fit(calibration.logits, calibration.labels)
        return np.asarray(calibrator.predict_proba(test.logits))

    return run


def with_netcal(place: str, name: str, dtype: type[np.floating[Any]] = np.float64) -> Callable[[Rows, Rows], Array]:
    def run(calibration: Rows, test: Rows) -> Array:
        from importlib import import_module

        calibrator = getattr(import_module(f"netcal.{place}"), name)()
        calibrator.fit(probabilities(calibration).astype(dtype), calibration.labels)
        probs = np.asarray(calibrator.transform(probabilities(test).astype(dtype)))
        return np.column_stack([1 - probs, probs]) if probs.ndim == 1 else probs

    return run


def with_probmetrics(name: str) -> Callable[[Rows, Rows], Array]:
    def run(calibration: Rows, test: Rows) -> Array:
        from probmetrics.calibrators import get_calibrator

        calibrator = get_calibrator(name)
        calibrator.fit(probabilities(calibration), calibration.labels)
        return np.asarray(calibrator.predict_proba(probabilities(test)))

    return run


def with_torch_uncertainty(name: str) -> Callable[[Rows, Rows], Array]:
    def run(calibration: Rows, test: Rows) -> Array:
        from torch.utils.data import DataLoader, TensorDataset
        from torch_uncertainty import post_processing

        kind, n_classes = getattr(post_processing, name), calibration.logits.shape[1]
        logging.getLogger().setLevel(logging.ERROR)
        scaler = kind(model=torch.nn.Identity(), **({} if name == "TemperatureScaler" else {"num_classes": n_classes}))
        rows = TensorDataset(torch.from_numpy(calibration.logits), torch.from_numpy(calibration.labels))
        scaler.fit(DataLoader(rows, batch_size=len(rows)), progress=False)
        return np.asarray(torch.softmax(scaler(torch.from_numpy(test.logits)).detach().double(), dim=1))

    return run


def with_kcal(name: str) -> Callable[[Rows, Rows], Array]:
    def run(calibration: Rows, test: Rows) -> Array:
        fitted = kcal.fit_on(kcal.METHODS[name].factory(), kcal.ClassifierOutputs(*calibration))
        return np.asarray(kcal.predict_on(fitted, kcal.ClassifierOutputs(test.embeddings, test.logits)))

    return run


METHODS: dict[tuple[str, str], Callable[[Rows, Rows], Array]] = {
    ("", "no calibration"): lambda _, test: probabilities(test),
    ("scikit-learn", "temperature"): with_scikit("temperature"),
    ("netcal", "TemperatureScaling"): with_netcal("scaling", "TemperatureScaling"),
    ("netcal", "TemperatureScaling of float32"): with_netcal("scaling", "TemperatureScaling", np.float32),
    ("probmetrics", "temp-scaling"): with_probmetrics("temp-scaling"),
    ("torch-uncertainty", "TemperatureScaler"): with_torch_uncertainty("TemperatureScaler"),
    ("kcal", "TemperatureScaling"): with_kcal("ts"),
    ("torch-uncertainty", "VectorScaler"): with_torch_uncertainty("VectorScaler"),
    ("kcal", "VectorScaling"): with_kcal("vector"),
    ("scikit-learn", "sigmoid"): with_scikit("sigmoid"),
    ("scikit-learn", "sigmoid of logits"): with_scikit("sigmoid", Decisions),
    ("netcal", "LogisticCalibration"): with_netcal("scaling", "LogisticCalibration"),
    ("kcal", "PlattScaling"): with_kcal("platt"),
    ("scikit-learn", "isotonic"): with_scikit("isotonic"),
    ("scikit-learn", "isotonic of logits"): with_scikit("isotonic", Decisions),
    ("netcal", "IsotonicRegression"): with_netcal("binning", "IsotonicRegression"),
    ("kcal", "IsotonicCalibration"): with_kcal("isotonic"),
    ("probmetrics", "sms"): with_probmetrics("sms"),
    ("kcal", "StructuredMatrixScaling"): with_kcal("sms"),
    ("kcal", "KCalBlend"): with_kcal("kcal-blend"),
}


def measure(probs: Array, labels: Array) -> dict[str, float]:
    """Return log-loss, the multi-class Brier score, ECE in 15 equal-width bins and accuracy, the last two in %.

    A fit whose probabilities are not finite counts as uniform; ``failed`` tells so.
    """
    rows, finite = np.arange(len(labels)), bool(np.isfinite(probs).all())
    probs = probs if finite else np.full_like(probs, 1 / probs.shape[1])
    top, hits = probs.max(axis=1), probs.argmax(axis=1) == labels
    bins = np.clip(np.ceil(BINS * top) - 1, 0, BINS - 1).astype(int)
    gaps = np.abs(np.bincount(bins, hits, BINS) - np.bincount(bins, top, BINS))
    return {
        "log-loss": float(-np.log(np.maximum(probs[rows, labels], MIN_PROB)).mean()),
        "Brier": float(((probs - np.eye(probs.shape[1])[labels]) ** 2).sum(axis=1).mean()),
        "ECE, %": float(100 * gaps.sum() / len(labels)),
        "accuracy, %": float(100 * hits.mean()),
        "failed": float(not finite),
    }


def read_pool(place: Path | None) -> tuple[Rows, float]:
    """Return the samples of a task's file that are split, and the share that calibrates; None for the example."""
    if place is None:
        example = kcal.load_example()
        parts = [Rows(part.embeddings, part.logits, part.labels) for part in (example.calibration, example.test)]
        return Rows(*(np.concatenate(pair) for pair in zip(*parts, strict=True))), 0.3
    with np.load(place, allow_pickle=False) as file:
        pool = Rows(*(file[f"pool_{name}"] for name in Rows._fields))
        share = float(file["calibration_share"])
    return Rows(pool.embeddings.astype(np.float32), pool.logits.astype(np.float32), pool.labels.astype(np.int64)), share


def compare(pool: Rows, share: float, splits: int) -> list[dict[str, Any]]:
    """Return the measures of every method on every split."""
    lines = []
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(pool.labels))
        cut = round(share * len(order))
        calibration, test = (Rows(*(part[rows] for part in pool)) for rows in (order[:cut], order[cut:]))
        for (library, method), run in METHODS.items():
            torch.manual_seed(split)
            start = process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                probs = run(calibration, test)
            seconds = process_time() - start
            named = {"library": library, "method": method, "split": split}
            lines.append(named | measure(probs.astype(np.float64), test.labels) | {"seconds": seconds})
    return lines


def main(
    folder: Annotated[Path, typer.Argument(help="Where the files of tasks are.")],
    tasks: Annotated[list[str], typer.Argument(help="Names of tasks; the embedded example is always one.")] = [],  # noqa: B006
    splits: Annotated[int, typer.Option(help="Splits into calibration and test rows.")] = 10,
    out: Annotated[Path | None, typer.Option(help="A csv file for the measures of every split.")] = None,
) -> None:
    """Compare the methods that kcal shares with other libraries."""
    torch.set_num_threads(1)
    operators = define_missing_operators()  # torch-uncertainty imports torchvision
    typer.echo(", ".join(f"{name} {version(name)}" for name in LIBRARIES))
    frames = []
    for name in ["example", *tasks]:
        pool, share = read_pool(None if name == "example" else folder / f"{name}.npz")
        frame = pandas.DataFrame(compare(pool, share, splits)).assign(task=name)
        frames.append(frame)
        columns = [*measure(np.eye(2), np.arange(2)), "seconds"]
        means = frame.groupby(["library", "method"], sort=False)[columns].mean()
        typer.echo(f"\n{name}: {len(pool.labels):,} rows, {pool.logits.shape[1]} classes, {splits} splits")
        typer.echo(means.round(4).to_string())
    del operators
    if out is not None:
        pandas.concat(frames).to_csv(out, index=False, float_format="%.6g")


if __name__ == "__main__":
    typer.run(main)
