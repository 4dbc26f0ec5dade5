"""What a part of the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from experiments.lines import Panel
from kcal.benchmark.table import Table

Step = Callable[[str], None]
"""Called after each step of a part, with a short note."""


@dataclass(frozen=True)
class PartOutput:
    """Tables, panels of the figure, and numbers that the text names."""

    tables: tuple[Table, ...]
    panels: tuple[Panel, ...]
    facts: Mapping[str, str] = field(default_factory=dict)
    columns: int | None = None


@dataclass(frozen=True)
class Part:
    """A claim and its simulation; ``texts/NAME.md`` explains it.

    ``run`` takes the seed, whether to be quick, and a function to call after each step.
    """

    name: str
    title: str
    run: Callable[[int, bool, Step], PartOutput]
