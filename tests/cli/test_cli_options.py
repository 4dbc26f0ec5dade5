"""What is typed wrongly is refused with exit code 2, by the name of the option."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import kcal
from kcal.cli import app
from kcal.cli.parameters import parse_classes, parse_prior

QUICK = ("-m", "kcal", "--projection", "identity")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--smoothing", "2"), "--smoothing must be a number between 0 and 1; got 2"),
        (("--smoothing", "1"), "--smoothing must be"),
        (("--smoothing", "-0.1"), "--smoothing must be"),
        (("--smoothing", "nan"), "--smoothing must be"),
        (("--seed", "-1"), "--seed must be an integer from 0 to"),
        (("--seed", str(2**64)), "--seed must be an integer from 0 to"),
        (
            ("--bandwidth", "rule"),
            "--bandwidth rule and --bandwidth-reference B,SIZE, such as 1.4,300, need each other",
        ),
        (("--bandwidth-reference", "1.4,300"), "--bandwidth rule and --bandwidth-reference"),
        (
            ("--bandwidth", "rule", "--bandwidth-reference", "1,inf"),
            "--bandwidth-reference must be a pair of two positive",
        ),
        (
            ("--bandwidth", "rule", "--bandwidth-reference", "0,3"),
            "--bandwidth-reference must be a pair of two positive",
        ),
        (("--bandwidth", "rule", "--bandwidth-reference=-1,3"), "--bandwidth-reference must be a pair of two positive"),
        (("--classes", "cat,,owl"), "each once, such as cat,dog,owl; got 'cat,,owl'"),
        (("--classes", ""), "--classes must list"),
        (("--classes", "cat,dog,cat"), "got 'cat,dog,cat'"),
        (("--classes", "cat"), "--classes must list at least two classes, each once, such as cat,dog,owl; got 'cat'"),
        (("--prior", "cat=-1,dog=2,owl=0"), "--prior must be frequencies that sum to 1"),
        (("--prior", "cat=0.5,cat=0.5"), "--prior must be uniform, or a share for each class"),
        (("--prior", "cat=inf,dog=0,owl=0"), "--prior must be frequencies that sum to 1"),
        (("--prior", "cat=0.2,dog=0.2,owl=0"), "(sum 0.4)"),
        (("--prior", "cat=0.5,dog=0.5"), "--prior leaves out 'owl'"),
        (("--prior", "some text"), "--prior must be uniform, or a share for each class"),
        (("--folds", str(10**12)), "--folds must be"),
        (("--dimension", "2"), "--dimension has no effect with --projection identity"),
        (("--recipe", "paper"), "--recipe has no effect with --projection identity"),
    ],
)
def test_a_bad_value_exits_with_2_and_names_the_option(run, calibration, words, message):
    assert message in run("fit", calibration, "-o", "model.kcal", *QUICK, *words, code=2).stderr
    assert not Path("model.kcal").exists()


@pytest.mark.parametrize("text", ["0.5,1", "(0.5, 1)", "[0.5, 1]"])
def test_a_list_is_typed_with_or_without_brackets(run, calibration, text):
    run("fit", calibration, "-o", "m.kcal", *QUICK, "--set", f"bandwidth_interval={text}")
    assert kcal.load("m.kcal").bandwidth_interval == (0.5, 1)


def test_a_bad_value_of_set_names_the_parameter(run, calibration):
    message = run("fit", calibration, "-o", "m.kcal", *QUICK, "--set", "bandwidth_interval=1", code=2).stderr
    assert message.startswith("error: --set bandwidth_interval must be")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("fit", "-m", "kcal", "--projection", "linear", "--dimension", 10**9), "--dimension"),
        (("fit", "-m", "kcal", "--dimension", 10**30), "--dimension"),
        (("fit", "-m", "kcal-blend", "--folds", 10**9), "--folds"),
        (("fit", "-m", "histogram", "--set", f"bins={10**9}"), "bins"),
        (("fit", "-m", "imax", "--set", f"bins={10**30}"), "bins"),
        (("fit", "-m", "ts", "--seed", 2**64), "--seed"),
        (("fit", "-m", "ts", "--seed", "text"), "--seed"),
        (("fit", "-m", "ts", "--representation", "text"), "--representation"),
        (("fit", "-m", "dircal", "--set", "grid=[[1e400, 1]]"), "grid"),
        (("fit", "-m", "ts", "--set", "["), "--set"),
        (("evaluate", "--resamples", 10**30), "--resamples"),
        (("evaluate", "--confidence", 0), "--confidence"),
        (("evaluate", "--confidence", "nan"), "--confidence"),
        (("evaluate", "--seed", 2**64), "--seed"),
        (("evaluate", "--pictures", 10**9, "--report", "page"), "--pictures"),
        (("evaluate", "--methods", "ts,\x1b[31m"), "--methods"),
    ],
)
def test_sizes_without_bound_and_odd_values_are_refused_by_name_in_one_line(
    run, calibration, model, test_set, words, option
):
    command, *options = words
    files = (calibration, "-o", "new.kcal") if command == "fit" else (model, test_set)
    result = CliRunner().invoke(app, [str(word) for word in (command, *files, *options)])
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert option in result.stderr
    assert not Path("new.kcal").exists()


def test_evaluate_names_bad_classes_too(run, model, test_set):
    assert "--classes must list" in run("evaluate", model, test_set, "--classes", "cat,cat", code=2).stderr


def test_lists_are_read_by_their_commas():
    assert parse_classes(" cat, dog,owl ") == ["cat", "dog", "owl"]
    assert parse_classes(None) is None
    assert parse_prior("cat=0.25, dog=0.75") == {"cat": 0.25, "dog": 0.75}


@pytest.mark.parametrize("name", ["model.npz", "model.ext", "model"])
def test_a_model_of_another_suffix_is_refused_with_a_better_name(run, calibration, name):
    message = run("fit", calibration, "-o", name, *QUICK, code=2).stderr
    assert f"--out must end in .kcal, .safetensors; got '{name}'. Try 'model.kcal'" in message
    assert not Path(name).exists()


def test_a_model_may_be_called_what_it_is(run, calibration):
    run("fit", calibration, "-o", "model.safetensors", *QUICK)
    assert kcal.load("model.safetensors").classes_.tolist() == ["cat", "dog", "owl"]


def test_the_help_names_the_suffixes_of_a_model(run):
    assert ".kcal or .safetensors" in " ".join(run("fit", "--help").stdout.split())
