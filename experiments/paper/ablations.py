"""The ablations of the paper's appendix by its own recipe: one training per variant, ten splits, one CSV file.

    projection   Π of two layers (the paper's), linear, or on logits in place of embeddings
    dimension    d = 8 … 128, and the time of a prediction
    size         parts of the calibration set, and the bandwidth that each chooses
    convexity    the leave-one-out loss on a grid of bandwidths
    start        which checkpoint of this library's own recipe the calibration set chooses
    sampling     variance of the gradient with equal over that with proportional numbers of background samples
    case         reliability of the predicted class and of the rarest one, by method

All variants of a task see the same splits; the training monitors the calibration set of the first. Trainings are kept
in a folder and every measurement is written at once, so that a run that was stopped resumes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas
import torch
import typer
from torch import nn

from experiments.convexity import GRID, convex_range, losses_on_grid, n_minima
from experiments.dimension import median_seconds, timed
from experiments.output import LOG_LOSS
from experiments.paper.networks import MINA
from experiments.paper.networks.pretrained import create
from experiments.sampling import variance_ratios
from experiments.study import Fitted, TaskSetting
from kcal import KCal, metrics
from kcal.benchmark import Task, read_task
from kcal.benchmark.methods import pool_outputs
from kcal.benchmark.results import MAIN_METRICS, OTHER_THRESHOLD
from kcal.benchmark.tasks import Split
from kcal.calibrators import predict_on
from kcal.files import write_whole
from kcal.metrics.registry import PAPER_METRICS
from kcal.persistence import load, save
from kcal.projection import PaperRecipe, ResidualProjection, TrainedProjection
from kcal.threads import one_thread

DIMENSIONS = (8, 16, 32, 64, 128)
PAPER_DIMENSION = 32
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Of the calibration set."""
DRAWS = 20
"""Backgrounds of each sampling whose gradients vary."""
CASE_METHODS = ("uncal", "ts", "dircal", "kcal-paper")
CASE_BINS = 10
IMAGES, QUERIES = 4, 1000
"""Inputs of a network, and of KCal, that are timed at once."""
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "ViT-B/16": (partial(create, "vit", 100, pretrained=False), (3, 224, 224), 5000, 100),
    "Mixer-B/16": (partial(create, "mixer", 100, pretrained=False), (3, 224, 224), 5000, 100),
    "MINA": (partial(MINA, 4), (1, 3000), 253, 4),
}
"""Networks of the paper with the shape of an input, calibration samples and classes."""
KEYS = ("task", "study", "variant", "split")
Values = Mapping[str, float]
Measure = Callable[["PaperSetting", Split], Values]


@dataclass(frozen=True, eq=False)
class PaperSetting(TaskSetting):
    """A task whose projections are trained by the paper's recipe and kept in a folder."""

    folder: Path = Path()
    recipe: PaperRecipe = field(default_factory=PaperRecipe)

    def trained(self, name: str, method: str = "kcal-paper", **changes: Any) -> TrainedProjection:
        """Return a projection of the paper's recipe: read from the folder, or trained and kept there."""
        path = self.folder / f"{self.task.name}-{name}.kcal"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            save(self.projection(method, recipe=self.recipe, **changes), path)
        projection = load(path)
        assert isinstance(projection, TrainedProjection)
        return projection

    def fitted(
        self, projection: TrainedProjection, split: Split, method: str = "kcal-paper", rows: Any = None
    ) -> Fitted:
        """Return KCal with the published search of the bandwidth, fitted on a split or on some rows of it."""
        options: dict[str, Any] = {"recipe": self.recipe, "bandwidth": "published", "smoothing": 0.0}
        options["projection"] = projection
        return self.fit(self.calibrator(method, **options), split, rows=rows)


@contextmanager
def ignored_warnings() -> Iterator[None]:
    """Ignore what small parts of a calibration set warn of: missing classes, the edge of the search interval."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def all_metrics(fitted: Fitted) -> dict[str, float]:
    """Return the paper's main metrics, the log-loss, and the class-wise error at the other threshold."""
    every = metrics.evaluate(fitted.probs, fitted.labels, protocol="paper").as_dict()
    other = PAPER_METRICS[OTHER_THRESHOLD](fitted.probs, fitted.labels)
    return {**{name: every[name] for name in MAIN_METRICS}, OTHER_THRESHOLD: float(other)}


def of_projection(name: str, method: str = "kcal-paper", **changes: Any) -> Measure:
    """Return the measurement of a variant of Π, with the time of a prediction and the numbers that are kept."""

    def measure(setting: PaperSetting, split: Split) -> Values:
        fitted = setting.fitted(setting.trained(name, method, **changes), split, method)
        test = pool_outputs("", setting.task, split.test[:2000])
        seconds = median_seconds(lambda: predict_on(fitted.calibrator, test))
        return {**all_metrics(fitted), "microseconds": 1e6 * seconds / len(test.embeddings)}

    return measure


def of_size(share: float) -> Measure:
    """Return the measurement with a part of the calibration set: metrics, rarest class and chosen bandwidth."""

    def measure(setting: PaperSetting, split: Split) -> Values:
        order = np.random.default_rng([setting.seed, split.index, 1]).permutation(split.calibration)
        rows = np.sort(order[: max(round(share * len(order)), 2)])
        fitted = setting.fitted(setting.trained("skip"), split, rows=rows)
        counts = np.bincount(setting.task.pool.labels[rows])
        bandwidth = float(fitted.calibrator.bandwidth_)
        return {**all_metrics(fitted), "size": len(rows), "rarest": counts[counts > 0].min(), "bandwidth": bandwidth}

    return measure


def convexity(setting: PaperSetting, split: Split) -> Values:
    """Return how many minima the loss has on a grid, and the range around the best in which it is convex."""
    curve = losses_on_grid(setting.task, setting.fitted(setting.trained("skip"), split), split)
    losses = np.array(curve["losses"])
    low, high = convex_range(losses)
    best = GRID[int(np.argmin(losses))]
    return {"minima": n_minima(losses), "convex_from": GRID[low] / best, "convex_to": GRID[high] / best}


def sampling(setting: PaperSetting, split: Split) -> Values:
    """Return the variance of gradient and loss with equal numbers of background samples over proportional ones."""
    module = setting.trained("skip").module
    gradient, _, loss, _ = variance_ratios(module, setting.task, seed=split.index, draws=DRAWS)
    return {"gradient_variance": gradient, "loss_variance": loss}


def start(setting: PaperSetting, split: Split) -> Values:
    """Return the training step whose checkpoint this library's own recipe chooses; 0 is the start, PCA."""
    fitted = setting.fit(setting.calibrator("kcal"), split)
    return {
        "step": fitted.calibrator.training_curve_.chosen_step,
        "negative_log_likelihood": fitted.metrics()[LOG_LOSS],
    }


def studies(task: Task) -> Iterator[tuple[str, str, Measure]]:
    """Yield study, variant and measurement; those that need no further training come first."""
    yield from (("size", f"{share:g}", of_size(share)) for share in SHARES)
    yield "convexity", "grid", convexity
    yield "start", "kcal", start
    if np.ptp(np.bincount(task.train.labels, minlength=len(task.classes))):
        yield "sampling", "equal/proportional", sampling
    yield "projection", "skip", of_projection("skip")
    yield "projection", "linear", of_projection("linear", projection="linear")
    yield "projection", "logits", of_projection("logits", "kcal-logits")
    for dimension in DIMENSIONS:
        if dimension <= task.pool.embeddings.shape[1]:
            usual = dimension == PAPER_DIMENSION
            of_dimension = of_projection("skip") if usual else of_projection(f"d{dimension}", dimension=dimension)
            yield "dimension", str(dimension), of_dimension


def run_ablations(setting: PaperSetting, csv: Path, n_splits: int = 10, only: Container[str] | None = None) -> None:
    """Measure what the file does not hold yet."""
    rows = pandas.read_csv(csv, dtype={"variant": str}).to_dict("records") if csv.exists() else []
    done = {tuple(str(row[key]) for key in KEYS) for row in rows}
    for study, variant, measure in studies(setting.task):
        for split in setting.splits(n_splits):
            key = (setting.task.name, study, variant, str(split.index))
            if key in done or (only is not None and study not in only):
                continue
            with one_thread(), ignored_warnings():
                values = measure(setting, split)
            rows.append(dict(zip(KEYS, key, strict=True)) | {name: f"{value:.6g}" for name, value in values.items()})
            write_whole(csv, pandas.DataFrame(rows).to_csv(index=False).encode())


def case_study(setting: PaperSetting, n_splits: int = 10) -> pandas.DataFrame:
    """Return reliability bins of the predicted class and of the rarest one, over the test rows of all splits."""
    counts = np.bincount(setting.task.pool.labels, minlength=len(setting.task.classes))
    rarest = int(counts.argmin())
    events: dict[str, Any] = {"predicted class": "confidence", str(setting.task.classes[rarest]): rarest}
    rows = []
    for method in CASE_METHODS:
        projection = {"projection": setting.trained("skip")} if method == "kcal-paper" else {}
        with one_thread(), ignored_warnings():
            fits = [setting.fit(setting.calibrator(method, **projection), split) for split in setting.splits(n_splits)]
        probs, labels = (np.concatenate([getattr(fit, name) for fit in fits]) for name in ("probs", "labels"))
        for name, of in events.items():
            bins = metrics.reliability(probs, labels, of=of, bins=CASE_BINS, adaptive=False)
            columns = {"count": bins.counts, "predicted": bins.mean_prediction, "observed": bins.observed_frequency}
            frame = pandas.DataFrame(columns).round(5)
            rows.append(frame.assign(task=setting.task.name, method=method, event=name, n_splits=n_splits))
    return pandas.concat(rows, ignore_index=True)


def ablations(
    task: Annotated[Path, typer.Argument(metavar="TASK", help="NAME.npz.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="A run that was stopped resumes.")],
    splits: Annotated[int, typer.Option(min=1, help="Random splits.")] = 10,
    only: Annotated[list[str] | None, typer.Option(metavar="STUDY", help="Such as size, or case.")] = None,
) -> None:
    """Measure the ablations of the paper's appendix with the paper's recipe."""
    read = read_task(task)
    setting = PaperSetting(read, folder=out)
    out.mkdir(parents=True, exist_ok=True)
    run_ablations(setting, out / "ablations.csv", splits, only)
    if only is None or "case" in only:
        write_whole(out / "case.csv", case_study(setting, splits).to_csv(index=False).encode())


def overhead(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="A CSV file.")],
    repeats: Annotated[int, typer.Option(min=1, help="Batches, of which the median counts.")] = 3,
) -> None:
    """Time the paper's networks, with random weights, and KCal behind them with as many samples as in the paper."""
    rows = []
    for name, (network, shape, n_samples, n_classes) in NETWORKS.items():
        module, inputs = network().eval(), torch.randn(IMAGES, *shape)
        with one_thread(), torch.inference_mode():
            seconds = [timed(lambda: module(inputs))[1] for _ in range(repeats + 1)][1:]  # noqa: B023
        width = next(reversed([part for part in module.modules() if isinstance(part, nn.Linear)])).in_features
        dimension, generator = min(width, PAPER_DIMENSION), np.random.default_rng(0)
        embeddings = generator.normal(size=(n_samples, width)).astype(np.float32)
        kcal = KCal(
            projection=ResidualProjection(width, dimension).requires_grad_(False), bandwidth=1.0, progress=False
        )
        with one_thread(), ignored_warnings():
            kcal.fit(embeddings, np.arange(n_samples) % n_classes)
            per_batch = median_seconds(lambda: kcal.predict_proba(embeddings[:QUERIES]))  # noqa: B023
        parameters, kept = sum(part.numel() for part in module.parameters()), n_samples * dimension
        projection = sum(part.numel() for part in kcal.projection_.parameters())
        rows.append(
            {
                "network": name, "parameters": parameters, "milliseconds": 1e3 * float(np.median(seconds)) / IMAGES,
                "samples": n_samples, "dimension": dimension, "numbers": kept, "projection": projection,
                "kcal milliseconds": 1e3 * per_batch / min(QUERIES, n_samples),
            }
        )  # fmt: skip
    write_whole(out, pandas.DataFrame(rows).to_csv(index=False, float_format="%.4g").encode())
