"""Messages of the library name its arguments; on the command line they name options."""

from __future__ import annotations

import re

import numpy as np
import pytest
from animals import blobs, columns_of, write_columns


QUICK = ("--projection", "identity")
PYTHON = re.compile(r"leave_one_out_proba_|train_embeddings|train_labels|bandwidth_curve_|[a-z]=")


def test_allowed_overlap_is_told_in_words_of_the_command_line(run, model, calibration):
    message = run("evaluate", model, calibration, "--allow-overlap").stderr
    assert "Go by other data, or by the leave-one-out log-loss that kcal fit prints." in message
    assert not PYTHON.search(message)


def test_predicting_for_calibration_rows_is_told_likewise(run, model, calibration):
    assert not PYTHON.search(run("predict", model, calibration, "-o", "p.npy").stderr)


def test_a_held_out_half_names_the_options_to_avoid_it(run, calibration):
    message = run("fit", calibration, "-o", "model.kcal", "-m", "kcal-linear", "--dimension", "2").stderr
    assert "Pass --train FILE to use all of them, or --projection identity to learn none." in message
    assert not PYTHON.search(message)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--classes", "cat,dog,owl,cow"), 0, "pass --smoothing 1e-3"),
        (("--folds", "1000"), 1, "--folds 1000 needs"),
        (("--classes", "cat,dog"), 1, "labels must be in classes (2 of them); got 'owl'"),
        (("--classes", "cat,dog"), 1, "List it in --classes of kcal fit if the class exists"),
    ],
)
def test_remedies_are_options(run, calibration, words, code, message):
    found = run("fit", calibration, "-o", "model.kcal", *QUICK, *words, code=code).stderr
    assert message in found
    assert not PYTHON.search(found)


@pytest.mark.parametrize("groups", [None, np.arange(3)], ids=["alone", "in groups"])
def test_too_little_to_hold_out_names_the_options(run, groups):
    arrays = {key: values for key, values in blobs(3, 1).items() if key != "classes"}
    np.savez("few.npz", **arrays, **({} if groups is None else {"groups": groups}))
    message = run("fit", "few.npz", "-o", "model.kcal", code=1).stderr
    assert "Pass --train FILE or --projection identity." in message
    assert not PYTHON.search(message)


def test_other_words_stay_as_they_are():
    text = "model.kcal is not a kcal file, or it is truncated or corrupt (e)."


@pytest.mark.parametrize(("separator", "called"), [(";", "';'"), ("\t", "a tab"), ("|", "'|'")])
@pytest.mark.parametrize("decimals", [".", ","])
def test_a_table_with_another_separator_is_told_so(run, tmp_path, separator, called, decimals):
    path = write_columns(tmp_path / "data.csv", columns_of(blobs(30, 1)))
    path.write_text(path.read_text().replace(",", separator).replace(".", decimals))
    message = run("fit", path, "-o", "model.kcal", *QUICK, code=1).stderr
    assert f"the separator seems to be {called}, where kcal expects a comma" in message


def test_a_single_column_is_no_sign_of_another_separator(run, tmp_path, calibration):
    names = [f"a;{place}" for place in range(90)]
    ids = write_columns(tmp_path / "ids.csv", {"name": names})
    run("fit", calibration, "-o", "model.kcal", *QUICK, "--ids", ids)
