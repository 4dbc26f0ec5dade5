"""The blend on a made-up problem of 1,000 classes: time, memory and quality: python -m experiments.many_classes."""

from __future__ import annotations

import resource
import time
from typing import Annotated, Any

import numpy as np
import pandas
import typer
from numpy.typing import NDArray
from sklearn.linear_model import RidgeClassifier

from kcal import KCalBlend, StructuredVectorScaling, TemperatureScaling
from kcal.metrics import accuracy, expected_calibration_error, negative_log_likelihood

CLUSTERS_PER_CLASS = 3
CLASSES_PER_FAMILY = 10
LOGIT_SCALE = 30.0
"""Factor from the scores of the ridge classifier to overconfident logits."""

Floats = NDArray[np.float32]


def clusters(n_classes: int, n_features: int, generator: np.random.Generator) -> Floats:
    """Return the centres of the clusters of each class, (n_classes, clusters, n_features); classes come in families."""
    families = generator.standard_normal((-(-n_classes // CLASSES_PER_FAMILY), n_features))
    classes = families.repeat(CLASSES_PER_FAMILY, axis=0)[:n_classes] + 0.6 * generator.standard_normal(
        (n_classes, n_features)
    )
    spread = 0.5 * generator.standard_normal((n_classes, CLUSTERS_PER_CLASS, n_features))
    return (classes[:, None] + spread).astype(np.float32)


def draw(centres: Floats, n: int, noise: float, generator: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Return n embeddings and their labels."""
    labels = generator.integers(len(centres), size=n)
    middles = centres[labels, generator.integers(CLUSTERS_PER_CLASS, size=n)]
    return middles + noise * generator.standard_normal(middles.shape, dtype=np.float32), labels


def measure(method: Any, calibration: dict[str, Any], test: dict[str, Any]) -> dict[str, float]:
    """Return times, the peak memory of the process so far, and the quality of a method."""
    start = time.perf_counter()
    if method.inputs == "both":
        method.fit(calibration["embeddings"], calibration["labels"], logits=calibration["logits"])
        fitted = time.perf_counter()
        probs = method.predict_proba(test["embeddings"], logits=test["logits"])
    else:
        method.fit(calibration["logits"], calibration["labels"])
        fitted = time.perf_counter()
        probs = method.predict_proba(test["logits"])
    predicted = time.perf_counter()
    return {
        "fit, s": fitted - start,
        "prediction, s": predicted - fitted,
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "log-loss": negative_log_likelihood(probs, test["labels"]),
        "accuracy, %": 100 * accuracy(probs, test["labels"]),
        "paper ECE, %": 100 * expected_calibration_error(probs, test["labels"], bins=20, adaptive=True),
    }


def main(
    n_classes: int = 1_000,
    n_features: int = 1_536,
    n: Annotated[int, typer.Option(help="Calibration rows.")] = 25_000,
    n_test: int = 5_000,
    noise: float = 5.0,
    seed: int = 0,
) -> None:
    """Fit temperature scaling, structured vector scaling and the blend, and print a table."""
    generator = np.random.default_rng(seed)
    centres = clusters(n_classes, n_features, generator)
    embeddings, labels = draw(centres, n + 5_000, noise, generator)
    network = RidgeClassifier(alpha=1e4).fit(embeddings, labels)
    parts = {}
    for name, size in (("calibration", n), ("test", n_test)):
        rows, classes = draw(centres, size, noise, generator)
        logits = (LOGIT_SCALE * network.decision_function(rows)).astype(np.float32)
        parts[name] = {"embeddings": rows, "logits": logits, "labels": classes}
    methods = {"ts": TemperatureScaling(), "svs": StructuredVectorScaling(), "kcal-blend": KCalBlend()}
    table = {name: measure(method, **parts) for name, method in methods.items()}
    typer.echo(pandas.DataFrame.from_dict(table, orient="index").round(4).to_string())


if __name__ == "__main__":
    typer.run(main)
