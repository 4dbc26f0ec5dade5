"""``kcal fit``: the method, its parameters and its data are those of the library."""

from __future__ import annotations

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, assert_same_model, blobs, columns_of, write_columns

import kcal
from kcal.calibrators import METHODS
from kcal.projection import RECIPES, PaperRecipe

QUICK = ("-m", "kcal", "--projection", "identity")
TABLE = ("--embeddings", "e_*", "--logits", "z_*")


def without(arrays: dict[str, np.ndarray], *keys: str) -> dict[str, np.ndarray]:
    return {key: values for key, values in arrays.items() if key not in keys}


@pytest.mark.usefixtures("short_solvers")
@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_fitted_stored_and_evaluated(run, calibration, test_set, name, monkeypatch):
    monkeypatch.setitem(RECIPES, "paper", partial(PaperRecipe, epochs=1, batches_per_epoch=3))
    train = ("--train", calibration) if name == "kcal-paper" else ()  # it has no form without a training set
    output = run("fit", calibration, "--method", name, *train, "--out", "model.kcal").stdout
    stored = kcal.load("model.kcal")
    assert METHODS[name].title in output
    run("predict", "model.kcal", test_set, "--out", "probabilities.npy")
    assert np.load("probabilities.npy").sum(axis=1) == pytest.approx(np.ones(60), abs=1e-5)
    run("evaluate", "model.kcal", test_set, "--no-intervals", "--json", "figures.json")
    assert set(json.loads(Path("figures.json").read_text())["metrics"]) == {"uncal", stored.method}


@pytest.mark.parametrize(
    ("keys", "method"),
    [(("embeddings", "logits"), "kcal-blend"), (("embeddings",), "kcal"), (("logits",), "sms")],
)
def test_the_default_method_follows_from_the_data(run, keys, method):
    arrays = blobs(90, 1)
    np.savez("data.npz", **{key: arrays[key] for key in (*keys, "labels")}, classes=ANIMALS)
    assert f"Method {method}, because" in run("fit", "data.npz", "-o", "default.kcal").stdout
    assert "because" not in run("fit", "data.npz", "-o", "named.kcal", "--method", method).stdout
    assert_same_model("default.kcal", "named.kcal")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv", ".parquet"])
def test_every_format_gives_the_model_of_the_library(run, tmp_path, suffix):
    arrays, data = blobs(90, 1), tmp_path / f"data{suffix}"
    if suffix == ".npz":
        np.savez(data, **arrays)
        options: tuple[str, ...] = ()
    elif suffix == ".npy":
        np.save(data, arrays["embeddings"])
        np.save("labels.npy", arrays["labels"])
        np.save("logits.npy", arrays["logits"])
        options = ("--labels", "labels.npy", "--logits", "logits.npy", "--classes", "cat,dog,owl")
    else:
        write_columns(data, columns_of(arrays))
        options = TABLE
    run("fit", data, "-o", "model.kcal", "-m", "kcal-blend", *options)
    expected = kcal.KCalBlend().fit(arrays["embeddings"], arrays["labels"], logits=arrays["logits"], classes=ANIMALS)
    new = blobs(60, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays have no names
        found = kcal.load("model.kcal").predict_proba(new["embeddings"], logits=new["logits"])
    np.testing.assert_allclose(found, expected.predict_proba(new["embeddings"], logits=new["logits"]), atol=1e-5)


def test_the_summary_names_the_columns_that_are_not_used(run):
    write_columns(Path("data.csv"), columns_of(blobs(90, 1)))
    output = " ".join(run("fit", "data.csv", "-o", "m.kcal", "--logits", "z_*").stdout.split())
    assert "not used columns e_0, e_1, e_2, e_3, e_4" in output
    assert "not used" not in run("fit", "data.csv", "-o", "m.kcal", *TABLE).stdout


def test_the_summary_names_columns_and_results_and_is_json(run, tmp_path):
    write_columns(tmp_path / "data.csv", columns_of(blobs(90, 1)))
    output = " ".join(run("fit", "data.csv", "-o", "m.kcal", *TABLE).stdout.split())
    for text in (
        "cat, dog, owl",
        "samples 90",
        "embeddings columns e_0, e_1",
        "logits columns z_cat",
        "bandwidth",
        "kB",
    ):
        assert text in output
    figures = json.loads(run("fit", "data.csv", "-o", "m.kcal", *TABLE, "--json", "-").stdout)
    assert figures["method"] == "kcal-blend"
    assert figures["columns"]["labels"] == ["label"]
    assert figures["columns"]["logits"] == [f"z_{name}" for name in ANIMALS]
    assert (figures["classes"], figures["samples"], figures["file"]) == (ANIMALS.tolist(), 90, "m.kcal")
    assert figures["results"]["bandwidth"] > 0
    assert run("fit", "data.csv", "-o", "m.kcal", *TABLE, "--quiet").output == ""


def test_a_training_set_in_the_same_file_teaches_the_projection(run):
    train = {f"train_{key}": array for key, array in blobs(150, 3).items() if key in ("embeddings", "labels")}
    np.savez("all.npz", **blobs(90, 1), **train)
    result = run("fit", "all.npz", "-o", "model.kcal", "--dimension", "2", "-m", "kcal-linear")
    assert "held out" not in result.stderr
    assert (len(kcal.load("model.kcal").support_indices_), kcal.load("model.kcal").model_.dimension) == (90, 2)


def test_training_labels_with_other_classes_are_rejected(run, calibration):
    np.savez("numbers.npz", **without(blobs(90, 3, names=False), "classes"))
    np.savez("turned.npz", **blobs(90, 3) | {"classes": ANIMALS[::-1]})
    np.savez("bare.npz", **without(blobs(90, 1), "classes"))
    for data, train in (("bare.npz", "numbers.npz"), (calibration, "turned.npz")):
        run("fit", data, "-m", "kcal", "--train", train, "-o", "m.kcal", code=1)


def test_numbered_labels_without_names_stay_numbers(run):
    arrays = without(blobs(90, 1, names=False), "classes")
    np.savez("data.npz", **arrays | {"labels": arrays["labels"].astype(float)})
    run("fit", "data.npz", "-o", "m.kcal", "-m", "kcal-blend", "--prior", "0=0.2,1=0.3,2=0.5")
    assert kcal.load("m.kcal").classes_.tolist() == [0, 1, 2]
    assert list(kcal.load("m.kcal").prior) == [0.2, 0.3, 0.5]


def test_groups_weights_and_ids_reach_the_method(run):
    arrays, groups, weights = blobs(90, 1), np.arange(90) // 9, np.linspace(0.0, 2, 90)
    np.savez("data.npz", **arrays, groups=groups, weights=weights)
    assert "89, weighted" in run("fit", "data.npz", "-o", "m.kcal", *QUICK).stdout
    expected = kcal.KCal(projection="identity").fit(
        arrays["embeddings"], arrays["labels"], groups=groups, sample_weight=weights, ids=arrays["ids"]
    )
    assert kcal.load("m.kcal").bandwidth_ == pytest.approx(expected.bandwidth_)
    assert kcal.load("m.kcal").explain(arrays["embeddings"][:1] + 1).ids[0, 0].startswith("row-1-")


@pytest.mark.parametrize(
    ("method", "words", "expected"),
    [
        ("imax", ["--set", "form=top", "--set", "bins=7"], {"form": "top", "bins": 7}),
        ("spline", ["--set", "floor=False"], {"floor": False}),
        ("dircal", ["--set", "grid=[[1, 0.1]]"], {"grid": ((1, 0.1),)}),
        ("kcal", [*QUICK[2:], "--set", "bandwidth_interval=0.5,1"], {"bandwidth_interval": (0.5, 1)}),
        ("kcal", [*QUICK[2:], "--bandwidth", "0.8", "--smoothing", "0.01", "--kernel", "laplace"],
         {"bandwidth": 0.8, "smoothing": 0.01, "kernel": "laplace"}),
        ("kcal", [*QUICK[2:], "--bandwidth", "rule", "--bandwidth-reference", "1.5,30"], {"bandwidth": "rule"}),
        ("kcal-blend", ["--folds", "3", "--seed", "2", "--prior", "uniform"],
         {"folds": 3, "seed": 2, "prior": "uniform"}),
        ("ts", ["--set", "seed=4"], {"seed": 4}),
    ],
)  # fmt: skip
def test_parameters_are_options_or_set(run, calibration, method, words, expected):
    run("fit", calibration, "--method", method, *words, "--out", "model.kcal")
    parameters = kcal.load("model.kcal").get_params()
    assert {name: parameters[name] for name in expected} == expected


@pytest.mark.filterwarnings("ignore::kcal.KcalWarning")
def test_a_folder_of_extracted_outputs_is_data(run, tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    points, labels = torch.randn(120, 5), torch.arange(120) % 3
    kcal.extract(network, [(points[:50], labels[:50]), (points[50:], labels[50:])], to=tmp_path / "outputs")
    run("fit", "outputs", "--out", "model.kcal")
    outputs = kcal.read_outputs(tmp_path / "outputs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = kcal.fit_on(kcal.KCalBlend(), outputs)
    rows = outputs.embeddings + 1
    np.testing.assert_allclose(
        kcal.load("model.kcal").predict_proba(rows, logits=outputs.logits),
        expected.predict_proba(rows, logits=outputs.logits),
        atol=1e-7,
    )
    run("evaluate", "model.kcal", "outputs", "--allow-overlap", "--no-intervals")
    record = tmp_path / "outputs" / "outputs.json"
    record.write_text(record.read_text().replace("true", "false"))
    assert "stopped after 120 rows" in run("fit", "outputs", "--out", "model.kcal", code=1).output
