"""All golden cases by group: ``cases()`` yields (name, array) pairs of everything that the library computes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from . import calibrator_cases, command_cases, metric_cases

Cases = Iterator[tuple[str, np.ndarray]]

GROUPS: dict[str, Callable[[], Cases]] = {
    **{name: partial(calibrator_cases.logit_method, name) for name in calibrator_cases.LOGIT_METHODS},
    "kcal-kernels": calibrator_cases.kcal_kernels,
    "kcal-options": calibrator_cases.kcal_options,
    "kcal-learned": calibrator_cases.kcal_learned,
    "blend-options": calibrator_cases.blend_options,
    "two-inputs": calibrator_cases.two_inputs,
    "dispatched": calibrator_cases.dispatched,
    "metrics": metric_cases.metrics,
    "intervals": metric_cases.intervals,
    "comparisons": metric_cases.comparisons,
    "losses": metric_cases.losses,
    "commands": command_cases.commands,
    "bench": command_cases.bench,
}


def cases(group: str) -> dict[str, np.ndarray]:
    """Compute one group, on one thread: the order of a sum must not depend on the machine's load."""
    computed: dict[str, np.ndarray] = {}
    with _one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of missing classes and the like: they are tested elsewhere
        for name, values in GROUPS[group]():
            key = f"{group}: {name}"
            assert key not in computed, f"two cases are called {key}"
            computed[key] = np.asarray(values, dtype=np.float64)
    return computed


@contextmanager
def _one_thread() -> Iterator[None]:
    threads, columns = torch.get_num_threads(), os.environ.get("COLUMNS")
    torch.set_num_threads(1)
    os.environ["COLUMNS"] = "200"
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
