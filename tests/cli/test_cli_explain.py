"""``kcal explain`` shows, writes and draws what ``explain`` of the saved calibrator returns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from animals import blobs, read_columns

import kcal


@pytest.fixture
def expected(model):
    return kcal.load(model).explain(blobs(60, 2)["embeddings"])


@pytest.fixture
def blend(run, calibration) -> Path:
    run("fit", calibration, "-o", "blend.kcal", "-m", "kcal-blend", "--quiet")
    return Path("blend.kcal")


def test_rows_are_shown_as_the_library_prints_them(run, model, test_set, expected):
    texts = {row: str(expected[row]).replace(f"row {row}:", f"row {row} (id row-2-{row}):") for row in (3, 17)}
    shown = run("explain", model, test_set, "--row", 17, "--row", 3).stdout
    assert shown == f"{texts[17]}\n\n{texts[3]}\n\n"
    assert run("explain", model, test_set, "--id", "row-2-3").stdout == f"{texts[3]}\n\n"


def test_without_a_choice_the_first_rows_are_shown_and_all_are_written(run, model, test_set, expected):
    output = run("explain", model, test_set, "--csv", "why.csv", "--json", "why.json").stdout
    assert [f"row {row} (id row-2-{row}):" in output for row in range(4)] == [True, True, True, False]
    assert "and 57 more" in output
    columns = read_columns(Path("why.csv"))
    assert list(columns) == ["row", "row_id", "part", "id", "class", "share", "distance"]
    frame = expected.to_frame()
    for name in ("row", "class", "part"):
        assert columns[name].tolist() == frame[name].tolist()
    np.testing.assert_allclose(columns["share"], frame["share"], rtol=1e-12)
    entries = json.loads(Path("why.json").read_text())
    ids = blobs(60, 2)["ids"].tolist()
    assert entries == [{"id": name} | entry for name, entry in zip(ids, expected.to_dict(), strict=True)]


def test_a_blend_shows_its_log_odds_and_the_first_row_is_drawn(run, blend, test_set):
    output = run("explain", blend, test_set, "--row", 3, "--json", "why.json", "--plot", "why.svg").stdout
    (entry,) = json.loads(Path("why.json").read_text())
    odds = entry["log_odds"]
    assert f"log-odds of {odds['first']} against {odds['second']}" in output
    assert f"{odds['total']:+.4f}" in output
    assert set(entry["parts"]) == {"network", "refitted layer"}
    assert b"row-2-3" in Path("why.svg").read_bytes()
