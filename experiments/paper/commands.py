"""The commands ``train``, ``embed`` and ``results`` of ``python -m experiments.paper``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from experiments.paper.networks import NETWORKS
from experiments.paper.settings import LOSSES

Data = Annotated[Path, typer.Argument(metavar="DATA", help="Folder of prepared data.")]
Run = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="NAME.pt; a run that was stopped resumes.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No lines, no progress bar.")]
LossName = StrEnum("LossName", {name: name for name in LOSSES})  # type: ignore[misc]
NetworkName = StrEnum("NetworkName", {name: name for name in NETWORKS})  # type: ignore[misc]


def train(
    data: Data,
    out: Run,
    network: Annotated[NetworkName | None, typer.Option(help="Another network than that of the table.")] = None,
    loss: Annotated[LossName, typer.Option(help="All but cross-entropy train a companion.")] = LossName[
        "cross-entropy"
    ],
    short: Annotated[bool, typer.Option("--short", help="Few epochs, for a processor (pn2017).")] = False,
    epochs: Annotated[int | None, typer.Option(min=0, help="Other epochs than those of the table.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same result.")] = 0,
    quiet: Quiet = False,
) -> None:
    """Train the network of a data set as the paper does."""
    from experiments.paper.prepared import read_prepared
    from experiments.paper.settings import settings_for
    from experiments.paper.training import train as train_network

    prepared = read_prepared(data)
    changes: dict[str, Any] = {"network": None if network is None else network.value, "epochs": epochs}
    settings = settings_for(prepared.name, short=short, **changes)
    console = Console(highlight=False, soft_wrap=True)
    try:
        checkpoint = train_network(
            prepared,
            settings,
            out,
            loss=loss.value,
            seed=seed,
            report=None if quiet else lambda record: console.print(line_of(record), markup=False),
            progress=False if quiet else None,
        )
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(f"epochs so far are kept in {out}; the same command resumes.") from stop
    if not quiet:
        console.print(f"{out} holds the network after epoch {checkpoint.chosen_epoch}.", markup=False)


def line_of(record: dict[str, Any]) -> str:
    """Return the record of an epoch as a line."""
    text = f"epoch {record['epoch']}: rate {record['learning_rate']:.2e}, training loss {record['train_loss']:.4f}"
    if "macro_f1" in record:
        classes = ", ".join(f"{value:.3f}" for value in record["f1"])
        text += f"; validation: macro-F1 {record['macro_f1']:.4f} ({classes}), accuracy {record['accuracy']:.4f}"
        text += f", log-loss {record['log_loss']:.4f}"
    return f"{text}; {record['seconds']:.0f} s"
