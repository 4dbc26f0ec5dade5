from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from animals import ANIMALS, assert_same_model, blobs, columns_of, write_columns

import kcal

QUICK = ("-m", "kcal", "--projection", "identity")


def test_fit_writes_a_calibrator_that_equals_the_one_of_the_library(run, calibration, test_set):
    run("fit", calibration, "--out", "model.kcal", *QUICK)
    arrays = blobs(90, 1)
    expected = kcal.KCal(projection="identity").fit(arrays["embeddings"], arrays["labels"], classes=ANIMALS)
    queries = blobs(60, 2)["embeddings"]
    np.testing.assert_array_equal(kcal.load("model.kcal").predict_proba(queries), expected.predict_proba(queries))


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_every_format_gives_the_same_calibrator(run, tmp_path, suffix):
    arrays, path = blobs(90, 1), tmp_path / f"data{suffix}"
    options: list[object] = []
    if suffix == ".npz":
        np.savez(path, **arrays)
    elif suffix == ".npy":
        np.save(path, arrays["embeddings"])
        np.save("labels.npy", arrays["labels"])
        options = ["--labels", "labels.npy"]
    else:
        write_columns(path, columns_of(arrays))
        options = ["--feature-columns", "e_*"]
    run("fit", path, "-o", "model.kcal", *QUICK, *options)
    expected = kcal.KCal(projection="identity").fit(arrays["embeddings"], arrays["labels"])
    queries = torch.from_numpy(blobs(60, 2)["embeddings"])
    probabilities = kcal.load("model.kcal").predict_proba(queries)
    np.testing.assert_allclose(probabilities, expected.predict_proba(queries), rtol=1e-3, atol=1e-6)


def test_the_summary_names_classes_support_dimension_bandwidth_loss_and_size(run, calibration):
    output = run("fit", calibration, "-o", "model.kcal", *QUICK).stdout
    for text in ("cat, dog, owl", "90 samples", "5 → 5", "bandwidth", "leave-one-out log-loss", "kB"):
        assert text in output


def test_the_summary_gives_the_left_out_loss_of_a_given_bandwidth_too(run, calibration):
    output = run("fit", calibration, "-o", "model.kcal", *QUICK, "--bandwidth", "0.8").stdout
    loss = float(output.split("leave-one-out log-loss")[1].split()[0])
    own = kcal.load("model.kcal").leave_one_out_proba_[np.arange(90), np.arange(90) % 3]
    assert loss == pytest.approx(-np.log(own).mean(), abs=1e-4)


def test_a_training_set_in_the_same_file_teaches_the_projection(run, tmp_path):
    train = {f"train_{key}": array for key, array in blobs(150, 3).items() if key in ("embeddings", "labels")}
    prefixed = {f"calibration_{key}": array for key, array in blobs(90, 1).items() if key != "classes"}
    np.savez("all.npz", **prefixed, **train, classes=ANIMALS)
    result = run("fit", "all.npz", "-o", "model.kcal", "--dimension", "2", "-m", "kcal-linear")
    assert "held out" not in result.stderr
    fitted = kcal.load("model.kcal")
    assert len(fitted.support_indices_) == 90
    assert fitted.model_.dimension == 2


def test_a_training_set_may_be_a_table_with_its_columns_in_another_order(run, tmp_path, calibration):
    columns, train = columns_of(blobs(90, 1)), columns_of(blobs(150, 3))
    write_columns(tmp_path / "calibration.csv", columns)
    write_columns(tmp_path / "train.csv", train)
    write_columns(tmp_path / "turned.csv", dict(reversed(train.items())))
    options = ("--feature-columns", "e_*", "-m", "kcal-linear", "--dimension", "2")
    run("fit", "calibration.csv", "--train", "train.csv", "-o", "one.kcal", *options)
    run("fit", "calibration.csv", "--train", "turned.csv", "-o", "other.kcal", *options)
    assert_same_model("one.kcal", "other.kcal")


def test_without_a_training_set_a_line_says_that_half_was_held_out(run, calibration):
    result = run("fit", calibration, "-o", "model.kcal", "-m", "kcal-linear", "--dimension", "2")
    assert result.stderr.startswith("warning: No training set was given: 45 of the 90 samples")
    assert "HeldOutWarning" not in result.stderr
    assert "45 samples" in result.stdout


def test_numbered_labels_are_places_in_the_classes_of_the_file(run, tmp_path):
    np.savez("data.npz", **blobs(90, 1, names=False))
    run("fit", "data.npz", "-o", "model.kcal", *QUICK)
    assert kcal.load("model.kcal").classes_.tolist() == ["cat", "dog", "owl"]


def test_numbered_labels_without_names_stay_numbers(run, tmp_path):
    arrays = blobs(90, 1, names=False)
    del arrays["classes"]
    np.savez("data.npz", **arrays)
    run("fit", "data.npz", "-o", "model.kcal", *QUICK)
    assert kcal.load("model.kcal").classes_.tolist() == [0, 1, 2]


def test_labels_that_a_program_wrote_as_decimals_are_whole_numbers(run, tmp_path):
    columns = columns_of(blobs(90, 1, names=False))
    write_columns(tmp_path / "data.csv", columns | {"label": columns["label"].astype(float)})
    run("fit", "data.csv", "-o", "model.kcal", *QUICK, "--feature-columns", "e_*")
    assert kcal.load("model.kcal").classes_.tolist() == [0, 1, 2]


def test_logits_of_a_table_are_matched_to_text_labels_by_the_names_of_their_columns(run, tmp_path):
    columns = columns_of(blobs(90, 1))
    write_columns(tmp_path / "data.csv", dict(reversed(columns.items())))
    run("fit", "data.csv", "-o", "model.kcal", "-m", "ts", "--logit-columns", "z_*")
    fitted = kcal.load("model.kcal")
    assert fitted.classes_.tolist() == ["owl", "dog", "cat"]
    assert fitted.temperature_ > 1


def test_text_labels_for_unnamed_logits_need_classes(run, tmp_path):
    arrays = blobs(90, 1)
    np.save("logits.npy", arrays["logits"])
    np.save("labels.npy", arrays["labels"])
    words = ("fit", "logits.npy", "--labels", "labels.npy", "-m", "ts", "-o", "model.kcal")
    assert "classes" in run(*words, code=1).stderr
    run(*words, "--classes", "cat, dog, owl")
    assert kcal.load("model.kcal").temperature_ > 1


def test_groups_are_left_out_together(run, tmp_path):
    arrays = blobs(90, 1)
    groups = np.arange(90) // 9
    write_columns(tmp_path / "data.parquet", columns_of(arrays) | {"patient": groups})
    output = run(
        "fit", "data.parquet", "-o", "model.kcal", *QUICK, "--group-column", "patient", "--feature-columns", "e_*"
    ).stdout
    assert "leave-one-group-out" in output
    expected = kcal.KCal(projection="identity").fit(arrays["embeddings"], arrays["labels"], groups=groups)
    assert kcal.load("model.kcal").bandwidth_ == pytest.approx(expected.bandwidth_)


def test_weights_and_ids_from_files_of_their_own_reach_the_calibrator(run, tmp_path, calibration):
    weights = np.linspace(0.5, 2, 90)
    np.save("weights.npy", weights)
    write_columns(tmp_path / "ids.csv", {"name": [f"n{i}" for i in range(90)]})
    output = run("fit", calibration, "-o", "model.kcal", *QUICK, "--weights", "weights.npy", "--ids", "ids.csv").stdout
    assert "weighted" in output
    fitted = kcal.load("model.kcal")
    assert fitted.ids_[:2].tolist() == ["n0", "n1"]
    support = fitted.model_.support
    found = support.in_original_order(support.log_weights).exp().numpy()
    np.testing.assert_allclose(found / found.mean(), weights / weights.mean(), rtol=1e-6)


def test_weights_are_taken_without_calibration_too(run, calibration):
    np.save("weights.npy", np.ones(90))
    run("fit", calibration, "-o", "m.kcal", "-m", "uncal", "--weights", "weights.npy")
    assert kcal.load("m.kcal").method == "uncal"


def test_the_prior_is_given_by_class_and_survives_the_file(run, tmp_path, test_set):
    arrays = blobs(90, 1, names=False)
    del arrays["classes"]
    np.savez("data.npz", **arrays)
    run("fit", "data.npz", "-o", "model.kcal", *QUICK, "--prior", "2=0.5,0=0.25,1=0.25")
    fitted = kcal.load("model.kcal")
    assert list(fitted.prior) == [0.25, 0.25, 0.5]
    assert fitted.predict_proba(blobs(60, 2)["embeddings"]).shape == (60, 3)


def test_options_reach_the_method(run, calibration):
    words = ("--kernel", "laplace", "--folds", "5", "--smoothing", "0.01", "--seed", "7", "--prior", "uniform")
    output = run("fit", calibration, "-o", "model.kcal", *QUICK, *words).stdout
    assert "log-loss over 5 folds" in output
    fitted = kcal.load("model.kcal")
    assert (fitted.kernel, fitted.folds, fitted.smoothing, fitted.seed) == ("laplace", 5, 0.01, 7)
    assert fitted.prior == "uniform"


def test_the_bandwidth_rule_takes_its_reference(run, calibration):
    run("fit", calibration, "-o", "model.kcal", *QUICK, "--bandwidth", "rule", "--bandwidth-reference", "1.5,30")
    assert kcal.load("model.kcal").bandwidth_ == pytest.approx(1.5)


def test_temperature_scaling_shows_its_temperature(run, calibration):
    assert "temperature  " in run("fit", calibration, "-o", "model.kcal", "--method", "ts").stdout


def test_quiet_prints_nothing(run, calibration):
    result = run("fit", calibration, "-o", "model.kcal", *QUICK, "--quiet")
    assert result.output == ""


@pytest.mark.parametrize(
    "words",
    [
        ("--method", "ts", "--kernel", "rbf"),
        ("--method", "kcal-linear", "--projection", "skip"),
        ("--method", "nonsense"),
        ("--kernel", "nonsense"),
        ("--dimension", "many"),
        ("--bandwidth", "-1"),
        ("--bandwidth", "nan"),
        ("--bandwidth-reference", "1"),
        ("--folds", "1"),
        ("--prior", "cat"),
        ("--projection", "identity", "--train", "calibration.npz"),
        ("--method", "ts", "--train", "calibration.npz"),
        ("--train-labels", "calibration.npz"),
        ("--nonsense",),
    ],
)
def test_what_is_typed_wrongly_exits_with_2_and_writes_nothing(run, calibration, words):
    run("fit", calibration, "-o", "model.kcal", *words, code=2)
    assert not Path("model.kcal").exists()


def test_an_option_that_a_method_does_not_take_is_named_with_those_it_takes(run, calibration):
    message = run("fit", calibration, "-o", "m.kcal", "--method", "ts", "--kernel", "rbf", code=2).stderr
    assert "--kernel is not an option of method ts" in message
    assert "--seed" in message


def test_what_cannot_be_written_is_refused_before_the_work(run, calibration, tmp_path):
    assert "Make the folder" in run("fit", calibration, "-o", "nowhere/model.kcal", code=2).stderr
    assert "must be the name of a file" in run("fit", calibration, "-o", tmp_path, code=2).stderr


def test_a_prior_for_an_unknown_class_is_refused(run, calibration):
    assert "bird" in run("fit", calibration, "-o", "m.kcal", *QUICK, "--prior", "bird=1", code=2).stderr


def test_training_labels_of_another_kind_are_refused(run, tmp_path):
    calibration, train = blobs(90, 1), blobs(90, 3, names=False)
    del calibration["classes"], train["classes"]
    np.savez("calibration.npz", **calibration)
    np.savez("train.npz", **train)
    message = run("fit", "calibration.npz", "-m", "kcal", "--train", "train.npz", "-o", "m.kcal", code=1).stderr
    assert "labels must" in message


def test_classes_in_another_order_in_the_training_file_are_refused(run, tmp_path, calibration):
    np.savez("train.npz", **blobs(90, 3) | {"classes": ANIMALS[::-1]})
    message = run("fit", calibration, "-m", "kcal", "--train", "train.npz", "-o", "m.kcal", code=1).stderr
    assert "must list the same classes in the same order" in message
