"""How Π is trained: all numbers of the paper's recipe and of the fast one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import cos, pi, sqrt
from typing import Any, Self

from kcal.errors import InvalidInputError
from kcal.validation import (
    check_choice,
    check_flag,
    check_integer,
    check_number,
    checked_parameters,
    parameter,
    shown,
)

MIN_FEATURES_UNIT_LENGTH = 16
"""From this number of features on, embeddings are divided by their length."""
MAX_MAGNITUDE = 1e12
"""Bound of rates, decays and bandwidths, and of the inverses of those above 0."""
MAX_COUNT = 10**7
"""Bound of numbers of steps, samples and dimensions."""
AUTO_PASSES, MIN_AUTO_STEPS, MAX_AUTO_STEPS = 40, 20, 400
"""Passes over the training set, and bounds of the steps, of ``steps="auto"``."""
USUAL_DIMENSION, MANY_CLASSES_DIMENSION, MANY_CLASSES = 32, 128, 1_000
"""The paper's dimensions, and the smallest number of classes with the larger one."""
PUBLISHED_CHANGES: dict[str, dict[str, Any]] = {
    "cifar10": {},
    "cifar100": {},
    "svhn": {},
    "imagenet": {"learning_rate": 5e-2, "patience": 15},
    "isruc": {"learning_rate": 1e-3},
    "iiic": {},
    "pn2017": {"learning_rate": 1e-3},
}
"""Numbers of the paper's recipe that differ from its defaults, by data set."""


_positive = partial(parameter, check=check_number, minimum=1 / MAX_MAGNITUDE, maximum=MAX_MAGNITUDE)
_nonnegative = partial(parameter, check=check_number, minimum=0, maximum=MAX_MAGNITUDE)
_count = partial(parameter, check=check_integer, minimum=1, maximum=MAX_COUNT)


@dataclass(frozen=True)
class PaperRecipe:
    """The paper's training: plain SGD, halved on a plateau, the last weights kept.

    Every step predicts ``predictions`` samples from a background of ``background_per_class`` samples of each class.
    After every epoch the log-loss on the set named by ``monitor`` decides whether the learning rate is multiplied by
    ``factor``; training ends with the last epoch or when the rate falls below ``min_learning_rate``.

    The published kernel of the training is exp(−‖u‖²/d), which is a ``bandwidth`` b of √½ in exp(−‖u‖²/(2·d·b²)).
    Background and predictions are projected as two batches, each with its own statistics in the batch norm.

    A dimension of "auto" is at most ``max_dimension``, of which "auto" is 32, and 128 with 1,000 classes or more.

    With fewer than 2·``predictions`` samples half of them are predicted, so that a background is left; a sample whose
    class has no background in a step is left out of that step.

    ``monitor="calibration"`` is the published rule (leave-one-out log-loss on the calibration set). It makes Π depend
    on the calibration set, which the theorems do not allow; ``monitor="training"`` avoids it. Where many calibration
    sets share one training, as in the benchmark, that of the first split is monitored.
    """

    learning_rate: float = _positive(4e-4)
    epochs: int = _count(100)
    batches_per_epoch: int = _count(5000)
    predictions: int = _count(64)
    background_per_class: int = _count(20)
    bandwidth: float = _positive(sqrt(0.5))
    factor: float = parameter(0.5, check_number, minimum=0, maximum=1, exclusive=True)
    patience: int = parameter(10, check_integer, minimum=0, maximum=MAX_COUNT)
    min_learning_rate: float = _nonnegative(1e-5)
    monitor: str = parameter("calibration", check_choice, choices=("calibration", "training"))
    max_dimension: int | str = _count("auto")

    def __post_init__(self) -> None:
        _store_checked(self)

    def dimension_limit(self, n_classes: int) -> int:
        """Return the largest d of a dimension of "auto"."""
        if not isinstance(self.max_dimension, str):
            return self.max_dimension
        return MANY_CLASSES_DIMENSION if n_classes >= MANY_CLASSES else USUAL_DIMENSION

    @classmethod
    def for_data_set(cls, data_set: str) -> Self:
        """Return the paper's recipe for one of its data sets: cifar10, cifar100, svhn, imagenet, isruc, iiic or pn2017.

        The numbers for imagenet, which the text does not give, are those of the published code.
        """
        return cls(**PUBLISHED_CHANGES[check_choice(data_set, "data_set", tuple(PUBLISHED_CHANGES))])


@dataclass(frozen=True)
class FastRecipe:
    """The same objective in a small fraction of the time.

    One stratified batch is prediction and background at once: each sample is predicted from all the others, so that
    a step learns from ``batch_size**2`` pairs. The optimiser is AdamW; the rate rises linearly and falls as a cosine.

    ``start="pca"`` begins at the principal axes of the embeddings, in place of random weights. ``unit_length``
    divides embeddings by their length first: a network that fits its training set stretches the embeddings of training
    samples: their length is not comparable with that of new samples. "auto" does so with 16 features or more. A
    dimension of "auto" is at most ``max_dimension``.

    ``steps="auto"`` takes 40 passes over the training set, from 20 to 400 steps.

    Checkpoints are kept at the start and at steps, steps/2, steps/4, … ``select="calibration"`` takes the one with
    the lowest leave-one-out loss on the calibration set: one training serves many calibration sets; a training
    for one calibration set ends after three checkpoints without a lower loss. It lets Π depend on the calibration set
    through a choice among a few, which the theorems do not allow; ``select="last"`` avoids it.

    ``sampling="equal"`` draws the same number of samples of each class into a batch, as the paper does, and
    "proportional" draws in proportion to the class frequencies; weights make both estimate the same loss.
    ``class_weights="balanced"`` gives every class the same weight in that loss.
    """

    steps: int | str = _count("auto")
    batch_size: int = _count(1000)
    learning_rate: float = _positive(5e-3)
    weight_decay: float = _nonnegative(1e-2)
    warm_up: float = parameter(0.2, check_number, minimum=0, maximum=0.99)
    bandwidth: float = _positive(1.0)
    start: str = parameter("pca", check_choice, choices=("pca", "random"))
    unit_length: bool | str = parameter("auto", check_flag)
    checkpoints: int = parameter(7, check_integer, minimum=1, maximum=64)
    select: str = parameter("calibration", check_choice, choices=("calibration", "last"))
    sampling: str = parameter("equal", check_choice, choices=("equal", "proportional"))
    max_dimension: int = _count(128)
    class_weights: str | None = parameter(None, check_choice, choices=("balanced",))

    def __post_init__(self) -> None:
        _store_checked(self)

    def dimension_limit(self, n_classes: int) -> int:
        """Return the largest d of a dimension of "auto", whatever the number of classes."""
        return self.max_dimension

    def takes_directions(self, n_features: int) -> bool:
        """Return whether embeddings with this number of features are divided by their length."""
        return n_features >= MIN_FEATURES_UNIT_LENGTH if self.unit_length == "auto" else bool(self.unit_length)

    def steps_for(self, n_samples: int) -> int:
        """Return the number of steps on a training set of this size."""
        if not isinstance(self.steps, str):
            return self.steps
        batch = min(self.batch_size, n_samples)
        return min(max(AUTO_PASSES * n_samples // batch, MIN_AUTO_STEPS), MAX_AUTO_STEPS)

    def relative_rate(self, step: int, steps: int) -> float:
        """Return the learning rate at a step relative to the highest: a linear rise, then half a cosine to 0."""
        rise = self.warm_up * steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return 0.5 * (1.0 + cos(pi * (step - rise) / max(steps - rise, 1.0)))

    def marks(self, steps: int) -> tuple[int, ...]:
        """Return the steps after which a checkpoint is kept, ascending."""
        if self.checkpoints == 1:
            return (steps,)
        return tuple(sorted({0, *(steps >> halving for halving in range(self.checkpoints - 1))}))


def _store_checked(recipe: PaperRecipe | FastRecipe) -> None:
    for name, value in checked_parameters(recipe).items():
        object.__setattr__(recipe, name, value)


Recipe = PaperRecipe | FastRecipe
RECIPES: dict[str, type[PaperRecipe] | type[FastRecipe]] = {"fast": FastRecipe, "paper": PaperRecipe}


def get_recipe(recipe: str | Recipe) -> Recipe:
    """Return a recipe by name with its default numbers, or the given recipe."""
    if isinstance(recipe, PaperRecipe | FastRecipe):
        return recipe
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]()
    raise InvalidInputError("recipe", 'must be "fast", "paper", a FastRecipe or a PaperRecipe', got=shown(recipe))
