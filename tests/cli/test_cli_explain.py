"""``kcal explain`` shows, writes and draws what ``explain`` of the saved calibrator returns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, blobs, read_columns

import kcal


@pytest.fixture
def expected(model):
    return kcal.load(model).explain(blobs(60, 2)["embeddings"])


@pytest.fixture
def blend(run, calibration) -> Path:
    run("fit", calibration, "-o", "blend.kcal", "-m", "kcal-blend", "--quiet")
    return Path("blend.kcal")


def test_a_row_is_shown_with_its_samples_and_their_shares(run, model, test_set, expected):
    words = run("explain", model, test_set, "--row", 17, "-k", 2).stdout.split()
    assert words[:3] == ["row", "17,", "row-2-17:"]
    assert words[3] == expected.predictions[17]
    for place in range(2):
        assert expected.ids[17, place] in words  # ids of the fit
        assert f"{expected.shares[17, place]:.4f}" in words
        assert f"{expected.distances[17, place]:.4g}" in words
    assert expected.ids[17, 2] not in words
    for probability in expected.probabilities[17]:
        assert f"{probability:.4f}" in words


def test_without_a_choice_the_first_rows_are_shown_and_all_are_written(run, model, test_set, expected):
    output = run("explain", model, test_set, "--csv", "why.csv", "--json", "why.json").stdout
    assert [f"row {row}," in output for row in range(4)] == [True, True, True, False]
    assert "and 57 more" in output
    columns = read_columns(Path("why.csv"))
    assert list(columns) == ["row", "row_id", "part", "id", "class", "share", "distance"]
    frame = expected.to_frame()
    for name in ("row", "class", "part"):
        assert columns[name].tolist() == frame[name].tolist()
    np.testing.assert_allclose(columns["share"], frame["share"], rtol=1e-12)
    entries = json.loads(Path("why.json").read_text())
    assert [entry["id"] for entry in entries] == blobs(60, 2)["ids"].tolist()
    for row, entry in enumerate(entries):
        assert [sample["id"] for sample in entry["samples"]] == expected.ids[row].tolist()
        assert blobs(90, 1)["ids"][entry["samples"][0]["row"]] == entry["samples"][0]["id"]
        sums = {label: share + entry["parts"]["smoothing"][label] for label, share in entry["rest"].items()}
        for sample in entry["samples"]:
            sums[sample["label"]] += sample["share"]
        for label, probability in entry["probabilities"].items():
            assert sums[label] == pytest.approx(probability, rel=1e-12)


def test_a_blend_shows_its_log_odds(run, blend, test_set):
    output = run("explain", blend, test_set, "--row", 3, "--json", "why.json").stdout
    (entry,) = json.loads(Path("why.json").read_text())
    odds = entry["log_odds"]
    assert f"log-odds of {odds['first']} against {odds['second']}" in output
    assert f"{odds['total']:+.4f}" in output
    assert sum(odds["terms"].values()) == pytest.approx(odds["total"], rel=1e-12)
    assert set(entry["parts"]) == {"network", "refitted layer"}
    assert entry["samples"][0]["distance"] > 0


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_first_row_is_drawn(run, model, test_set, suffix):
    run("explain", model, test_set, "--row", 2, "--plot", f"why{suffix}")
    content = Path(f"why{suffix}").read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    if suffix == ".svg":
        assert b"row 2, row-2-2" in content


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--row", 60), 2, "--row must be a row of test.npz, 0 to 59; got 60"),
        (("--row", -1), 2, "--row"),
        (("-k", 0), 2, "-k"),
        (("--row", 1, "--id", "x"), 2, "--row and --id choose rows in two ways"),
        (("--id", "nobody"), 2, "--id must be an id that test.npz has once; got 'nobody', which it has 0 times"),
        (("--plot", "why.gif"), 2, "--plot must end in .png, .pdf, .svg"),
        (("--csv", "why.parquet"), 2, "--csv must end in .csv"),
        (("--logits", "test.npz"), 2, "--logits would have no effect"),
        (("--json", "test.npz"), 2, "--json must not replace an input"),
    ],
)
def test_wrong_options_are_one_line(run, model, test_set, words, code, message):
    result = run("explain", model, test_set.name, *words, code=code)
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(Path().glob("why*"))


def test_a_method_without_samples_and_data_without_ids_are_refused(run, model, calibration, tmp_path):
    run("fit", calibration, "-o", "ts.kcal", "-m", "ts", "--quiet")
    message = run("explain", "ts.kcal", calibration, code=1).stderr
    assert "MODEL must predict from calibration samples; got ts.kcal, of method ts" in message
    np.save(tmp_path / "rows.npy", blobs(4, 3)["embeddings"])
    assert "--id needs ids, and rows.npy has none" in run("explain", model, "rows.npy", "--id", "a", code=2).stderr
    assert "row 3" not in run("explain", model, "rows.npy").stdout
    assert set(ANIMALS) & set(run("explain", model, "rows.npy", "--row", 3).stdout.split())
