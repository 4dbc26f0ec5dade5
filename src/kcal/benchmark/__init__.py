"""Benchmark of calibration methods: tasks, splits, methods, runs, results and tables."""

from kcal.benchmark.methods import BENCHMARK_METHODS, DEFAULT_METHODS, PAPER_METHODS
from kcal.benchmark.results import Result, ResultKey, Results
from kcal.benchmark.running import Plan, run
from kcal.benchmark.tasks import Task, check_tasks, example_task, read_task, read_tasks, write_task

__all__ = [
    "BENCHMARK_METHODS",
    "DEFAULT_METHODS",
    "PAPER_METHODS",
    "Plan",
    "Result",
    "ResultKey",
    "Results",
    "Task",
    "check_tasks",
    "example_task",
    "read_task",
    "read_tasks",
    "run",
    "write_task",
]
