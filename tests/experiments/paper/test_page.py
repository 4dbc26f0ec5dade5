"""The page of the paper's claims follows from the stored results."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy.stats import rankdata

from experiments.paper.page import TASKS, Page, Stored, collect, gap, mean_of, write_page
from experiments.paper.published import RESULTS


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(Stored())


def test_committed_page_is_what_the_stored_results_give(tmp_path: Path) -> None:
    write_page(RESULTS, tmp_path / "paper.md", figure=False)
    assert (tmp_path / "paper.md").read_text() == (RESULTS.parent / "paper.md").read_text()


def test_entries_of_measured_splits_replace_those_of_the_benchmark(page: Page) -> None:
    splits = pandas.read_csv(RESULTS / "paper-splits.csv")
    losses = splits[(splits["task"] == "sleepedf-mlp") & (splits["method"] == "kcal-paper")]["negative_log_likelihood"]
    assert len(losses) == 10
    assert page.our("NLL", "sleepedf-mlp", "kcal-paper") == f"{np.mean(losses):.4f}±{np.std(losses, ddof=1):.4f}"
    assert page.our("NLL", "sleepedf-mlp", "ts") == "0.2755±0.0014"


@pytest.mark.parametrize("table", ["accuracy", "CECE", "CECE max"])
def test_ranks_are_means_of_ranks_over_rows(page: Page, table: str) -> None:
    methods = ("uncal", "ts", "dircal", "imax", "spline", "iop", "gp", "kcal-paper")
    sign = -1 if table == "accuracy" else 1
    ranks = [rankdata([sign * mean_of(page.our(table, task, m)) for m in methods]) for task in TASKS]
    np.testing.assert_allclose(page.ranks().loc[table, list(methods)], np.mean(ranks, axis=0))
    firsts = [task for task, row in zip(TASKS, ranks, strict=True) if row[-1] == min(row)]
    assert page.best_rows(table) == (", ".join(firsts) or "none")


def test_collect_keeps_the_last_result_of_every_split(tmp_path: Path) -> None:
    key = {"task": "toy", "by_group": True, "split": 0, "method": "ts"}
    lines = [{"settings": {"seed": 0}}, *({"key": key, "metrics": {"accuracy": value}} for value in (0.25, 0.5))]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    collect([tmp_path], tmp_path / "splits.csv")
    found = pandas.read_csv(tmp_path / "splits.csv")
    assert found.to_dict("records") == [{"task": "toy (by group)", "method": "ts", "split": 0, "accuracy": 0.5}]


def test_gap_is_the_mean_over_predictions_above_a_tenth() -> None:
    bins = pandas.DataFrame(
        {"count": [900, 30, 10, 60], "predicted": [0.05, 0.3, 0.4, 0.8], "observed": [0, 0.2, 0, 0.9]}
    )
    assert gap(bins) == pytest.approx(0.1)  # the third bin has too few samples
