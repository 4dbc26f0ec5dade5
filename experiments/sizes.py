"""Methods with few and many calibration rows, of rows or groups at random: python -m experiments.sizes FOLDER."""

import typer

from experiments.cells import command

main = command("sizes", ("random", "group"), "Compare methods by the number of calibration rows.")

if __name__ == "__main__":
    typer.run(main)
