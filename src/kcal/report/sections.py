"""The sections of a report, as HTML."""

import math
import platform
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np

from kcal.metrics import Evaluation
from kcal.metrics.registry import METRICS, Metric
from kcal.report.contents import Contents
from kcal.report.markup import Column, escaped, facts, named, section, table
from kcal.report.pictures import (
    class_picture,
    confidence_picture,
    legend,
    rejection_picture,
    side_by_side,
    simplex_picture,
)

ROWS_SHOWN = 20
"""Further rows of a table of classes are folded."""


def data_section(contents: Contents, sources: Mapping[str, str]) -> str:
    """Return the number of samples, in all and per class, and where they come from."""
    counts, settings = contents.class_errors.positives, contents.evaluation
    rows = [
        [named(contents.class_names[k]), f"{counts[k]:,}", f"{100 * counts[k] / settings.n_samples:.2f}"]
        for k in np.argsort(-counts, kind="stable")
    ]
    columns = (Column("class", number=False), Column("samples"), Column("share, %"))
    listing = table(columns, rows, label="Samples of each class")
    if len(rows) > ROWS_SHOWN:
        listing = f"<details>\n<summary>Samples of each of the {len(rows):,} classes</summary>\n{listing}\n</details>"
    n_absent = int((counts == 0).sum())
    pairs = [("samples", f"{settings.n_samples:,}"), ("classes", f"{settings.n_classes:,}")]
    if n_absent:
        pairs.append(("classes without a sample", f"{n_absent:,}"))
    pairs += [(term, escaped(text)) for term, text in sources.items()]
    return section("data", "Data", facts(pairs), listing)


def metrics_section(contents: Contents) -> str:
    """Return a table of the metrics of every method, with their intervals."""
    columns = [Column("metric", number=False), *(Column(name) for name in contents.methods)]
    settings = contents.evaluation
    metrics = [METRICS[name] for name in settings.as_dict()]
    rows = [[escaped(metric.labelled(metric.description)), *_metric_cells(contents, metric)] for metric in metrics]
    notes = ["↑ higher is better, ↓ lower is better."]
    if len(contents.methods) > 1:
        notes.append("Bold is best.")
    if settings.confidence is not None:
        notes.append(
            f"In brackets: {100 * settings.confidence:.6g} % confidence intervals by resampling. Intervals of "
            "calibration errors are corrected for the error that chance alone gives, so that they may lie below the "
            "value."
        )
    notes.append(
        f"Calibration errors use {_bins(settings)} of equal count unless stated otherwise; class-wise errors use "
        f"probabilities of at least {settings.threshold:.4g}."
    )
    note = f'<p class="note">{escaped(" ".join(notes))}</p>'
    return section("metrics", "Metrics", table(columns, rows, label="Metrics"), note)


def confidence_section(contents: Contents) -> str:
    """Return the reliability diagrams of the confidence."""
    text = (
        "<p>Of the samples whose top class was predicted with confidence p, is a share p correct? Where bars end on "
        "the diagonal, it is. A hatched gap above the strong line means that the confidence was too high, below it "
        f"too low. Bars use bins of equal width, calibration errors {_bins(contents.evaluation)} of equal count.</p>"
    )
    pictures = (
        confidence_picture(contents, method, _confidence_caption(evaluation))
        for method, evaluation in contents.evaluations.items()
    )
    return section("confidence", "Reliability of the confidence", text, legend(contents), side_by_side(pictures))


def classes_section(contents: Contents) -> str:
    """Return the errors and reliability diagrams per class, worst first."""
    settings, n_shown = contents.evaluation, len(contents.class_bins)
    which = f"All {settings.n_classes:,} classes, the largest calibration error first"
    if n_shown < settings.n_classes:
        which += f"; pictures of the {n_shown:,} worst"
    single = len(contents.methods) == 1
    if not single:
        which += f" under {escaped(contents.methods[-1])}"
    text = (
        f"<p>{which}. Errors use {_bins(settings)} of equal count and probabilities of at least "
        f"{settings.threshold:.4g}, as the class-wise error does; bars use bins of equal width.</p>"
    )
    cards = "\n".join(_class_card(contents, k) for k in contents.class_bins)
    grid = f'<div class="{"cards single" if single else "cards"}">\n{cards}\n</div>'
    return section("classes", "Reliability of each class", text, _class_table(contents), legend(contents), grid)


def simplex_section(contents: Contents) -> str:
    """Return the predictions of three classes in triangles; empty text for any other number of classes."""
    if not contents.cells:
        return ""
    text = (
        "<p>A corner is probability 1 of a class. Arrows lead from the mean prediction of the samples in a cell to "
        "the observed frequencies: the shorter, the better calibrated.</p>"
    )
    pictures = (simplex_picture(contents, method) for method in contents.methods)
    return section("simplex", "All three classes at once", text, side_by_side(pictures))


def rejection_section(contents: Contents) -> str:
    """Return the accuracy under rejection."""
    text = (
        "<p>Accuracy of the remaining predictions if the least confident are rejected. The area is the mean accuracy "
        "over all rejected shares; higher is better.</p>"
    )
    return section("rejection", "Accuracy under rejection", text, rejection_picture(contents))


def settings_section(contents: Contents, settings: Mapping[str, str]) -> str:
    """Return the settings and versions that the report was computed with."""
    used = contents.evaluation
    pairs = [
        ("bins", f"{used.bins:,}"),
        ("class-wise threshold", f"{used.threshold:.4g}"),
        ("smallest probability in a logarithm", "as published" if used.clip == "published" else f"{used.clip:g}"),
        ("confidence of the intervals", "no intervals" if used.confidence is None else f"{used.confidence:g}"),
        ("confidence of the bands", f"{contents.band:g}, Wilson’s interval of the observed frequency"),
        ("samples that a bar needs", f"{contents.minimum_count:,}"),
        ("weights", "used" if contents.weighted else "none"),
        *settings.items(),
        ("kcal", version("kcal")),
        ("numpy", np.__version__),
        ("matplotlib", version("matplotlib")),
        ("Python", platform.python_version()),
    ]
    return section("settings", "Settings", facts([(term, escaped(text)) for term, text in pairs]))


def _metric_cells(contents: Contents, metric: Metric) -> list[str]:
    """Return the value and interval of a metric for every method, the best in bold."""
    values = [getattr(evaluation, metric.name) for evaluation in contents.evaluations.values()]
    texts = [metric.format(value) for value in values]
    finite = [float(text) for text, value in zip(texts, values, strict=True) if math.isfinite(value)]
    best = (max if metric.direction == "higher" else min)(finite) if len(texts) > 1 and finite else None
    cells = []
    for text, value, evaluation in zip(texts, values, contents.evaluations.values(), strict=True):
        bold = math.isfinite(value) and float(text) == best
        cell = f"<strong>{text}</strong>" if bold else text
        if metric.name in evaluation.intervals:
            low, high = (metric.format(end) for end in evaluation.intervals[metric.name])
            cell += f' <span class="interval">[{low}, {high}]</span>'
        cells.append(cell)
    return cells


def _bins(settings: Evaluation) -> str:
    return "1 bin" if settings.bins == 1 else f"{settings.bins:,} bins"


def _confidence_caption(evaluation: Evaluation) -> str:
    error, accuracy = evaluation.expected_calibration_error, evaluation.accuracy
    return f"calibration error {_percent(error)} %, accuracy {_percent(accuracy)} %"


def _class_table(contents: Contents) -> str:
    columns = [
        Column("class", number=False),
        Column("samples"),
        *(Column("error, %" if len(contents.methods) == 1 else f"error, %, {name}") for name in contents.methods),
        Column("mean prediction, %"),
        Column("frequency, %"),
        Column("predictions are", number=False),
    ]
    errors = contents.class_errors
    rows = [
        [
            named(contents.class_names[k]),
            f"{errors.positives[k]:,}",
            *(_percent(each.error[k]) for each in contents.errors.values()),
            _percent(errors.mean_prediction[k]),
            _percent(errors.frequency[k]),
            _direction(errors.signed_error[k]),
        ]
        for k in errors.worst(len(errors.error)).tolist()
    ]
    listing = table(columns, rows[:ROWS_SHOWN], label="Calibration errors of classes, worst first")
    if len(rows) <= ROWS_SHOWN:
        return listing
    rest = table(columns, rows[ROWS_SHOWN:], label="Calibration errors of the other classes")
    summary = f"<summary>The other {len(rows) - ROWS_SHOWN:,} classes</summary>"
    return f"{listing}\n<details>{summary}\n{rest}\n</details>"


def _class_card(contents: Contents, k: int) -> str:
    errors = " → ".join(_percent(each.error[k]) for each in contents.errors.values())
    n_samples, n_kept = contents.class_errors.positives[k], contents.class_errors.counts[k]
    pictures = (class_picture(contents, k, method) for method in contents.methods)
    return (
        f"<article>\n<h3>{named(contents.class_names[k])}</h3>\n"
        f'<p class="note">error {errors} %; {n_samples:,} samples of the class, {n_kept:,} predictions of at '
        f"least {contents.evaluation.threshold:.4g}</p>\n{side_by_side(pictures)}\n</article>"
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}" if math.isfinite(value) else "–"


def _direction(signed_error: float) -> str:
    if not math.isfinite(signed_error):
        return "–"
    points = f"{100 * abs(signed_error):.2f}"
    if float(points) == 0:
        return "right on average"
    return f"too {'high' if signed_error < 0 else 'low'} by {points}"
