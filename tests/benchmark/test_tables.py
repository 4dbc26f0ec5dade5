"""Tables show means, spreads, the paper's marks and failures, in every format."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from benchmark.conftest import make_task
from kcal.benchmark import Plan, Result, ResultKey, Results, run
from kcal.benchmark.results import TABLE_METRICS, Row
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import (
    all_tables,
    corrected_table,
    failure_table,
    metric_table,
    rank_table,
    summary,
    time_table,
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
    return Result(key, (40, 60), error=error) if error else Result(key, (40, 60), every, 1.0 + split, 0.5)


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


def test_every_format_has_the_marks_of_the_paper(results):
    table = metric_table(results, ECE)
    assert table.heading == ("task", *METHODS)
    assert table.rows[0] == (
        Entry("ta_sk"),
        Entry("10.00±0.19"),
        Entry("5.00±0.19", bold=True),  # the best that keeps the accuracy
        Entry("1.00±0.19†", underlined=True),
        Entry("–"),
    )
    assert "| ta_sk | 10.00±0.19 | **5.00±0.19** | <u>1.00±0.19†</u> | – |" in table.as_markdown()
    heading, row = csv.reader(io.StringIO(table.as_csv()))
    assert (heading, row) == (["task", *METHODS], ["ta_sk", "10.00±0.19", "5.00±0.19", "1.00±0.19†", "–"])
    text = table.as_latex()
    assert r"ta\_sk & 10.00$\pm$0.19 & \textbf{5.00$\pm$0.19} & \underline{1.00$\pm$0.19$\dagger$} & -- \\" in text
    assert text.count("{") == text.count("}")
    lines = [line.split() for line in table.transposed().as_text(80).splitlines() if line]
    assert lines[-4:] == [["uncal", "10.00±0.19"], ["ts", "*5.00±0.19"], ["imax", "_1.00±0.19†"], ["focal", "–"]]


def test_summary_has_the_numbers_of_every_method():
    frame = summary(make_results(("ts", 1))).set_index("method")
    assert frame["task"].unique().tolist() == ["ta_sk"]
    assert frame.loc["uncal", f"{ECE}_mean"] == pytest.approx(0.1)
    assert frame.loc["uncal", f"{ECE}_std"] == pytest.approx(0.00188562, rel=1e-5)
    assert frame["failed"].to_dict() == {"uncal": 0, "ts": 1, "imax": 0}
    assert frame["fit_seconds"].to_dict() == {"uncal": 5.5, "ts": 6.0, "imax": 5.5}


def test_few_splits_mark_no_method(results, tmp_path):
    found = Results.of([each for each in results.results if each.key.split < 9], METHODS)
    tables = [*(metric_table(found, metric) for metric in TABLE_METRICS), rank_table(found)]
    assert not any(entry.bold or entry.underlined for table in tables for row in table.rows for entry in row)
    assert corrected_table(found).rows == ()
    for each, expected in ((found, 1), (results, 0)):
        write_results(each, Plan(METHODS, 9), tmp_path)
        assert (tmp_path / "tables.md").read_text().count("10 splits are needed") == expected


def test_ranks_and_seconds(results):
    ranks = {row[0].text: row[1:] for row in rank_table(results).rows}
    assert texts(ranks["paper ECE"]) == ["3.00", "2.00", "1.00", "–"]
    assert ranks["paper ECE"][2].bold
    assert ranks["accuracy"][0].text == "1.50"
    trained = [replace(each, train_seconds=7.25) if each.key.method == "ts" else each for each in results.results]
    table = time_table(Results.of(trained, METHODS))
    assert texts(table.rows[0]) == ["ta_sk", "5.50 + 0.50", "7.2 + 5.50 + 0.50", "5.50 + 0.50", "–"]


def test_corrected_test_ties_methods_whose_difference_scatters():
    shifts = {"uncal": (0.1,) * 10, "ts": (0.05,) * 10, "imax": (0.055, 0.049, 0.056, 0.053, 0.051) * 2}
    found = [
        result(method, place, **{ECE: value}) for method, values in shifts.items() for place, value in enumerate(values)
    ]
    results = Results.of(found, ("uncal", "ts", "imax"))
    assert corrected_resampled_t_test(shifts["imax"], shifts["ts"], n_calibration=40, n_test=60) > 0.01
    table = corrected_table(results)
    assert table.rows[0][table.heading.index("paper ECE")].text == "ts, imax"
    assert results.comparison(ROW, ECE).pooled.best == ("ts",)


def test_failures_are_shown_and_not_compared():
    always = make_results(*(("ts", index) for index in range(10)))
    assert texts(metric_table(always, ECE).rows[0])[2:] == ["failed", "1.00±0.19†", "–"]
    assert texts(rank_table(always).rows[0])[2:] == ["–", "2.00", "–"]
    assert texts(time_table(always).rows[0])[2] == "failed"
    once = make_results(("ts", 1))
    row = metric_table(once, ECE).rows[0]
    assert row[1].bold
    assert row[2] == Entry("5.00±0.20 ✗1")
    assert set(once.ranks(ECE).ranks) == {"uncal", "imax"}
    assert "| ta_sk | ts | 1 | ValueError: a\\|b c |" in failure_table(once).as_markdown()
    assert not any(entry.bold for entry in metric_table(make_results(("uncal", 0)), ECE).rows[0])
    nobody = make_results(*((method, index) for method in METHODS for index in range(10)))
    assert all(table.rows for table in all_tables(nobody))


def test_markup_in_names_harms_no_format():
    table = Table("t", "\x1b[1mtitle", ("task", "=1+1"), ((Entry("[bold]x|y&z%\x9b"), Entry("-1.5")),))
    assert "x\\|y" in table.as_markdown()
    assert r"{[}bold]x\textbar{}y\&z\%" in table.as_latex()  # \\ would take what stands in brackets for a length
    assert table.as_csv().splitlines() == ["task,'=1+1", "[bold]x|y&z%\x9b,-1.5"]
    assert not {"\x1b", "\x9b"} & set(table.as_text(60))


def test_run_leaves_all_its_files(tmp_path):
    plan = Plan(("ts", "smooth"), n_splits=2, jobs=1)
    tasks = [make_task(), make_task("few", n_groups=2)]
    with pytest.warns(UserWarning, match="few: .* split by row only"):
        results = Results.of(run(tasks, plan, tmp_path), plan.methods)
    files = {str(path.relative_to(tmp_path)) for path in write_results(results, plan, tmp_path)}
    assert {"results.json", "tables.md", "tables.tex", "csv/ranks.csv", "csv/summary.csv"} <= files
    assert {"reliability/small.png", "reliability/small-by-group.png", "reliability/few.png"} <= files
    assert [row.label for row in results.rows] == ["small", "small (by group)", "few"]
    assert metric_table(results, "accuracy").rows[0][3] == Entry("–")  # there is no companion for smooth
    again = Results.read(tmp_path / "results.json")
    assert (again.methods, again.overall()) == (results.methods, results.overall())


def test_results_that_cannot_be_read_are_named(results, tmp_path):
    write_results(results, Plan(METHODS, 3), tmp_path)
    path = tmp_path / "results.json"
    again = Results.read(path)
    assert (again.methods, again.results) == (METHODS, results.results)
    for content in ("{", "[]", '{"results": [1], "settings": {}}'):
        path.write_text(content)
        with pytest.raises(FileFormatError, match=r"results\.json"):
            Results.read(path)
    with pytest.raises(InvalidInputError, match="results"):
        Results.of([], METHODS)
