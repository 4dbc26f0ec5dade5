"""Tables show means, spreads and the paper's marks, in every format."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from kcal.benchmark import Plan, Result, ResultKey, Results, Task, run
from kcal.benchmark.output import write_results
from kcal.benchmark.results import TABLE_METRICS, Row
from kcal.benchmark.table import Entry, Table, comma_separated, latex
from kcal.benchmark.tables import (
    METRIC_NOTE,
    all_tables,
    corrected_table,
    metric_sheet,
    metric_table,
    rank_sheet,
    rank_table,
    time_sheet,
    time_table,
    training_table,
)
from kcal.errors import FileFormatError, InvalidInputError, printable
from kcal.metrics import corrected_resampled_t_test

METHODS = ("uncal", "ts", "imax", "focal")


def result(method: str, split: int, **numbers: float) -> Result:
    every = dict.fromkeys(TABLE_METRICS, 0.5) | numbers
    return Result(ResultKey("ta_sk", False, split, method), every, 1.0 + split, 0.5)


@pytest.fixture
def results() -> Results:
    """Ten splits: ts as accurate as uncal and better calibrated; imax best of all, but far less accurate."""
    noise = (0.0, 0.0, *(0.002, -0.002) * 4)
    found = []
    for index, shift in enumerate(noise):
        found += [
            result("uncal", index, accuracy=0.9 + shift, expected_calibration_error=0.1 + shift),
            result("ts", index, accuracy=0.9 + shift, expected_calibration_error=0.05 + shift),
            result("imax", index, accuracy=0.7 + shift, expected_calibration_error=0.01 + shift),
        ]
    return Results.of(found, METHODS)


def test_a_table_marks_the_best_that_keeps_the_accuracy(results: Results) -> None:
    table = metric_table(results, "expected_calibration_error")
    assert table.heading == ("task", *METHODS)
    (row,) = table.rows
    assert row == (
        Entry("ta_sk"),
        Entry("10.00±0.19"),
        Entry("5.00±0.19", bold=True),
        Entry("1.00±0.19†", underlined=True),
        Entry("–"),
    )


def test_a_few_splits_mark_no_method_and_say_how_many_are_needed(results: Results, tmp_path: Path) -> None:
    few = [replace(each, sizes=(40, 60)) for each in results.results if each.key.split < 9]
    found = Results.of(few, METHODS)
    entries = [entry for metric in TABLE_METRICS for row in metric_table(found, metric).rows for entry in row]
    assert not any(entry.bold or entry.underlined for entry in entries)
    assert corrected_table(found).rows == ()
    needed = "10 splits are needed to tell methods apart at p = 0.01, and there are 9."
    for each, expected in ((found, 1), (results, 0)):
        write_results(each, Plan(METHODS, 9), tmp_path)
        assert (tmp_path / "tables.md").read_text().count(needed) == expected


def test_ranks_and_seconds(results: Results) -> None:
    ranks = {row[0].text: row[1:] for row in rank_table(results).rows}
    assert [entry.text for entry in ranks["ECE"]] == ["3.00", "2.00", "1.00", "–"]
    assert ranks["ECE"][2].bold
    assert ranks["accuracy"][0].text == "1.50"
    assert ranks["overall, without NLL"][3].text == "–"
    assert [entry.text for entry in time_table(results).rows[0]] == ["ta_sk", *["5.50 + 0.50"] * 3, "–"]
    assert rank_sheet(results).splitlines()[3] == "ECE,3,,2,,1,,,"
    assert time_sheet(results).splitlines()[1] == "ta_sk,5.5,0.5,,5.5,0.5,,5.5,0.5,,,,"


def test_seconds_of_training_have_a_table_of_their_own(results: Results) -> None:
    assert training_table(results).rows == ()
    trained = [replace(each, train_seconds=7.25) if each.key.method == "ts" else each for each in results.results]
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
    text = console.file.getvalue()
    assert "…" not in text
    assert all(entry.text in text for row in rows for entry in row[1:-1])
    assert all(word in text.split() for word in words.split())
    assert [f"A title ({n} of {len(parts)})" in text for n in range(1, len(parts) + 1)] == [True] * len(parts)


def test_notes_are_in_every_text(results: Results, tmp_path: Path) -> None:
    plan = Plan(("ts", "imax"), 10)
    trained = [replace(each, train_seconds=7.25) if each.key.method == "ts" else each for each in results.results]
    found = Results.of(trained, METHODS)
    write_results(found, plan, tmp_path)
    text = (tmp_path / "tables.md").read_text()
    for note in {table.note for table in all_tables(found)}:
        assert text.count(note) == 1, note
        assert latex(note) in (tmp_path / "tables.tex").read_text()
    assert METRIC_NOTE in text


def test_every_format_says_the_same(results: Results) -> None:
    table = metric_table(results, "expected_calibration_error")
    markdown = table.as_markdown()
    assert "| ta_sk | 10.00±0.19 | **5.00±0.19** | <u>1.00±0.19†</u> | – |" in markdown
    heading, row = csv.reader(io.StringIO(metric_sheet(results, "expected_calibration_error")))
    assert heading[:4] == ["task", "uncal_mean", "uncal_std", "uncal_failed"]
    assert row == ["ta_sk", "10", "0.188562", "0", "5", "0.188562", "0", "1", "0.188562", "0", "", "", ""]
    latex = table.as_latex()
    assert r"ta\_sk & 10.00$\pm$0.19 & \textbf{5.00$\pm$0.19} & \underline{1.00$\pm$0.19$\dagger$} & -- \\" in latex
    assert latex.count("{") == latex.count("}")
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(table.transposed().as_rich())
    text = console.file.getvalue()
    shown = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert shown[-len(METHODS) :] == list(METHODS)


def test_brackets_and_bars_in_names_harm_no_format() -> None:
    table = Table("t", "title", ("task", "a"), ((Entry("[bold]x|y&z%"), Entry("1")),))
    assert "x\\|y" in table.as_markdown()
    assert r"{[}bold]x\textbar{}y\&z\%" in table.as_latex()  # \\ would take what stands in brackets for a length
    console = Console(width=60, file=io.StringIO())
    console.print(table.as_rich())
    assert "[bold]x|y&z%" in console.file.getvalue()


def test_a_run_leaves_all_its_files(task: Task, tmp_path: Path) -> None:
    plan = Plan(("ts", "smooth"), n_splits=2, jobs=1)
    results = Results.of(run([task], plan, tmp_path), plan.methods)
    files = {str(path.relative_to(tmp_path)) for path in write_results(results, plan, tmp_path)}
    assert {"results.json", "tables.md", "tables.tex", "csv/ranks.csv", "csv/seconds.csv"} <= files
    assert {"reliability/small.png", "reliability/small-by-group.png"} <= files
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored["settings"]["seed"] == 0
    assert stored["versions"]["torch"]
    assert len(stored["results"]) == 2 * 2 * 2
    assert "| small (by group) |" in (tmp_path / "tables.md").read_text()
    first = metric_table(results, "accuracy").rows[0]
    assert first[3] == Entry("–")  # there is no companion for smooth
    picture = tmp_path / "reliability/small.png"
    drawn = picture.stat().st_mtime_ns
    write_results(results, plan, tmp_path)
    assert picture.stat().st_mtime_ns == drawn  # it shows the same
    write_results(Results.of(results.results, ("uncal",)), plan, tmp_path)
    assert picture.stat().st_mtime_ns > drawn
    assert np.isfinite(results.overall()["ts"])


def test_no_results_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="results must not be empty"):
        Results.of([], METHODS)


def test_the_corrected_test_ties_methods_whose_difference_scatters() -> None:
    shifts = {"uncal": (0.1,) * 10, "ts": (0.05,) * 10, "imax": (0.055, 0.049, 0.056, 0.053, 0.051) * 2}
    found = [
        replace(result(method, place, expected_calibration_error=value), sizes=(40, 60))
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


def test_results_are_read_back_from_the_folder(results: Results, tmp_path: Path) -> None:
    write_results(results, Plan(METHODS, 3), tmp_path)
    again, settings = Results.read(tmp_path / "results.json")
    assert again.methods == METHODS
    assert again.results == results.results
    assert settings == {"seed": 0, "methods": list(METHODS), "n_splits": 3}
    for content in ("{", "[]", '{"results": [1], "settings": {}}'):
        (tmp_path / "results.json").write_text(content)
        with pytest.raises(FileFormatError, match=r"results\.json does not hold the results"):
            Results.read(tmp_path / "results.json")
    with pytest.raises(FileFormatError, match="does not exist"):
        Results.read(tmp_path / "other.json")


def test_spreadsheets_take_text_for_text_and_numbers_for_numbers() -> None:
    cells = ["=1+1", "+a", "-a", "@a", "\t=1", "a=1", "-1.5", "+2", 0.25, -1e-7, 3]
    (row,) = csv.reader(io.StringIO(comma_separated(cells[:1], []).splitlines()[0]))
    assert row == ["'=1+1"]
    _, row = csv.reader(io.StringIO(comma_separated(("a",) * len(cells), [cells])))
    assert row == ["'=1+1", "'+a", "'-a", "'@a", "'\t=1", "a=1", "-1.5", "+2", "0.25", "-1e-07", "3"]


def test_names_are_shown_without_escape_sequences() -> None:
    assert printable("a\x1b[31mb\x07\u202e°") == "a\\x1b[31mb\\x07\\u202e°"
    table = Table("t", "\x1b[1mtitle", ("task", "\x1b[2Ja"), ((Entry("\x1b]0;name"), Entry("\x9b31m")),))
    console = Console(width=80, file=io.StringIO())
    console.print(table.as_rich())
    text = console.file.getvalue()
    assert "\x1b" not in text
    assert "\x9b" not in text
    assert all(shown in text for shown in ("\\x1b[1mtitle", "\\x1b[2Ja", "\\x1b]0;name", "\\x9b31m"))
