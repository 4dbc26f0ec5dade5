"""Run the benchmarks: all of them, or those that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks import bandwidth_search, class_sums, metrics, recipes, storage

SECTIONS = {
    "sums": class_sums.main,
    "search": bandwidth_search.main,
    "metrics": metrics.main,
    "storage": storage.main,
}


def main(
    sections: Annotated[
        list[str] | None, typer.Argument(help="sums, search, metrics, storage, recipes; all by default.")
    ] = None,
    tasks: Annotated[Path | None, typer.Option(help="Folder of NAME.npz tasks for the recipes.")] = None,
) -> None:
    """Print tables of ratios, each measured in one run."""
    console = Console(width=120)
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    for name in sections or [*SECTIONS, "recipes"]:
        if name == "recipes":
            recipes.main(console, tasks)
        elif name not in SECTIONS:
            raise typer.BadParameter(f"no section is called {name!r}; there are {', '.join(SECTIONS)} and recipes.")
        else:
            SECTIONS[name](console)


if __name__ == "__main__":
    typer.run(main)
