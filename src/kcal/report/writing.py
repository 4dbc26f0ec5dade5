"""The whole report: gathered, told section by section, and written whole or not at all."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from numpy.typing import ArrayLike

from kcal.errors import InvalidInputError
from kcal.metrics import Evaluation
from kcal.persistence import write_whole
from kcal.report.contents import gather
from kcal.report.markup import escaped, page
from kcal.report.sections import (
    classes_section,
    confidence_section,
    data_section,
    metrics_section,
    rejection_section,
    settings_section,
    simplex_section,
)

FILE_NAME = "report.html"


def write_report(
    folder: str | os.PathLike[str],
    probabilities: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    class_names: Sequence[object] | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
    sample_weight: ArrayLike | None = None,
    sources: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    limit: int = 20,
    minimum_count: int = 15,
    title: str = "Calibration report",
) -> Path:
    """Write `report_page` as report.html into a folder, which is made if it is not there; return the file.

    Parameters
    ----------
    folder
        Where to; a report that is there is replaced.
    probabilities, labels, class_names, evaluations, sample_weight, sources, settings, limit, minimum_count, title
        As in `report_page`.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise InvalidInputError(f"{place} is not a folder; give the name of one.")
    text = report_page(
        probabilities,
        labels,
        class_names=class_names,
        evaluations=evaluations,
        sample_weight=sample_weight,
        sources=sources,
        settings=settings,
        limit=limit,
        minimum_count=minimum_count,
        title=title,
    )
    place.mkdir(parents=True, exist_ok=True)
    return write_whole(place / FILE_NAME, text.encode("utf-8"))


def report_page(
    probabilities: Mapping[str, ArrayLike],
    labels: ArrayLike,
    *,
    class_names: Sequence[object] | None = None,
    evaluations: Mapping[str, Evaluation] | None = None,
    sample_weight: ArrayLike | None = None,
    sources: Mapping[str, str] | None = None,
    settings: Mapping[str, str] | None = None,
    limit: int = 20,
    minimum_count: int = 15,
    title: str = "Calibration report",
) -> str:
    """Return a self-contained HTML page about probabilities: metrics, reliability, worst classes first.

    Parameters
    ----------
    probabilities
        For each method, by name, its probabilities (n_samples, n_classes). The last is the one that the report is
        about; what comes before it is what it is compared with, like the uncalibrated network.
    labels
        True classes as column indices, (n_samples,).
    class_names
        What to call the classes; their numbers if None.
    evaluations
        For each method what `kcal.metrics.evaluate` returns; computed with 95 % intervals if None. Its bins and
        its threshold are those of the whole report.
    sample_weight
        How much each row counts, (n_samples,), as given to `evaluate`.
    sources, settings
        More to be told of the data, and of how things were computed: what by term.
    limit
        How many classes to show in detail, worst first.
    minimum_count
        Bins, cells and ends of curves with fewer samples are not drawn.
    title
        Heading of the page.
    """
    contents = gather(
        probabilities,
        labels,
        class_names=class_names,
        evaluations=evaluations,
        sample_weight=sample_weight,
        limit=limit,
    )
    found = contents.evaluation
    band = 0.95 if found.confidence is None else found.confidence
    sections = [
        data_section(contents, sources or {}),
        metrics_section(contents),
        confidence_section(contents, minimum_count, band),
        classes_section(contents, minimum_count, band),
        simplex_section(contents, minimum_count) if found.n_classes == 3 else "",
        rejection_section(contents, minimum_count),
        settings_section(contents, settings or {}, minimum_count, band),
    ]
    lead = (
        f"{escaped(' → '.join(contents.probabilities))} on {found.n_samples:,} samples of {found.n_classes:,} classes"
    )
    return page(title, lead, [part for part in sections if part])
