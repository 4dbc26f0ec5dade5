"""Without --method, kcal fit takes the method for what is there, and says which columns it takes as what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from animals import ANIMALS, assert_same_model, blobs, columns_of, write_columns

import kcal
from kcal.cli.data import class_names


def said(result) -> str:
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("keys", "method", "reason"),
    [
        (("embeddings", "logits"), "kcal-blend", "there are embeddings and logits"),
        (("embeddings",), "kcal", "there are embeddings, but no logits"),
        (("logits",), "sms", "there are logits, but no embeddings"),
    ],
)
def test_the_method_follows_from_the_arrays_of_the_file(run, keys, method, reason):
    arrays = blobs(90, 1)
    np.savez("data.npz", **{f"calibration_{key}": arrays[key] for key in (*keys, "labels")}, classes=ANIMALS)
    output = said(run("fit", "data.npz", "-o", "default.kcal"))
    assert f"Method {method}, because {reason}; --method takes another." in output
    output = said(run("fit", "data.npz", "-o", "named.kcal", "--method", method))
    assert "because" not in output
    assert_same_model("default.kcal", "named.kcal")


def test_a_single_array_is_embeddings_and_logits_may_lie_beside_it(run):
    arrays = blobs(90, 1)
    np.save("data.npy", arrays["embeddings"])
    np.save("labels.npy", arrays["labels"])
    np.save("logits.npy", arrays["logits"])
    words = ("fit", "data.npy", "--labels", "labels.npy", "-o", "m.kcal")
    assert "Method kcal, because" in said(run(*words))
    assert "Method kcal-blend, because" in said(run(*words, "--logits", "logits.npy", "--classes", "cat,dog,owl"))


def test_an_option_of_another_method_says_which_method_was_taken_and_why(run, calibration):
    message = said(run("fit", calibration, "-o", "m.kcal", "--kernel", "rbf", code=2))
    assert "--kernel is not an option of method kcal-blend" in message
    assert message.endswith("Method kcal-blend, because there are embeddings and logits; --method takes another.")


def table_of(names: str, logits: str) -> dict[str, np.ndarray]:
    """A table whose columns are called e0, e1, … and logit_0, logit_1, …, with integer labels."""
    arrays = blobs(90, 1, names=False)
    columns = {f"{names}{i}": values for i, values in enumerate(arrays["embeddings"].T)}
    columns |= {f"{logits}{i}": values for i, values in enumerate(arrays["logits"].T)}
    return columns | {"label": arrays["labels"], "group": np.arange(90) // 9}


@pytest.mark.parametrize("method", [(), ("-m", "kcal"), ("-m", "ts"), ("-m", "kcal-blend")])
def test_two_families_of_columns_are_refused_until_it_is_said_which_is_which(run, tmp_path, method):
    write_columns(tmp_path / "data.csv", table_of("e", "logit_"))
    message = said(run("fit", "data.csv", "-o", "m.kcal", *method, code=1))
    assert "data.csv has columns e* (5), logit_* (3); it is unclear which of them are" in message
    assert "Name embeddings with --feature-columns 'e*' and logits with --logit-columns 'logit_*'" in message
    assert not Path("m.kcal").exists()


def test_the_output_names_the_columns_and_what_they_are(run, tmp_path):
    write_columns(tmp_path / "data.csv", table_of("e", "logit_"))
    output = said(run("fit", "data.csv", "-o", "m.kcal", "--logit-columns", "logit_*"))
    for text in (
        "Method kcal-blend, because there are embeddings and logits",
        "labels column label",
        "groups column group",
        "embeddings columns e0, e1, e2, e3, e4",
        "logits columns logit_0, logit_1, logit_2",
    ):
        assert text in output
    output = said(run("fit", "data.csv", "-o", "m.kcal", "--feature-columns", "e*"))
    assert "Method kcal, because there are embeddings, but no logits" in output
    output = said(run("fit", "data.csv", "-o", "m.kcal", "-m", "ts", "--logit-columns", "logit_*"))
    assert "logits columns logit_0, logit_1, logit_2" in output
    assert "embeddings" not in output


def test_a_star_takes_all_columns_except_labels_groups_weights_and_ids(run, tmp_path):
    write_columns(tmp_path / "data.csv", table_of("e", "logit_"))
    run("fit", "data.csv", "-o", "m.kcal", "-m", "kcal", "--projection", "identity", "--feature-columns", "*")
    assert kcal.load("m.kcal").n_features_in_ == 8


def test_columns_called_logits_are_not_taken_as_embeddings(run, tmp_path):
    columns = {name: values for name, values in table_of("e", "logit_").items() if not name.startswith("e")}
    write_columns(tmp_path / "data.csv", columns)
    assert "--logit-columns 'logit_*'" in said(run("fit", "data.csv", "-o", "m.kcal", code=1))
    output = said(run("fit", "data.csv", "-o", "m.kcal", "--logit-columns", "logit_*"))
    assert "Method sms, because there are logits, but no embeddings" in output
    run("fit", "data.csv", "-o", "m.kcal", "-m", "ts")  # a method on logits needs no other sign


def test_single_columns_beside_a_family_are_features(run, tmp_path):
    columns = columns_of(blobs(90, 1))
    kept = {name: values for name, values in columns.items() if not name.startswith("z_")}
    write_columns(tmp_path / "data.csv", kept | {"age": np.arange(90.0), "height": np.arange(90.0)})
    output = said(run("fit", "data.csv", "-o", "m.kcal", "-m", "kcal", "--projection", "identity"))
    assert "embeddings columns e_0, e_1, e_2, e_3, e_4, age, height" in output


def test_numbered_columns_are_classes_by_their_numbers():
    assert class_names(("z10", "z2", "z1"), "*") == ("10", "2", "1")
    assert class_names(("z10", "y2"), "*") == ("z10", "y2")
    assert class_names(("cat", "dog"), "*") == ("cat", "dog")
    assert class_names(("z_cat", "z_dog"), "z_*") == ("cat", "dog")
