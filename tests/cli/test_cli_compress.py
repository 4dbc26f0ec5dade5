from __future__ import annotations

import numpy as np
import pytest
from animals import blobs

import kcal


def test_a_smaller_model_is_that_of_the_library(run, model, tmp_path):
    output = run("compress", model, "--size", 12, "--out", "small.kcal").stdout
    small, expected = kcal.load(tmp_path / "small.kcal"), kcal.load(model).compress(12)
    rows = blobs(60, 2)["embeddings"]
    np.testing.assert_array_equal(small.predict_proba(rows), expected.predict_proba(rows))
    assert output == "small.kcal: 12 support points in place of 90\n"


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--size", "0.2", "-m", "herding"], {"size": 0.2, "method": "herding"}),
        (["--max-loss-increase", "0.5"], {"max_loss_increase": 0.5}),
        (["--size", "0.5", "--min-cluster-size", "6"], {"size": 0.5, "min_cluster_size": 6}),
    ],
)
def test_options_are_the_arguments_of_the_library(run, model, tmp_path, options, arguments):
    assert run("compress", model, *options, "-o", "small.kcal", "--quiet").stdout == ""
    small, expected = kcal.load(tmp_path / "small.kcal"), kcal.load(model).compress(**arguments)
    assert small.compression_ == expected.compression_
    assert small.support_size_ == expected.support_size_


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 2, "--size or max_loss_increase must be given"),
        (["--size", "2"], 2, "--size must be at least 3"),
        (["--size", "many"], 2, "--size must be an integer"),
        (["--size", "9", "-m", "magic"], 1, "method must be one of"),
    ],
)
def test_what_is_wrong_is_one_line(run, model, options, code, message):
    assert message in run("compress", model, *options, "-o", "small.kcal", code=code).stderr


def test_a_method_without_support_is_an_error(run, calibration, tmp_path):
    run("fit", calibration, "-o", "ts.kcal", "-m", "ts", "--quiet")
    assert "has no support to compress" in run("compress", "ts.kcal", "--size", 5, "-o", "s.kcal", code=1).stderr
