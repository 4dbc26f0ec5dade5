"""The same number of background samples of each class, against numbers in proportion to the classes' frequencies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from kcal.benchmark.entrants import train_for
from kcal.benchmark.running import on_one_thread
from kcal.benchmark.studies.measuring import classes_are_equally_frequent, deals_of, leave_one_out_loss, warm_up
from kcal.benchmark.studies.study import Study, StudyWatch, counted, unwatched
from kcal.benchmark.tables import Entry, Table
from kcal.benchmark.tasks import Task
from kcal.projection import FastRecipe, TrainedProjection
from kcal.projection.episodes import ClassIndex, proportional_counts
from kcal.projection.objective import episode_losses

PER_CLASS = 20
"""Background samples of each class, as in the paper."""
QUERIES = 256
DRAWS = 200
TRAININGS = 3
"""Seeds to train with, at most."""
CLEARLY_BELOW = 0.8
"""Ratios that are bold."""
IMBALANCE = 20
RECIPE = FastRecipe()
SAMPLINGS = ("equal", "proportional")
AS_FAST = 0.01
"""The share of its seconds that one sampling must save to count as faster: less is the noise of the clock."""
ABOUT = (
    "The paper draws the same number m of background samples of each class in training, weighed by how many each "
    "stands for, and holds that this estimates with less variance than as many samples in proportion to the classes' "
    f"frequencies. First table: {QUERIES} training samples are predicted from {DRAWS} drawn backgrounds of m = "
    f"{PER_CLASS} a class, Π held fixed (batch norm by its running statistics), at the start and after training. Each "
    "number is equal over proportional: below 1, equal is better. The squared error is from the gradient of the whole "
    "background, so that it holds the bias too. The last column is the variance of the probability of a sample's own "
    "class, averaged over classes, which is what the paper's derivation is about; the others weigh classes by their "
    "frequency, as the loss does. Second table: what comes of it, the leave-one-out loss of the first calibration set "
    "after the fast recipe with either sampling, the same steps and samples a batch. Third table: the same at equal "
    "time. Both are timed, in seconds of one processor, the least over trainings; the slower sampling is then trained "
    "anew with as many steps, and its schedule of learning rates shortened to them, as take the time of the faster "
    "one. Where classes are equally frequent the two are the same; so each task is also cut down to classes that fall "
    f"geometrically to 1:{IMBALANCE}."
)


@dataclass(frozen=True)
class VarianceRatios:
    """Equal over proportional."""

    gradient: float
    gradient_error: float
    loss: float
    class_probability: float


@dataclass(frozen=True)
class Moments:
    """What drawn backgrounds scatter by."""

    gradient_variance: float
    gradient_error: float
    loss_variance: float
    class_probability_variance: float

    def over(self, other: Moments) -> VarianceRatios:
        """Return the ratios to another's."""
        return VarianceRatios(
            _ratio(self.gradient_variance, other.gradient_variance),
            _ratio(self.gradient_error, other.gradient_error),
            _ratio(self.loss_variance, other.loss_variance),
            _ratio(self.class_probability_variance, other.class_probability_variance),
        )


@dataclass(frozen=True)
class TimedTrainings:
    """Trainings with one sampling, one a seed; the steps of each, and the least of their seconds."""

    trained: tuple[TrainedProjection, ...]
    steps: int
    seconds: float

    def losses(self, task: Task, rows: NDArray[np.intp], *, last: bool) -> list[float]:
        """Return the leave-one-out losses of some rows of the pool, at the last step or at the best checkpoint."""
        return [leave_one_out_loss(task, rows, each.module if last else each) for each in self.trained]


def study_sampling(
    tasks: Iterable[Task], *, reshuffles: int = 3, seed: int = 0, watch: StudyWatch = unwatched
) -> Study:
    """Compare both samplings on every task as it is and made imbalanced, trained with up to ``TRAININGS`` seeds."""
    seeds = range(seed, seed + min(reshuffles, TRAININGS))
    found: dict[str, list[tuple[Entry, ...]]] = {"variances": [], "losses": [], "times": []}
    with on_one_thread():
        warm_up()
        for task in tasks:
            for done, variant in enumerate((task, imbalanced(task, seed=seed))):
                watch(task.name, done, 2)
                timed = train_timed(variant, dict.fromkeys(SAMPLINGS, RECIPE.steps), seeds)
                for title, place in (("start", 0), ("trained", -1)):
                    module = timed["equal"].trained[0].checkpoints[place]
                    ratios = variance_ratios(module, variant, seed=seed)
                    found["variances"].append(_variance_row(variant.name, title, ratios))
                rows = deals_of(variant, 1, seed)[0].calibration
                found["losses"].append(_loss_row(variant, timed, rows))
                found["times"].append(_time_row(variant, timed, at_equal_time(variant, timed, seeds), rows))
            watch(task.name, 2, 2)
    about = counted(ABOUT, len(seeds), "training")
    return Study("sampling", "Equal-sized or proportional sampling", about, _tables(found))


def train_timed(task: Task, steps: Mapping[str, int], seeds: Iterable[int]) -> dict[str, TimedTrainings]:
    """Train by the fast recipe with so many steps of each sampling, once a seed, in turns; seconds are a processor's.

    Of the seeds' seconds the least counts: others who use the processor only add to them.
    """
    trained: dict[str, list[TrainedProjection]] = {name: [] for name in steps}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for seed in seeds:
        for name, number in steps.items():
            recipe = replace(RECIPE, sampling=name, steps=number)
            start = time.process_time()
            one = train_for("kcal", task, seed=seed, by_group=False, recipe=recipe)
            seconds[name].append(time.process_time() - start)
            assert one is not None
            trained[name].append(one)
    return {name: TimedTrainings(tuple(trained[name]), steps[name], min(seconds[name])) for name in steps}


def at_equal_time(task: Task, timed: dict[str, TimedTrainings], seeds: Iterable[int]) -> dict[str, TimedTrainings]:
    """Return trainings that take the shorter of the two times: the slower sampling's anew, with fewer steps."""
    if classes_are_equally_frequent(task):
        return timed
    shorter = min(each.seconds for each in timed.values())
    slower = {
        name: max(int(each.steps * shorter / each.seconds), 1)
        for name, each in timed.items()
        if shorter < (1 - AS_FAST) * each.seconds
    }
    return timed | train_timed(task, slower, seeds)


def imbalanced(task: Task, *, seed: int, ratio: float = IMBALANCE) -> Task:
    """Return a task whose training set is cut down to classes falling geometrically to 1:ratio, the largest first."""
    counts = np.bincount(task.train.labels, minlength=len(task.classes))
    present = np.flatnonzero(counts)
    order = present[np.argsort(-counts[present], kind="stable")]
    shares = ratio ** (-np.arange(len(order)) / max(len(order) - 1, 1))
    largest = float((counts[order] / shares).min())
    generator = np.random.default_rng(seed)
    rows = np.sort(
        np.concatenate(
            [
                generator.permutation(np.flatnonzero(task.train.labels == k))[: max(round(largest * share), 2)]
                for k, share in zip(order.tolist(), shares.tolist(), strict=True)
            ]
        )
    )
    train = replace(
        task.train,
        embeddings=task.train.embeddings[rows],
        logits=task.train.logits[rows],
        labels=task.train.labels[rows],
        groups=None if task.train.groups is None else task.train.groups[rows],
    )
    return replace(task, name=f"{task.name}, training set made 1:{ratio:g}", train=train)


def variance_ratios(module: nn.Module, task: Task, *, seed: int, draws: int = DRAWS) -> VarianceRatios:
    """Return how much backgrounds of equal numbers scatter, over those of proportional ones, of the same size."""
    labels = task.train.labels
    generator = np.random.default_rng(seed)
    queries = np.sort(generator.choice(len(labels), min(QUERIES, len(labels) // 2), replace=False))
    left = np.setdiff1d(np.arange(len(labels)), queries)
    counts = np.bincount(labels[left], minlength=len(task.classes))
    equal = np.minimum(counts, PER_CLASS)
    frequencies = np.bincount(labels, minlength=len(task.classes))
    proportional = np.minimum(proportional_counts(frequencies, int(equal.sum())), counts)
    numbers = {"equal": equal, "proportional": proportional}
    if np.array_equal(numbers["equal"], numbers["proportional"]):
        return VarianceRatios(1.0, 1.0, 1.0, 1.0)
    estimator = _Estimator(module, task, queries)
    whole, _ = estimator.estimate(left, np.zeros(len(left)))
    index = ClassIndex(labels[left], len(task.classes))
    found = {name: _moments(estimator, index, left, drawn, whole, generator, draws) for name, drawn in numbers.items()}
    return found["equal"].over(found["proportional"])


class _Estimator:
    """The gradient and the losses of some predicted samples, from a background."""

    def __init__(self, module: nn.Module, task: Task, queries: NDArray[np.intp]) -> None:
        self.module = deepcopy(module).eval().requires_grad_(True)
        self.parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        self.embeddings = torch.from_numpy(task.train.embeddings)
        self.codes = torch.from_numpy(task.train.labels)
        self.queries = torch.from_numpy(queries)
        self.query_codes = self.codes[self.queries].numpy()

    def estimate(
        self, background: NDArray[np.intp], log_weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the gradient of the mean loss, all parameters in a row, and the loss of every predicted sample."""
        rows = torch.from_numpy(background)
        weights = torch.as_tensor(log_weights, dtype=self.embeddings.dtype)
        points, others = self.module(self.embeddings[self.queries]), self.module(self.embeddings[rows])
        losses = episode_losses(points, others, self.codes[self.queries], self.codes[rows], weights)
        gradients = torch.autograd.grad(losses.mean(), self.parameters, allow_unused=True)
        flat = [gradient.double().flatten().numpy() for gradient in gradients if gradient is not None]
        return np.concatenate(flat), losses.detach().double().numpy()


def _moments(
    estimator: _Estimator,
    index: ClassIndex,
    left: NDArray[np.intp],
    numbers: NDArray[np.int64],
    whole: NDArray[np.float64],
    generator: np.random.Generator,
    draws: int,
) -> Moments:
    gradients, losses = [], []
    for _ in range(draws):
        rows, drawn = index.draw(numbers, generator)
        log_weights = np.repeat(np.log(index.counts[drawn > 0] / drawn[drawn > 0]), drawn[drawn > 0])
        gradient, loss = estimator.estimate(left[rows], log_weights)
        gradients.append(gradient)
        losses.append(loss)
    by_draw, probabilities = np.array(losses), np.exp(-np.array(losses))  # (n_draws, n_query)
    scatter = probabilities.var(axis=0, ddof=1)
    codes = estimator.query_codes
    return Moments(
        float(np.array(gradients).var(axis=0, ddof=1).sum()),
        float(((np.array(gradients) - whole) ** 2).sum(axis=1).mean()),
        float(by_draw.mean(axis=1).var(ddof=1)),
        float(np.mean([scatter[codes == k].mean() for k in np.unique(codes)])),
    )


def _ratio(first: float, second: float) -> float:
    return first / second if second > 0 else float("nan")  # nothing scatters where all samples are taken


def _loss_row(task: Task, timed: dict[str, TimedTrainings], rows: NDArray[np.intp]) -> tuple[Entry, ...]:
    last, best = ([timed[name].losses(task, rows, last=last) for name in SAMPLINGS] for last in (True, False))
    return (Entry(task.name), *_pair(last), *_pair(best))


def _time_row(
    task: Task, timed: dict[str, TimedTrainings], alike: dict[str, TimedTrainings], rows: NDArray[np.intp]
) -> tuple[Entry, ...]:
    seconds = (Entry(f"{timed[name].seconds:.2f}") for name in SAMPLINGS)
    steps = (Entry(f"{alike[name].steps:,}") for name in SAMPLINGS)
    return (
        Entry(task.name),
        *seconds,
        *steps,
        *_pair([alike[name].losses(task, rows, last=False) for name in SAMPLINGS]),
    )


def _pair(losses: list[list[float]]) -> list[Entry]:
    means = [float(np.mean(each)) for each in losses]
    spreads = [f"±{np.std(each, ddof=1):.4f}" if len(each) > 1 else "" for each in losses]
    return [Entry(f"{mean:.4f}{spread}", bold=mean < max(means)) for mean, spread in zip(means, spreads, strict=True)]


def _variance_row(task: str, title: str, ratios: VarianceRatios) -> tuple[Entry, ...]:
    numbers = (ratios.gradient, ratios.gradient_error, ratios.loss, ratios.class_probability)
    return (Entry(task), Entry(title), *(Entry(f"{ratio:.2f}", bold=ratio < CLEARLY_BELOW) for ratio in numbers))


def _tables(found: dict[str, list[tuple[Entry, ...]]]) -> tuple[Table, ...]:
    return (
        Table(
            "sampling_variances",
            "Variance with equal numbers over that with proportional ones",
            ("training set", "Π", "gradient", "gradient, squared error", "loss", "own probability, by class"),
            tuple(found["variances"]),
            f"Bold: below {CLEARLY_BELOW:g}. 1.00 throughout: classes are equally frequent, both draw alike. "
            f"From {DRAWS} draws a ratio of variances of one number, such as the loss, is known to some 15% or worse.",
        ),
        Table(
            "sampling_losses",
            "Leave-one-out loss after the same steps",
            ("training set", "last step: equal", "proportional", "best checkpoint: equal", "proportional"),
            tuple(found["losses"]),
            "Mean ± standard deviation over trainings; bold is the lower mean.",
        ),
        Table(
            "sampling_times",
            "Leave-one-out loss after the same time",
            (
                "training set",
                "seconds: equal",
                "proportional",
                "steps: equal",
                "proportional",
                "loss: equal",
                "proportional",
            ),
            tuple(found["times"]),
            f"Seconds are of {RECIPE.steps} steps; steps are those that the shorter of the two times allows, and the "
            f"losses, of the best checkpoint, are after these. Seconds that differ by less than {AS_FAST:.0%} count as "
            "the same, and so do all where classes are equally frequent.",
        ),
    )
