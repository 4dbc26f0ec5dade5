"""A page about a run: its tables, the paper's ranks beside ours, where KCal is not first, studies and pictures."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kcal.benchmark.cells import Cell
from kcal.benchmark.entrants import PAPER
from kcal.benchmark.results import MEASURES, RANKED, Results, Row
from kcal.benchmark.running import Plan
from kcal.benchmark.studies import STUDIES, Study, read_studies
from kcal.benchmark.studies.remedies import CLEAR, what_helped
from kcal.benchmark.tables import (
    ABSENT,
    INACCURATE,
    NOTE,
    Entry,
    Table,
    corrected_table,
    dealing_note,
    failure_table,
    metric_table,
    rank_table,
    time_table,
    training_table,
)
from kcal.benchmark.writing import reliability_picture
from kcal.persistence import write_whole

MAIN = (*RANKED, "negative_log_likelihood")
COLOURS = 256
"""Of the copies of pictures beside the page."""

PAPER_RANKS = {
    "accuracy": (5.03, 5.03, 4.53, 6.41, 9.99, 5.56, 5.01, 5.64, 4.74, 2.70),
    "classwise_calibration_error": (6.99, 7.41, 3.31, 6.82, 9.46, 4.59, 5.12, 4.37, 4.69, 1.83),
    "expected_calibration_error": (8.42, 6.68, 3.33, 7.73, 9.39, 3.51, 4.25, 2.91, 4.52, 3.84),
    "top_label_brier_loss": (8.18, 6.91, 3.86, 7.42, 8.98, 4.23, 4.88, 3.89, 4.11, 2.05),
}
"""Average ranks that the KCal paper prints, over its own tasks, in the order of its columns."""

TUNED_ON = ("cifar10-resnet56", "cifar100-resnet32", "clinc150-minilm", "sleepedf-mlp", "fashion_mnist_small_cnn")
"""Tasks with which in view defaults were chosen."""
CHOSEN = """KCal's default recipe was chosen with the test log-loss of reshuffles of CIFAR-10, CIFAR-100, CLINC150,
Sleep-EDF and the embedded example in view. The reshuffles were others, the samples the same: on these tasks KCal's
figures come from data that helped to choose it, and flatter it."""
BLEND_CHOSEN = """The parts of the blend (kcal-blend) were chosen on other reshuffles of the same pools, too, and, as
far as groups, sharpening, class frequencies and hand-over go, on small networks on Fashion-MNIST and electrocardiograms
and on simulated groups. By patient, Sleep-EDF has ten splits and no others: what groups count for was chosen with these
very splits in view, among others."""
INACCURATE_NOTE = (
    f"{INACCURATE} significantly less accurate than uncalibrated: such a method is not counted among the best, however "
    "good the number."
)
TIED = "tied"
TIED_NOTE = f"{TIED}: not significantly worse than the best mean (pooled t-test, p = 0.01)."
NOWHERE = "Nowhere."
WHY = """KCal looks at an embedding's neighbours in the calibration set, and at nothing else. Methods that repair the
network's own scores start from all that its last layer has learned. These things can make the difference:"""
FEW_SAMPLES = """**Many classes, few calibration samples of each.** KCal knows a class by its calibration samples
alone; the last layer knows it from the whole training set. With few samples a class the density is coarse, and a
sample between two classes may go to the wrong one: accuracy falls, and the log-loss rises with it. A calibration error
can look good all the same: it asks whether confidence and accuracy agree, not whether they are high."""
FITTED_NETWORKS = """**Networks that fit their training set.** The projection learns from embeddings of the training
set. A network that fits it almost perfectly has already pulled its classes apart there; little is left to learn, and
what is learned may not hold for new samples. Where that is so, calibration sets choose few steps of training, or none:
the table below counts their choices."""
NEW_GROUPS = """**New groups.** By group, the test set holds other people, speakers or sites than the calibration set.
Their embeddings may lie elsewhere, and KCal goes by where embeddings lie; a method with one or a few parameters takes
over less of what is special to the groups that it has seen."""
BLEND_WHY = """The blend's weights are fitted by the log-loss, which a calibration error need not follow: a method that
leaves the order of the classes alone and fits one or a few numbers can have a lower error of the confidence and still
give worse probabilities. By group, the blend gives its estimates the less weight the less groups agree; but few groups
tell roughly how much they do, and then the network alone, with a temperature, can carry over better to new ones."""
HELPED = """Changes of KCal's recipe, one at a time, that lower its mean test NLL by at least {share:.0%}:"""
HELPED_NOTE = """The tables are under [{title}](#{anchor}), and with them why they describe rather than prove."""


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
        image.convert("RGB").quantize(COLOURS, method=Image.Quantize.FASTOCTREE).save(
            buffer, format="PNG", optimize=True
        )
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
    computed = ", ".join(f"{name} {number}" for name, number in results.versions.items())
    parts = [
        f"# {title}",
        f"{plan.reshuffles} reshuffles of each pool into calibration and test, seed {plan.seed}; where a task has "
        "groups, also by whole groups, each choice of them once if there are so few. A projection is trained once, on "
        "training data; each reshuffle picks its checkpoint by the leave-one-out loss of its own calibration set.",
        *_chosen(results),
        *(metric_table(results, metric).as_markdown() for metric in MAIN),
        NOTE,
        dealing_note(results),
        *_corrected(results),
        *_noted(rank_table(results)),
        *_noted(paper_ranks(results)),
        *_noted(time_table(results)),
        *_noted(training_table(results)),
        *_noted(failure_table(results)),
        *_where_not_first(results),
        *_what_helped(studies),
        *(study.as_markdown(links.get(study.name)) for study in studies),
        *_reliability(results, links),
        "## Other metrics",
        *(metric_table(results, metric).as_markdown() for metric in MEASURES if metric not in MAIN),
        f"Measured with {computed}." if computed else "",
    ]
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _chosen(results: Results) -> list[str]:
    """Return what has to be known of tasks that helped to choose defaults."""
    if not any(row.task in TUNED_ON for row in results.rows):
        return []
    told = {"kcal": CHOSEN, "kcal-blend": BLEND_CHOSEN}
    return [text for method, text in told.items() if method in results.methods]


def _noted(table: Table) -> list[str]:
    """Return a table and its note; nothing of a table without rows."""
    return [table.as_markdown(), table.note] if table.rows else []


def _where_not_first(results: Results) -> list[str]:
    """Return where KCal and, if it took part, the blend are not first; why, where KCal is not."""
    parts = ["## Where KCal is not first"]
    if "kcal" in results.methods:
        found = where_not_first(results, "kcal")
        parts += [found or NOWHERE, *(_why(results) if found else [])]
    else:
        parts.append("KCal was not run.")
    if "kcal-blend" in results.methods:
        found = where_not_first(results, "kcal-blend")
        parts += ["## Where the blend is not first", found or NOWHERE, *([BLEND_WHY] if found else [])]
    return parts


def _why(results: Results) -> list[str]:
    """Return why KCal can lose, with groups where there are any, and how far calibration sets let it be trained."""
    by_group = any(row.by_group for row in results.rows)
    reasons = [FEW_SAMPLES, FITTED_NETWORKS, *([NEW_GROUPS] if by_group else [])]
    told = "\n".join("- " + reason.replace("\n", "\n  ") for reason in reasons)
    table = chosen_steps(results, "kcal")
    return ["### Why", WHY, told, *_noted(table)]


def chosen_steps(results: Results, method: str) -> Table:
    """Return how many samples calibrate, and after how many steps of training calibration sets took the projection."""
    rows = []
    for row in results.rows:
        cells = [Cell(row.task, row.by_group, index, method) for index in range(results.reshuffles(row))]
        details = [results.by_cell[cell].details for cell in cells if cell in results.by_cell]
        steps = Counter(each["checkpoint_step_"] for each in details if "checkpoint_step_" in each)
        if steps:
            sizes = results.sizes(row)
            counted = ", ".join(f"{step} ({count} ×)" for step, count in sorted(steps.items()))
            rows.append((Entry(row.label), Entry(ABSENT if sizes is None else f"{sizes[0]:,}"), Entry(counted)))
    heading = ("task", "calibration samples", "steps chosen")
    note = "Steps of training after which the calibration sets of the reshuffles chose the projection; 0 is the start."
    return Table("steps", f"How far {method} was trained", heading, tuple(rows), note)


def _what_helped(studies: Sequence[Study]) -> list[str]:
    """Return what was tried against it, as a section, where that was studied."""
    study = next((study for study in studies if study.name == "remedies"), None)
    if study is None:
        return []
    anchor = study.title.lower().replace(" ", "-")
    note = HELPED_NOTE.format(title=study.title, anchor=anchor)
    return ["## What helped, what did not", HELPED.format(share=CLEAR), what_helped(study), note]


def _corrected(results: Results) -> list[str]:
    """Return the table of the corrected test, where the sizes are known that it needs."""
    if all(results.sizes(row) is None for row in results.rows):
        return []
    return _noted(corrected_table(results))


def _reliability(results: Results, links: Mapping[str | Row, str]) -> list[str]:
    """Return the reliability grids as a section."""
    shown = [f"### {row.label}\n\n![{row.label}]({links[row]})" for row in results.rows if row in links]
    return ["## Reliability, method by class", *shown] if shown else []


def paper_ranks(results: Results) -> Table:
    """Return the ranks that the paper prints, for the methods of the run that it has."""
    shown = [method for method in results.methods if method in PAPER]
    rows = []
    for metric, ranks in PAPER_RANKS.items():
        printed = dict(zip(PAPER, ranks, strict=True))
        best = min(printed.values())
        entries = [Entry(f"{printed[method]:.2f}", bold=printed[method] == best) for method in shown]
        rows.append((Entry(MEASURES[metric].title), *entries))
    note = "The paper's ranks are over its own tasks and networks: only the order of the methods can be compared."
    return Table("paper_ranks", "Average rank in the KCal paper ↓", ("metric", *shown), tuple(rows), note)


def where_not_first(results: Results, method: str) -> str:
    """List the rows and metrics in which a method's mean is not the best of those that keep the accuracy, and whose is.

    It says where the method is tied with the best, or failed; it is empty if the method is first everywhere.
    """
    found = [_not_first(results, row, metric, method) for row in results.rows for metric in MAIN]
    lines = [line for line in found if line]
    notes = [
        note for mark, note in ((INACCURATE, INACCURATE_NOTE), (TIED, TIED_NOTE)) if any(mark in line for line in lines)
    ]
    return "\n\n".join(["\n".join(lines), *notes]) if lines else ""


def _not_first(results: Results, row: Row, metric: str, method: str) -> str:
    """Return a line of the list; empty if the method is first, or did not take part."""
    title, _, scale = MEASURES[metric]
    comparison = results.comparison(row, metric)
    if comparison is None or method not in comparison.summaries:
        failed = any(outcome.error is not None for outcome in results.of_method(row, method))
        return f"- {row.label}, {title}: failed" if failed else ""
    marks, summaries = comparison.pooled, comparison.summaries
    if not marks.best or (summaries[method].mean == summaries[marks.best[0]].mean and method in marks.best):
        return ""
    mine, theirs = (scale * summaries[name].mean for name in (method, marks.best[0]))
    digits = 2 if scale == 100 else 4
    mark = "" if method in marks.accuracy_preserving else INACCURATE
    tied = f", {TIED}" if method in marks.best else ""
    return f"- {row.label}, {title}: {mine:.{digits}f}{mark}, {marks.best[0]} {theirs:.{digits}f}{tied}"
