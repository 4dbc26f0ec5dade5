"""The examples of docstrings, which the reference shows, run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import kcal
from page_code import small_example

SOURCE = Path(kcal.__file__).parent
MODULES = [
    module.name
    for module in pkgutil.walk_packages([str(SOURCE)], "kcal.")
    if ">>>" in Path(module.module_finder.find_spec(module.name).origin).read_text(encoding="utf-8")  # type: ignore[union-attr, call-arg, arg-type]
]


@pytest.mark.usefixtures("short_trainings")
@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tests = doctest.DocTestFinder().find(importlib.import_module(name))
    examples = [example for test in tests for example in test.examples]
    assert examples
    assert not any(doctest.SKIP in example.options for example in examples)
    runner = doctest.DocTestRunner()
    with small_example():
        for test in tests:
            runner.run(test)
    assert runner.failures == 0
