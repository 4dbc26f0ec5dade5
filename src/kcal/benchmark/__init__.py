"""The paper's experiments: tasks, reshuffles, all methods, tables."""

from kcal.benchmark.cells import Cell, Outcome
from kcal.benchmark.entrants import DEFAULT, ENTRANTS, PAPER
from kcal.benchmark.running import Plan, run
from kcal.benchmark.tasks import Task, check_tasks, example_task, read_task, read_tasks, write_task

__all__ = [
    "DEFAULT",
    "ENTRANTS",
    "PAPER",
    "Cell",
    "Outcome",
    "Plan",
    "Task",
    "check_tasks",
    "example_task",
    "read_task",
    "read_tasks",
    "run",
    "write_task",
]
