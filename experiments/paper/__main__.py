"""The command line of the paper's data sets, networks and results: commands of other modules under one name."""

from __future__ import annotations

import typer

from experiments.__main__ import Commands
from experiments.paper.ablations import ablations, overhead
from experiments.paper.commands import bench, embed, prepare, results, train
from experiments.paper.page import collect, page

COMMANDS = (prepare, train, embed, bench, results, ablations, overhead, collect, page)
"""Functions with their options; a function's name is its command, its docstring the help."""

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    help="The paper's data sets, networks and results, from the data as their owners distribute them.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,
)


@app.callback()
def _one_of() -> None:
    """Keep the name of the command even while there is only one."""


for command in COMMANDS:
    app.command()(command)


if __name__ == "__main__":
    app(prog_name="python -m experiments.paper")
