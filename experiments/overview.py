"""What every change does to the log-loss, tasks side by side."""

from __future__ import annotations

from collections.abc import Mapping

from kcal.benchmark.results import MEASURES
from kcal.benchmark.studies.measuring import Values
from kcal.benchmark.tables import Entry, Table

METRIC = "negative_log_likelihood"
HALF_A_DIGIT = 5e-5
"""Of the differences shown; less is shown as none."""


def log_loss_overview(name: str, title: str, reference: str, found: Mapping[str, Mapping[str, Values]]) -> Table:
    """Return the reference's mean log-loss and every other row's mean difference from it; what is lower is bold.

    Parameters
    ----------
    name, title
        Of the table.
    reference
        The row that all others are compared with.
    found
        By task, and there by row, the metrics over reshuffles. One task has all rows; what another lacks is a dash.
    """
    titled = MEASURES[METRIC].title
    by_task = {
        task: {row: float(values[METRIC].mean()) for row, values in rows.items()} for task, rows in found.items()
    }
    entries = [(Entry(f"{reference}, {titled}"), *(Entry(f"{means[reference]:.4f}") for means in by_task.values()))]
    for row in max(by_task.values(), key=len, default={}):
        if row != reference:
            changes = [_signed(means[row] - means[reference]) if row in means else "–" for means in by_task.values()]
            entries.append((Entry(row), *(Entry(change, bold=change.startswith("−")) for change in changes)))
    note = (
        f"Mean difference of the {titled} from that of “{reference}” on the same reshuffles; below zero, bold, is "
        "better than it."
    )
    return Table(name, title, ("", *by_task), tuple(entries), note)


def _signed(change: float) -> str:
    return "0.0000" if abs(change) < HALF_A_DIGIT else f"{change:+.4f}".replace("-", "−")
