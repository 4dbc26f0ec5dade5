"""The page docs/paper.md: what of the paper reproduces, from stored results and the text ``page.md``.

Stored in docs/results: the printed tables (paper-published*.csv), the benchmark (tables.csv), single splits
(paper-splits.csv, by ``collect``), the ablations, the case study, the overhead, PhysioNet 2017. The text is a jinja2
template: its numbers come from the files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import jinja2
import numpy as np
import pandas
import typer
from matplotlib.figure import Figure

from experiments.output import small_png
from experiments.paper.published import METRICS, PAPER_METHODS, RESULTS, published
from kcal.benchmark.results import TABLE_METRICS, Row
from kcal.files import write_whole
from kcal.plots.style import COUNTS, SERIES

TEXT = Path(__file__).with_name("page.md")
NEAREST = {
    "ISRUC (pat)": ("sleepedf-mlp (by group)",), "ISRUC": ("sleepedf-mlp",), "C10 (Mixer)": ("cifar10-resnet56",),
    "C100 (Mixer)": ("cifar100-resnet32", "clinc150-minilm"),
}  # fmt: skip
"""Our tasks, each after the last printed row that it is nearest to."""
TASKS = ("sleepedf-mlp", "sleepedf-mlp (by group)", "cifar10-resnet56", "cifar100-resnet32", "clinc150-minilm")
RANKED = ("accuracy", "CECE", "ECE", "Brier", "NLL")
OURS = {**METRICS, "CECE max": "classwise_calibration_error"}
"""Names of our tables; "CECE" is at the threshold of the paper's code, "CECE max" at that of its text."""
MIN_COUNT = 15
"""Samples of a test set in a bin that is drawn, as in the paper."""


def collect(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Folders of kcal bench.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A CSV file.")],
) -> None:
    """Write the results of every split of benchmark runs into one CSV file."""
    rows = []
    for folder in folders:
        for line in (folder / "results.jsonl").read_text().splitlines()[1:]:
            result = json.loads(line)
            key = result["key"]
            place = {"task": Row(key["task"], key["by_group"]).label, "method": key["method"], "split": key["split"]}
            rows.append(place | {name: f"{value:.6g}" for name, value in result["metrics"].items()})
    frame = pandas.DataFrame(rows).drop_duplicates(["task", "method", "split"], keep="last")
    write_whole(out, frame.to_csv(index=False).encode())


def mean_of(entry: str) -> float:
    """Return the mean of "mean±deviation", nan of a dash."""
    text = entry.rstrip("†* ").split("±")[0]
    return float(text) if text and text != "–" else float("nan")


def mean_and_deviation(values: pandas.Series, metric: str) -> str:
    """Return measurements of splits as an entry of the benchmark's tables."""
    shown = TABLE_METRICS[metric]
    digits = 2 if shown.unit else 4
    return f"{shown.scale * values.mean():.{digits}f}±{shown.scale * values.std(ddof=1):.{digits}f}"


class Stored:
    """All stored results."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        tables = pandas.read_csv(folder / "tables.csv", dtype=str, keep_default_na=False)
        titles = tables["table"].str.split(r",| [↑↓]", regex=True).str[0]
        self.benchmark = dict(zip(zip(titles, tables["task"], strict=True), tables.to_dict("records"), strict=True))
        self.splits = self._read("paper-splits.csv")
        self.ablations = self._read("paper-ablations.csv")
        self.case = self._read("paper-case.csv")
        self.case["count"] /= self.case["n_splits"]  # of one test set
        self.overhead = self._read("paper-overhead.csv")
        self.pn2017 = pandas.read_csv(folder / "pn2017.csv", dtype=str, keep_default_na=False)

    def _read(self, name: str) -> pandas.DataFrame:
        path = self.folder / name
        return pandas.read_csv(path, dtype={"variant": str}) if path.exists() else pandas.DataFrame()

    def is_new(self, task: str, method: str = "kcal-paper") -> bool:
        """Return whether all ten splits of a method are stored one by one."""
        if self.splits.empty:
            return False
        return int(((self.splits["task"] == task) & (self.splits["method"] == method)).sum()) == 10

    def entry(self, table: str, task: str, method: str) -> str:
        """Return ours: of the splits where they are stored, otherwise of the benchmark's tables."""
        if self.is_new(task, method) and method.startswith("kcal-paper"):
            rows = self.splits[(self.splits["task"] == task) & (self.splits["method"] == method)]
            return mean_and_deviation(rows[OURS[table]], OURS[table])
        return str(self.benchmark[TABLE_METRICS[OURS[table]].title, task].get(method, "–")).rstrip("†")

    def value(self, table: str, task: str, method: str) -> float:
        return mean_of(self.entry(table, task, method))


def markdown(frame: pandas.DataFrame, corner: str) -> str:
    """Return a table in Markdown, the index as its first column."""
    lines = [f"| {' | '.join([corner, *map(str, frame.columns)])} |", "|---|" + "--:|" * frame.shape[1]]
    lines += [
        f"| {' | '.join([str(name), *map(str, row)])} |"
        for name, row in zip(frame.index, frame.to_numpy(), strict=True)
    ]
    return "\n".join(lines)


def bold_best(row: pandas.Series, *, highest: bool) -> pandas.Series:
    """Return the entries with the best mean in bold."""
    means = row.map(mean_of)
    best = means.max() if highest else means.min()
    return row.where(means != best, "**" + row + "**")


class Page:
    """What the text may ask for."""

    def __init__(self, stored: Stored) -> None:
        self.stored = stored

    def printed_and_ours(self, table: str) -> str:
        """Return the twelve printed rows, ours in italics after the nearest, the best mean of each row in bold."""
        printed = published(table)
        rows = {}
        for name, row in printed.iterrows():
            rows[str(name)] = row
            for task in NEAREST.get(str(name), ()):
                rows[f"*{task}*"] = pandas.Series(
                    {column: self.stored.entry(table, task, method) for column, method in PAPER_METHODS.items()}
                )
        frame = pandas.DataFrame(rows).T.apply(bold_best, axis=1, highest=table == "accuracy")
        return markdown(frame, f"{table}{', %' if table != 'NLL' else ''}")

    def ranks(self, *others: str) -> pandas.DataFrame:
        """Return average ranks of the paper's methods, and of others, over our five rows, by metric."""
        methods = [method for method in PAPER_METHODS.values() if method not in ("focal", "mmce")] + list(others)
        found = {}
        for table in ("accuracy", "CECE", "CECE max", "ECE", "Brier", "NLL"):
            means = pandas.DataFrame({m: [self.stored.value(table, task, m) for task in TASKS] for m in methods})
            found[table] = means.rank(axis=1, ascending=table != "accuracy").mean()
        return pandas.DataFrame(found).T

    def rank_table(self, *others: str) -> str:
        """Return our ranks, the best of each metric in bold, with the mean of the paper's four."""
        frame = self.ranks(*others)
        frame.loc["mean of the paper's four, CECE"] = frame.loc[["accuracy", "CECE", "ECE", "Brier"]].mean()
        frame.loc["the same, CECE max"] = frame.loc[["accuracy", "CECE max", "ECE", "Brier"]].mean()
        shown = frame.map("{:.2f}".format).apply(bold_best, axis=1, highest=False)
        return markdown(shown.rename(columns=lambda name: f"`{name}`"), "average rank")

    def firsts(self, method: str, cece: str = "CECE", *rivals: str) -> int:
        """Return in how many of the 25 cells (5 rows, 5 metrics) a method has the best mean, ties included."""
        methods = [m for m in PAPER_METHODS.values() if m not in ("focal", "mmce", "kcal-paper")] + [method, *rivals]
        count = 0
        for table in ("accuracy", cece, "ECE", "Brier", "NLL"):
            sign = -1 if table == "accuracy" else 1
            for task in TASKS:
                values = [sign * self.stored.value(table, task, name) for name in methods]
                count += sign * self.stored.value(table, task, method) <= np.nanmin(values)
        return count

    def place(self, table: str, method: str) -> str:
        """Return the place of a method by its average rank, as a word."""
        place = int(self.ranks().loc[table].rank(method="min")[method])
        return ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "last")[place - 1]

    def best_rows(self, table: str, method: str = "kcal-paper") -> str:
        """Return the rows on which a method has the best mean of the paper's methods."""
        sign, rivals = (-1 if table == "accuracy" else 1), self.ranks().columns
        found = []
        for task in TASKS:
            values = {name: sign * self.stored.value(table, task, name) for name in rivals}
            if values[method] <= min(values.values()):
                found.append(task)
        return ", ".join(found) or "none"

    def rank(self, table: str, method: str, *others: str) -> str:
        return f"{self.ranks(*others).loc[table, method]:.1f}"

    def our(self, table: str, task: str, method: str) -> str:
        return self.stored.entry(table, task, method)

    def mean(self, table: str, task: str, method: str) -> str:
        return self.stored.entry(table, task, method).split("±")[0]

    def paper(self, table: str, row: str, method: str) -> str:
        return str(published(table).loc[row, method])

    def change(self, table: str, task: str, method: str = "kcal-paper") -> str:
        """Return the difference from the uncalibrated network, with its sign."""
        change = self.stored.value(table, task, method) - self.stored.value(table, task, "uncal")
        return f"{change:+.2f}".replace("-", "−")

    def mean_rank(self, method: str) -> str:
        """Return the mean of the ranks in the paper's four metrics."""
        return f"{self.ranks().loc[['accuracy', 'CECE', 'ECE', 'Brier'], method].mean():.2f}"

    def starts(self, task: str) -> int:
        """Return on how many splits this library's recipe chooses the start of its training."""
        frame = self.complete("start", task)
        assert frame is not None
        return int((frame["step"] == 0).sum())

    def half(self, table: str, method: str) -> str:
        """Return ours on PN2017 with half-balanced classes, by segment."""
        return self._half_balanced(table, method, "pn2017-mina")

    def complete(self, study: str, task: str) -> pandas.DataFrame | None:
        """Return the measurements of the variants of a study that have all ten splits; None if they are too few."""
        frame = self.stored.ablations
        rows = frame[(frame["study"] == study) & (frame["task"] == task)]
        rows = rows[rows.groupby("variant")["split"].transform("size") == 10]
        needed = {"projection": 2, "dimension": 4, "size": 5}.get(study, 1)
        return rows if rows["variant"].nunique() >= needed else None

    def projection_verdict(self, variant: str) -> str:
        """Return how a variant of Π compares in log-loss, by task; where it was measured to its end."""
        parts = []
        for task in self.ablation_tasks("projection"):
            frame = self.complete("projection", task)
            assert frame is not None
            medians = frame.groupby("variant")["negative_log_likelihood"].median()
            if variant in medians:
                parts.append(f"{task}: log-loss {medians['skip']:.4f}, {medians[variant]:.4f} with it")
        return "; ".join(parts)

    def ablation_tasks(self, study: str) -> list[str]:
        tasks = dict.fromkeys(self.stored.ablations["task"])
        return [task for task in tasks if self.complete(study, task) is not None]

    def ablation_table(self, study: str, *extra: str) -> str:
        """Return medians and the middle half of ten splits, by task and variant."""
        rows = {}
        for task in self.ablation_tasks(study):
            frame = self.complete(study, task)
            assert frame is not None
            for variant in dict.fromkeys(frame["variant"]):
                part = frame[frame["variant"] == variant]
                cells = {name: quartiles(part[OURS[name]], OURS[name]) for name in (*RANKED, "CECE max")}
                for name in extra:
                    cells[name] = f"{part[name].median():.3g}"
                rows[f"{task}, {variant}"] = cells
        return markdown(pandas.DataFrame(rows).T, "median [quartiles] of ten splits")

    def bandwidth_law(self, task: str) -> dict[str, float]:
        """Return the fits of the chosen bandwidth to powers of the rarest class's count m."""
        frame = self.complete("size", task)
        assert frame is not None
        m, b = frame["rarest"].to_numpy(float), frame["bandwidth"].to_numpy(float)
        power = m ** (-1 / (32 + 4))
        slope, _ = np.polyfit(np.log(m), np.log(b), 1)
        whole = frame["variant"] == "1"
        constant = float(np.median(b[whole] / power[whole]))
        medians = frame.groupby("size")[["rarest", "bandwidth"]].median()
        predicted = constant * medians["rarest"] ** (-1 / 36)
        errors = predicted / medians["bandwidth"] - 1
        return {
            "slope": float(slope),
            "theory": -1 / 36,
            "r2": float(np.corrcoef(power, b)[0, 1] ** 2),
            "half": float(errors.iloc[-2]),
            "smallest": float(errors.iloc[0]),
            **{f"b_{end}": float(medians["bandwidth"].iloc[place]) for end, place in (("first", 0), ("last", -1))},
            **{f"m_{end}": float(medians["rarest"].iloc[place]) for end, place in (("first", 0), ("last", -1))},
        }

    def median(self, study: str, task: str, variant: str, column: str) -> float:
        frame = self.complete(study, task)
        assert frame is not None
        return float(frame.loc[frame["variant"] == variant, column].median())

    def range(self, study: str, task: str, column: str) -> tuple[float, float]:
        frame = self.complete(study, task)
        assert frame is not None
        return float(frame[column].min()), float(frame[column].max())

    def overhead_table(self) -> str:
        frame = self.stored.overhead.set_index("network")
        shown = pandas.DataFrame(
            {
                "parameters": frame["parameters"].map("{:,}".format),
                "ms per input": frame["milliseconds"].map("{:.3g}".format),
                "stored by KCal, n × d": frame["numbers"].map("{:,}".format),
                "share of parameters, %": (100 * frame["numbers"] / frame["parameters"]).map("{:.2f}".format),
                "ms per input, KCal": frame["kcal milliseconds"].map("{:.3g}".format),
                "share of time, %": (100 * frame["kcal milliseconds"] / frame["milliseconds"]).map("{:.3f}".format),
            }
        )
        return markdown(shown, "network")

    def gap(self, method: str, event: str = "N1") -> str:
        """Return the gap of a method in the case study, in percent."""
        case = self.stored.case
        return f"{100 * gap(case[(case['method'] == method) & (case['event'] == event)]):.1f}"

    def case_table(self) -> str:
        """Return the mean gap between prediction and frequency, over predictions above 0.1, by method and event."""
        frame = self.stored.case.dropna()
        rows: dict[str, dict[str, str]] = {}
        for (method, event), part in frame.groupby(["method", "event"], sort=False):
            rows.setdefault(f"`{method}`", {})[f"{event}, gap in %"] = f"{100 * gap(part):.1f}"
        for method in rows:
            part = frame[(frame["method"] == method.strip("`")) & (frame["event"] != "predicted class")]
            high = part[part["predicted"] > 0.5]
            observed = (high["count"] * high["observed"]).sum() / high["count"].sum()
            stated = (high["count"] * high["predicted"]).sum() / high["count"].sum()
            rows[method] |= {"rows above 0.5": f"{high['count'].sum():,.0f}", "stated, %": f"{100 * stated:.0f}"}
            rows[method]["true, %"] = f"{100 * observed:.0f}"
        return markdown(pandas.DataFrame(rows).T, "method")

    def pn2017_table(self, *, by_group: bool = False) -> str:
        """Return the paper's row beside ours: all classes equally often in training, and half-way to it."""
        suffix = " (by group)" if by_group else ""
        rows = {}
        for column, method in PAPER_METHODS.items():
            own = "kcal-paper-pn2017" if method == "kcal-paper" else method
            cells = {}
            for table in ("accuracy", "CECE", "ECE", "NLL"):
                if not by_group:
                    cells[f"{table}: paper"] = self.paper(table, "PN2017", column)
                if self.has_balanced():
                    cells[f"{table}: equal"] = self._of_splits(table, f"{BALANCED}{suffix}", own)
                cells[f"{table}: half"] = self._half_balanced(table, own, f"pn2017-mina{suffix}")
            rows[f"`{method}`"] = cells
        frame = pandas.DataFrame(rows).T
        return markdown(frame.loc[:, (frame != "–").any()], "by recording" if by_group else "by segment")

    def _of_splits(self, table: str, task: str, method: str) -> str:
        rows = self.stored.splits
        rows = rows[(rows["task"] == task) & (rows["method"] == method)]
        return mean_and_deviation(rows[OURS[table]], OURS[table]) if len(rows) == 10 else "–"

    def _half_balanced(self, table: str, method: str, task: str) -> str:
        frame = self.stored.pn2017
        title = {"CECE": "CECE min, %", "NLL": "NLL"}.get(table, f"{table}, %")
        row = frame[(frame["table"] == title) & (frame["method"] == method)]
        return str(row.iloc[0][task]) if len(row) else "–"

    def stored_mean(self, table: str, task: str, method: str) -> str:
        """Return mean ± deviation of the stored splits of a method."""
        return self._of_splits(table, task, method)

    def has_balanced(self) -> bool:
        return self.stored.is_new(BALANCED, "kcal-paper-pn2017")

    def balanced(self, table: str, method: str, *, by_group: bool = False) -> str:
        """Return the mean of ours on PN2017 with equal classes, by segment or by recording."""
        return self._of_splits(table, f"{BALANCED} (by group)" if by_group else BALANCED, method).split("±")[0]


BALANCED = "pn2017-mina-balanced"


def quartiles(values: pandas.Series, metric: str) -> str:
    """Return the median and the quartiles in the unit of the tables."""
    shown = TABLE_METRICS[metric]
    digits = 2 if shown.unit else 4
    low, middle, high = (f"{shown.scale * values.quantile(q):.{digits}f}" for q in (0.25, 0.5, 0.75))
    return f"{middle} [{low}, {high}]"


def gap(bins: pandas.DataFrame) -> float:
    """Return the mean |prediction − frequency| of the samples in bins above 0.1."""
    used = bins[(bins["predicted"] > 0.1) & (bins["count"] >= MIN_COUNT)]
    return float((used["count"] * (used["predicted"] - used["observed"]).abs()).sum() / used["count"].sum())


def case_figure(case: pandas.DataFrame) -> Figure:
    """Draw reliability of the predicted class, above, and of the rare class, below; a column for each method."""
    methods, events = (list(dict.fromkeys(case[name])) for name in ("method", "event"))
    figure = Figure(figsize=(2.6 * len(methods), 5.4), layout="constrained")
    axes = figure.subplots(len(events), len(methods), sharex=True, sharey=True, squeeze=False)
    for row, event in enumerate(events):
        for column, method in enumerate(methods):
            ax = axes[row, column]
            part = case[(case["method"] == method) & (case["event"] == event) & (case["count"] >= MIN_COUNT)]
            edges = np.floor(part["predicted"] * 10 - 1e-9).clip(0, 9) / 10
            ax.bar(edges, part["observed"], width=0.1, align="edge", color=SERIES[0], edgecolor="white")
            ax.bar(
                edges, part["predicted"] - part["observed"], width=0.1, align="edge", bottom=part["observed"],
                color=SERIES[1], alpha=0.35, edgecolor="white",
            )  # fmt: skip
            ax.plot([0, 1], [0, 1], "--", color=COUNTS, linewidth=1)
            ax.set(xlim=(0, 1), ylim=(0, 1), title=f"{method}\n{event}: gap {100 * gap(part):.1f} %")
            ax.title.set_fontsize(9)
            if row + 1 == len(events):
                ax.set_xlabel("predicted probability")
            if not column:
                ax.set_ylabel("observed frequency")
    return figure


def write_page(folder: Path, out: Path, *, figure: bool = True) -> None:
    """Write the page and, into the folder of the results, its figure."""
    stored = Stored(folder)
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    text = environment.from_string(TEXT.read_text(encoding="utf-8")).render(p=Page(stored))
    write_whole(out, text.rstrip().encode() + b"\n")
    if figure:
        write_whole(folder / "paper-case.png", small_png(case_figure(stored.case)))


def page(
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Stored results.")] = RESULTS,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The page.")] = RESULTS.parent / "paper.md",
) -> None:
    """Write the page docs/paper.md from the stored results."""
    write_page(results, out)
