"""The blend without one of its parts at a time: python -m experiments.blend_parts FOLDER."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import pandas
import torch
import typer

from experiments.cell_tables import PLACE, by_split, means
from experiments.cells import PROTOCOLS, Chosen, Folder, Out, Sizes, Splits, check_sizes, run
from experiments.output import LOG_LOSS
from kcal import KCalBlend
from kcal.benchmark import check_tasks, read_tasks
from kcal.benchmark.methods import BENCHMARK_METHODS
from kcal.calibrators.blend import fitting, model, network
from kcal.calibrators.refit import RidgeModel
from kcal.calibrators.registry import Method
from kcal.cli.messages import readable_messages
from kcal.files import write_whole
from kcal.progress import show_progress

WHOLE = "kcal-blend"


def scaled_network(
    samples: Any, points: torch.Tensor, scores: torch.Tensor, temperature: float, index: Any, *_: Any
) -> tuple[RidgeModel, torch.Tensor]:
    """Return the scaled network in place of the refitted layer."""
    weights = torch.zeros(points.shape[1], scores.shape[1], dtype=torch.float64)
    refit = RidgeModel(factor=1 / temperature, penalty=np.inf, weights=weights, bias=weights[0])
    return refit, torch.log_softmax(scores[index] / temperature, dim=1)


def log_network(_counts: torch.Tensor, probs: torch.Tensor, _background: float) -> torch.Tensor:
    """Return the network in place of the kernel estimate."""
    return probs.log()


def fixed(*values: float) -> Callable[..., torch.Tensor]:
    """Return a fit that finds the same values for all data."""
    return lambda *_: torch.tensor(values, dtype=torch.float64)


Changes = Sequence[tuple[Any, str, Any]]
"""What replaces an attribute of a module while a blend is fitted and predicts."""
CHANGES: dict[str, Changes] = {
    "refit": [(fitting, "fit_refit", scaled_network)],
    "samples": [(fitting, "log_estimate", log_network), (model, "log_estimate", log_network)],
    "pool": [(fitting, "fit_pool", fixed(1, 0, 0))],
    "mixture": [(fitting, "fit_mixture", fixed(1, 0, 0, 0))],
    "class-factors": [(network, "STRENGTHS", network.STRENGTHS[-1:])],
    "temperatures": [(network, "LOG_TEMPERATURES", torch.zeros(1, dtype=torch.float64))],  # around the fitted one
    "small-background": [(fitting, "POOL_SHARE", 1.0)],
}


@dataclass(kw_only=True, eq=False, repr=False)
class PartialBlend(KCalBlend):
    """A blend without one of its parts; without the average over temperatures it has that of temperature scaling."""

    without: str = "refit"

    def fit(self, X: Any, y: Any, *, logits: Any = None, groups: Any = None, **inputs: Any) -> Self:
        """Fit without the part."""
        with ExitStack() as stack:
            for change in CHANGES[self.without]:
                stack.enter_context(patch.object(*change))
            return super().fit(X, y, logits=logits, groups=groups, **inputs)

    def predict_proba(self, X: Any, **inputs: Any) -> Any:
        """Predict without the part."""
        with ExitStack() as stack:
            for change in CHANGES[self.without]:
                stack.enter_context(patch.object(*change))
            return super().predict_proba(X, **inputs)


VARIANTS = {
    f"without-{part}": Method(f"without-{part}", partial(PartialBlend, without=part), f"the blend without {part}")
    for part in CHANGES
}


def ratios(found: pandas.DataFrame, chosen: Sequence[str]) -> pandas.DataFrame:
    """Return the log-loss without a part over that of the whole blend: geometric means, and the range over places."""
    losses = means(by_split(found, LOG_LOSS))
    changes = losses.drop(columns=WHOLE).div(losses[WHOLE], axis=0)
    tasks = np.where(changes.index.get_level_values("task").isin(chosen), "chosen", "others")
    rows = {}
    for key, part in changes.groupby([tasks, changes.index.get_level_values(PLACE[0])]):
        for name, values in part.items():
            rows[(*key, name)] = {"mean": np.exp(np.log(values).mean()), "least": values.min(), "most": values.max()}
    return pandas.DataFrame.from_dict(rows, orient="index").rename_axis(["tasks", "protocol", "blend"])


def main(folder: Folder, out: Out, sizes: Sizes = "100,1000,full", splits: Splits = 2, chosen: Chosen = "") -> None:
    """Compare the blend with itself without one of its parts."""
    BENCHMARK_METHODS.update(VARIANTS)
    options: dict[str, Any] = {"methods": (WHOLE, *VARIANTS), "sizes": check_sizes(sizes), "n_splits": splits}
    with readable_messages(), show_progress(False) as progress:
        check_tasks(folder)
        found = run(read_tasks(folder), out, "blend_parts", tuple(PROTOCOLS), **options, progress=progress)
        table = ratios(found, chosen.split(",")).round(4)
        write_whole(Path(out) / "blend_parts-ratios.csv", table.to_csv().encode())
    typer.echo(table.to_string())


if __name__ == "__main__":
    typer.run(main)
