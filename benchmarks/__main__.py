"""Run the benchmarks: all of them, or those that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks import (
    bandwidth_search,
    blend,
    class_sums,
    compression,
    deployment,
    distributed,
    faults,
    heads,
    latency,
    methods,
    metrics,
    online,
    recipes,
    service,
    shards,
    storage,
    versions,
)
from kcal.kernels import MAX_PREDICTED

SECTIONS = {
    "sums": class_sums.main,
    "search": bandwidth_search.main,
    "metrics": metrics.main,
    "storage": storage.main,
    "latency": latency.main,
}
ON_REQUEST = {
    "deployment": deployment.main,
    "heads": heads.main,
    "online": online.main,
    "service": service.main,
    "restarts": service.restarts,
    "distributed": distributed.main,
    "faults": faults.main,
}
"""Sections that run only if they are named: minutes, or packages that only the tests need."""
LONG_ON_TASKS = {"compression": compression.main}
"""Sections on tasks that run only if they are named: minutes."""
ON_TASKS = {"recipes": recipes.main, "methods": methods.main, "blend": blend.main}


def main(
    sections: Annotated[
        list[str] | None,
        typer.Argument(
            help="sums, search, metrics, storage, latency, recipes, methods, blend: all by default; deployment, heads, "
            "online, service, restarts, distributed, faults, shards, compression, versions."
        ),
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of NAME.npz tasks for recipes, methods and blend.")] = None,
    points: Annotated[int, typer.Option(help="Support points of shards.")] = shards.N_POINTS,
    other: Annotated[Path | None, typer.Option(help="Another checkout of kcal, for versions.")] = None,
    predicted: Annotated[int, typer.Option(help="Samples that the search of shards predicts.")] = MAX_PREDICTED,
) -> None:
    """Print tables of ratios, each measured in one run."""
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    for name in sections or [*SECTIONS, *ON_TASKS]:
        if name in ON_TASKS | LONG_ON_TASKS:
            (ON_TASKS | LONG_ON_TASKS)[name](console, tasks)
        elif name in SECTIONS | ON_REQUEST:
            (SECTIONS | ON_REQUEST)[name](console)
        elif name == "versions" and other is not None:
            versions.main(console, other)
        elif name == "shards":
            shards.main(console, points, predicted)
        else:
            known = ", ".join([*SECTIONS, *ON_TASKS, *ON_REQUEST, *LONG_ON_TASKS, "shards", "versions --other FOLDER"])
            raise typer.BadParameter(f"no section is called {name!r}; there are {known}.")


if __name__ == "__main__":
    typer.run(main)
