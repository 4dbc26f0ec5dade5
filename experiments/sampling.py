"""Equal numbers of background samples per class, against numbers in proportion to the class frequencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.dimension import timed, warm_up
from experiments.output import number_entry
from experiments.remedies import has_equal_classes
from experiments.study import Measurements, Study, StudyOutput, TaskSetting, Values, Variant
from kcal.benchmark import Task
from kcal.benchmark.table import Entry, Table
from kcal.benchmark.tasks import Split
from kcal.projection import FastRecipe
from kcal.projection.training import ClassIndex, proportional_counts

PER_CLASS = 20
"""Background samples of each class, as in the paper."""
QUERIES = 256
DRAWS = 100
CLEARLY_BELOW = 0.8
"""Ratios below are bold."""
IMBALANCE = 20
RECIPE = FastRecipe(steps=400)
SAMPLINGS = ("equal", "proportional")
TIMER_NOISE = 0.01
"""Share of the seconds below which two times count as equal."""
RATIOS = ("gradient", "gradient, squared error", "loss", "own probability, by class")
STAGES = {"start": 0, "trained": -1}
"""Checkpoints at which variances are compared."""


def settings(tasks: Iterable[Task], seed: int) -> Iterator[TaskSetting]:
    """Yield every task as it is, and with an imbalanced training set."""
    for task in tasks:
        yield TaskSetting(task, seed)
        yield TaskSetting(imbalanced(task, seed=seed), seed)


def variants(setting: TaskSetting) -> Mapping[str, Variant]:
    """Return the comparison of both samplings; a split is a training with a seed of its own."""
    return {"trainings": lambda split: compare(setting, split)}


def compare(setting: TaskSetting, split: Split) -> Values:
    """Train with both samplings, and return losses, seconds and ratios of variances."""
    warm_up()
    first, seeded = setting.splits(1)[0], TaskSetting(setting.task, setting.seed + split.index)
    recipes = {name: replace(RECIPE, sampling=name) for name in SAMPLINGS}
    trained = {name: timed(partial(seeded.projection, recipe=recipe)) for name, recipe in recipes.items()}
    shorter = min(seconds for _, seconds in trained.values())
    values: dict[str, float] = {}
    for name, (projection, seconds) in trained.items():
        steps = steps_in_time(int(RECIPE.steps), seconds, shorter, same=has_equal_classes(setting.task))
        fewer = seeded.projection(recipe=replace(recipes[name], steps=steps))
        values |= {
            f"{name} seconds": seconds,
            f"{name} steps": float(steps),
            f"{name} last": setting.leave_one_out_loss(projection.module, first),
            f"{name} best": setting.leave_one_out_loss(projection, first),
            f"{name} in time": setting.leave_one_out_loss(fewer, first),
        }
    for stage, place in STAGES.items():
        ratios = variance_ratios(trained["equal"][0].checkpoints[place], setting.task, seed=seeded.seed)
        values |= {f"{stage} {name}": ratio for name, ratio in zip(RATIOS, ratios, strict=True)}
    return values


def steps_in_time(steps: int, seconds: float, limit: float, *, same: bool) -> int:
    """Return how many of some steps fit into a time limit; all if both samplings are the same."""
    return steps if same or limit >= (1 - TIMER_NOISE) * seconds else max(int(steps * limit / seconds), 1)


def imbalanced(task: Task, *, seed: int, ratio: float = IMBALANCE) -> Task:
    """Return a task whose training set has classes that fall geometrically to 1:ratio, the largest first."""
    counts = np.bincount(task.train.labels, minlength=len(task.classes))
    present = np.flatnonzero(counts)
    order = present[np.argsort(-counts[present], kind="stable")]
    shares = ratio ** (-np.arange(len(order)) / max(len(order) - 1, 1))
    largest = float((counts[order] / shares).min())
    generator = np.random.default_rng(seed)
    drawn = [
        generator.permutation(np.flatnonzero(task.train.labels == k))[: max(round(largest * share), 2)]
        for k, share in zip(order.tolist(), shares.tolist(), strict=True)
    ]
    rows, train = np.sort(np.concatenate(drawn)), task.train
    groups = None if train.groups is None else train.groups[rows]
    kept = type(train)(train.embeddings[rows], train.logits[rows], train.labels[rows], groups)
    return replace(task, name=f"{task.name}, training set made 1:{ratio:g}", train=kept)


def variance_ratios(module: nn.Module, task: Task, *, seed: int, draws: int = DRAWS) -> list[float]:
    """Return how much estimates vary with equal numbers over how much with as many proportional ones (``RATIOS``)."""
    labels, n_classes = task.train.labels, len(task.classes)
    generator = np.random.default_rng(seed)
    queries = np.sort(generator.choice(len(labels), min(QUERIES, len(labels) // 2), replace=False))
    rest = np.setdiff1d(np.arange(len(labels)), queries)
    counts = np.bincount(labels[rest], minlength=n_classes)
    equal = np.minimum(counts, PER_CLASS)
    wanted = proportional_counts(np.bincount(labels, minlength=n_classes), int(equal.sum()))
    proportional = np.minimum(wanted, counts)
    if np.array_equal(equal, proportional):
        return [1.0] * len(RATIOS)
    index, by_sampling = ClassIndex(labels[rest], n_classes), []
    whole, _ = estimate(module, task, queries, rest, np.zeros(len(rest)))
    for numbers in (equal, proportional):
        estimates = []
        for _ in range(draws):
            rows, drawn = index.draw(numbers, generator)
            log_weights = np.repeat(np.log(index.counts[drawn > 0] / drawn[drawn > 0]), drawn[drawn > 0])
            estimates.append(estimate(module, task, queries, rest[rows], log_weights))
        gradients, losses = (np.array(values) for values in zip(*estimates, strict=True))
        by_sampling.append(variances(gradients, losses, whole, labels[queries]))
    return [a / b if b > 0 else float("nan") for a, b in zip(*by_sampling, strict=True)]


def estimate(
    source: nn.Module,
    task: Task,
    queries: NDArray[np.intp],
    background: NDArray[np.intp],
    log_weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the gradient of the mean loss of some training samples, (n_parameters,), and the loss of each."""
    module = deepcopy(source).eval().requires_grad_(True)
    embeddings, codes = torch.from_numpy(task.train.embeddings), torch.from_numpy(task.train.labels)
    points, others = module(embeddings[queries]), module(embeddings[background])
    exponents = -torch.cdist(points, others).square() / (2 * points.shape[1]) + torch.from_numpy(log_weights).to(points)
    own = torch.where(codes[queries][:, None] == codes[background], exponents, -torch.inf)
    losses = torch.logsumexp(exponents, dim=1) - torch.logsumexp(own, dim=1)
    gradients = torch.autograd.grad(losses.mean(), list(module.parameters()), allow_unused=True)
    flat = [gradient.double().flatten().numpy() for gradient in gradients if gradient is not None]
    return np.concatenate(flat), losses.detach().double().numpy()


def variances(
    gradients: NDArray[np.float64], losses: NDArray[np.float64], whole: NDArray[np.float64], codes: NDArray[np.int64]
) -> list[float]:
    """Return the variances of ``RATIOS`` over draws, (n_draws, n); the error is from the gradient of the whole."""
    own = np.exp(-losses).var(axis=0, ddof=1)
    return [
        float(gradients.var(axis=0, ddof=1).sum()),
        float(((gradients - whole) ** 2).sum(axis=1).mean()),
        float(losses.mean(axis=1).var(ddof=1)),
        float(np.mean([own[codes == k].mean() for k in np.unique(codes)])),
    ]


def show(measured: Measurements) -> StudyOutput:
    """Return ratios of variances, losses after the same steps, and losses after the same time."""
    ratios, losses, times = [], [], []
    for label, by_variant in measured.items():
        values = by_variant["trainings"]
        for stage in STAGES:
            means = [float(values[f"{stage} {name}"].mean()) for name in RATIOS]
            entries = (Entry(f"{mean:.2f}", bold=mean < CLEARLY_BELOW) for mean in means)
            ratios.append((Entry(label), Entry(stage), *entries))
        losses.append((Entry(label), *_pair(values, "last"), *_pair(values, "best")))
        seconds = (Entry(f"{values[f'{name} seconds'].min():.2f}") for name in SAMPLINGS)
        steps = (Entry(f"{values[f'{name} steps'].mean():,.0f}") for name in SAMPLINGS)
        times.append((Entry(label), *seconds, *steps, *_pair(values, "in time")))
    ratio_note = (
        f"Bold: below {CLEARLY_BELOW:g}. 1.00 throughout: classes are equally frequent. From {DRAWS} draws a ratio of "
        "variances of one number, such as the loss, is known to some 20%."
    )
    loss_note = "Mean ± standard deviation over trainings; bold is the lower mean."
    time_note = (
        f"Seconds for {RECIPE.steps} steps, the least over trainings; steps that fit into the shorter time; losses at "
        "the best checkpoint after these."
    )
    first = "Variance with equal numbers over that with proportional ones"
    after = "Leave-one-out loss after the same"
    steps_heading = _heading("last step", "best checkpoint")
    return StudyOutput(
        (
            Table("variances", first, ("training set", "Π", *RATIOS), tuple(ratios), ratio_note),
            Table("losses", f"{after} steps", steps_heading, tuple(losses), loss_note),
            Table("times", f"{after} time", _heading("seconds", "steps", "loss"), tuple(times), time_note),
        )
    )


def _heading(*parts: str) -> tuple[str, ...]:
    return ("training set", *(f"{part}: {name}" for part in parts for name in SAMPLINGS))


def _pair(values: Mapping[str, NDArray[np.float64]], measure: str) -> list[Entry]:
    losses = [values[f"{name} {measure}"] for name in SAMPLINGS]
    highest = max(loss.mean() for loss in losses)
    return [number_entry(loss)._replace(bold=bool(loss.mean() < highest)) for loss in losses]


STUDY = Study("sampling", "Equal-sized or proportional sampling", variants, show, settings, max_splits=3)
