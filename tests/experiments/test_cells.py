"""Cells are measured once, as by hand; splits keep groups and classes apart; summaries are those worked by hand."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from experiments.cell_tables import cell_tables, summary
from experiments.cells import Cell, run, sized_splits
from kcal import TemperatureScaling, metrics
from kcal.benchmark import Task

LOG_LOSS = "negative_log_likelihood"
OPTIONS: dict[str, Any] = {"methods": ("uncal", "ts"), "sizes": ("20", "40", "500", "full"), "n_splits": 1}


def cells_of(found: pandas.DataFrame) -> set[Cell]:
    return {Cell(*row) for row in found[list(Cell._fields)].itertuples(index=False, name=None)}


def test_every_cell_is_measured_as_by_hand(task: Task, tmp_path: Path) -> None:
    found = run([task], tmp_path, "sizes", ("random", "group"), **OPTIONS)
    splits = {"20": 2, "40": 2, "full": 1}  # 500 is beyond the calibration set
    places = {(protocol, n, split) for protocol in ("random", "group") for n in splits for split in range(splits[n])}
    assert cells_of(found) == {Cell("small", *place, method) for place in places for method in ("uncal", "ts")}
    assert (found["error"] == "").all()
    name, split = next(iter(sized_splits(task, "random", ("20",), 1)))
    calibrator = TemperatureScaling().fit(task.pool.logits[split.calibration], task.pool.labels[split.calibration])
    probs = calibrator.predict_proba(task.pool.logits[split.test])
    row = found.set_index(list(Cell._fields)).loc[("small", "random", name, 0, "ts")]
    assert row["calibration_rows"] == 20
    for metric in (LOG_LOSS, "accuracy", "expected_calibration_error", "classwise_calibration_error"):
        assert row[metric] == pytest.approx(
            metrics.PAPER_METRICS[metric](probs, task.pool.labels[split.test]), rel=1e-6
        )


def test_stored_cells_are_kept_unless_measured_again(task: Task, tmp_path: Path) -> None:
    run([task], tmp_path, "sizes", ("random",), **OPTIONS)
    path = tmp_path / "sizes.csv"
    stored = pandas.read_csv(path)
    stored[LOG_LOSS] = 99.0
    stored.iloc[:-1].to_csv(path, index=False)
    resumed = run([task], tmp_path, "sizes", ("random",), **OPTIONS)
    assert cells_of(resumed) == cells_of(stored.astype({"n": str}))
    assert (resumed[LOG_LOSS] == 99).sum() == len(stored) - 1
    again = run([task], tmp_path, "sizes", ("random",), **OPTIONS | {"methods": ("ts",), "again": True})
    assert len(again) == len(stored)
    assert (again[LOG_LOSS] == 99).tolist() == (again["method"] == "uncal").tolist()


def test_sizes_are_nested_and_groups_are_never_on_both_sides(task: Task) -> None:
    splits = list(sized_splits(task, "group", ("20", "40", "full"), 5))
    assert len(splits) == 3 * 10  # all pairs of five groups at every size
    groups = task.pool.groups
    for _, split in splits:
        assert not set(groups[split.calibration]) & set(groups[split.test])
    pairs = {tuple(np.unique(groups[split.calibration])) for name, split in splits if name == "full"}
    assert len(pairs) == 10
    for small, large in zip(splits[0::3], splits[1::3], strict=True):
        np.testing.assert_array_equal(small[1].calibration, large[1].calibration[:20])
        np.testing.assert_array_equal(small[1].test, large[1].test)


def test_summary_of_a_worked_example() -> None:
    losses = {  # the mean of two splits
        ("a", "30"): {"uncal": 0.80, "ts": 0.40, "svs": 0.50},
        ("a", "full"): {"uncal": 0.80, "ts": 0.40, "svs": 0.20},
        ("b", "30"): {"uncal": 0.60, "ts": 0.402, "svs": 0.40},
    }
    rows = [
        {"task": task, "protocol": "random", "n": n, "split": split, "method": method, "calibration_rows": 30}
        | {LOG_LOSS: loss + sign * 0.1, "accuracy": 0.9 - 0.01 * (method == "svs"), "error": ""}
        | {"expected_calibration_error": 0.05 - (method == "svs") * (0.02 + sign * 0.01)}
        | {"classwise_calibration_error": 0.05}
        for ((task, n), by_method), (split, sign) in product(losses.items(), enumerate((-1, 1)))
        for method, loss in by_method.items()
    ]
    found = pandas.DataFrame(rows)
    every = summary(found).loc[("all", "random")]
    assert every["ratio"].to_dict() == pytest.approx(
        {
            "uncal": (2 * 4 * 1.5) ** (1 / 3),
            "ts": (0.8 * 2 * 1.005) ** (1 / 3),
            "svs": (1.25 * 0.5 * 0.4 / 0.402) ** (1 / 3),
        }
    )
    assert every["worst"].to_dict() == pytest.approx({"uncal": 4, "ts": 2, "svs": 1.25})
    assert every["worst at"].tolist() == ["a full", "a full", "a 30"]
    assert every["> 1 % above"].tolist() == [3, 1, 1]
    apart = summary(found, ["b"])
    assert apart.loc[("chosen", "random", "ts"), "ratio"] == pytest.approx(1.005)
    assert apart.loc[("others", "random", "ts"), "ratio"] == pytest.approx(1.6**0.5)
    shown = {table.name: table for table in cell_tables(found)}
    assert [entry.text for entry in shown["paper-ece-random"].rows[0]] == ["a", "30", "+0.00±0.00", "−2.00±1.00"]
