"""How Π is trained: all numbers of the paper's recipe and of the fast one."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi
from typing import Any

from kcal.errors import InvalidInputError
from kcal.projection.modules import MAX_DIMENSION
from kcal.validation import check_choice, check_integer, check_number, shown

FEATURES_OF_A_DIRECTION = 16
"""From this number of features on, embeddings are divided by their length."""
MAX_STEPS = 10**7
MAX_BATCH = 10**5
MAX_CHECKPOINTS = 64
LARGEST = 1e12
"""Bound of rates, decays and bandwidths."""


@dataclass(frozen=True)
class PaperRecipe:
    """The paper's training: plain SGD, halved on a plateau, the last weights kept.

    Every step predicts ``predictions`` samples from a background of ``background_per_class`` samples of each class.
    After every epoch the log-loss on the set named by ``monitor`` decides whether the learning rate is multiplied by
    ``factor``; training ends with the last epoch or when the rate falls below ``least_learning_rate``.

    With fewer than 2·``predictions`` samples half of them are predicted, so that a background is left; a sample whose
    class has no background in a step is left out of that step.

    ``monitor="calibration"`` is the published rule (leave-one-out log-loss on the calibration set). It makes Π depend
    on the calibration set, which the theorems do not allow; ``monitor="training"`` avoids it.
    """

    learning_rate: float = 4e-4
    epochs: int = 100
    batches_per_epoch: int = 5000
    predictions: int = 64
    background_per_class: int = 20
    bandwidth: float = 1.0
    factor: float = 0.5
    patience: int = 10
    least_learning_rate: float = 1e-5
    monitor: str = "calibration"
    largest_dimension: int = 32

    def __post_init__(self) -> None:
        _check_integers(self, MAX_STEPS, "epochs", "batches_per_epoch")
        _check_integers(self, MAX_BATCH, "predictions", "background_per_class")
        _check_integers(self, MAX_DIMENSION, "largest_dimension")
        _check_integers(self, MAX_STEPS, "patience", minimum=0)
        _check_numbers(self, LARGEST, "learning_rate", "bandwidth", positive=True)
        _check_numbers(self, 1.0, "factor", positive=True)
        _check_numbers(self, LARGEST, "least_learning_rate")
        check_choice(self.monitor, "monitor", ("calibration", "training"))


@dataclass(frozen=True)
class FastRecipe:
    """The same objective in a small fraction of the time.

    One stratified batch is prediction and background at once: each sample is predicted from all the others, so that
    a step learns from ``batch_size``² pairs. The optimiser is AdamW; the rate rises linearly and falls as a cosine.

    ``start="pca"`` begins at the principal axes of the embeddings, in place of random weights. ``hold`` pulls the
    weights back to their initial values: at every step by ``hold`` times the learning rate of the way; 0 by default,
    since choosing among checkpoints does better. ``unit_length`` divides embeddings by their length first: a network
    that fits its training set stretches the embeddings of training samples, so that their length is not comparable
    with that of new samples. "auto" does so from 16 features on. A dimension of "auto" is at most
    ``largest_dimension``.

    Checkpoints are kept at the start and at steps, steps/2, steps/4, … ``select="calibration"`` takes the one with
    the lowest leave-one-out loss on the calibration set, so that one training serves many calibration sets. It lets Π
    depend on the calibration set through a choice among a few, which the theorems do not allow; ``select="last"``
    avoids it.

    ``sampling="equal"`` draws the same number of samples of each class into a batch, as the paper does, and
    "proportional" draws in proportion to the class frequencies; weights make both estimate the same loss.
    ``class_weights="balanced"`` gives every class the same weight in that loss.
    """

    steps: int = 400
    batch_size: int = 1000
    learning_rate: float = 5e-3
    weight_decay: float = 1e-2
    warm_up: float = 0.2
    bandwidth: float = 1.0
    start: str = "pca"
    unit_length: bool | str = "auto"
    checkpoints: int = 7
    select: str = "calibration"
    sampling: str = "equal"
    largest_dimension: int = 128
    class_weights: str | None = None
    hold: float = 0.0

    def __post_init__(self) -> None:
        _check_integers(self, MAX_STEPS, "steps")
        _check_integers(self, MAX_BATCH, "batch_size")
        _check_integers(self, MAX_CHECKPOINTS, "checkpoints")
        _check_integers(self, MAX_DIMENSION, "largest_dimension")
        _check_numbers(self, LARGEST, "learning_rate", "bandwidth", positive=True)
        _check_numbers(self, LARGEST, "weight_decay", "hold")
        _check_numbers(self, 0.99, "warm_up")
        check_choice(self.start, "start", ("pca", "random"))
        check_choice(self.select, "select", ("calibration", "last"))
        check_choice(self.sampling, "sampling", ("equal", "proportional"))
        if not isinstance(self.unit_length, bool) and not _is(self.unit_length, "auto"):
            raise InvalidInputError("unit_length", 'must be True, False or "auto"', got=shown(self.unit_length))
        if self.class_weights is not None and not _is(self.class_weights, "balanced"):
            raise InvalidInputError("class_weights", 'must be "balanced" or None', got=shown(self.class_weights))

    def takes_directions(self, n_features: int) -> bool:
        """Return whether embeddings with this number of features are divided by their length."""
        return n_features >= FEATURES_OF_A_DIRECTION if self.unit_length == "auto" else bool(self.unit_length)

    def relative_rate(self, step: int) -> float:
        """Return the learning rate at a step relative to the highest: a linear rise, then half a cosine to 0."""
        rise = self.warm_up * self.steps
        if step < rise:
            return (step + 1) / (rise + 1)
        return 0.5 * (1.0 + cos(pi * (step - rise) / max(self.steps - rise, 1.0)))

    def marks(self) -> tuple[int, ...]:
        """Return the steps after which a checkpoint is kept, ascending."""
        later = {self.steps >> halving for halving in range(self.checkpoints - 1)} if self.checkpoints > 1 else set()
        return tuple(sorted({self.steps, *later} | ({0} if self.checkpoints > 1 else set())))


Recipe = PaperRecipe | FastRecipe
RECIPES: dict[str, type[PaperRecipe] | type[FastRecipe]] = {"fast": FastRecipe, "paper": PaperRecipe}


def get_recipe(recipe: str | Recipe) -> Recipe:
    """Return a recipe by name with its default numbers, or the given recipe."""
    if isinstance(recipe, PaperRecipe | FastRecipe):
        return recipe
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]()
    raise InvalidInputError("recipe", 'must be "fast", "paper", a FastRecipe or a PaperRecipe', got=shown(recipe))


def _check_integers(recipe: Recipe, maximum: int, *names: str, minimum: int = 1) -> None:
    for name in names:
        value = check_integer(getattr(recipe, name), name, minimum=minimum, maximum=maximum)
        object.__setattr__(recipe, name, value)  # numpy's integers become Python's


def _check_numbers(recipe: Recipe, maximum: float, *names: str, positive: bool = False) -> None:
    for name in names:
        value = check_number(getattr(recipe, name), name, minimum=0, maximum=maximum, exclusive=positive)
        object.__setattr__(recipe, name, value)


def _is(value: Any, word: str) -> bool:
    return isinstance(value, str) and value == word
