"""The table of README.md has the numbers of the code; in a file of its own, where no training is cut short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kcal.datasets
from kcal.cli.demonstration import run_methods
from scripts.figures import between_markers, results_table, with_content

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def numbers(row: str) -> list[float]:
    return [float(cell) for cell in re.findall(r"\d+\.\d+", row)]


def test_the_results_of_the_readme_are_those_of_the_code():
    example = kcal.datasets.load_example()
    probs = run_methods(example, quiet=True).probs
    evaluations = {name: kcal.evaluate(values, example.test.labels) for name, values in probs.items()}
    written, computed = (text.splitlines() for text in (between_markers(README), results_table(evaluations)))
    assert [row.split("|")[1] for row in written] == [row.split("|")[1] for row in computed]
    assert written[0] == computed[0]
    for row, expected in zip(written[2:], computed[2:], strict=True):
        *percentages, loss = numbers(row)
        assert percentages == pytest.approx(numbers(expected)[:-1], abs=0.05), "run make figures"
        assert loss == pytest.approx(numbers(expected)[-1], abs=2e-4), "run make figures"


def test_writing_a_table_changes_nothing_else():
    assert with_content(README, between_markers(README)) == README
    assert between_markers(with_content(README, "new\n")) == "new\n"
    with pytest.raises(ValueError, match="has no lines"):
        with_content("nothing", "new\n")
