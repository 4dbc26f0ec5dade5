"""Intervals, comparisons with another file, and the report of ``kcal evaluate``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, blobs, write_columns

import kcal

CODES = np.arange(60) % 3


def parsed(run, *words: object) -> dict:
    return json.loads(run("evaluate", *words, "--json", "-").stdout)


@pytest.fixture
def probabilities(model):
    return kcal.load(model).predict_proba(blobs(60, 2)["embeddings"])


def test_intervals_are_those_of_the_library(run, model, test_set, probabilities):
    found = parsed(run, model, test_set, "--confidence", "0.8", "--resamples", "40", "--seed", "3")
    expected = kcal.evaluate(probabilities, CODES, confidence=0.8, resamples=40, seed=3).intervals
    assert found["confidence"] == 0.8
    assert found["intervals"]["kcal"] == {name: pytest.approx(list(ends)) for name, ends in expected.items()}


def test_intervals_stand_in_the_table_at_95_percent_unless_told(run, model, test_set, probabilities):
    low, high = kcal.evaluate(probabilities, CODES, confidence=0.95).intervals["negative_log_likelihood"]
    output = run("evaluate", model, test_set).stdout
    assert f"[{low:.4f}, {high:.4f}]" in output
    assert "95 % confidence intervals" in output


def test_a_narrow_terminal_has_the_intervals_below_the_values(run, model, test_set, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("evaluate", model, test_set, "--resamples", "20").stdout.splitlines()
    row = next(i for i, line in enumerate(lines) if "negative log-likelihood" in line)
    assert "[" not in lines[row]
    assert lines[row + 1].count("[") == lines[row + 1].count("]") == 2


def test_debiased_errors_stand_beside_the_values(run, model, test_set, probabilities):
    expected = kcal.evaluate(probabilities, CODES, confidence=0.95)
    name = "expected_calibration_error"
    output = run("evaluate", model, test_set).stdout
    row = next(line for line in output.splitlines() if "expected calibration error" in line)
    low, high = expected.intervals[name]
    for number in (getattr(expected, name), expected.debiased[name]):
        assert f"{100 * number:.2f} " in row
    assert f"[{100 * low:.2f}, {100 * high:.2f}]" in row
    assert parsed(run, model, test_set)["debiased"]["kcal"] == pytest.approx(expected.debiased)


def test_intervals_can_be_left_out(run, model, test_set):
    result = run("evaluate", model, test_set, "--no-intervals")
    assert "[" not in result.stdout
    found = parsed(run, model, test_set, "--no-intervals")
    assert found["confidence"] is None
    assert found["intervals"]["kcal"] == {}


@pytest.mark.parametrize("words", [["--confidence", "0.9"], ["--resamples", "50"], ["--groups", "g.npy"]])
def test_what_intervals_need_is_of_no_use_without_them(run, model, test_set, words):
    assert "--no-intervals" in run("evaluate", model, test_set, "--no-intervals", *words, code=2).stderr


@pytest.mark.parametrize("words", [["--confidence", "95"], ["--confidence", "1"], ["--resamples", "5"]])
def test_numbers_that_make_no_interval_are_refused(run, model, test_set, words):
    assert words[0] in run("evaluate", model, test_set, *words, code=2).stderr


def test_groups_are_drawn_whole(run, model, test_set, probabilities):
    groups = np.repeat(np.arange(6), 10)
    expected = kcal.evaluate(probabilities, CODES, confidence=0.95, groups=groups, resamples=40).intervals["accuracy"]
    np.savez("grouped.npz", **blobs(60, 2), groups=groups)
    np.save("groups.npy", groups)
    for words in (["grouped.npz"], [test_set, "--groups", "groups.npy"]):
        found = parsed(run, model, *words, "--resamples", "40")["intervals"]["kcal"]["accuracy"]
        assert found == pytest.approx(list(expected))
    assert found != pytest.approx(parsed(run, model, test_set, "--resamples", "40")["intervals"]["kcal"]["accuracy"])


def test_a_single_sample_or_group_has_no_intervals_and_a_line_says_so(run, tmp_path):
    write_columns(tmp_path / "p.csv", {"label": ["a"], "a": [0.8], "b": [0.2]})
    assert "only one sample" in run("evaluate", "p.csv").stderr
    write_columns(tmp_path / "g.csv", {"label": ["a", "b"], "group": [1, 1], "a": [0.8, 0.1], "b": [0.2, 0.9]})
    assert "only one group" in run("evaluate", "g.csv").stderr


def test_columns_of_groups_and_weights_are_named_and_no_probabilities(run, tmp_path):
    columns = {"label": ["a", "b", "b"], "patient": [1, 1, 2], "w": [1.0, 1.0, 2.0]}
    write_columns(tmp_path / "p.csv", columns | {"a": [0.8, 0.6, 0.1], "b": [0.2, 0.4, 0.9]})
    found = parsed(run, "p.csv", "--group-column", "patient", "--weight-column", "w", "--resamples", "20")
    assert found["n_classes"] == 2
    assert found["metrics"]["probabilities"]["accuracy"] == 0.75


def test_before_is_another_file_whose_columns_go_by_name(run, tmp_path):
    labels = ["cat", "dog", "cat"]
    write_columns(tmp_path / "after.csv", {"label": labels, "dog": [0.2, 0.9, 0.3], "cat": [0.8, 0.1, 0.7]})
    write_columns(tmp_path / "before.csv", {"p_cat": [0.6, 0.3, 0.2], "p_dog": [0.4, 0.7, 0.8]})
    found = parsed(run, "after.csv", "--before", "before.csv")["metrics"]
    assert list(found) == ["before", "probabilities"]
    assert found["before"]["accuracy"] == pytest.approx(2 / 3)
    assert found["probabilities"]["accuracy"] == 1


def test_before_takes_the_place_of_the_logits_of_a_model(run, model, test_set):
    run("predict", model, test_set, "-o", "other.npz")
    found = parsed(run, model, test_set, "--before", "other.npz")["metrics"]
    assert list(found) == ["before", "kcal"]
    assert found["before"] == pytest.approx(found["kcal"])
    words = ("evaluate", model, test_set, "--before", "other.npz", "--logits", test_set)
    assert "give one of them" in run(*words, code=2).stderr


def test_before_must_hold_the_same_rows_in_the_same_order_and_the_same_classes(run, model, test_set):
    run("predict", model, test_set, "-o", "p.npz")
    stored = dict(np.load("p.npz"))
    np.savez("short.npz", **{key: stored[key] if key == "classes" else stored[key][:5] for key in stored})
    assert "must have the same rows" in run("evaluate", model, test_set, "--before", "short.npz", code=1).stderr
    np.savez("turned.npz", **{key: stored[key] if key == "classes" else stored[key][::-1] for key in stored})
    message = run("evaluate", model, test_set, "--before", "turned.npz", code=1).stderr
    assert "in the same order; row 0 is 'row-2-0' there; got 'row-2-59'" in message
    np.savez("wide.npz", probabilities=np.full((60, 4), 0.25))
    assert "4 columns of probabilities for 3" in run("evaluate", model, test_set, "--before", "wide.npz", code=1).stderr
    np.savez("odd.npz", probabilities=np.ones((60, 3)))
    assert "odd.npz: " in run("evaluate", model, test_set, "--before", "odd.npz", code=1).stderr


def test_the_report_holds_names_files_and_figures(run, calibration):
    names = np.array(["<script>alert(1)</script>", 'a "b" & c', "猫"])
    for name, seed, n in (("calibration", 1, 90), ("test", 2, 60)):
        arrays = blobs(n, seed) | {"labels": names[np.arange(n) % 3], "classes": names}
        np.savez(f"{name}.npz", **arrays, groups=np.arange(n) // 5)
    run("fit", "calibration.npz", "-o", "m.kcal", "-m", "kcal", "--projection", "identity")
    files = (Path("m.kcal").absolute(), Path("test.npz").absolute())
    result = run("evaluate", *files, "--report", "out/report", "--resamples", "20", "--seed", "7")
    page = Path("out/report/report.html").read_text(encoding="utf-8")
    assert "The report is out/report/report.html" in result.stdout
    assert result.stderr == ""
    assert "<script" not in page
    for text in ("&lt;script&gt;", "a &#34;b&#34; &amp; c", "猫", "m.kcal", "test.npz", "no calibration", "KCal"):
        assert text in page
    assert "<dt>resamples</dt><dd>20</dd>" in page
    assert "<dt>seed</dt><dd>7</dd>" in page
    assert str(Path.cwd()) not in page
    assert "<dt>groups</dt><dd>12; the intervals resample whole groups" in page


def test_json_on_standard_output_stays_alone_beside_a_report(run, tmp_path):
    write_columns(tmp_path / "p.csv", {"label": ["a", "b"], "a": [0.8, 0.1], "b": [0.2, 0.9]})
    result = run("evaluate", "p.csv", "--report", ".", "--no-intervals", "--json", "-")
    assert json.loads(result.stdout)["n_samples"] == 2
    assert "no intervals" in Path("report.html").read_text()


def test_a_report_that_cannot_be_written_is_refused_before_the_work(run, model, test_set, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "taken" / "report.html").mkdir(parents=True)
    for folder in ("file", "file/below"):
        assert "file is not a folder" in run("evaluate", model, test_set, "--report", folder, code=2).stderr
    assert "--report" in run("evaluate", model, test_set, "--report", "taken", code=2).stderr
    run("evaluate", model, "nothing.npz", "--report", "new", code=1)
    assert not Path("new").exists()
    assert list(ANIMALS) == kcal.load(model).classes_.tolist()
