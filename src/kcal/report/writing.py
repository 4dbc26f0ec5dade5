"""The whole report: computed, formatted section by section, and written completely or not at all."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.files import check_path, write_whole
from kcal.metrics import Evaluation
from kcal.plots.arguments import check_arguments, check_kind
from kcal.report.contents import compute_contents
from kcal.report.markup import escaped, page
from kcal.report.pictures import confidence_section, rejection_section, simplex_section
from kcal.report.sections import classes_section, data_section, metrics_section, settings_section
from kcal.report.verdict import verdict

FILE_NAME = "report.html"


def write_report(
    folder: str | os.PathLike[str], probs: Mapping[str, ArrayLike], labels: ArrayLike, **options: Any
) -> Path:
    """Write `report_page` as report.html into a folder, which is made if it does not exist; return the file.

    Parameters
    ----------
    folder
        The folder; an existing report is replaced.
    probs, labels, **options
        As in `report_page`.
    """
    place = check_path(folder, "folder")
    if place.exists() and not place.is_dir():
        raise InvalidInputError("folder", "must be the name of a folder", got=f"{place}, which is not a folder")
    text = report_page(probs, labels, **options)
    place.mkdir(parents=True, exist_ok=True)
    return write_whole(place / FILE_NAME, text.encode("utf-8"))


def report_page(
    probs: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    class_names: Sequence[object] | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
    sources: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    limit: int = 20,
    minimum_count: int = 15,
    title: str = "Calibration report",
) -> str:
    """Return a self-contained HTML page about probabilities: a verdict, metrics, reliability, worst classes first.

    Parameters
    ----------
    probs
        The probabilities of each method by name, (n_samples, n_classes). The last method is the one that the report is
        about; the others are its baselines, like the uncalibrated network.
    labels
        True classes as column indices, (n_samples,).
    class_names
        Names of the classes; their numbers if None.
    evaluations
        What `kcal.metrics.evaluate` returns, by method; computed with 95 % intervals if None. Its bins and threshold
        are used for the whole report.
    sample_weight
        Relative importance of each sample, (n_samples,), as passed to `evaluate`.
    groups
        Group of each sample, (n_samples,), as passed to `evaluate`: intervals resample whole groups.
    sources, settings
        Further lines for the sections "Data" and "Settings": text by term.
    limit
        Number of classes to show in pictures, worst first; the page names the others.
    minimum_count
        Neighbouring bins are merged up to this many samples; cells and ends of curves with fewer are not drawn.
    title
        Title of the page.
    """
    check_arguments(title=title)
    check_kind(sources, "sources", Mapping | None, "a dictionary from terms to text, or None")
    check_kind(settings, "settings", Mapping | None, "a dictionary from terms to text, or None")
    contents = compute_contents(
        probs,
        labels,
        class_names=class_names,
        evaluations=evaluations,
        sample_weight=sample_weight,
        groups=groups,
        limit=limit,
        minimum_count=minimum_count,
    )
    sections = [
        verdict(contents),
        metrics_section(contents),
        confidence_section(contents),
        classes_section(contents),
        simplex_section(contents),
        rejection_section(contents),
        data_section(contents, sources or {}),
        settings_section(contents, settings or {}),
    ]
    used = contents.evaluation
    lead = f"{escaped(' → '.join(contents.methods))} on {used.n_samples:,} samples of {used.n_classes:,} classes"
    return page(title, lead, [part for part in sections if part])
