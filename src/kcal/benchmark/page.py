"""A page about a run: its tables, the paper's ranks beside ours, and where KCal is not first."""

from __future__ import annotations

from kcal.benchmark.results import MEASURES, RANKED, Results
from kcal.benchmark.running import Plan, versions
from kcal.benchmark.tables import NOTE, Entry, Table, metric_table, rank_table, time_table

MAIN = (*RANKED, "negative_log_likelihood")

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


def results_page(results: Results, plan: Plan, *, title: str = "Results") -> str:
    """Return the page as Markdown."""
    computed = ", ".join(f"{name} {number}" for name, number in versions().items())
    parts = [
        f"# {title}",
        f"{plan.reshuffles} reshuffles of each pool into calibration and test, seed {plan.seed}; where a task has "
        "groups, also by whole groups, each choice of them once if there are so few. A projection is trained once, on "
        "training data; each reshuffle picks its checkpoint by the leave-one-out loss of its own calibration set.",
        *(metric_table(results, metric).as_markdown() for metric in MAIN),
        NOTE,
        rank_table(results).as_markdown(),
        paper_ranks(results).as_markdown(),
        "The paper's ranks are over its own tasks and networks, so that only the order of the methods can be compared.",
        time_table(results).as_markdown(),
        "## Where KCal is not first",
        where_not_first(results, "kcal") if "kcal" in results.methods else "KCal was not run.",
        WHY,
        *(metric_table(results, metric).as_markdown() for metric in MEASURES if metric not in MAIN),
        f"Computed with {computed}.",
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


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
