"""What a study leaves: tables, lines to draw, and a sentence on what it looks at; as JSON and as Markdown."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kcal.benchmark.results import MEASURES
from kcal.benchmark.tables import Entry, Table
from kcal.errors import FileFormatError, MissingExtraError
from kcal.persistence import write_whole

SHOWN = (
    "accuracy",
    "classwise_calibration_error",
    "expected_calibration_error",
    "top_label_brier_loss",
    "negative_log_likelihood",
)
"""The metrics that studies show."""


@dataclass(frozen=True)
class Line:
    """What to draw: ``spread`` is half of a band; a reference is dashed, without marks; ``points`` are not joined.

    ``plain`` is a line without marks.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    spread: tuple[float, ...] | None = None
    reference: bool = False
    points: bool = False
    plain: bool = False


@dataclass(frozen=True)
class Panel:
    """One picture of a figure."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    x_ticks: tuple[float, ...] = ()  # where to write numbers; chosen by the axis if empty


@dataclass(frozen=True)
class Study:
    """A study's results, over all of its tasks."""

    name: str
    title: str
    about: str
    tables: tuple[Table, ...]
    panels: tuple[Panel, ...] = ()
    columns: int | None = None  # panels in a row; chosen by the figure if None
    origin: str = ""  # a hash of all that it depends on; empty if it is not known

    def as_json(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Study:
        """Return the study that was stored."""
        return cls(
            stored["name"],
            stored["title"],
            stored["about"],
            tuple(_table_from(table) for table in stored["tables"]),
            tuple(_panel_from(panel) for panel in stored["panels"]),
            stored.get("columns"),
            stored.get("origin", ""),
        )

    def as_markdown(self, picture: str | None = None) -> str:
        """Return the study as a section; ``picture`` is where its figure lies."""
        figure = [] if picture is None else [f"![{self.title}]({picture})", ""]
        noted = [(table.as_markdown(), f"{table.note}\n" if table.note else "") for table in self.tables]
        tables = [part for parts in noted for part in parts if part]
        return "\n".join([f"## {self.title}", "", self.about, "", *figure, *tables])


StudyWatch = Callable[[str, int, int], None]
"""Told what is being worked on, how many steps are done, and of how many."""
StudyFunction = Callable[..., Study]
"""Takes tasks, ``reshuffles=``, ``seed=`` and ``watch=``."""


def unwatched(what: str, done: int, total: int) -> None:
    """Show nothing."""


def write_study(study: Study, folder: str | Path) -> list[Path]:
    """Write NAME.json, NAME.md and, where there is something to draw and matplotlib, NAME.png; return the files."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    picture = draw_study(study, place / f"{study.name}.png")
    text = study.as_markdown(None if picture is None else picture.name)
    files = [
        write_whole(place / f"{study.name}.md", text.encode()),
        write_whole(place / f"{study.name}.json", json.dumps(study.as_json(), indent=1).encode()),  # all is there
    ]
    return files if picture is None else [*files, picture]


def read_studies(folder: str | Path, names: Iterable[str]) -> list[Study]:
    """Return those of the named studies that were written to a folder; other JSON of the same name is left alone."""
    found = []
    for name in names:
        path = Path(folder) / f"{name}.json"
        if path.is_file():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                if isinstance(stored, dict) and {"name", "about", "tables"} <= stored.keys():
                    found.append(Study.from_json(stored))
            except (ValueError, KeyError, TypeError) as error:
                raise FileFormatError(
                    f"{path} is no study, or a damaged one: {error!r}. Remove it, or run the study again."
                ) from error
    return found


def draw_study(study: Study, path: Path) -> Path | None:
    """Draw the panels into a file; None without panels, or without matplotlib."""
    if not study.panels:
        return None
    try:
        from kcal.plots import line_panels
    except MissingExtraError:
        return None
    buffer = io.BytesIO()
    axes = line_panels(study.panels, columns=study.columns)
    axes.flat[0].get_figure(root=True).savefig(buffer, format="png", dpi=100)
    return write_whole(path, buffer.getvalue())


def mean_entry(values: Sequence[float] | NDArray[np.float64], metric: str) -> Entry:
    """Return mean ± standard deviation of a metric over reshuffles, in the tables' unit."""
    scale = MEASURES[metric].scale
    digits = 2 if scale == 100 else 4
    found = scale * np.asarray(values, dtype=np.float64)
    mean = f"{found.mean():.{digits}f}"
    return Entry(f"{mean}±{found.std(ddof=1):.{digits}f}" if len(found) > 1 else mean)


def counted(about: str, number: int, what: str = "reshuffle") -> str:
    """Return a text that ends with how many reshuffles, or what else there is, it is about."""
    return f"{about} Here: {number} {what}{'' if number == 1 else 's'}."


def metric_label(metric: str) -> str:
    """Return how tables and axes call a metric, with its unit."""
    title, _, scale = MEASURES[metric]
    return f"{title}, %" if scale == 100 else title


def spread_line(label: str, x: NDArray[Any] | Sequence[float], values: NDArray[np.float64], metric: str) -> Line:
    """Return a metric's mean over reshuffles as a line, its standard deviation as a band; values are (n_x, n_runs)."""
    found = MEASURES[metric].scale * values
    spread = found.std(axis=1, ddof=1) if found.shape[1] > 1 else np.zeros(len(found))
    return Line(label, _floats(x), _floats(found.mean(axis=1)), _floats(spread))


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _table_from(stored: Mapping[str, Any]) -> Table:
    rows = tuple(tuple(Entry(*entry) for entry in row) for row in stored["rows"])
    return Table(stored["name"], stored["title"], tuple(stored["heading"]), rows, stored["note"])


def _panel_from(stored: Mapping[str, Any]) -> Panel:
    lines = tuple(
        Line(
            line["label"],
            tuple(line["x"]),
            tuple(line["y"]),
            None if line["spread"] is None else tuple(line["spread"]),
            line["reference"],
            line["points"],
            line.get("plain", False),
        )
        for line in stored["lines"]
    )
    words = (stored["title"], stored["x_label"], stored["y_label"])
    return Panel(*words, lines, stored["x_log"], stored["y_log"], tuple(stored.get("x_ticks", ())))
