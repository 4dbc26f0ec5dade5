"""What is typed wrongly is refused with exit code 2, by the name of the option."""

from __future__ import annotations

from pathlib import Path

import pytest

import kcal
from kcal.cli.parameters import parse_classes, parse_prior

QUICK = ("--projection", "identity")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--smoothing", "2"), "--smoothing must be at least 0 and less than 1, such as 0.001; got 2"),
        (("--smoothing", "1"), "--smoothing must be"),
        (("--smoothing", "-0.1"), "--smoothing must be"),
        (("--smoothing", "nan"), "--smoothing must be"),
        (("--seed", "-1"), "--seed must be a whole number, at least 0"),
        (("--seed", str(2**64)), "--seed must be a whole number"),
        (("--bandwidth", "rule"), "--bandwidth rule needs --bandwidth-reference B,COUNT, such as 1.4,300"),
        (("--bandwidth-reference", "1.4,300"), "--bandwidth-reference is of no use without --bandwidth rule"),
        (("--bandwidth", "rule", "--bandwidth-reference", "1,inf"), "--bandwidth-reference must be two positive"),
        (("--bandwidth", "rule", "--bandwidth-reference", "0,3"), "--bandwidth-reference must be two positive"),
        (("--bandwidth", "rule", "--bandwidth-reference=-1,3"), "--bandwidth-reference must be two positive"),
        (("--classes", "cat,,owl"), "got 'cat,,owl'; name 2 is blank"),
        (("--classes", ""), "name 1 is blank"),
        (("--classes", "cat,dog,cat"), "got 'cat,dog,cat'; cat is there more than once"),
        (("--classes", "cat"), "--classes must list at least two classes, each once, such as cat,dog,owl; got 'cat'"),
        (("--prior", "cat=-1,dog=2"), "--prior must be uniform, or a share for each class"),
        (("--prior", "cat=0.5,cat=0.5"), "no class twice"),
        (("--prior", "cat=inf"), "--prior must be shares that sum to 1"),
        (("--prior", "cat=0.2,dog=0.2"), "which sums to 0.4"),
        (("--dimension", "2"), "--dimension is of no use with --projection identity"),
        (("--recipe", "paper"), "--recipe is of no use with --projection identity"),
    ],
)
def test_a_bad_value_exits_with_2_and_names_the_option(run, calibration, words, message):
    assert message in run("fit", calibration, "-o", "model.kcal", *QUICK, *words, code=2).stderr
    assert not Path("model.kcal").exists()


def test_evaluate_names_bad_classes_too(run, model, test_set):
    assert "--classes must list" in run("evaluate", model, test_set, "--classes", "cat,cat", code=2).stderr


def test_lists_are_read_by_their_commas():
    assert parse_classes(" cat, dog,owl ") == ["cat", "dog", "owl"]
    assert parse_classes(None) is None
    assert parse_prior("cat=0.25, dog=0.75") == {"cat": 0.25, "dog": 0.75}


@pytest.mark.parametrize("name", ["model.npz", "model.ext", "model"])
def test_a_model_of_another_suffix_is_refused_with_a_better_name(run, calibration, name):
    message = run("fit", calibration, "-o", name, *QUICK, code=2).stderr
    assert f"--out must be a name that ends in .kcal, .safetensors; got '{name}'. Try 'model.kcal'" in message
    assert not Path(name).exists()


def test_a_model_may_be_called_what_it_is(run, calibration):
    run("fit", calibration, "-o", "model.safetensors", *QUICK)
    assert kcal.load("model.safetensors").classes_.tolist() == ["cat", "dog", "owl"]


def test_the_help_names_the_suffixes_of_a_model(run):
    assert ".kcal or .safetensors" in " ".join(run("fit", "--help").stdout.split())
