"""How Π is trained: all numbers of the paper's recipe and of the fast one."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi

from kcal.errors import InvalidInputError
from kcal.projection.modules import MAX_DIMENSION
from kcal.validation import check_integer, check_number, shown

FEATURES_OF_A_DIRECTION = 16
"""From this number of features on, embeddings are divided by their length."""
LARGEST = 1e12
"""Bound of rates, decays and bandwidths."""
STEPS, SAMPLES = (1, 10**7), (1, 10**5)
INTEGERS = {
    **dict.fromkeys(("epochs", "batches_per_epoch", "steps"), STEPS),
    **dict.fromkeys(("predictions", "background_per_class", "batch_size"), SAMPLES),
    "largest_dimension": (1, MAX_DIMENSION),
    "patience": (0, 10**7),
    "checkpoints": (1, 64),
}
"""The lowest and the highest value."""
POSITIVE = {"learning_rate": LARGEST, "bandwidth": LARGEST, "factor": 1.0}
"""The upper bound, excluded, of numbers greater than 0."""
NOT_NEGATIVE = {"least_learning_rate": LARGEST, "weight_decay": LARGEST, "hold": LARGEST, "warm_up": 0.99}
"""The highest value of numbers from 0 on."""
CHOICES: dict[str, tuple[object, ...]] = {
    "monitor": ("calibration", "training"),
    "start": ("pca", "random"),
    "select": ("calibration", "last"),
    "sampling": ("equal", "proportional"),
    "unit_length": ("auto", True, False),
    "class_weights": ("balanced", None),
}


class CheckedFields:
    """Base of the recipes: the fields are checked against the tables above; numpy's numbers become Python's."""

    def __post_init__(self) -> None:
        for name, given in vars(self).copy().items():
            value = given
            if name in INTEGERS:
                lowest, highest = INTEGERS[name]
                value = check_integer(given, name, minimum=lowest, maximum=highest)
            elif name in POSITIVE:
                value = check_number(given, name, minimum=0, maximum=POSITIVE[name], exclusive=True)
            elif name in NOT_NEGATIVE:
                value = check_number(given, name, minimum=0, maximum=NOT_NEGATIVE[name])
            elif not any(isinstance(given, type(choice)) and given == choice for choice in CHOICES[name]):
                expected = f"must be one of {', '.join(map(repr, CHOICES[name]))}"
                raise InvalidInputError(name, expected, got=shown(given))
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class PaperRecipe(CheckedFields):
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


@dataclass(frozen=True)
class FastRecipe(CheckedFields):
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
        if self.checkpoints == 1:
            return (self.steps,)
        return tuple(sorted({0, *(self.steps >> halving for halving in range(self.checkpoints - 1))}))


Recipe = PaperRecipe | FastRecipe
RECIPES: dict[str, type[PaperRecipe] | type[FastRecipe]] = {"fast": FastRecipe, "paper": PaperRecipe}


def get_recipe(recipe: str | Recipe) -> Recipe:
    """Return a recipe by name with its default numbers, or the given recipe."""
    if isinstance(recipe, PaperRecipe | FastRecipe):
        return recipe
    if isinstance(recipe, str) and recipe in RECIPES:
        return RECIPES[recipe]()
    raise InvalidInputError("recipe", 'must be "fast", "paper", a FastRecipe or a PaperRecipe', got=shown(recipe))
