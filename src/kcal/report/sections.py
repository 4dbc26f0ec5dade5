"""The sections of a report that show text and tables."""

import platform
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np

from kcal.metrics import METRICS, ClassErrors, Evaluation, Metric
from kcal.report.contents import MOST_INTERVALS, Contents
from kcal.report.markup import Column, escaped, facts, named, percent, section, signed_text, table
from kcal.report.pictures import class_pictures, legend

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
    settings = contents.evaluation
    columns = [Column("metric", number=False)]
    for name in contents.methods:
        columns.append(Column(name))
        if settings.confidence is not None:
            columns += [Column("debiased"), Column(_interval_heading(contents))]
    metrics = [METRICS[name] for name in settings.metrics]
    rows = [[escaped(metric.labelled(metric.description)), *_metric_cells(contents, metric)] for metric in metrics]
    notes = ["↑ higher is better, ↓ lower is better."]
    if len(contents.methods) > 1:
        notes.append("Bold is best.")
    if settings.confidence is not None:
        notes.append(
            "Intervals are confidence intervals by resampling. Chance makes calibration errors larger; debiased is "
            "without that part, and what their interval is about."
        )
        if any(_above_interval(evaluation) for evaluation in contents.evaluations.values()):
            notes.append("A value above its interval is mostly chance: read the debiased one.")
    notes.append(
        f"Calibration errors use {contents.bins_text} of equal count unless stated otherwise; class-wise errors use "
        f"probabilities of at least {settings.threshold:.4g}."
    )
    note = f'<p class="note">{escaped(" ".join(notes))}</p>'
    return section("metrics", "Metrics", table(columns, rows, label="Metrics"), note)


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
        f"<p>{which}. Errors use {contents.bins_text} of equal count and probabilities of at least "
        f"{settings.threshold:.4g}, as the class-wise error does; bars use bins of equal width.</p>"
    )
    if contents.class_errors.debiased is None and settings.confidence is not None:
        text += f"<p>With more than {MOST_INTERVALS:,} classes, their errors have no intervals.</p>"
    cards = "\n".join(_class_card(contents, k) for k in contents.class_bins)
    grid = f'<div class="{"cards single" if single else "cards"}">\n{cards}\n</div>'
    parts = (text, _class_table(contents), legend(contents), grid, _without_picture(contents))
    return section("classes", "Reliability of each class", *parts)


def _without_picture(contents: Contents) -> str:
    """Return the names of the classes that have no picture."""
    names = [named(name) for k, name in enumerate(contents.class_names) if k not in contents.class_bins]
    if not names:
        return ""
    summary = f"<summary>The {len(names):,} classes without a picture</summary>"
    return f"<details>{summary}\n<p>{', '.join(names)}</p>\n</details>"


def settings_section(contents: Contents, settings: Mapping[str, str]) -> str:
    """Return the settings and versions that the report was computed with."""
    used = contents.evaluation
    pairs = [
        ("bins", f"{used.bins:,}"),
        ("class-wise threshold", f"{used.threshold:.4g}"),
        ("smallest probability in a logarithm", "as published" if used.clip == "published" else f"{used.clip:g}"),
        ("confidence of the intervals", "no intervals" if used.confidence is None else f"{used.confidence:g}"),
        ("confidence of the bands", f"{contents.band:g}, Wilson’s interval of the observed frequency"),
        ("samples that a bar needs", f"{contents.minimum_count:,}; neighbouring bins with fewer are merged"),
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
    evaluations = contents.evaluations.values()
    values = metric.format_beside([getattr(evaluation, metric.name) for evaluation in evaluations])
    cells = []
    for (text, is_best), evaluation in zip(values, evaluations, strict=True):
        cells.append(f"<strong>{text}</strong>" if is_best else text)
        if evaluation.confidence is not None:
            debiased, ends = evaluation.debiased.get(metric.name), evaluation.intervals.get(metric.name, ())
            cells.append("" if debiased is None else metric.format(debiased))
            cells.append(f"[{', '.join(map(metric.format, ends))}]" if ends else "")
    return cells


def _above_interval(evaluation: Evaluation) -> bool:
    """Return whether a calibration error is larger than its own interval."""
    return any(getattr(evaluation, name) > evaluation.intervals[name].high for name in evaluation.debiased)


def _interval_heading(contents: Contents) -> str:
    return f"{100 * contents.band:.6g} % interval"


def _class_table(contents: Contents) -> str:
    errors = contents.class_errors
    columns = [
        Column("class", number=False),
        Column("samples"),
        *(Column("error, %" if len(contents.methods) == 1 else f"error, %, {name}") for name in contents.methods),
        *([] if errors.debiased is None else [Column("debiased, %"), Column(f"{_interval_heading(contents)}, %")]),
        Column("mean prediction, %"),
        Column("frequency, %"),
        Column("predictions are", number=False),
    ]
    rows = [
        [
            named(contents.class_names[k]),
            f"{errors.positives[k]:,}",
            *(percent(of_method.error[k]) for of_method in contents.errors.values()),
            *_class_estimate(errors, k),
            percent(errors.mean_prediction[k]),
            percent(errors.frequency[k]),
            signed_text(errors.signed_error[k]),
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
    errors = " → ".join(percent(of_method.error[k]) for of_method in contents.errors.values())
    n_samples, n_kept = contents.class_errors.positives[k], contents.class_errors.counts[k]
    return (
        f"<article>\n<h3>{named(contents.class_names[k])}</h3>\n"
        f'<p class="note">error {errors} %; {n_samples:,} samples of the class, {n_kept:,} predictions of at '
        f"least {contents.evaluation.threshold:.4g}</p>\n{class_pictures(contents, k)}\n</article>"
    )


def _class_estimate(errors: ClassErrors, k: int) -> list[str]:
    """Return the debiased error of a class and its interval; nothing if they were not computed."""
    if errors.debiased is None or errors.low is None or errors.high is None:
        return []
    return [percent(errors.debiased[k]), f"[{percent(errors.low[k])}, {percent(errors.high[k])}]"]
