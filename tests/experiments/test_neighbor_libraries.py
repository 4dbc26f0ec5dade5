"""The comparison with other libraries: its metrics, and the methods whose libraries are installed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas
import pytest
from sklearn.metrics import log_loss
from torch import from_numpy

from experiments.neighbors import METHODS, Rows, compare, measure, read_pool

torchmetrics = pytest.importorskip("torchmetrics.functional.classification")
DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"(?<=\| )\d+\.\d+(?= \|)")
LOCAL = {key: run for key, run in METHODS.items() if key[0] in ("", "scikit-learn", "kcal") and key[1] != "KCalBlend"}


def test_measures_are_those_of_other_libraries() -> None:
    random = np.random.default_rng(0)
    probs, labels = random.dirichlet(np.ones(4), size=500), random.integers(4, size=500)
    found = measure(probs, labels)
    assert found["log-loss"] == pytest.approx(log_loss(labels, probs))
    expected = torchmetrics.multiclass_calibration_error(from_numpy(probs), from_numpy(labels), 4, n_bins=15)
    assert found["ECE, %"] == pytest.approx(100 * float(expected), rel=1e-5)
    assert measure(np.full((3, 2), np.nan), np.array([0, 1, 1]))["failed"] == 1


def test_methods_lower_the_log_loss_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, share = read_pool(None)
    some = Rows(*(part[:2000] for part in pool))
    monkeypatch.setattr("experiments.neighbors.METHODS", LOCAL)
    losses = {(line["library"], line["method"]): line["log-loss"] for line in compare(some, share, 1)}
    assert len(losses) == len(LOCAL)
    assert losses["kcal", "TemperatureScaling"] < 0.8 * losses["", "no calibration"]
    assert losses["kcal", "TemperatureScaling"] == pytest.approx(losses["scikit-learn", "temperature"], rel=0.01)


def test_the_table_of_the_page_has_the_means_of_the_stored_results() -> None:
    measures = pandas.read_csv(DOCS / "results/neighbors.csv", keep_default_na=False)
    assert set(measures.groupby(["task", "library", "method"]).size()) == {10}
    table = (DOCS / "neighbors.md").read_text(encoding="utf-8").replace("**", "")
    shown = {cells for cells in map(tuple, map(NUMBER.findall, table.splitlines())) if len(cells) == 6}
    expected = set()
    for (_, method), of_method in measures.groupby(["library", "method"]):
        means = of_method.groupby("task", sort=False)[["log-loss", "ECE, %"]].mean()
        if not of_method["failed"].any() and method != "TemperatureScaling of float32":
            expected.add(tuple(text for loss, ece in means.to_numpy() for text in (f"{loss:.4f}", f"{ece:.2f}")))
    assert shown == expected
