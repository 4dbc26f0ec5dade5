"""Messages of the library name its arguments; on the command line they name options and files."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import typer
from animals import blobs, columns_of, write_columns

from kcal.cli.messages import OPTIONS, WARNING_REMEDIES, option_name, readable_messages
from kcal.errors import InvalidInputError, KcalWarning, LeakageWarning, printable, warn

QUICK = ("-m", "kcal", "--projection", "identity")
PYTHON = re.compile(r"leave_one_out_proba_|train_embeddings|train_labels|bandwidth_curve_|[a-z]=")


def stopped(capsys, error: Exception) -> tuple[int, str]:
    """The exit code and the line of an error that a command raises."""
    with pytest.raises(typer.Exit) as exit_, readable_messages():
        raise error
    return exit_.value.exit_code, capsys.readouterr().err


@pytest.mark.parametrize("parameter", OPTIONS)
def test_an_error_about_a_parameter_names_its_option_and_is_a_usage_error(capsys, parameter):
    code, line = stopped(capsys, InvalidInputError(parameter, "must be better", got="worse"))
    assert code == 2
    assert line == f"error: {option_name(parameter)} must be better; got worse.\n"


def test_an_error_about_data_names_them_as_in_files_with_a_remedy_of_the_command_line(capsys):
    code, line = stopped(capsys, InvalidInputError("y", "must be known", got="owl", remedy="Pass classes=[...]."))
    assert code == 1
    assert line == "error: labels must be known; got owl. List the class of every column, in order, with --classes.\n"


def test_an_error_without_a_remedy_gets_none(capsys):
    assert stopped(capsys, InvalidInputError("y", "must be known"))[1] == "error: labels must be known.\n"


@pytest.mark.parametrize("category", WARNING_REMEDIES)
def test_warnings_have_a_remedy_of_the_command_line(capsys, category):
    with readable_messages():
        warn("Something is odd.", category, remedy="Pass x=3.")
    assert capsys.readouterr().err == f"warning: Something is odd. {WARNING_REMEDIES[category]}\n"


def test_other_warnings_keep_their_words(capsys):
    with readable_messages():
        warn("Something is odd.", KcalWarning, remedy="Look at it.")
        warnings.warn(LeakageWarning("Rows are shared."), stacklevel=1)
    assert capsys.readouterr().err == "warning: Something is odd. Look at it.\nwarning: Rows are shared.\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain name, ä 猫", "plain name, ä 猫"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\x9b5m", "\\x9b5m"),
        ("half a pair \ud800", "half a pair \\ud800"),
    ],
)
def test_control_characters_are_escaped(text, expected):
    assert printable(text) == expected


def test_names_from_files_cannot_control_the_terminal(run):
    names = np.array(["\x1b[31mcat", "dog\x1b]0;owned\x07", "owl\u202e"])
    np.savez("\x1b[1mdata.npz", **blobs(90, 1) | {"labels": names[np.arange(90) % 3], "classes": names})
    result = run("fit", "\x1b[1mdata.npz", "-o", "\x1b[2Jm.kcal", *QUICK)
    assert "\\x1b[31mcat" in result.output
    result = run("evaluate", "\x1b[2Jm.kcal", "\x1b[1mdata.npz", code=3)
    assert "\\x1b[1mdata.npz" in result.output
    for words in (("predict", "\x1b[2Jm.kcal", "\x1b[1mdata.npz", "-o", "\x1b[3m.csv"), ("fit", "\x1b[1mno.npz")):
        output = run(
            *words, *(("-o", "x.kcal") if words[0] == "fit" else ()), code=1 if words[0] == "fit" else 0
        ).output
        assert "\x1b" not in output
        assert "\\x1b" in output
    assert "\x1b" not in result.output


def test_allowed_overlap_has_a_remedy_of_the_command_line(run, model, calibration):
    message = run("evaluate", model, calibration, "--allow-overlap", "--no-intervals").stderr
    assert "Evaluate on other data. Or use the leave-one-out log-loss that kcal fit prints." in message
    assert not PYTHON.search(message)


def test_predicting_for_calibration_rows_has_one_too(run, model, calibration):
    assert not PYTHON.search(run("predict", model, calibration, "-o", "p.npy").stderr)


def test_a_held_out_half_names_the_options_to_avoid_it(run, calibration):
    result = run("fit", calibration, "-o", "model.kcal", "-m", "kcal-linear", "--dimension", "2")
    assert result.stdout.startswith("KCal with a linear projection fitted in ")
    message = result.stderr
    assert "Pass --train FILE, or --projection identity with method kcal or kcal-logits." in message
    assert not PYTHON.search(message)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--classes", "cat,dog,owl,cow"), 0, "Or pass --smoothing 1e-3"),
        (("--folds", "1000"), 2, "--folds must be at most the number of samples, 90; got 1000"),
        (("--classes", "cat,dog"), 1, "labels must be in classes (2 of them); got 'owl'"),
        (("--classes", "cat,dog"), 1, "with --classes"),
    ],
)
def test_remedies_are_options(run, calibration, words, code, message):
    text = run("fit", calibration, "-o", "model.kcal", *QUICK, *words, code=code).stderr
    assert message in text
    assert not PYTHON.search(text)


def test_a_blend_with_a_missing_class_is_told_of_options_that_it_has(run, calibration):
    np.savez("embeddings.npz", **{key: values for key, values in np.load(calibration).items() if key != "logits"})
    words = ("-m", "kcal-blend", "-o", "model.kcal", "--classes", "cat,dog,owl,cow")
    message = run("fit", "embeddings.npz", *words).stderr
    assert "Add samples of them. Or give logits too, with --logits FILE or --logit-columns." in message
    assert "--smoothing" not in message
    assert not PYTHON.search(message)


@pytest.mark.parametrize("groups", [None, np.arange(3)], ids=["alone", "in groups"])
def test_too_little_to_hold_out_names_the_options(run, groups):
    arrays = {key: values for key, values in blobs(3, 1).items() if key != "classes"}
    np.savez("few.npz", **arrays, **({} if groups is None else {"groups": groups}))
    message = run("fit", "few.npz", "-m", "kcal", "-o", "model.kcal", code=1).stderr
    options = "Pass --train FILE, or --projection identity with method kcal or kcal-logits."
    assert (options if groups is None else "Pass a training set, or a projection") in message
    assert not PYTHON.search(message)


@pytest.mark.parametrize(("separator", "called"), [(";", "';'"), ("\t", "a tab"), ("|", "'|'")])
@pytest.mark.parametrize("decimals", [".", ","])
def test_a_table_with_another_separator_is_recognized(run, tmp_path, separator, called, decimals):
    path = write_columns(tmp_path / "data.csv", columns_of(blobs(30, 1)))
    path.write_text(path.read_text().replace(",", separator).replace(".", decimals))
    message = run("fit", path, "-o", "model.kcal", *QUICK, code=1).stderr
    assert f"the separator seems to be {called}, where kcal expects a comma" in message


def test_a_single_column_is_no_sign_of_another_separator(run, tmp_path, calibration):
    names = [f"a;{place}" for place in range(90)]
    ids = write_columns(tmp_path / "ids.csv", {"name": names})
    run("fit", calibration, "-o", "model.kcal", *QUICK, "--ids", ids)
