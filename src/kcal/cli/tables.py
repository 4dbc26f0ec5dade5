"""What the commands print: metrics side by side, and what was fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kcal.calibrators import Calibrator, KCal, KCalBlend
from kcal.cli.arrays_out import Predictions
from kcal.cli.samples import Samples
from kcal.cli.tables_in import listed
from kcal.metrics import METRICS, Evaluation, negative_log_likelihood
from kcal.validation import encode_labels

TITLES = {
    "accuracy": "accuracy, %",
    "classwise_calibration_error": "class-wise calibration error (CECE), %",
    "expected_calibration_error": "calibration error (ECE), %",
    "static_classwise_calibration_error": "CECE, equal-width bins, %",
    "static_expected_calibration_error": "ECE, equal-width bins, %",
    "top_label_brier_loss": "Brier loss, top class, %",
    "multiclass_brier_loss": "Brier loss, all classes, %",
    "negative_log_likelihood": "log-loss (NLL)",
}
"""In the order of a table's rows; losses in percent are the paper's numbers times 10⁻²."""

METHODS = {
    "uncal": "uncalibrated",
    "ts": "temperature scaling",
    "ets": "ensemble temperature",
    "vector": "vector scaling",
    "matrix": "matrix scaling",
    "sms": "structured matrix",
    "platt": "Platt scaling",
    "beta": "beta calibration",
    "isotonic": "isotonic regression",
    "histogram": "histogram binning",
    "scaling-binning": "scaling-binning",
    "dircal": "Dirichlet",
    "imax": "I-Max",
    "spline": "spline",
    "gp": "Gaussian process",
    "iop": "order-preserving",
    "kcal": "KCal",
    "kcal-linear": "KCal, linear",
    "kcal-logits": "KCal, logits",
    "kcal-blend": "KCal, blended",
}
"""What people read instead of the names that they type."""

SHORT_TITLES = {
    "accuracy": "acc., %",
    "classwise_calibration_error": "CECE, %",
    "expected_calibration_error": "ECE, %",
    "top_label_brier_loss": "Brier, %",
    "negative_log_likelihood": "NLL",
}
MANY_METHODS = 4
"""Beyond, methods stand below each other, without intervals."""


def console() -> Console:
    """Return standard output as it is now; numbers are not coloured by themselves."""
    return Console(highlight=False)


def metrics_table(
    evaluations: Mapping[str, Evaluation], metrics: Sequence[str] = tuple(TITLES), *, stacked: bool = False
) -> Table:
    """Return metrics as rows and methods as columns, the best of each row in bold; intervals beside or below them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    for name in evaluations:
        title = METHODS.get(name, name)
        table.add_column(escape(title), justify="right", min_width=max(len(word) for word in title.split()))
    for metric in metrics:
        higher = METRICS[metric].direction == "higher"
        cells = _best_in_bold([_number(found.as_dict()[metric], metric) for found in evaluations.values()], higher)
        between = "\n" if stacked else " "
        intervals = [_interval(found, metric) for found in evaluations.values()]
        cells = [
            f"{cell}{between}[dim]{escape(ends)}[/]" if ends else cell
            for cell, ends in zip(cells, intervals, strict=True)
        ]
        table.add_row(f"{TITLES[metric]} {'↑' if higher else '↓'}", *cells)
    return table


def methods_table(evaluations: Mapping[str, Evaluation]) -> Table:
    """Return methods as rows and the paper's main metrics as columns, the best of each column in bold."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method")
    columns = []
    for metric, title in SHORT_TITLES.items():
        higher = METRICS[metric].direction == "higher"
        table.add_column(f"{title} {'↑' if higher else '↓'}", justify="right", no_wrap=True)
        columns.append(
            _best_in_bold([_number(found.as_dict()[metric], metric) for found in evaluations.values()], higher)
        )
    for name, cells in zip(evaluations, zip(*columns, strict=True), strict=True):
        table.add_row(escape(METHODS.get(name, name)), *cells)
    return table


def _best_in_bold(texts: list[str], higher: bool) -> list[str]:
    """Mark the best of several numbers, all of them where they look alike; nothing where there is one only."""
    shown = [float(text) for text in texts]
    finite = [value for value in shown if math.isfinite(value)]
    best = (max if higher else min)(finite) if finite and len(texts) > 1 else math.nan
    return [f"[bold]{text}[/]" if value == best else text for text, value in zip(texts, shown, strict=True)]


def show_evaluations(evaluations: Mapping[str, Evaluation]) -> None:
    """Print all metrics, and what they were computed with."""
    any_one = next(iter(evaluations.values()))
    out = console()
    out.print(f"{any_one.n_samples:,} samples, {any_one.n_classes:,} classes")
    many = len(evaluations) > MANY_METHODS
    table = methods_table(evaluations) if many else metrics_table(evaluations)
    unbounded = out.options.update(width=10_000)
    fits = many or out.measure(table, options=unbounded).maximum <= out.width
    out.print(table if fits else metrics_table(evaluations, stacked=True))
    best = ", bold is best" if len(evaluations) > 1 else ""
    out.print(
        f"↑ higher is better, ↓ lower is better{best}. {any_one.bins} bins, of equal count unless said; class-wise "
        f"errors over probabilities of at least {any_one.threshold:.4g}."
    )
    if many:
        out.print("All metrics, and their intervals, are in --json FILE and --report FOLDER.")
    elif any_one.confidence is not None:
        out.print(
            f"In brackets, {100 * any_one.confidence:.6g} % confidence intervals by resampling; those of calibration "
            "errors leave out what chance alone adds, so that they may lie below the value."
        )


def show_fitted(calibrator: Calibrator, samples: Samples, path: Path, seconds: float, *, learned: bool = False) -> None:
    """Print what a fitted calibrator is like, and where it lies; ``learned`` says that there was a training set."""
    out = console()
    method = METHODS.get(calibrator.method, calibrator.method)
    out.print(f"[bold]{method}[/] fitted in {seconds:.1f} s")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    labels = [str(label) for label in calibrator.classes_.tolist()]
    table.add_row("classes", escape(f"{len(labels):,}: {', '.join(labels[:5])}{', …' if len(labels) > 5 else ''}"))
    blend = isinstance(calibrator, KCalBlend)
    for title, text in _blend_details(calibrator, samples, learned) if blend else _details(calibrator, samples):
        table.add_row(title, escape(text))
    table.add_row("file", escape(f"{path}, {_size(path)}"))
    out.print(table)


def show_predicted(predictions: Predictions, path: Path) -> None:
    """Print how much was written, and where to."""
    rows, columns = predictions.probabilities.shape
    console().print(escape(f"{path}: {rows:,} rows of {columns:,} probabilities, {_size(path)}"), soft_wrap=True)


def _details(calibrator: Calibrator, samples: Samples) -> list[tuple[str, str]]:
    if not isinstance(calibrator, KCal):
        temperature = getattr(calibrator, "temperature_", None)
        return [("samples", f"{len(samples):,}")] + (
            [] if temperature is None else [("temperature", f"{temperature:.4g}")]
        )
    support = f"{len(calibrator.support_indices_):,} samples"
    if samples.weights is not None:
        support += ", weighted"
    dimension = calibrator.dimension_
    names = getattr(calibrator, "feature_names_in_", [])  # so that a column of ids among them does not go unseen
    return [
        *([("features", listed(list(names)))] if len(names) else []),
        ("support", support),
        ("dimension", f"{calibrator.n_features_in_:,} → {dimension:,}"),
        ("bandwidth", f"{calibrator.bandwidth_:.4g}"),
        (_left_out(calibrator, samples), f"{_leave_out_loss(calibrator, samples):.4f}"),
    ]


def _blend_details(blend: KCalBlend, samples: Samples, learned: bool) -> list[tuple[str, str]]:
    names = getattr(blend, "feature_names_in_", [])
    counted = len(samples) if samples.weights is None else int((samples.weights > 0).sum())
    metrics = [f"{metric}, bandwidth {bandwidth:.4g}" for metric, bandwidth in blend.bandwidths_.items()]
    if "learned" not in blend.bandwidths_:
        why = "no training set to learn another from" if blend.projection is not None else "no other was asked for"
        metrics.append(f"({'what was learned is no better' if learned else why})")
    width = max(len(name) for name in blend.weights_)
    logits = "none: fitted on embeddings alone"
    if samples.columns is not None:
        logits += "; --logit-columns names those of a table"
    if blend.needs_logits_:
        logits = listed(blend.logit_names_in_.tolist()) or f"{len(blend.classes_):,} columns"
    return [
        *([("features", listed(list(names)))] if len(names) else []),
        ("logits", logits),
        ("samples", f"{counted:,}{'' if samples.weights is None else ', weighted'}"),
        ("metrics", "\n".join(metrics)),
        ("weights", "\n".join(f"{name:<{width}}  {weight: .4f}" for name, weight in blend.weights_.items())),
        ("background", f"{blend.background_:.4g} of a typical sample's mass"),
    ]


def _left_out(calibrator: KCal, samples: Samples) -> str:
    if calibrator.folds is not None:
        return f"log-loss over {calibrator.folds} folds"
    return "leave-one-out log-loss" if samples.groups is None else "leave-one-group-out log-loss"


def _leave_out_loss(calibrator: KCal, samples: Samples) -> float:
    if calibrator.bandwidth_curve_ is not None:
        return calibrator.bandwidth_curve_.loss
    codes = encode_labels(samples.true_labels[calibrator.support_indices_], calibrator.classes_)
    return negative_log_likelihood(calibrator.leave_one_out_proba_, codes)


def _number(value: float, metric: str) -> str:
    return f"{100 * value:.2f}" if TITLES[metric].endswith("%") else f"{value:.4f}"


def _interval(found: Evaluation, metric: str) -> str:
    """Return the ends of a metric's interval, as wide in every row; nothing where there is none."""
    if metric not in found.intervals:
        return ""
    low, high = (_number(end, metric) for end in found.intervals[metric])
    return f"[{low}, {high}]"


def _size(path: Path) -> str:
    size = path.stat().st_size
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{max(size / 1e3, 0.1):.1f} kB"
