"""Tables show means, spreads and the paper's marks, in every format."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from kcal.benchmark import Cell, Outcome, Plan, Task, run
from kcal.benchmark.entrants import PAPER
from kcal.benchmark.page import PAPER_RANKS, results_page, where_not_first, write_page
from kcal.benchmark.results import MEASURES, Results, Row
from kcal.benchmark.spreadsheets import metric_sheet, rank_sheet, time_sheet
from kcal.benchmark.studies import Study, write_study
from kcal.benchmark.studies.study import Line, Panel
from kcal.benchmark.table import latex
from kcal.benchmark.tables import (
    NOTE,
    Entry,
    Table,
    all_tables,
    corrected_table,
    metric_table,
    rank_table,
    time_table,
    training_table,
)
from kcal.benchmark.writing import write_results
from kcal.errors import InvalidInputError
from kcal.metrics import corrected_resampled_t_test

METHODS = ("uncal", "ts", "imax", "focal")


def outcome(method: str, reshuffle: int, **numbers: float) -> Outcome:
    every = dict.fromkeys(MEASURES, 0.5) | numbers
    return Outcome(Cell("ta_sk", False, reshuffle, method), every, 1.0 + reshuffle, 0.5)


@pytest.fixture
def results() -> Results:
    """Three reshuffles: ts as accurate as uncal and better calibrated; imax best of all, but far less accurate."""
    noise = (0.0, 0.002, -0.002)
    found = []
    for index, shift in enumerate(noise):
        found += [
            outcome("uncal", index, accuracy=0.9 + shift, expected_calibration_error=0.1 + shift),
            outcome("ts", index, accuracy=0.9 + shift, expected_calibration_error=0.05 + shift),
            outcome("imax", index, accuracy=0.7 + shift, expected_calibration_error=0.01 + shift),
        ]
    return Results.of(found, METHODS)


def test_a_table_marks_the_best_that_keeps_the_accuracy(results: Results) -> None:
    table = metric_table(results, "expected_calibration_error")
    assert table.heading == ("task", *METHODS)
    (row,) = table.rows
    assert row == (
        Entry("ta_sk"),
        Entry("10.00±0.20"),
        Entry("5.00±0.20", bold=True),
        Entry("1.00±0.20†", underlined=True),
        Entry("–"),
    )


def test_ranks_and_seconds(results: Results) -> None:
    ranks = {row[0].text: row[1:] for row in rank_table(results).rows}
    assert [entry.text for entry in ranks["ECE"]] == ["3.00±0.00", "2.00±0.00", "1.00±0.00", "–"]
    assert ranks["ECE"][2].bold
    assert ranks["Accuracy"][0].text == "1.50±0.00"
    assert ranks["overall, without NLL"][3].text == "–"
    assert [entry.text for entry in time_table(results).rows[0]] == ["ta_sk", *["2.00 + 0.50"] * 3, "–"]
    assert rank_sheet(results).splitlines()[3] == "ECE,3,0,2,0,1,0,,"
    assert time_sheet(results).splitlines()[1] == "ta_sk,2,0.5,,2,0.5,,2,0.5,,,,"


def test_seconds_of_training_have_a_table_of_their_own(results: Results) -> None:
    assert training_table(results).rows == ()
    trained = [replace(each, train_seconds=7.25) if each.cell.method == "ts" else each for each in results.outcomes]
    found = Results.of(trained, METHODS)
    table = training_table(found)
    assert (table.heading, table.rows) == (("task", "ts"), ((Entry("ta_sk"), Entry("7.2")),))
    assert table in all_tables(found)
    assert "ts_train" in time_sheet(found)


@pytest.mark.parametrize(
    ("character", "written"),
    [
        ("\\", r"\textbackslash{}"),
        ("{", r"\{"),
        ("}", r"\}"),
        ("$", r"\$"),
        ("^", r"\textasciicircum{}"),
        ("~", r"\textasciitilde{}"),
        ("&", r"\&"),
        ("%", r"\%"),
        ("_", r"\_"),
        ("#", r"\#"),
        ("±", r"$\pm$"),
        ("†", r"$\dagger$"),
    ],
)
def test_latex_escapes_each_character_once(character: str, written: str) -> None:
    assert latex(f"a{character}b") == f"a{written}b"
    assert latex(f"{character}\\{character}") == rf"{written}\textbackslash{{}}{written}"


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_is_split_rather_than_cut(width: int) -> None:
    names = tuple(f"task-number-{place:02}" for place in range(9))
    words = "one two three four five six seven eight nine ten eleven"
    rows = tuple(
        (Entry(f"method-{n}"), *(Entry(f"{n}{k}.00±10.00†") for k in range(8)), Entry(words)) for n in range(3)
    )
    parts = Table("t", "A title", ("method", *names), rows).fitting(width)
    assert len(parts) > 1
    console = Console(width=width, file=io.StringIO())
    for part in parts:
        console.print(part.as_rich())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert all(entry.text in text for row in rows for entry in row[1:-1])
    assert all(word in text.split() for word in words.split())
    assert [f"A title ({n} of {len(parts)})" in text for n in range(1, len(parts) + 1)] == [True] * len(parts)


def test_notes_are_in_every_text(results: Results, tmp_path: Path) -> None:
    plan = Plan(("ts", "imax"), 3)
    trained = [replace(each, train_seconds=7.25) if each.cell.method == "ts" else each for each in results.outcomes]
    found = Results.of(trained, METHODS)
    write_results(found, plan, tmp_path)
    texts = [results_page(found, plan), (tmp_path / "tables.md").read_text()]
    for note in {table.note for table in all_tables(found)}:
        assert all(text.count(note) == 1 for text in texts), note
        assert latex(note) in (tmp_path / "tables.tex").read_text()
    assert NOTE in texts[0]


def test_every_format_says_the_same(results: Results) -> None:
    table = metric_table(results, "expected_calibration_error")
    markdown = table.as_markdown()
    assert "| ta_sk | 10.00±0.20 | **5.00±0.20** | <u>1.00±0.20†</u> | – |" in markdown
    heading, row = csv.reader(io.StringIO(metric_sheet(results, "expected_calibration_error")))
    assert heading[:4] == ["task", "uncal_mean", "uncal_std", "uncal_failed"]
    assert row == ["ta_sk", "10", "0.2", "0", "5", "0.2", "0", "1", "0.2", "0", "", "", ""]
    latex = table.as_latex()
    assert r"ta\_sk & 10.00$\pm$0.20 & \textbf{5.00$\pm$0.20} & \underline{1.00$\pm$0.20$\dagger$} & -- \\" in latex
    assert latex.count("{") == latex.count("}")
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(table.turned().as_rich())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    shown = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert shown[-len(METHODS) :] == list(METHODS)


def test_brackets_and_bars_in_names_harm_no_format() -> None:
    table = Table("t", "title", ("task", "a"), ((Entry("[bold]x|y&z%"), Entry("1")),))
    assert "x\\|y" in table.as_markdown()
    assert r"{[}bold]x\textbar{}y\&z\%" in table.as_latex()  # \\ would take what stands in brackets for a length
    console = Console(width=60, file=io.StringIO())
    console.print(table.as_rich())
    assert "[bold]x|y&z%" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_leaves_all_its_files(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "smooth"), reshuffles=2, jobs=1)
    results = Results.of(run([task], plan, tmp_path), plan.methods)
    files = {str(path.relative_to(tmp_path)) for path in write_results(results, plan, tmp_path)}
    assert {"results.json", "tables.md", "tables.tex", "csv/ranks.csv", "csv/seconds.csv"} <= files
    assert {"reliability/small.png", "reliability/small-by-group.png"} <= files
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["settings"]["seed"] == 0
    assert stored["versions"]["torch"]
    assert len(stored["outcomes"]) == 2 * 2 * 2
    assert "| small (by group) |" in (tmp_path / "tables.md").read_text()
    first = metric_table(results, "accuracy").rows[0]
    assert first[3] == Entry("–")  # there is no companion for smooth
    picture = tmp_path / "reliability/small.png"
    drawn = picture.stat().st_mtime_ns
    write_results(results, plan, tmp_path)
    assert picture.stat().st_mtime_ns == drawn  # it shows the same
    write_results(Results.of(results.outcomes, ("uncal",)), plan, tmp_path)
    assert picture.stat().st_mtime_ns > drawn
    assert np.isfinite(results.overall()["ts"])


def test_nothing_to_show_is_told() -> None:
    with pytest.raises(InvalidInputError, match="no outcomes"):
        Results.of([], METHODS)


def test_the_page_tells_where_kcal_is_not_first_and_what_the_paper_ranked(results: Results) -> None:
    noise = (0.0, 0.002, -0.002)
    kcal = [outcome("kcal", i, accuracy=0.9 + d, expected_calibration_error=0.2 + d) for i, d in enumerate(noise)]
    found = Results.of([*results.outcomes, *kcal], ("uncal", "ts", "imax", "kcal"))
    page = results_page(found, Plan(("ts", "imax", "kcal"), 3))
    assert "- ta_sk, ECE: 20.00, ts 5.00" in page
    assert "- ta_sk, Accuracy" not in page
    assert "## Where the blend is not first" not in page  # it was not run
    assert "| ECE | 8.42 | 6.68 | 7.73 | 3.84 |" in page
    assert page.count("### ECE ↓") == 1
    assert "**New groups.**" not in page  # there are none
    assert "### How far kcal was trained" not in page  # nobody noted it
    assert "## What helped, what did not" not in page  # nobody tried anything
    assert where_not_first(found, "ts").count("\n") == 0
    dull = [outcome("kcal", i, accuracy=0.5 + d, expected_calibration_error=0.01 + d / 10) for i, d in enumerate(noise)]
    found = Results.of([*results.outcomes, *dull], ("uncal", "ts", "imax", "kcal"))
    told = where_not_first(found, "kcal")
    assert "- ta_sk, ECE: 1.00†, ts 5.00" in told
    assert told.endswith("however good the number.")


def test_a_tie_is_no_first_place_and_nothing_to_explain_is_not_explained(results: Results) -> None:
    noise = (0.0, 0.002, -0.002)
    methods = ("uncal", "ts", "imax", "kcal", "kcal-blend")
    near = [outcome("kcal", i, accuracy=0.9 + d, expected_calibration_error=0.051 + d) for i, d in enumerate(noise)]
    best = [
        outcome("kcal-blend", i, accuracy=0.9 + d, expected_calibration_error=0.05 + d) for i, d in enumerate(noise)
    ]
    found = Results.of([*results.outcomes, *near, *best], methods)
    assert "kcal" in found.comparison(Row("ta_sk", False), "expected_calibration_error").pooled.best  # type: ignore[union-attr]
    told = where_not_first(found, "kcal")
    assert told.startswith("- ta_sk, ECE: 5.10, ts 5.00, tied\n\ntied: not significantly worse")
    page = results_page(found, Plan(methods, 3))
    assert "### Why" in page
    assert "## Where the blend is not first\n\nNowhere." in page
    first = [replace(each, cell=replace(each.cell, method="kcal")) for each in best]
    page = results_page(Results.of([*results.outcomes, *first], methods[:4]), Plan(methods[:4], 3))
    assert "## Where KCal is not first\n\nNowhere." in page
    assert "### Why" not in page


def test_the_page_tells_which_tasks_helped_to_choose_defaults(results: Results) -> None:
    known = [replace(each, cell=replace(each.cell, task="sleepedf-mlp")) for each in results.outcomes]
    for methods, kcal_told, blend_told in ((("kcal",), True, False), (("kcal", "kcal-blend"), True, True)):
        every = [replace(each, cell=replace(each.cell, method=name)) for name in methods for each in known[:3]]
        page = results_page(Results.of([*known, *every], ("uncal", *methods)), Plan(methods, 3))
        assert ("helped to choose it" in page) == kcal_told
        assert ("parts of the blend" in page) == blend_told


def test_the_page_tells_why_and_what_helped(results: Results) -> None:
    steps = (0, 400, 400)
    cells = [replace(outcome("kcal", i, accuracy=0.89), details={"checkpoint_step_": n}) for i, n in enumerate(steps)]
    by_row = [*results.outcomes, *cells]
    by_group = [replace(each, cell=replace(each.cell, by_group=True), sizes=(1200, 90)) for each in by_row]
    found = Results.of([*by_row, *by_group], ("uncal", "ts", "imax", "kcal"))
    rows = ((Entry("default, NLL"), Entry("1.0000")), (Entry("800 steps"), Entry("−0.0500")))
    study = Study("remedies", "What was tried", "About it.", (Table("o", "An overview", ("", "ta_sk"), rows),))
    page = results_page(found, Plan(("ts", "imax", "kcal"), 3), studies=[study])
    assert "**New groups.**" in page
    assert "| ta_sk | – | 0 (1 ×), 400 (2 ×) |" in page
    assert "| ta_sk (by group) | 1,200 | 0 (1 ×), 400 (2 ×) |" in page
    assert "- everywhere: 800 steps" in page
    assert "[What was tried](#what-was-tried)" in page
    assert "helped to choose it" not in page  # a task of one's own did not
    order = ["# Results", "## Where KCal", "### Why", "## What helped", "## What was tried"]
    places = [page.index(heading) for heading in order]
    assert places == sorted(places)


def test_the_papers_ranks_are_those_that_it_prints() -> None:
    overall = {method: np.mean([ranks[place] for ranks in PAPER_RANKS.values()]) for place, method in enumerate(PAPER)}
    printed = (7.16, 6.51, 3.76, 7.09, 9.46, 4.47, 4.81, 4.20, 4.51, 2.61)
    for method, value in zip(PAPER, printed, strict=True):
        assert overall[method] == pytest.approx(value, abs=0.0051)


def test_the_corrected_test_ties_methods_whose_difference_scatters() -> None:
    shifts = {"uncal": (0.1, 0.1, 0.1, 0.1), "ts": (0.05, 0.05, 0.05, 0.05), "imax": (0.055, 0.052, 0.056, 0.053)}
    found = [
        replace(outcome(method, place, expected_calibration_error=value), sizes=(40, 60))
        for method, values in shifts.items()
        for place, value in enumerate(values)
    ]
    results = Results.of(found, ("uncal", "ts", "imax"))
    p_value = corrected_resampled_t_test(shifts["imax"], shifts["ts"], n_calibration=40, n_test=60)
    assert p_value > 0.01
    table = corrected_table(results)
    assert table.rows[0][table.heading.index("ECE")].text == "ts, imax"
    assert "ts" in results.comparison(Row("ta_sk", False), "expected_calibration_error").pooled.best
    assert "imax" not in results.comparison(Row("ta_sk", False), "expected_calibration_error").pooled.best
    assert table in all_tables(results)
    without = Results.of([replace(each, sizes=None) for each in found], results.methods)
    assert "corrected" not in {each.name for each in all_tables(without)}


def test_the_page_shows_the_studies_and_pictures_of_its_folder(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts",), reshuffles=2, jobs=1)
    results = Results.of(run([task], plan, tmp_path / "out"), plan.methods)
    write_results(results, plan, tmp_path / "out")
    panel = Panel("p", "x", "y", (Line("l", (1.0, 2.0), (1.0, 2.0)),))
    table = Table("t", "A table of it", ("a", "b"), ((Entry("1"), Entry("2")),))
    write_study(Study("sizes", "More data", "What more data bring.", (table,), (panel,)), tmp_path / "out")
    write_study(Study("variants", "Parts", "Without parts.", (table,)), tmp_path / "out")
    files = write_page(tmp_path / "page.md", results, plan, tmp_path / "out")
    text = (tmp_path / "page.md").read_text()
    links = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    names = ["sizes.png", "reliability-small.png", "reliability-small-by-group.png"]
    assert links == [f"page-pictures/{name}" for name in names]
    assert sorted(files) == sorted([tmp_path / "page.md", *(tmp_path / link for link in links)])
    assert all((tmp_path / link).read_bytes().startswith(b"\x89PNG") for link in links)
    order = ["### Accuracy", "### Best by the corrected test", "## Parts", "## More data", "## Reliability", "## Other"]
    places = [text.index(heading) for heading in order]
    assert places == sorted(places)


def test_a_page_of_a_folder_without_pictures_links_none(results: Results, tmp_path: Path) -> None:
    (path,) = write_page(tmp_path / "page.md", results, Plan(("ts", "imax"), 3), tmp_path)
    assert "![" not in path.read_text()
    assert not (tmp_path / "page-pictures").exists()
