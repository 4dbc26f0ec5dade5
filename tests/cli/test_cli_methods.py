"""Every method of the table through the commands: fitted, stored, applied, and side by side."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from animals import blobs, columns_of, write_columns

import kcal
from kcal.calibrators import METHODS, make_calibrator
from kcal.projection import RECIPES, PaperRecipe

pytestmark = pytest.mark.usefixtures("short_solvers")

CODES = np.arange(60) % 3


def metrics(run, *words: object) -> dict[str, dict[str, float]]:
    run("evaluate", *words, "--no-intervals", "--json", "figures.json")
    return json.loads(Path("figures.json").read_text())["metrics"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_fitted_stored_and_judged(run, calibration, test_set, name, monkeypatch):
    monkeypatch.setitem(RECIPES, "paper", partial(PaperRecipe, epochs=1, batches_per_epoch=3))
    output = run("fit", calibration, "--method", name, "--out", "model.kcal").stdout
    stored = kcal.load("model.kcal")
    assert METHODS[stored.method].title in output
    run("predict", "model.kcal", test_set, "--out", "probabilities.npy")
    assert np.load("probabilities.npy").sum(axis=1) == pytest.approx(np.ones(60), abs=1e-5)
    found = metrics(run, "model.kcal", test_set)
    assert set(found) == {"uncal", stored.method}


def test_methods_side_by_side_are_each_what_the_library_gives(run, calibration, test_set):
    found = metrics(run, calibration, test_set, "--methods", "ts,beta,kcal")
    assert list(found) == ["uncal", "ts", "beta", "kcal"]
    one, other = blobs(90, 1), blobs(60, 2)
    for name in ("ts", "beta", "kcal"):
        calibrator = make_calibrator(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator.fit(one[calibrator.inputs], np.arange(90) % 3)
        expected = kcal.evaluate(calibrator.predict_proba(other[calibrator.inputs]), CODES)
        assert found[name] == pytest.approx(expected.as_dict(), abs=1e-6)


def test_many_methods_stand_below_each_other_with_the_paper_s_metrics(run, calibration, test_set):
    methods = "ts,ets,vector,platt,kcal-linear"
    output = run("evaluate", calibration, test_set, "--methods", methods, "--resamples", 20).stdout
    lines = output.splitlines()
    heading = next(place for place, line in enumerate(lines) if "CECE, % ↓" in line)
    for text in ("accuracy, % ↑", "ECE, % ↓", "Brier, % ↓", "NLL ↓"):
        assert text in lines[heading]
    shown = [line.strip().split("  ")[0] for line in lines[heading + 2 : heading + 8]]
    wanted = ("uncal", "ts", "ets", "vector", "platt", "kcal-linear")
    assert shown == [METHODS[name].title for name in wanted]
    assert "--json FILE" in output


def test_methods_read_tables_and_a_training_set_of_its_own(run, tmp_path):
    for name, rows, seed in (("calibration", 90, 1), ("test", 60, 2), ("train", 120, 3)):
        write_columns(tmp_path / f"{name}.csv", columns_of(blobs(rows, seed)))
    options = ["--feature-columns", "e_*", "--logit-columns", "z_*", "--train", "train.csv"]
    found = metrics(run, "calibration.csv", "test.csv", "--methods", "ts,kcal", *options)
    assert list(found) == ["uncal", "ts", "kcal"]
    without = metrics(run, "calibration.csv", "test.csv", "--methods", "kcal", *options[:-2])
    assert without["kcal"]["negative_log_likelihood"] != found["kcal"]["negative_log_likelihood"]


def test_a_report_compares_the_methods(run, calibration, test_set):
    run("evaluate", calibration, test_set, "--methods", "ts,kcal", "--report", "page", "--pictures", "1")
    page = Path("page/report.html").read_text()
    for text in ("no calibration", "temperature scaling", "KCal", "calibration.npz", "pictures of the 1 worst"):
        assert text in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--methods", "ts,hal"], "'hal' is not one of all, uncal, ts"),
        (["--methods", "ts,ts"], "names ts more than once"),
        (["--methods", ""], "'' is not one of all"),
        (["--methods", "ts", "--before", "test.npz"], "have no effect with --methods"),
        (["--train", "calibration.npz"], "are for --methods"),
        (["--pictures", "3"], "give --report FOLDER too"),
    ],
)
def test_what_does_not_go_with_methods_is_refused(run, calibration, test_set, words, message):
    result = run("evaluate", calibration, test_set, *words, code=2)
    assert message in " ".join(result.output.replace("│", " ").split())


def test_methods_need_two_files_and_no_shared_rows(run, calibration):
    result = run("evaluate", calibration, "--methods", "ts", code=2)
    assert "kcal evaluate CALIBRATION DATA --methods" in " ".join(result.output.replace("│", " ").split())
    result = run("evaluate", calibration, calibration, "--methods", "ts", code=3)
    assert "90 of the 90 rows" in result.output
    assert "ts" in metrics(run, calibration, calibration, "--methods", "ts", "--allow-overlap")


def test_an_error_names_the_method(run, calibration, test_set, tmp_path):
    arrays = blobs(90, 1)
    del arrays["embeddings"]
    np.savez(tmp_path / "logits.npz", **arrays)
    result = run("evaluate", "logits.npz", test_set, "--methods", "ts,kcal", code=1)
    assert "kcal: " in result.output
    assert "embeddings" in result.output


def test_of_all_methods_those_that_lack_their_inputs_are_left_out_with_a_word(run, test_set, tmp_path):
    arrays = blobs(90, 1)
    del arrays["embeddings"]
    np.savez(tmp_path / "logits.npz", **arrays)
    result = run("evaluate", "logits.npz", test_set, "--methods", "all", "--no-intervals", "--json", "figures.json")
    found = json.loads(Path("figures.json").read_text())["metrics"]
    assert set(METHODS) - set(found) == {name for name, method in METHODS.items() if method.inputs != "logits"}
    assert "kcal-linear is left out" in result.output
    assert "kcal-paper" not in result.output  # it takes an hour: it is run if it is named, not among all


def test_without_logits_only_the_blend_is_fitted_on_embeddings_alone(run, tmp_path):
    for name, rows, seed in (("calibration", 90, 1), ("test", 60, 2)):
        arrays = blobs(rows, seed)
        del arrays["logits"]
        np.savez(tmp_path / f"{name}.npz", **arrays)
    words = ("evaluate", "calibration.npz", "test.npz", "--no-intervals", "--methods")
    result = run(*words, "knn,refit,dac", code=1)
    assert "embeddings alone" not in result.output
    assert "logits" in result.output
    assert "kcal-blend: calibration.npz has no logits" in " ".join(run(*words, "kcal-blend").output.split())


@pytest.mark.parametrize(
    ("method", "settings", "expected"),
    [
        ("imax", ["form=top", "bins=7"], {"form": "top", "bins": 7}),
        ("spline", ["form=rank", "floor=false"], {"form": "rank", "floor": False}),
        ("platt", ["maps=shared"], {"maps": "shared"}),
        ("dircal", ["grid=[[1, 0.1]]"], {"grid": [[1, 0.1]]}),
    ],
)
def test_any_parameter_of_a_method_can_be_set(run, calibration, method, settings, expected):
    options = [word for setting in settings for word in ("--set", setting)]
    run("fit", calibration, "--method", method, *options, "--out", "model.kcal")
    parameters = kcal.load("model.kcal").get_params()
    assert {name: parameters[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["form"], "must be NAME=VALUE"),
        (["form="], "must be NAME=VALUE"),
        (["bones=3"], "'bones' is not a parameter of method imax"),
        (["seed=3"], "this parameter has its own option, --seed"),
        (["bins=3", "bins=4"], "more than once"),
    ],
)
def test_settings_that_no_method_takes_are_refused(run, calibration, settings, message):
    options = [word for setting in settings for word in ("--set", setting)]
    result = run("fit", calibration, "--method", "imax", *options, "--out", "model.kcal", code=2)
    assert message in " ".join(result.output.replace("│", " ").split())
    result = run("fit", calibration, "--method", "imax", "--set", "bins=many", "--out", "model.kcal", code=2)
    assert result.stderr.startswith("error: --set bins must be an integer")
