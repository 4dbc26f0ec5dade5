"""A page about a run: its tables, the paper's ranks beside ours, where KCal is not first, studies and pictures."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from kcal.benchmark.results import MEASURES, RANKED, Results, Row
from kcal.benchmark.running import Plan, versions
from kcal.benchmark.studies import STUDIES, Study, read_studies
from kcal.benchmark.tables import (
    CORRECTED_NOTE,
    NOTE,
    Entry,
    Table,
    corrected_table,
    metric_table,
    rank_table,
    time_table,
)
from kcal.benchmark.writing import reliability_picture
from kcal.persistence import write_whole

MAIN = (*RANKED, "negative_log_likelihood")
COLOURS = 48
"""Of the copies of pictures beside the page."""

PAPER_RANKS = {
    "accuracy": (5.03, 5.03, 4.53, 6.41, 9.99, 5.56, 5.01, 5.64, 4.74, 2.70),
    "classwise_calibration_error": (6.99, 7.41, 3.31, 6.82, 9.46, 4.59, 5.12, 4.37, 4.69, 1.83),
    "expected_calibration_error": (8.42, 6.68, 3.33, 7.73, 9.39, 3.51, 4.25, 2.91, 4.52, 3.84),
    "top_label_brier_loss": (8.18, 6.91, 3.86, 7.42, 8.98, 4.23, 4.88, 3.89, 4.11, 2.05),
}
"""Average ranks that the KCal paper prints, over its own tasks, in the order of PAPER_METHODS."""
PAPER_METHODS = ("uncal", "ts", "dircal", "imax", "focal", "spline", "iop", "gp", "mmce", "kcal")

WHY = """KCal needs neighbours. With many classes and few calibration samples of each, a density estimate knows less
than the network's last layer, which it does not look at: expect it to lose there. It also needs a projection that tells
classes apart on data that the network has not seen; a network that fits its training set perfectly has training
embeddings that lie far from all other classes, and teach little."""


def write_page(path: str | Path, results: Results, plan: Plan, folder: str | Path) -> list[Path]:
    """Write the page, with the studies and pictures that the run's folder holds; return the files.

    Pictures go to the folder NAME-pictures beside NAME.md, in few colours.
    """
    page, run = Path(path), Path(folder)
    studies = read_studies(run, STUDIES)
    drawn: dict[str | Row, tuple[Path, str]] = {
        study.name: (run / f"{study.name}.png", f"{study.name}.png") for study in studies if study.panels
    }
    for row in results.rows:
        picture = reliability_picture(run, row)
        drawn[row] = (picture, f"reliability-{picture.name}")
    beside = page.parent / f"{page.stem}-pictures"
    copies: dict[str | Row, Path] = {}
    for what, (picture, name) in drawn.items():
        if picture.is_file():
            beside.mkdir(parents=True, exist_ok=True)
            copies[what] = write_whole(beside / name, in_few_colours(picture))
    links = {what: f"{beside.name}/{copy.name}".replace(" ", "%20") for what, copy in copies.items()}
    text = results_page(results, plan, studies=studies, pictures=links)
    return [write_whole(page, text.encode()), *copies.values()]


def in_few_colours(picture: Path) -> bytes:
    """Return a PNG with a palette: a third of the bytes, and hardly a difference to see."""
    from PIL import Image  # comes with matplotlib, without which there is no picture

    buffer = io.BytesIO()
    with Image.open(picture) as image:
        image.convert("RGB").quantize(COLOURS).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def results_page(
    results: Results,
    plan: Plan,
    *,
    title: str = "Results",
    studies: Sequence[Study] = (),
    pictures: Mapping[str | Row, str] | None = None,
) -> str:
    """Return the page as Markdown; ``pictures`` are links, by the names of studies and the rows."""
    links = {} if pictures is None else pictures
    computed = ", ".join(f"{name} {number}" for name, number in versions().items())
    parts = [
        f"# {title}",
        f"{plan.reshuffles} reshuffles of each pool into calibration and test, seed {plan.seed}; where a task has "
        "groups, also by whole groups, each choice of them once if there are so few. A projection is trained once, on "
        "training data; each reshuffle picks its checkpoint by the leave-one-out loss of its own calibration set.",
        *(metric_table(results, metric).as_markdown() for metric in MAIN),
        NOTE,
        *_corrected(results),
        rank_table(results).as_markdown(),
        paper_ranks(results).as_markdown(),
        "The paper's ranks are over its own tasks and networks, so that only the order of the methods can be compared.",
        time_table(results).as_markdown(),
        "## Where KCal is not first",
        where_not_first(results, "kcal") if "kcal" in results.methods else "KCal was not run.",
        WHY,
        *(study.as_markdown(links.get(study.name)) for study in studies),
        *_reliability(results, links),
        "## Other metrics",
        *(metric_table(results, metric).as_markdown() for metric in MEASURES if metric not in MAIN),
        f"Computed with {computed}.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def _corrected(results: Results) -> list[str]:
    """Return the table of the corrected test, where the sizes are known that it needs."""
    if all(results.sizes(row) is None for row in results.rows):
        return []
    return [corrected_table(results).as_markdown(), CORRECTED_NOTE]


def _reliability(results: Results, links: Mapping[str | Row, str]) -> list[str]:
    """Return the reliability grids as a section."""
    shown = [f"### {row.label}\n\n![{row.label}]({links[row]})" for row in results.rows if row in links]
    return ["## Reliability, method by class", *shown] if shown else []


def paper_ranks(results: Results) -> Table:
    """Return the ranks that the paper prints, for the methods of the run that it has."""
    shown = [method for method in results.methods if method in PAPER_METHODS]
    rows = []
    for metric, ranks in PAPER_RANKS.items():
        printed = dict(zip(PAPER_METHODS, ranks, strict=True))
        best = min(printed.values())
        entries = [Entry(f"{printed[method]:.2f}", bold=printed[method] == best) for method in shown]
        rows.append((Entry(MEASURES[metric].title), *entries))
    return Table("paper_ranks", "Average rank in the KCal paper ↓", ("metric", *shown), tuple(rows))


def where_not_first(results: Results, method: str) -> str:
    """List the rows and metrics in which a method is not among the best, and who is."""
    lines = []
    for row in results.rows:
        for metric in MAIN:
            comparison = results.comparison(row, metric)
            best = comparison.pooled.best
            if method not in comparison.summaries or not best or method in best:
                continue
            title, _, scale = MEASURES[metric]
            mine, theirs = (scale * comparison.summaries[name].mean for name in (method, best[0]))
            digits = 2 if scale == 100 else 4
            lines.append(f"- {row.label}, {title}: {mine:.{digits}f}, {best[0]} {theirs:.{digits}f}")
    return "\n".join(lines) if lines else "Nowhere."
