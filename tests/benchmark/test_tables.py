"""Tables show means, spreads, the paper's marks and failures, in every format."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmark.conftest import make_task
from kcal.benchmark import Plan, Result, ResultKey, Results, run
from kcal.benchmark.results import TABLE_METRICS, Row
from kcal.benchmark.table import Entry, Table, latex
from kcal.benchmark.tables import (
    all_tables,
    corrected_table,
    failure_table,
    group_note,
    metric_table,
    rank_table,
    summary,
    time_table,
    training_table,
    write_results,
)
from kcal.errors import FileFormatError, InvalidInputError
from kcal.metrics import corrected_resampled_t_test

ECE = "expected_calibration_error"
METHODS = ("uncal", "ts", "imax", "focal")
ROW = Row("ta_sk", False)


def result(method: str, split: int, error: str | None = None, **numbers: float) -> Result:
    key = ResultKey(*ROW, split, method)
    every = dict.fromkeys(TABLE_METRICS, 0.5) | numbers
    return Result(key, error=error) if error else Result(key, every, 1.0 + split, 0.5)


def make_results(*failing: tuple[str, int]) -> Results:
    """Ten splits: ts as accurate as uncal and better calibrated; imax best of all, but far less accurate."""
    levels = {"uncal": (0.9, 0.1), "ts": (0.9, 0.05), "imax": (0.7, 0.01)}
    noise = (0.0, 0.0, *(0.002, -0.002) * 4)
    found = []
    for index, shift in enumerate(noise):
        for method, (accuracy, error) in levels.items():
            values = {"accuracy": accuracy + shift, ECE: error + shift}
            failure = "ValueError: a|b\nc" if (method, index) in failing else None
            found.append(result(method, index, failure, **values))
    return Results.of(found, METHODS)


@pytest.fixture
def results() -> Results:
    return make_results()


def texts(row: tuple[Entry, ...]) -> list[str]:
    return [entry.text for entry in row]


def test_table_marks_the_best_method_that_keeps_the_accuracy(results):
    table = metric_table(results, ECE)
    assert table.heading == ("task", *METHODS)
    assert table.rows == (
        (
            Entry("ta_sk"),
            Entry("10.00±0.19"),
            Entry("5.00±0.19", bold=True),
            Entry("1.00±0.19†", underlined=True),
            Entry("–"),
        ),
    )


def test_summary_has_the_numbers_of_every_method():
    frame = summary(make_results(("ts", 1))).set_index("method")
    assert frame["task"].unique().tolist() == ["ta_sk"]
    assert frame.loc["uncal", f"{ECE}_mean"] == pytest.approx(0.1)
    assert frame.loc["uncal", f"{ECE}_std"] == pytest.approx(0.00188562, rel=1e-5)
    assert frame["failed"].to_dict() == {"uncal": 0, "ts": 1, "imax": 0}
    assert frame["fit_seconds"].to_dict() == {"uncal": 5.5, "ts": 6.0, "imax": 5.5}


def test_few_splits_mark_no_method(results, tmp_path):
    few = [replace(each, sizes=(40, 60)) for each in results.results if each.key.split < 9]
    found = Results.of(few, METHODS)
    entries = [entry for metric in TABLE_METRICS for row in metric_table(found, metric).rows for entry in row]
    assert not any(entry.bold or entry.underlined for entry in entries)
    assert corrected_table(found).rows == ()
    for each, expected in ((found, 1), (results, 0)):
        write_results(each, Plan(METHODS, 9), tmp_path)
        assert (tmp_path / "tables.md").read_text().count("10 splits are needed") == expected


def test_ranks_and_seconds(results):
    ranks = {row[0].text: row[1:] for row in rank_table(results).rows}
    assert texts(ranks["ECE"]) == ["3.00", "2.00", "1.00", "–"]
    assert ranks["ECE"][2].bold
    assert ranks["accuracy"][0].text == "1.50"
    assert texts(time_table(results).rows[0]) == ["ta_sk", *["5.50 + 0.50"] * 3, "–"]
    assert training_table(results).rows == ()
    trained = [replace(each, train_seconds=7.25) if each.key.method == "ts" else each for each in results.results]
    table = training_table(Results.of(trained, METHODS))
    assert (table.heading, table.rows) == (("task", "ts"), ((Entry("ta_sk"), Entry("7.2")),))


def test_corrected_test_ties_methods_whose_difference_scatters():
    shifts = {"uncal": (0.1,) * 10, "ts": (0.05,) * 10, "imax": (0.055, 0.049, 0.056, 0.053, 0.051) * 2}
    found = [
        replace(result(method, place, **{ECE: value}), sizes=(40, 60))
        for method, values in shifts.items()
        for place, value in enumerate(values)
    ]
    results = Results.of(found, ("uncal", "ts", "imax"))
    assert corrected_resampled_t_test(shifts["imax"], shifts["ts"], n_calibration=40, n_test=60) > 0.01
    table = corrected_table(results)
    assert table.rows[0][table.heading.index("ECE")].text == "ts, imax"
    assert results.comparison(ROW, ECE).pooled.best == ("ts",)
    without = Results.of([replace(each, sizes=None) for each in found], results.methods)
    assert "corrected" not in {each.name for each in all_tables(without)}


def test_failures_are_shown_and_not_compared():
    always = make_results(*(("ts", index) for index in range(10)))
    assert texts(metric_table(always, ECE).rows[0])[2:] == ["failed", "1.00±0.19†", "–"]
    assert texts(rank_table(always).rows[0])[2:] == ["failed", "2.00", "–"]
    assert texts(time_table(always).rows[0])[2] == "failed"
    once = make_results(("ts", 1))
    row = metric_table(once, ECE).rows[0]
    assert row[1].bold
    assert row[2] == Entry("5.00±0.20 ✗1")
    assert set(once.ranks(ECE).ranks) == {"uncal", "imax"}
    assert once.values(ROW, ECE, "ts") is None
    assert "| ta_sk | ts | 1 | ValueError: a\\|b c |" in failure_table(once).as_markdown()
    assert not any(entry.bold for entry in metric_table(make_results(("uncal", 0)), ECE).rows[0])
    nobody = make_results(*((method, index) for method in METHODS for index in range(10)))
    assert all(table.rows for table in all_tables(nobody))


def test_every_format_has_the_same_content(results):
    table = metric_table(results, ECE)
    assert "| ta_sk | 10.00±0.19 | **5.00±0.19** | <u>1.00±0.19†</u> | – |" in table.as_markdown()
    heading, row = csv.reader(io.StringIO(table.as_csv()))
    assert (heading, row) == (["task", *METHODS], ["ta_sk", "10.00±0.19", "5.00±0.19", "1.00±0.19†", "–"])
    text = table.as_latex()
    assert r"ta\_sk & 10.00$\pm$0.19 & \textbf{5.00$\pm$0.19} & \underline{1.00$\pm$0.19$\dagger$} & -- \\" in text
    assert text.count("{") == text.count("}")
    assert latex(table.note) in text
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(table.transposed().as_rich())
    shown = [line.split()[0] for line in console.file.getvalue().splitlines() if line.strip()]
    assert shown[-len(METHODS) :] == list(METHODS)


@pytest.mark.parametrize("width", [80, 120])
def test_wide_tables_are_split_rather_than_cut(width):
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
    assert f"A title ({len(parts)} of {len(parts)})" in text


def test_markup_in_names_harms_no_format():
    table = Table("t", "\x1b[1mtitle", ("task", "=1+1"), ((Entry("[bold]x|y&z%\x9b"), Entry("-1.5")),))
    assert "x\\|y" in table.as_markdown()
    assert r"{[}bold]x\textbar{}y\&z\%" in table.as_latex()  # \\ would take what stands in brackets for a length
    assert table.as_csv().splitlines() == ["task,'=1+1", "[bold]x|y&z%\x9b,-1.5"]
    console = Console(width=60, file=io.StringIO())
    console.print(table.as_rich())
    text = console.file.getvalue()
    assert "[bold]x|y&z%" in text
    assert not {"\x1b", "\x9b"} & set(text)


def test_run_leaves_all_its_files(tmp_path):
    plan = Plan(("ts", "smooth"), n_splits=2, jobs=1)
    tasks = [make_task(), make_task("few", n_groups=2)]
    results = Results.of(run(tasks, plan, tmp_path), plan.methods)
    files = {str(path.relative_to(tmp_path)) for path in write_results(results, plan, tmp_path)}
    assert {"results.json", "tables.md", "tables.tex", "csv/ranks.csv", "csv/summary.csv"} <= files
    assert {"reliability/small.png", "reliability/small-by-group.png", "reliability/few.png"} <= files
    assert [row.label for row in results.rows] == ["small", "small (by group)", "few"]
    assert "few (2 groups)" in group_note(results)
    assert group_note(results) in (tmp_path / "tables.md").read_text()
    assert metric_table(results, "accuracy").rows[0][3] == Entry("–")  # there is no companion for smooth
    assert np.isfinite(results.overall()["ts"])
    picture = tmp_path / "reliability/small.png"
    drawn = picture.stat().st_mtime_ns
    write_results(results, plan, tmp_path)
    assert picture.stat().st_mtime_ns == drawn  # it shows the same
    write_results(Results.of(results.results, ("uncal",)), plan, tmp_path)
    assert picture.stat().st_mtime_ns > drawn


def test_results_are_read_back_from_the_folder(results, tmp_path):
    write_results(results, Plan(METHODS, 3), tmp_path)
    path = tmp_path / "results.json"
    again, settings = Results.read(path)
    assert (again.methods, again.results) == (METHODS, results.results)
    assert settings == {"seed": 0, "methods": list(METHODS), "n_splits": 3}
    assert json.loads(path.read_text())["versions"] == {}
    for content in ("{", "[]", '{"results": [1], "settings": {}}'):
        path.write_text(content)
        with pytest.raises(FileFormatError, match=r"results\.json"):
            Results.read(path)
    with pytest.raises(FileFormatError, match="does not exist"):
        Results.read(Path("other.json"))
    with pytest.raises(InvalidInputError, match="results"):
        Results.of([], METHODS)
