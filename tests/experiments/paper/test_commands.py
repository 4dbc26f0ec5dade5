"""The commands train, embed and results, one after the other, and the paper's rows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from experiments.paper.published import METRICS, PAPER_METHODS, published


def test_published_tables_are_complete() -> None:
    for name in METRICS:
        table = published(name)
        assert table.shape == (12, len(PAPER_METHODS))
        entries = [entry for row in table.to_numpy() for entry in row]
        assert all(re.fullmatch(r"\d+\.\d\d±\d+\.\d\d|–", entry) for entry in entries)
        assert entries.count("–") == 2  # ImageNet's network was not trained with other losses
    assert published("CECE").loc["PN2017", "KCal"] == "4.25±1.26"
    assert published("NLL").loc["ImageNet", "GP"] == "0.75±0.01"
    ranks = published("rank").map(lambda entry: float(entry.split("±")[0]))
    np.testing.assert_allclose(ranks.loc[["ECE", "Accuracy", "CECE", "Brier"]].mean(), ranks.loc["Average"], atol=0.011)


@pytest.mark.parametrize(("name", "metric"), [("accuracy", "Accuracy"), ("CECE", "CECE"), ("ECE", "ECE")])
def test_printed_ranks_follow_from_the_printed_means(name: str, metric: str) -> None:
    """Without ImageNet, which lacks two methods; the paper ranks every split, so that its ranks are a little closer."""
    means = published(name).drop("ImageNet").map(lambda entry: float(entry.split("±")[0]))
    ranks = means.rank(axis=1, ascending=name != "accuracy").mean()
    printed = published("rank").loc[metric].map(lambda entry: float(entry.split("±")[0]))
    np.testing.assert_allclose(ranks, printed, atol=0.75)
