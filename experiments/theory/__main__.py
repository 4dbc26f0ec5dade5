"""Simulate the paper's theory, print its tables, and write the page: ``python -m experiments.theory --out docs``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from experiments.__main__ import Commands, print_table
from experiments.theory.output import Part, PartOutput
from experiments.theory.page import write_page
from experiments.theory.parts import PARTS
from kcal.progress import Report, show_progress
from kcal.threads import one_thread

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


def simulate(seed: int, quick: bool, progress: Report) -> dict[Part, PartOutput]:
    """Run every part on one thread."""
    outputs: dict[Part, PartOutput] = {}

    def step(note: str) -> None:
        progress(f"theory: {note}", len(outputs), len(PARTS))

    with one_thread():
        for part in PARTS:
            step(part.name)
            outputs[part] = part.run(seed, quick, step)
    step("done")
    return outputs


@app.callback(invoke_without_command=True)
def main(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Write theory.md and its figures there.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few draws and small sizes: half a minute.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no tables.")] = False,
) -> None:
    """Simulate the lemmas and theorems of the paper with known densities."""
    with show_progress(quiet) as progress:
        outputs = simulate(seed, quick, progress)
    console = Console(highlight=False)
    if not quiet:
        for part, output in outputs.items():
            console.rule(part.title)
            for table in output.tables:
                print_table(console, table)
    if out is not None:
        for path in write_page(out, outputs):
            typer.echo(str(path))


if __name__ == "__main__":
    app(prog_name="python -m experiments.theory")
