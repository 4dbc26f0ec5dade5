"""Methods where only a third of the classes occur: python -m experiments.subset FOLDER."""

import typer

from experiments.cells import command

main = command("subset", ("subset",), "Compare methods where only a third of the network's classes occur.")

if __name__ == "__main__":
    typer.run(main)
