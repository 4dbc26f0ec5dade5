"""The sections of a report: what is told of its contents, in which words."""

import math
import platform
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np

from kcal.metrics import METRICS, Evaluation
from kcal.report.contents import Contents
from kcal.report.markup import Column, escaped, facts, named, section, table
from kcal.report.pictures import (
    class_picture,
    confidence_picture,
    legend,
    rejection_picture,
    simplex_picture,
)

ROWS_SHOWN = 20
"""What a longer table of classes holds beyond is folded away."""

IN_PERCENT = frozenset(name for name, metric in METRICS.items() if metric.unit == "%")


def data_section(contents: Contents, sources: Mapping[str, str]) -> str:
    """Tell how many samples of which classes there are, and where they come from."""
    counts = contents.positives
    found = contents.evaluation
    rows = [
        [named(contents.class_names[k]), f"{counts[k]:,}", f"{100 * counts[k] / found.n_samples:.2f}"]
        for k in np.argsort(-counts, kind="stable")
    ]
    columns = (Column("class", number=False), Column("samples"), Column("share, %"))
    listing = table(columns, rows, label="Samples of each class")
    if len(rows) > ROWS_SHOWN:
        listing = f"<details>\n<summary>Samples of each of the {len(rows):,} classes</summary>\n{listing}\n</details>"
    absent = int((counts == 0).sum())
    told = [("samples", f"{found.n_samples:,}"), ("classes", f"{found.n_classes:,}")]
    if absent:
        told.append(("classes without a sample", f"{absent:,}"))
    told += [(term, escaped(said)) for term, said in sources.items()]
    return section("data", "Data", facts(told), listing)


def metrics_section(contents: Contents) -> str:
    """Tell the metrics of every method, with their intervals."""
    columns = [Column("metric", number=False), *(Column(name) for name in contents.evaluations)]
    found = contents.evaluation
    rows = [[_metric_title(metric), *_metric_cells(contents, metric)] for metric in found.as_dict()]
    notes = ["↑ higher is better, ↓ lower is better."]
    if len(contents.evaluations) > 1:
        notes.append("Bold is best.")
    if found.confidence is not None:
        notes.append(
            f"In brackets, {100 * found.confidence:.6g} % confidence intervals by resampling. Those of calibration "
            "errors are freed of the error that chance alone gives, so that they may lie below the value."
        )
    notes.append(
        f"Calibration errors over {_bins(found)} of equal count unless said; class-wise ones over "
        f"probabilities of at least {found.threshold:.4g}."
    )
    note = f'<p class="note">{escaped(" ".join(notes))}</p>'
    return section("metrics", "Metrics", table(columns, rows, label="Metrics"), note)


def confidence_section(contents: Contents, minimum_count: int, band: float) -> str:
    """Show whether the top class is right as often as its probability says."""
    text = (
        "<p>Where the top class was predicted with confidence p, was it right with frequency p? Bars that end on the "
        "diagonal can be taken at their word; the hatched gap above the strong line was promised too much, "
        f"below it too little. Bars are over bins of equal width, calibration errors over {_bins(contents.evaluation)} "
        "of equal count.</p>"
    )
    pictures = [
        confidence_picture(name, bins, minimum_count, band, _confidence_caption(contents.evaluations[name]))
        for name, bins in contents.confidence_bins.items()
    ]
    explained = legend(minimum_count=minimum_count, confidence=band)
    shown = '<div class="pictures">\n' + "\n".join(pictures) + "\n</div>"
    return section("confidence", "Reliability of the confidence", text, explained, shown)


def classes_section(contents: Contents, minimum_count: int, band: float) -> str:
    """Show the reliability of each class, worst first."""
    found, n_shown = contents.evaluation, len(contents.class_bins)
    if n_shown < found.n_classes:
        which = (
            f"All {found.n_classes:,} classes, the largest calibration error first; pictures of the {n_shown:,} worst"
        )
    else:
        which = f"All {found.n_classes:,} classes, the largest calibration error first"
    alone = len(contents.probabilities) == 1
    whose = "" if alone else f" under {escaped(contents.judged)}"
    text = (
        f"<p>{which}{whose}. Errors are over {_bins(found)} of equal count and "
        f"probabilities of at least {found.threshold:.4g}, as in the class-wise error; bars are over bins of equal "
        "width.</p>"
    )
    cards = [_class_card(contents, k, minimum_count, band) for k in contents.class_bins]
    kind = "cards single" if alone else "cards"
    shown = f'<div class="{kind}">\n' + "\n".join(cards) + "\n</div>"
    explained = legend(minimum_count=minimum_count, confidence=band)
    return section("classes", "Reliability of each class", text, _class_table(contents), explained, shown)


def simplex_section(contents: Contents, minimum_count: int) -> str:
    """Show predictions of three classes in a triangle."""
    text = (
        "<p>A corner is certainty of a class. Arrows lead from the mean prediction of the samples in a cell to what "
        "was observed among them: short arrows are honest probabilities.</p>"
    )
    pictures = [
        simplex_picture(name, cells, contents.class_names, minimum_count) for name, cells in contents.cells.items()
    ]
    return section(
        "simplex", "All three classes at once", text, '<div class="pictures">\n' + "\n".join(pictures) + "\n</div>"
    )


def rejection_section(contents: Contents, minimum_count: int) -> str:
    """Show what rejecting unsure predictions gains."""
    text = (
        "<p>How accurate the rest is if the least confident predictions are left to someone else. The area is the "
        "mean accuracy over all such shares; higher is better.</p>"
    )
    return section("rejection", "Accuracy under rejection", text, rejection_picture(contents.rejection, minimum_count))


def settings_section(contents: Contents, settings: Mapping[str, str], minimum_count: int, band: float) -> str:
    """Tell with what everything was computed."""
    found = contents.evaluation
    clip = "as published" if found.clip == "published" else f"{found.clip:g}"
    told = [
        ("bins", f"{found.bins:,}"),
        ("class-wise threshold", f"{found.threshold:.4g}"),
        ("clip of logarithms", escaped(clip)),
        ("confidence of the intervals", "no intervals" if found.confidence is None else f"{found.confidence:g}"),
        ("confidence of the bands", f"{band:g}, Wilson’s interval of the observed frequency"),
        ("samples that a bar needs", f"{minimum_count:,}"),
        ("weights", "used" if contents.weighted else "none"),
        *((term, escaped(said)) for term, said in settings.items()),
        ("kcal", escaped(version("kcal"))),
        ("numpy", escaped(np.__version__)),
        ("matplotlib", escaped(version("matplotlib"))),
        ("Python", escaped(platform.python_version())),
    ]
    return section("settings", "Settings", facts(told))


def _metric_title(metric: str) -> str:
    return escaped(METRICS[metric].labelled(METRICS[metric].description))


def _metric_cells(contents: Contents, metric: str) -> list[str]:
    values = [found.as_dict()[metric] for found in contents.evaluations.values()]
    shown = [_number(value, metric) for value in values]
    finite = [float(text) for text, value in zip(shown, values, strict=True) if math.isfinite(value)]
    higher = METRICS[metric].direction == "higher"
    best = (max if higher else min)(finite) if len(shown) > 1 and finite else None
    cells = []
    for text, found in zip(shown, contents.evaluations.values(), strict=True):
        strong = best is not None and text != "–" and float(text) == best
        interval = found.intervals.get(metric)
        ends = "" if interval is None else f"[{_number(interval.low, metric)}, {_number(interval.high, metric)}]"
        cells.append(
            (f"<strong>{text}</strong>" if strong else text)
            + (f' <span class="interval">{ends}</span>' if ends else "")
        )
    return cells


def _number(value: float, metric: str) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.2f}" if metric in IN_PERCENT else f"{value:.4f}"


def _bins(found: Evaluation) -> str:
    return "1 bin" if found.bins == 1 else f"{found.bins:,} bins"


def _confidence_caption(found: Evaluation) -> str:
    return f"calibration error {100 * found.expected_calibration_error:.2f} %, accuracy {100 * found.accuracy:.2f} %"


def _class_table(contents: Contents) -> str:
    columns = [
        Column("class", number=False),
        Column("samples"),
        *(Column("error, %" if len(contents.errors) == 1 else f"error, %, {name}") for name in contents.errors),
        Column("mean prediction, %"),
        Column("frequency, %"),
        Column("predictions are", number=False),
    ]
    errors = contents.errors[contents.judged]
    rows = [
        [
            named(contents.class_names[k]),
            f"{errors.positives[k]:,}",
            *(_percent(found.error[k]) for found in contents.errors.values()),
            _percent(errors.mean_prediction[k]),
            _percent(errors.frequency[k]),
            _direction(errors.signed_error[k]),
        ]
        for k in errors.worst(len(errors.error)).tolist()
    ]
    label = "Calibration errors of classes, worst first"
    if len(rows) <= ROWS_SHOWN:
        return table(columns, rows, label=label)
    rest = f"<details><summary>The other {len(rows) - ROWS_SHOWN:,} classes</summary>\n"
    return (
        table(columns, rows[:ROWS_SHOWN], label=label)
        + f"\n{rest}"
        + table(columns, rows[ROWS_SHOWN:], label="Calibration errors of the other classes")
        + "\n</details>"
    )


def _class_card(contents: Contents, k: int, minimum_count: int, band: float) -> str:
    name = contents.class_names[k]
    errors = " → ".join(_percent(found.error[k]) for found in contents.errors.values())
    kept = contents.errors[contents.judged].counts[k]
    pictures = [
        class_picture(method, name, bins, minimum_count, band) for method, bins in contents.class_bins[k].items()
    ]
    return (
        f"<article>\n<h3>{named(name)}</h3>\n"
        f'<p class="note">error {errors} %; {contents.positives[k]:,} samples of the class, {kept:,} predictions of at '
        f"least {contents.evaluation.threshold:.4g}</p>\n"
        '<div class="pictures">\n' + "\n".join(pictures) + "\n</div>\n</article>"
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f}" if math.isfinite(value) else "–"


def _direction(signed: float) -> str:
    if not math.isfinite(signed):
        return "–"
    points = f"{100 * abs(signed):.2f}"
    if float(points) == 0:
        return "right on average"
    return f"too {'high' if signed < 0 else 'low'} by {points}"
