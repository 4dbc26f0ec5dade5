"""Alarms: how often calibrated streams raise one, how long a drift stays unnoticed, and a stream of other patients.

``python -m experiments.alarms --tasks FOLDER --out docs/results`` writes alarms.md and alarms.png.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from scipy.special import softmax

from experiments.__main__ import Commands, print_table
from experiments.output import small_png, tables_csv
from experiments.study import TaskSetting
from kcal.benchmark import Task, read_tasks
from kcal.benchmark.methods import pool_outputs
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tables import NO_VALUE
from kcal.calibrators import fit_on, predict_on
from kcal.files import write_whole
from kcal.monitoring import CalibrationMonitor, DriftMonitor, estimate_performance, river_alarms
from kcal.plots import wealth_curves
from kcal.plots.style import GAP, OBSERVED, OBSERVED_EDGE
from kcal.progress import Report, show_progress
from kcal.threads import one_thread

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
N_CLASSES, SHARPNESS = 5, 2.5
ALPHAS = (0.01, 0.05, 0.2)
CALM, AFTER = 2_000, 8_000
"""Calibrated rows before a drift, and rows after it."""
CHUNK = 500
"""Rows of a chunk whose accuracy is shown."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of streams and rows of a simulation."""

    calibrated: int = 1_000
    rows: int = 20_000
    drifted: int = 50


QUICK = Sizes(calibrated=4, rows=1_000, drifted=2)


def draw_probs(n: int, generator: np.random.Generator) -> Floats:
    """Return predictions, (n, 5), of which the most probable class has about 0.75 on average."""
    return np.asarray(softmax(SHARPNESS * generator.normal(size=(n, N_CLASSES)), axis=1))


def draw_labels(probs: Floats, generator: np.random.Generator) -> Labels:
    """Return labels that the probabilities are calibrated for."""
    return np.asarray((probs.cumsum(axis=1) > generator.random((len(probs), 1))).argmax(axis=1))


def sharpened(probs: Floats, exponent: float) -> Floats:
    return np.asarray(softmax(exponent * np.log(probs), axis=1))


def shifted(probs: Floats, factor: float) -> Floats:
    """Return the true probabilities where the last class has become more frequent: Bayes' rule."""
    weighted = probs * np.append(np.ones(N_CLASSES - 1), factor)
    return np.asarray(weighted / weighted.sum(axis=1, keepdims=True))


def confused(probs: Floats, share: float) -> Floats:
    """Return the true probabilities where a share of the last class is now labelled as the first."""
    moved = probs.copy()
    moved[:, 0] += share * moved[:, -1]
    moved[:, -1] *= 1 - share
    return moved


def in_one_group(probs: Floats) -> Floats:
    """Return the true probabilities where every fifth row is of a group with strongly overconfident predictions."""
    changed = probs.copy()
    changed[::5] = sharpened(probs[::5], 0.4)
    return changed


DRIFTS: Mapping[str, Callable[[Floats], Floats]] = {
    "strongly overconfident (exponent 0.5)": lambda probs: sharpened(probs, 0.5),
    "overconfident (exponent 0.75)": lambda probs: sharpened(probs, 0.75),
    "slightly overconfident (exponent 0.9)": lambda probs: sharpened(probs, 0.9),
    "underconfident (exponent 1.5)": lambda probs: sharpened(probs, 1.5),
    "a class twice as frequent": lambda probs: shifted(probs, 2.0),
    "a fifth of a class labelled as another": lambda probs: confused(probs, 0.2),
    "one group of five strongly overconfident": in_one_group,
}
"""True probabilities after the drift, from those that are predicted."""


def false_alarms(sizes: Sizes, seed: int, step: Callable[[str], None]) -> Table:
    """Return the share of calibrated streams whose wealth ever reaches 1/α."""
    highest = []
    for stream in range(sizes.calibrated):
        generator = np.random.default_rng([seed, 0, stream])
        probs = draw_probs(sizes.rows, generator)
        groups = generator.integers(3, size=sizes.rows)
        monitor = CalibrationMonitor(range(N_CLASSES), alpha=0.5)
        report = monitor.update(probs, draw_labels(probs, generator), groups)
        highest.append(float(report.path.max()))
        step(f"calibrated stream {stream + 1}")
    shares = [float(np.mean(np.array(highest) >= -np.log(alpha))) for alpha in ALPHAS]
    rows = tuple((Entry(f"{a:g}"), Entry(f"{100 * share:.1f} %")) for a, share in zip(ALPHAS, shares, strict=True))
    note = f"{sizes.calibrated:,} streams of {sizes.rows:,} rows, {N_CLASSES} classes and 3 groups."
    return Table("false-alarms", "Calibrated streams that raise an alarm", ("α", "share"), rows, note)


def detection_delays(sizes: Sizes, seed: int, step: Callable[[str], None]) -> Table:
    """Return the median delay of the alarm after each kind of drift."""
    rows = []
    detectors = river_detectors()
    for number, (name, change) in enumerate(DRIFTS.items()):
        delays: dict[str, list[float]] = {}
        for stream in range(sizes.drifted):
            generator = np.random.default_rng([seed, 1 + number, stream])
            probs = draw_probs(CALM + AFTER, generator)
            true = np.concatenate([probs[:CALM], change(probs[CALM:])])
            labels, groups = draw_labels(true, generator), (np.arange(len(probs)) - CALM) % 5
            for tolerance in (0.0, 0.02):
                monitor = CalibrationMonitor(range(N_CLASSES), tolerance=tolerance)
                report = monitor.update(probs, labels, groups)
                delays.setdefault(f"tolerance {tolerance:g}", []).append(_delay(report.alarm_at))
            for title, make in detectors.items():
                found = river_alarms(make(), probs, labels)
                delays.setdefault(title, []).append(_delay(int(found[0]) + 1 if len(found) else None))
            step(f"{name}, stream {stream + 1}")
        rows.append((Entry(name), *(_delay_entry(np.array(values)) for values in delays.values())))
    heading = ("drift", "tolerance 0", "tolerance 0.02", *detectors)
    note = (
        f"Median rows from the drift to the alarm, α = 0.05, {sizes.drifted} streams: {CALM:,} calibrated rows, then "
        f"{AFTER:,} drifted ones; beside it, if any, the streams without an alarm and those with one before the drift."
    )
    return Table("delays", "Delay of the alarm", heading, tuple(rows), note)


def _delay(alarm_at: int | None) -> float:
    """Return rows after the drift; infinity without an alarm, a negative number before the drift."""
    return float("inf") if alarm_at is None else float(alarm_at - CALM)


def _delay_entry(delays: Floats) -> Entry:
    false, missed = int((delays <= 0).sum()), int(np.isinf(delays).sum())
    found = delays[delays > 0]
    median = float(np.median(found)) if len(found) else float("inf")
    notes = [f"{missed} missed"] * (missed > 0) + [f"{false} false"] * (false > 0)
    text = NO_VALUE if np.isinf(median) else f"{median:,.0f}"
    return Entry(f"{text} ({', '.join(notes)})" if notes else text)


def river_detectors() -> dict[str, Callable[[], Any]]:
    """Return detectors of river by name; none if it is not installed."""
    try:
        from river import drift
    except ImportError:
        return {}
    return {"river's ADWIN": drift.ADWIN, "river's Page-Hinkley": drift.PageHinkley}


@dataclass(frozen=True, eq=False)
class PatientStream:
    """Predictions for a stream that is first of the patients of the calibration set, then of others."""

    probs: Floats
    labels: Labels
    patients: NDArray[Any]
    log_evidence: Floats
    reference: Floats
    change: int


def patient_stream(task: Task, seed: int, *, n_known: int = 3, n_calibration: int = 3_000) -> PatientStream:
    """Fit the blend on rows of some patients; predict other rows of theirs, then rows of the others, each shuffled."""
    assert task.pool.groups is not None
    generator = np.random.default_rng(seed)
    names = np.unique(task.pool.groups)
    known = np.flatnonzero(np.isin(task.pool.groups, names[:n_known]))
    others = np.flatnonzero(~np.isin(task.pool.groups, names[:n_known]))
    known, others = generator.permutation(known), generator.permutation(others)
    calibration, stream = known[:n_calibration], np.concatenate([known[n_calibration:], others])
    calibrator = TaskSetting(task, seed).calibrator("kcal-blend")
    fit_on(calibrator, pool_outputs("", task, calibration, labelled=True))
    probs = predict_on(calibrator, pool_outputs("", task, stream)).astype(np.float64)
    evidence = calibrator.log_evidence(task.pool.embeddings[stream]).astype(np.float64)
    patients, labels = task.pool.groups[stream], task.pool.labels[stream]
    reference = calibrator.calibration_log_evidence_
    return PatientStream(probs, labels, patients, evidence, reference, len(known) - n_calibration)


def watch(stream: PatientStream, step: Callable[[str], None]) -> tuple[Figure, Table, Table]:
    """Return the figure of the stream, what the monitors found, and what each patient's predictions were."""
    classes = range(stream.probs.shape[1])
    reports = {}
    for tolerance in (0.0, 0.01, 0.02):
        monitor = CalibrationMonitor(classes, tolerance=tolerance)
        reports[f"labels, tolerance {tolerance:g}"] = monitor.update(stream.probs, stream.labels, stream.patients)
        step(f"tolerance {tolerance:g}")
    drift = DriftMonitor(stream.reference).update(stream.log_evidence)
    step("evidence")
    paths = {name: report.path for name, report in reports.items()} | {"no labels, evidence": drift.path}
    alarms = {name: report.alarm_at for name, report in reports.items()} | {"no labels, evidence": drift.alarm_at}
    rows = tuple((Entry(name), Entry(NO_VALUE if at is None else f"{at:,}")) for name, at in alarms.items())
    found = Table("stream", "First alarm", ("monitor", "sample"), rows, f"The patients change after {stream.change:,}.")
    parts = reports["labels, tolerance 0.01"].groups
    named = tuple(
        (
            Entry(f"patient {part.name}"),
            Entry(f"{part.n_samples:,}"),
            Entry(f"{100 * part.predicted:.1f}"),
            Entry(f"{100 * part.observed:.1f}"),
            Entry(NO_VALUE if part.alarm_at is None else f"{part.alarm_at:,}"),
        )
        for part in parts
    )
    heading = ("", "samples", "confidence, %", "accuracy, %", "named after")
    return _figure(stream, paths), found, Table("patients", "Patients, tolerance 0.01", heading, named)


def _figure(stream: PatientStream, paths: Mapping[str, Floats]) -> Figure:
    figure = Figure(figsize=(8.4, 7.2), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    wealth_curves(paths, changes=[stream.change], ax=upper, title="Wealth of the monitors")
    upper.set_xlabel("")
    starts = range(0, len(stream.labels) - CHUNK + 1, CHUNK)
    middles, truth, expected = [], [], []
    for start in starts:
        rows = slice(start, start + CHUNK)
        middles.append(start + CHUNK / 2)
        truth.append(float((stream.probs[rows].argmax(axis=1) == stream.labels[rows]).mean()))
        expected.append(estimate_performance(stream.probs[rows]).accuracy)
    lower.fill_between(middles, [e.low for e in expected], [e.high for e in expected], color=OBSERVED, alpha=0.35,
                       label=f"expected without labels, 95 % interval for {CHUNK} samples")  # fmt: skip
    lower.plot(middles, [e.value for e in expected], color=OBSERVED_EDGE)
    lower.plot(middles, truth, "o-", color=GAP, markersize=4, label="accuracy, with labels")
    lower.axvline(stream.change, color="#4D4D4D", linestyle=":", linewidth=1.5)
    lower.set(xlabel="samples", ylabel="accuracy", title="Accuracy, expected and true")
    lower.grid(alpha=0.25)
    lower.legend(loc="lower left", frameon=True, framealpha=0.9)
    return figure


def write(folder: Path, tables: list[Table], figure: Figure | None) -> list[Path]:
    """Write alarms.csv and alarms.png; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [write_whole(folder / "alarms.csv", tables_csv(tables))]
    if figure is not None:
        files.append(write_whole(folder / "alarms.png", small_png(figure)))
    return files


def run(tasks: list[Task], sizes: Sizes, seed: int, progress: Report) -> tuple[list[Table], Figure | None]:
    """Return all tables, and the figure of the first task with groups."""
    total = sizes.calibrated + sizes.drifted * len(DRIFTS) + 4
    done = 0

    def step(note: str) -> None:
        nonlocal done
        done += 1
        progress(f"alarms: {note}", done, total)

    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = [false_alarms(sizes, seed, step), detection_delays(sizes, seed, step)]
        figure = None
        grouped = next((task for task in tasks if task.can_split_groups), None)
        if grouped is not None:
            figure, *found = watch(patient_stream(grouped, seed), step)
            tables += found
    return tables, figure


app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_show_locals=False)


@app.callback(invoke_without_command=True)
def main(
    tasks: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of tasks, NAME.npz.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Write alarms.csv there.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few streams.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")] = False,
) -> None:
    """Simulate calibrated and drifted streams, and watch a stream whose patients change."""
    with show_progress(quiet) as progress:
        known = [] if tasks is None else list(read_tasks(tasks))
        tables, figure = run(known, QUICK if quick else Sizes(), seed, progress)
    if not quiet:
        for table in tables:
            print_table(Console(highlight=False), table)
    for path in [] if out is None else write(out, tables, figure):
        typer.echo(str(path))


if __name__ == "__main__":
    app(prog_name="python -m experiments.alarms")
