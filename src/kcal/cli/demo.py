"""The command ``kcal demo``: a real network's probabilities, before and after, and what to run next."""

from __future__ import annotations

from pathlib import Path

from kcal.cli import options


def demo(out: options.DemoOut = Path("kcal-demo"), quiet: options.Quiet = False) -> None:
    """Calibrate a real, overconfident network, and show what changed.

    A small torch network for pictures of clothes comes with kcal. The demo prints the lines of Python that calibrate
    it, fits KCalBlend, KCal and the best methods on logits to its outputs for new pictures, prints their metrics, and
    writes a picture, a model and data to continue with. It takes less than a minute.

    [bold]Example[/]

    [green]kcal demo --out kcal-demo[/]
    """
    from kcal.cli.demonstration import run_demo

    run_demo(out, quiet=quiet)
