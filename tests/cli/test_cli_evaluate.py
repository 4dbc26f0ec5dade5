from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, blobs, columns_of, write_columns

import kcal

CODES = np.arange(60) % 3


def figures(run, *words: object) -> dict[str, dict[str, float]]:
    """The metrics; their intervals are drawn too, but as few resamples as there may be."""
    run("evaluate", *words, "--resamples", 20, "--json", "figures.json")
    return json.loads(Path("figures.json").read_text())["metrics"]


def test_the_metrics_are_those_of_the_library_before_and_after(run, model, test_set):
    arrays = blobs(60, 2)
    found = figures(run, model, test_set)
    after = kcal.evaluate(kcal.load(model).predict_proba(arrays["embeddings"]), CODES)
    before = kcal.evaluate(kcal.Uncalibrated().fit(arrays["logits"], CODES).predict_proba(arrays["logits"]), CODES)
    assert found == {"uncal": pytest.approx(before.as_dict()), "kcal": pytest.approx(after.as_dict())}


def test_the_table_shows_metrics_with_their_direction(run, model, test_set):
    output = run("evaluate", model, test_set).stdout
    for text in (
        "no calibration",
        "KCal",
        "accuracy, % ↑",
        "class-wise calibration error, % ↓",
        "negative log-likelihood ↓",
        "60 samples, 3 classes",
    ):
        assert text in output


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_every_format_gives_the_same_figures(run, model, test_set, tmp_path, suffix):
    arrays, data = blobs(60, 2), tmp_path / f"data{suffix}"
    if suffix == ".npy":
        np.save(data, arrays["embeddings"])
        np.save("labels.npy", arrays["labels"])
        np.save("logits.npy", arrays["logits"])
        options = ["--labels", "labels.npy", "--logits", "logits.npy", "--classes", "cat,dog,owl"]
    else:
        write_columns(data, columns_of(arrays))
        options = ["--feature-columns", "e_*", "--logit-columns", "z_*"]
    expected = figures(run, model, test_set)
    found = figures(run, model, data, *options)
    for method in ("uncal", "kcal"):
        assert found[method] == pytest.approx(expected[method], rel=1e-4)


def test_data_that_the_model_was_fitted_on_are_refused_with_3(run, model, calibration):
    result = run("evaluate", model, calibration, code=3)
    assert "90 of the 90 rows" in result.stderr
    assert "--allow-overlap" in result.stderr
    assert result.stdout == ""


def test_one_row_of_the_calibration_set_is_enough_to_refuse_in_any_format_and_precision(run, model, tmp_path):
    test, calibration = blobs(60, 2), blobs(90, 1)
    test["embeddings"][7] = calibration["embeddings"][3]
    write_columns(tmp_path / "test.csv", columns_of(test))
    message = run("evaluate", model, "test.csv", "--feature-columns", "e_*", code=3).stderr
    assert "1 of the 60 rows" in message


def test_overlap_can_be_allowed_and_is_still_named(run, model, calibration):
    assert "warning: 90 of 90 rows" in run("evaluate", model, calibration, "--allow-overlap").stderr


def test_overlap_is_seen_for_kcal_on_logits_whatever_is_added_to_a_row(run, calibration):
    run("fit", calibration, "-o", "m.kcal", "-m", "kcal-logits", "--projection", "identity")
    run("evaluate", "m.kcal", calibration, code=3)


def test_logits_whose_columns_have_no_names_are_left_out_with_a_line(run, calibration, model):
    arrays = blobs(60, 2)
    del arrays["classes"]
    np.savez("data.npz", **arrays)
    result = run("evaluate", model, "data.npz")
    assert "it is unknown which column" in result.stderr
    assert "no calibration" not in result.stdout


def test_numbered_labels_and_numbered_classes_need_no_names(run, tmp_path):
    for name, seed, n in (("calibration", 1, 90), ("test", 2, 60)):
        arrays = blobs(n, seed, names=False)
        del arrays["classes"]
        np.savez(f"{name}.npz", **arrays)
    run("fit", "calibration.npz", "-o", "m.kcal", "-m", "kcal", "--projection", "identity")
    assert set(figures(run, "m.kcal", "test.npz")) == {"uncal", "kcal"}


def test_a_model_of_numbered_classes_takes_numbered_labels_beside_names(run):
    arrays = blobs(90, 1, names=False)
    del arrays["classes"]
    np.savez("calibration.npz", **arrays)
    np.savez("test.npz", **blobs(60, 2, names=False))
    run("fit", "calibration.npz", "-o", "m.kcal", "-m", "kcal", "--projection", "identity")
    assert set(figures(run, "m.kcal", "test.npz")) == {"uncal", "kcal"}


def test_logits_may_be_a_table_of_their_own_with_columns_called_by_class(run, model, test_set, tmp_path):
    arrays = blobs(60, 2)
    np.savez("data.npz", embeddings=arrays["embeddings"], labels=arrays["labels"])
    columns = zip(ANIMALS, arrays["logits"].T, strict=True)
    write_columns(tmp_path / "logits.csv", dict(reversed(list(columns))))
    expected = figures(run, model, test_set)["uncal"]
    assert figures(run, model, "data.npz", "--logits", "logits.csv")["uncal"] == pytest.approx(expected, rel=1e-4)


def test_a_model_on_logits_takes_no_other_logits(run, calibration, test_set):
    run("fit", calibration, "-o", "ts.kcal", "-m", "ts")
    assert "has no effect" in run("evaluate", "ts.kcal", test_set, "--logits", test_set, code=2).stderr


def test_a_method_on_logits_has_its_before_from_the_same_logits(run, calibration, test_set):
    run("fit", calibration, "-o", "ts.kcal", "-m", "ts")
    found = figures(run, "ts.kcal", test_set)
    assert list(found) == ["uncal", "ts"]
    assert found["ts"]["negative_log_likelihood"] < found["uncal"]["negative_log_likelihood"]
    run("fit", calibration, "-o", "uncal.kcal", "-m", "uncal")
    assert list(figures(run, "uncal.kcal", test_set)) == ["uncal"]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_probabilities_that_kcal_wrote_can_be_evaluated_without_the_model(run, model, test_set, suffix):
    expected = figures(run, model, test_set)["kcal"]
    run("predict", model, test_set, "-o", f"p{suffix}")
    options = ["--classes", "cat,dog,owl"] if suffix == ".npy" else []
    found = figures(run, f"p{suffix}", "--labels", test_set, *options)
    assert found == {"probabilities": pytest.approx(expected, rel=1e-4)}


def test_probabilities_of_anyone_are_columns_called_by_class(run, tmp_path):
    write_columns(tmp_path / "p.csv", {"label": ["cat", "dog"], "dog": [0.2, 0.9], "cat": [0.8, 0.1]})
    assert figures(run, "p.csv")["probabilities"]["accuracy"] == 1


def test_what_are_not_probabilities_is_said(run, tmp_path):
    np.save("p.npy", np.ones((4, 3)))
    np.save("labels.npy", np.zeros(4, dtype=int))
    assert "sum to 1" in run("evaluate", "p.npy", "--labels", "labels.npy", code=1).stderr


def test_json_may_go_to_standard_output_alone(run, model, test_set):
    parsed = json.loads(run("evaluate", model, test_set, "--json", "-").stdout)
    assert parsed["n_samples"] == 60
    assert parsed["model"] == str(model)


def test_figures_that_do_not_exist_are_null(run, tmp_path):
    write_columns(tmp_path / "p.csv", {"label": [0, 1], **{f"p_{k}": np.full(2, 1 / 200) for k in range(200)}})
    found = figures(run, "p.csv", "--feature-columns", "p_*")["probabilities"]
    assert found["classwise_calibration_error"] is None


def test_a_weight_of_two_counts_as_two_rows(run, model):
    arrays, weights = blobs(60, 2), np.ones(60)
    weights[:20] = 2
    np.savez("data.npz", **arrays, weights=weights)
    probabilities = kcal.load(model).predict_proba(arrays["embeddings"])
    expected = kcal.evaluate(probabilities, CODES, sample_weight=weights).as_dict()
    found = figures(run, model, "data.npz")["kcal"]
    assert found == pytest.approx(expected)
    twice = np.r_[np.arange(60), np.arange(20)]
    accuracy = kcal.evaluate(probabilities[twice], CODES[twice]).accuracy
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["accuracy"] != pytest.approx(kcal.evaluate(probabilities, CODES).accuracy)


def test_labels_of_another_kind_or_unknown_are_named(run, model, tmp_path):
    numbers = blobs(60, 2, names=False)
    del numbers["classes"]
    np.savez("numbers.npz", **numbers)
    assert (
        "labels must be in classes (3 of them); got 0 at row 0" in run("evaluate", model, "numbers.npz", code=1).stderr
    )
    np.savez("unknown.npz", **blobs(60, 2) | {"labels": np.full(60, "cow")})
    assert "cow" in run("evaluate", model, "unknown.npz", code=1).stderr


def test_a_model_alone_is_a_usage_error(run, model, test_set):
    assert "needs DATA" in run("evaluate", model, code=2).stderr
    run("evaluate", test_set, "--allow-overlap", code=2)


def test_json_that_cannot_be_written_is_refused_before_the_work(run, model, test_set):
    assert "Make the folder" in run("evaluate", model, test_set, "--json", "nowhere/f.json", code=2).stderr


def test_a_method_given_probabilities_has_its_before_from_them(run):
    for name, seed, n in (("calibration", 1, 90), ("test", 2, 60)):
        logits = blobs(n, seed)["logits"].astype(float)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares = odds / odds.sum(axis=1, keepdims=True)
        np.savez(f"{name}.npz", logits=shares, labels=ANIMALS[np.arange(n) % 3], classes=ANIMALS)
    run("fit", "calibration.npz", "-o", "ts.kcal", "-m", "ts", "--representation", "probabilities")
    found = figures(run, "ts.kcal", "test.npz")
    assert found["uncal"]["negative_log_likelihood"] > found["ts"]["negative_log_likelihood"]


def probabilities_csv(path, labels, *, order=slice(None), names=("a", "b", "c"), with_labels=True):
    """Sixty rows of probabilities, the label's class at 0.8; columns p_a and so on."""
    probs = np.full((60, 3), 0.1)
    probs[np.arange(60), labels] = 0.8
    columns = {f"p_{name}": probs[order, k] for k, name in enumerate(names)}
    if with_labels:
        columns["label"] = np.array(["a", "b", "c"])[labels][order].tolist()
    return write_columns(path, columns)


def test_rows_of_before_that_contradict_those_of_after_are_refused(run, tmp_path):
    labels = np.arange(60) % 3
    after = probabilities_csv(tmp_path / "after.csv", labels)
    turned = probabilities_csv(tmp_path / "turned.csv", labels, order=slice(None, None, -1))
    assert "in the same order; row 0 is 'a' there; got 'c'" in run("evaluate", after, "--before", turned, code=1).output
    run("evaluate", after, "--before", probabilities_csv(tmp_path / "same.csv", labels), "--no-intervals")
    other = probabilities_csv(tmp_path / "other.csv", labels, names=("x", "b", "c"), with_labels=False)
    assert "has columns for x, b, c, but the classes are a, b, c" in " ".join(
        run("evaluate", after, "--before", other, code=1).output.split()
    )


def test_classes_that_contradict_the_columns_are_refused(run, tmp_path):
    after = probabilities_csv(tmp_path / "after.csv", np.arange(60) % 3)
    result = run("evaluate", after, "--classes", "c,b,a", code=1)
    assert "--classes must follow the columns, which are called a, b, c in this order; got c, b, a" in " ".join(
        result.output.split()
    )
    run("evaluate", after, "--classes", "a,b,c", "--no-intervals")


def test_rows_of_weight_0_are_not_counted_for_intervals(run, tmp_path):
    labels = np.arange(60) % 3
    path = probabilities_csv(tmp_path / "data.csv", labels)
    text = path.read_text().splitlines()
    path.write_text("\n".join([f"{text[0]},weight", f"{text[1]},1", *(f"{line},0" for line in text[2:])]) + "\n")
    result = run("evaluate", path)
    assert "only one sample to resample" in result.output
    assert "100.00" in result.output
