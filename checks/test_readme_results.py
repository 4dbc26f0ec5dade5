"""The table of README.md has the numbers of the code, the pages those of this table and of the results.

In a file of its own, where no training is cut short.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kcal.datasets
from kcal.cli.demonstration import run_methods
from scripts.figures import between_markers, results_table, with_content

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
TASKS = {
    "malaria cells, EfficientNet": "malaria",
    "Sleep-EDF, MLP": "sleepedf-mlp",
    "CIFAR-10, ResNet-56": "cifar10-resnet56",
    "CIFAR-100, ResNet-32": "cifar100-resnet32",
    "CLINC150, MiniLM": "clinc150-minilm",
    "UDHR, MLP": "udhr507",
    "malaria cells, new patients": "malaria (by group)",
    "Sleep-EDF, new patients": "sleepedf-mlp (by group)",
}
"""Rows of the tables of docs/choose.md, and those of docs/results.md that have their numbers."""


def numbers(row: str) -> list[float]:
    return [float(cell) for cell in re.findall(r"\d+\.\d+", row)]


def test_the_results_of_the_readme_are_those_of_the_code(tmp_path):
    example = kcal.datasets.load_example()
    _, probs = run_methods(example, tmp_path, quiet=True)
    evaluations = {name: kcal.evaluate(values, example.test.labels) for name, values in probs.items()}
    written, computed = (text.splitlines() for text in (between_markers(README), results_table(evaluations)))
    assert [row.split("|")[1] for row in written] == [row.split("|")[1] for row in computed]
    assert written[0] == computed[0]
    for row, expected in zip(written[2:], computed[2:], strict=True):
        *percentages, loss = numbers(row)
        assert percentages == pytest.approx(numbers(expected)[:-1], abs=0.05), "run make figures"
        assert loss == pytest.approx(numbers(expected)[-1], abs=2e-4), "run make figures"


@pytest.mark.parametrize("page", ["index.md", "first-steps.md"])
def test_the_pages_of_the_example_have_the_numbers_of_the_readme(page):
    rows = {row[0]: row[1:] for row in cells(README, n_columns=6)}
    _, ece, classwise, _, loss = zip(rows["no calibration"], rows["KCalBlend"], strict=True)
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    changes = dict(re.findall(r"(log-loss|\(ECE\)|\(class-wise ECE\))[a-z ]* (from [\d.]+(?: %)? to [\d.]+)", text))
    assert changes == {
        "log-loss": "from {} to {}".format(*loss),
        "(ECE)": "from {} % to {}".format(*ece),
        "(class-wise ECE)": "from {} % to {}".format(*classwise),
    }


def test_the_page_about_the_choice_has_the_numbers_of_the_results():
    header, *found = cells((DOCS / "results.md").read_text(encoding="utf-8"), n_columns=12)
    measured = {(task, metric): dict(zip(header[2:], values, strict=True)) for task, metric, *values in found}
    page = (DOCS / "choose.md").read_text(encoding="utf-8")
    for n_columns, metric in ((7, "log-loss"), (6, "paper CECE, %")):
        tables = cells(page, n_columns=n_columns)
        methods, rows = (
            [name.strip("`") for name in tables[0][n_columns - 5 :]],
            [row for row in tables if row[0] in TASKS],
        )
        assert len(rows) == (8 if metric == "log-loss" else 6)
        for task, *values in rows:
            expected = {"uncal" if name == "`uncal`" else name.strip("`"): value for name, value in
                        measured[TASKS[task], metric].items()}  # fmt: skip
            names = ["uncal", *methods[1:]]
            assert values[n_columns - 6 :] == [expected[name] for name in names], (task, metric)
    losses = {task: measured[task, "log-loss"] for task in TASKS.values()}
    for task, text in (("cifar100-resnet32", "which also uses the logits, has {}"),
                       ("sleepedf-mlp (by group)", "relies on the network accordingly: {}")):  # fmt: skip
        assert text.format(losses[task]["`kcal-blend`"]) in " ".join(page.split())
    many = " ".join((DOCS / "how-to" / "many-classes.md").read_text(encoding="utf-8").split())
    for task, text in (("cifar100-resnet32", "its log-loss is {}, temperature scaling's {} and the blend's {}"),
                       ("clinc150-minilm", "(CLINC150) it is {}, {} and {}")):  # fmt: skip
        assert text.format(*(losses[task][f"`{name}`"] for name in ("kcal", "ts", "kcal-blend"))) in many


def cells(text: str, *, n_columns: int) -> list[list[str]]:
    """Return the rows of all tables of so many columns, without the marks of bold type and of rules."""
    rows = [
        [cell.strip(" *") for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line[:1] == "|"
    ]
    return [row for row in rows if len(row) == n_columns and not set(row[0]) <= set("-:")]


def test_writing_a_table_changes_nothing_else():
    assert with_content(README, between_markers(README)) == README
    assert between_markers(with_content(README, "new\n")) == "new\n"
    with pytest.raises(ValueError, match="has no lines"):
        with_content("nothing", "new\n")
