"""``kcal evaluate`` and ``kcal compare``: the figures are those of the library."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from animals import ANIMALS, blobs, columns_of, write_columns

import kcal
from kcal.calibrators import METHODS, make_calibrator

CODES = np.arange(60) % 3
TABLE = ("--embeddings", "e_*", "--logits", "z_*")


def figures(run, *words: object, command: str = "evaluate") -> dict[str, Any]:
    return json.loads(run(command, *words, "--json", "-").stdout)


def metrics(run, *words: object, **options: str) -> dict[str, dict[str, float]]:
    return figures(run, *words, "--no-intervals", **options)["metrics"]


@pytest.fixture
def probabilities(model) -> np.ndarray:
    return kcal.load(model).predict_proba(blobs(60, 2)["embeddings"])


def test_metrics_and_intervals_are_those_of_the_library_before_and_after(run, model, test_set, probabilities):
    found = figures(run, model, test_set, "--confidence", "0.8", "--resamples", "40", "--seed", "3")
    logits = blobs(60, 2)["logits"]
    network = kcal.Uncalibrated().fit(logits, CODES).predict_proba(logits)
    for name, probs in (("uncal", network), ("kcal", probabilities)):
        expected = kcal.evaluate(probs, CODES, confidence=0.8, resamples=40, seed=3)
        assert found["metrics"][name] == pytest.approx(expected.metrics)
        assert found["debiased"][name] == pytest.approx(expected.debiased)
        assert found["intervals"][name] == {key: pytest.approx(list(ends)) for key, ends in expected.intervals.items()}
    assert (found["n_samples"], found["confidence"], found["model"]) == (60, 0.8, str(model))


def test_tables_are_as_wide_as_the_terminal_and_name_every_value(
    run, model, calibration, test_set, probabilities, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    output = run("evaluate", model, test_set).stdout
    expected = kcal.evaluate(probabilities, CODES, confidence=0.95)
    low, high = expected.intervals["negative_log_likelihood"]
    assert f"{expected.negative_log_likelihood:.4f}" in output
    assert f"[{low:.4f}, {high:.4f}]" in output
    output += run("compare", calibration, test_set, "--methods", "ts,ets,vector,platt,beta", "--resamples", 20).stdout
    assert "…" not in output
    assert max(len(line) for line in output.splitlines()) <= 80


@pytest.mark.parametrize("method", ["kcal-logits", "kcal-blend", "kcal"])
def test_rows_that_the_model_was_fitted_on_are_rejected_with_3(run, calibration, tmp_path, method):
    projection = () if method == "kcal-blend" else ("--projection", "identity")
    run("fit", calibration, "-o", "m.kcal", "-m", method, *projection)
    result = run("evaluate", "m.kcal", calibration, code=3)
    assert "90 of the 90 rows" in result.stderr
    assert result.stdout == ""
    assert (
        "warning: 90 of 90 rows" in run("evaluate", "m.kcal", calibration, "--allow-overlap", "--no-intervals").stderr
    )
    test = blobs(60, 2)
    for key in ("embeddings", "logits"):
        test[key][7] = blobs(90, 1)[key][3]
    write_columns(tmp_path / "test.csv", columns_of(test))
    words = {"kcal": TABLE, "kcal-blend": TABLE, "kcal-logits": TABLE[2:]}[method]
    assert "1 of the 60 rows" in run("evaluate", "m.kcal", "test.csv", *words, code=3).stderr


def test_columns_of_logits_go_by_class(run, model, test_set, tmp_path, calibration):
    arrays, order = blobs(60, 2), [2, 0, 1]
    expected = metrics(run, model, test_set)["uncal"]
    np.savez("turned.npz", **arrays | {"logits": arrays["logits"][:, order], "classes": ANIMALS[order]})
    assert metrics(run, model, "turned.npz")["uncal"] == pytest.approx(expected)
    write_columns(tmp_path / "z.csv", {f"z_{ANIMALS[k]}": arrays["logits"][:, k] for k in order})
    assert metrics(run, model, test_set, "--logits", "z.csv:z_*")["uncal"] == pytest.approx(expected, rel=1e-4)
    run("fit", calibration, "-o", "ts.kcal", "-m", "ts")
    assert metrics(run, "ts.kcal", "turned.npz") == {
        name: pytest.approx(values) for name, values in metrics(run, "ts.kcal", test_set).items()
    }
    np.savez("other.npz", **arrays | {"classes": ["ant", "bee", "cow"]})
    assert "ant, bee, cow" in run("evaluate", "ts.kcal", "other.npz", code=1).stderr


def test_integer_labels_count_the_classes_that_are_listed(run, model, test_set):
    numbers = blobs(60, 2, names=False)
    np.savez("numbers.npz", embeddings=numbers["embeddings"], labels=numbers["labels"])
    assert "labels" in run("evaluate", model, "numbers.npz", code=1).stderr
    found = metrics(run, model, "numbers.npz", "--classes", "cat,dog,owl")
    assert found["kcal"] == metrics(run, model, test_set)["kcal"]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_probabilities_that_kcal_wrote_can_be_evaluated_without_the_model(run, model, test_set, suffix):
    expected = metrics(run, model, test_set)["kcal"]
    run("predict", model, test_set, "-o", f"p{suffix}")
    options = ("--classes", "cat,dog,owl") if suffix == ".npy" else ()
    assert metrics(run, f"p{suffix}", "--labels", test_set, *options) == {
        "probabilities": pytest.approx(expected, rel=1e-4)
    }
    found = metrics(run, model, test_set, "--before", f"p{suffix}")
    assert list(found) == ["before", "kcal"]
    assert found["before"] == pytest.approx(expected, rel=1e-4)


def probabilities_csv(path: Path, order: slice = slice(None), names: str = "abc", **columns: Any) -> Path:
    """Sixty rows of probabilities, the label's class at 0.8; columns p_a and so on."""
    probs = np.full((60, 3), 0.1) + 0.7 * np.eye(3)[CODES]
    columns = {"label": np.array(list("abc"))[CODES][order]} | columns
    return write_columns(path, columns | {f"p_{name}": probs[order, k] for k, name in enumerate(names)})


def test_probabilities_may_come_from_anyone(run, tmp_path):
    write_columns(tmp_path / "p.csv", {"label": ["cat", "dog"], "dog": [0.2, 0.9], "cat": [0.8, 0.1]})
    assert metrics(run, "p.csv", "--probabilities", "*")["probabilities"]["accuracy"] == 1
    assert "--probabilities" in run("evaluate", "p.csv", code=1).stderr
    probabilities_csv(tmp_path / "group.csv", group=np.zeros(60, dtype=int))
    assert "no confidence intervals" in run("evaluate", "group.csv").stderr
    odds = np.exp(blobs(90, 1)["logits"].astype(float) / 9)
    np.savez("p.npz", logits=odds / odds.sum(axis=1, keepdims=True), labels=blobs(90, 1)["labels"], classes=ANIMALS)
    run("fit", "p.npz", "-o", "ts.kcal", "-m", "ts", "--representation", "probabilities")
    found = metrics(run, "ts.kcal", "p.npz", "--allow-overlap")  # the network's own are these, without a softmax
    assert found["uncal"]["brier_score"] == pytest.approx(
        kcal.evaluate(odds / odds.sum(axis=1, keepdims=True), np.arange(90) % 3).brier_score
    )


def test_rows_of_before_that_contradict_those_of_after_are_rejected(run, tmp_path):
    after = probabilities_csv(tmp_path / "after.csv")
    turned = probabilities_csv(tmp_path / "turned.csv", slice(None, None, -1))
    assert "same order" in run("evaluate", after, "--before", turned, code=1).stderr
    other = probabilities_csv(tmp_path / "other.csv", names="xbc")
    assert "x, b, c" in run("evaluate", after, "--before", other, code=1).stderr
    short = probabilities_csv(tmp_path / "short.csv", slice(30))
    assert "must have 60 rows" in run("evaluate", after, "--before", short, code=1).stderr
    probabilities_csv(tmp_path / "same.csv", id=np.arange(60))
    for ids, code in ((np.arange(60)[::-1], 1), (np.arange(60), 0)):
        probabilities_csv(tmp_path / "ids.csv", id=ids)
        run("evaluate", "ids.csv", "--before", "same.csv", "--no-intervals", code=code)


def test_groups_are_resampled_whole_and_weights_count(run, model, test_set, probabilities):
    groups, weights = np.repeat(np.arange(6), 10), np.where(np.arange(60) < 20, 2.0, 1.0)
    expected = kcal.evaluate(probabilities, CODES, confidence=0.95, groups=groups, resamples=40, sample_weight=weights)
    np.savez("grouped.npz", **blobs(60, 2), groups=groups, weights=weights)
    np.savez("other.npz", patient=groups, w=weights)
    named = (test_set, "--groups", "other.npz:patient", "--weights", "other.npz:w")
    for words in (("grouped.npz",), named):
        found = figures(run, model, *words, "--resamples", "40")
        assert found["metrics"]["kcal"] == pytest.approx(expected.metrics)
        assert found["intervals"]["kcal"]["accuracy"] == pytest.approx(list(expected.intervals["accuracy"]))


def test_compared_methods_are_each_what_the_library_gives(run, calibration, test_set):
    found = metrics(run, calibration, test_set, "--methods", "ts,beta,kcal,kcal-blend", command="compare")
    assert list(found) == ["uncal", "ts", "beta", "kcal", "kcal-blend"]
    one, other = (kcal.ClassifierOutputs(arrays["embeddings"], arrays["logits"], arrays["labels"])
                  for arrays in (blobs(90, 1), blobs(60, 2)))  # fmt: skip
    for name in ("ts", "beta", "kcal", "kcal-blend"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calibrator = kcal.fit_on(make_calibrator(name), one, classes=ANIMALS)
        expected = kcal.evaluate(kcal.predict_on(calibrator, other), CODES)
        assert found[name] == pytest.approx(expected.metrics, abs=1e-6)


def test_compare_reads_tables_in_any_order_and_a_training_set(run, tmp_path, calibration, test_set):
    for name, rows, seed in (("calibration", 90, 1), ("test", 60, 2), ("train", 120, 3)):
        columns = columns_of(blobs(rows, seed))
        write_columns(tmp_path / f"{name}.csv", dict(reversed(columns.items())) if name == "test" else columns)
    words = ("calibration.csv", "test.csv", "--methods", "ts,kcal-linear,kcal-blend", *TABLE)
    found = metrics(run, *words, "--train", "train.csv", command="compare")
    expected = metrics(run, calibration, test_set, "--methods", "ts,kcal-blend", command="compare")
    for name in ("uncal", "ts", "kcal-blend"):
        assert found[name] == pytest.approx(expected[name], rel=1e-4)
    without = metrics(run, *words, command="compare")["kcal-linear"]
    assert without["negative_log_likelihood"] != found["kcal-linear"]["negative_log_likelihood"]


@pytest.mark.usefixtures("short_solvers")
def test_of_all_methods_those_that_lack_their_inputs_are_left_out_with_a_warning(run, test_set, calibration):
    arrays = blobs(90, 1)
    del arrays["embeddings"]
    np.savez("logits.npz", **arrays)
    assert "kcal: " in run("compare", "logits.npz", test_set, "--methods", "ts,kcal", code=1).stderr
    result = run("compare", "logits.npz", test_set, "--methods", "all", "--no-intervals", "--json", "figures.json")
    found = json.loads(Path("figures.json").read_text())["metrics"]
    assert set(METHODS) - set(found) == {name for name, method in METHODS.items() if method.inputs != "logits"}
    assert "kcal-linear is left out" in result.stderr
    assert "kcal-paper" not in result.stderr  # it takes an hour: it is run if it is named, not among all
    run("compare", calibration, calibration, "--methods", "ts", code=3)


def test_a_report_shows_every_method_without_folders(run, calibration, test_set, tmp_path):
    result = run("compare", calibration, test_set, "--methods", "ts,kcal", "--report", "page", "--figures", "1",
                 "--resamples", 20)  # fmt: skip
    page = Path("page/report.html").read_text()
    for text in ("no calibration", "temperature scaling", "KCal", "calibration.npz"):
        assert text in page
    assert str(tmp_path) not in page
    assert "page/report.html" in result.stdout


def test_subgroups_have_the_confidence_resamples_and_seed_that_were_given(run, model, test_set, tmp_path):
    with np.load(test_set) as arrays:
        data = dict(arrays)
    site = np.where(np.arange(60) % 2, "north", "south")
    np.savez(test_set, **data, samples=site)  # called as one of the figures
    result = run("evaluate", model, test_set, "--by", "samples", "--json", "found.json",
                 "--confidence", 0.8, "--resamples", 50, "--seed", 3, "--report", "report")  # fmt: skip
    probs = kcal.load(model).predict_proba(data["embeddings"])
    expected = kcal.evaluate(
        probs, data["labels"], classes=ANIMALS, by=site, confidence=0.8, resamples=50, seed=3
    ).to_frame()
    found = pandas.DataFrame(json.loads((tmp_path / "found.json").read_text())["subgroups"]).set_index("subgroup")
    pandas.testing.assert_frame_equal(found, expected, check_dtype=False, atol=1e-6)
    for text in ("80 % interval", "north"):
        assert text in result.output
    page = (tmp_path / "report" / "report.html").read_text()
    for low, high in zip(expected["low"], expected["high"], strict=True):
        assert f"[{100 * low:.2f}, {100 * high:.2f}]" in page


def test_subgroups_without_intervals(run, model, test_set, tmp_path):
    np.savez(tmp_path / "by.npz", site=np.where(np.arange(60) % 2, "north", "south"))
    result = run("evaluate", model, test_set, "--by", "by.npz:site", "--no-intervals", "--json", "found.json",
                 "--report", "report")  # fmt: skip
    page = (tmp_path / "report" / "report.html").read_text()
    for text in (result.output, page, (tmp_path / "found.json").read_text()):
        assert "% interval" not in text
        assert "low, %" not in text
        assert "by.npz:site" not in text
    assert "north" in result.output


def test_every_interval_is_beside_the_value_that_it_is_about(run, model, test_set):
    """A calibration error is biased upwards, its interval is not: the debiased value is shown too."""
    output = run("evaluate", model, test_set, "--resamples", 50, "--json", "found.json").output
    metrics = json.loads(Path("found.json").read_text())
    for method, debiased in metrics["debiased"].items():
        for name, value in debiased.items():
            low, high = metrics["intervals"][method][name]
            assert low <= value <= high
            assert f"debiased {100 * value:.2f}" in output


def test_a_column_that_cannot_be_subgroups_is_named_by_its_option(run, model, test_set):
    for column in ("place", "embeddings"):
        output = run("evaluate", model, test_set, "--by", column, code=1).output
        assert "--by" in output
        assert "embeddings" not in output.partition("got")[0] or column == "embeddings"
        assert "groups" not in output
