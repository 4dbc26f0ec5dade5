"""How Π is trained: every number of the paper's recipe and of the fast one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import cos, inf, isfinite, pi
from numbers import Integral, Real
from typing import Any

from kcal.errors import InvalidInputError

FEATURES_OF_A_DIRECTION = 16
"""From so many features on, embeddings are divided by their length."""


@dataclass(frozen=True)
class PaperRecipe:
    """The paper's training: plain SGD, halved on a plateau, the last weights kept.

    Every step predicts ``predictions`` samples from a background of ``background_per_class`` samples of each class.
    After every epoch the log-loss on what ``monitor`` names decides whether the learning rate is multiplied by
    ``factor``; training ends with the last epoch or when the rate falls below ``least_learning_rate``.

    On fewer than 2·``predictions`` samples half of them are predicted, so that a background is left; a sample whose
    class has no background in a step does not count in it.

    ``monitor="calibration"`` is what was published (leave-one-out log-loss on the calibration set). It makes Π depend
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
        _check_counts(self, "epochs", "batches_per_epoch", "predictions", "background_per_class", "largest_dimension")
        _check_counts(self, "patience", least=0)
        _check_numbers(self, "learning_rate", "bandwidth")
        _check_numbers(self, "factor", below=1.0)
        _check_numbers(self, "least_learning_rate", or_zero=True)
        _refuse_unless_among(self, "monitor", ("calibration", "training"))


@dataclass(frozen=True)
class FastRecipe:
    """The same objective in a small fraction of the time.

    One stratified batch is prediction and background at once: each sample is predicted from all the others, so that
    a step learns from ``batch_size``² pairs. AdamW; the rate rises in a line and falls as a cosine. ``start="pca"``
    begins at the principal axes of the embeddings, where the distances already mean something, in place of random
    weights. ``hold`` draws the weights back to their start, whatever it was: at every step by ``hold`` times the rate
    of the way. It is 0, since checkpoints stay as near and do better. With ``unit_length`` embeddings are divided by
    their length first: a network that fits its training set stretches the embeddings of training samples, and their
    length says little of new ones. "auto" does so from 16 features on; in few dimensions the direction alone tells too
    little. A dimension left to KCal ("auto") is at most ``largest_dimension``.

    Checkpoints are kept at the start and at steps, steps/2, steps/4, … ``select="calibration"`` takes the one with
    the lowest leave-one-out loss on the calibration set, so that one training serves many calibration sets. It lets Π
    depend on the calibration set through that choice among a handful, which the theorems do not allow;
    ``select="last"`` avoids it.

    ``sampling="equal"`` puts the same number of samples of each class into a batch, as the paper does, and
    "proportional" numbers in proportion to the classes' frequencies; samples are weighed so that both estimate the
    same loss. ``class_weights="balanced"`` lets every class count the same in that loss, however rare it is.
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
        _check_counts(self, "steps", "batch_size", "checkpoints", "largest_dimension")
        _check_numbers(self, "learning_rate", "bandwidth")
        _check_numbers(self, "weight_decay", "hold", or_zero=True)
        _check_numbers(self, "warm_up", or_zero=True, below=1.0)
        _refuse_unless_among(self, "start", ("pca", "random"))
        _refuse_unless_among(self, "select", ("calibration", "last"))
        _refuse_unless_among(self, "sampling", ("equal", "proportional"))
        if not isinstance(self.unit_length, bool) and self.unit_length != "auto":
            raise _bad(self, "unit_length", 'True, False or "auto"')
        balanced = isinstance(self.class_weights, str) and self.class_weights == "balanced"
        if self.class_weights is not None and not balanced:
            raise _bad(self, "class_weights", '"balanced" or None')

    def takes_directions(self, n_features: int) -> bool:
        """Say whether embeddings of so many features are divided by their length."""
        return n_features >= FEATURES_OF_A_DIRECTION if self.unit_length == "auto" else bool(self.unit_length)

    def relative_rate(self, step: int) -> float:
        """Return the learning rate at a step relative to the highest: a linear rise, then half a cosine to zero."""
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
    """Return a recipe by name with its default numbers, or the recipe itself."""
    if isinstance(recipe, PaperRecipe | FastRecipe):
        return recipe
    if not isinstance(recipe, str) or recipe not in RECIPES:
        raise InvalidInputError(f'recipe must be "fast", "paper", a FastRecipe or a PaperRecipe; got {recipe!r}.')
    return RECIPES[recipe]()


def _check_counts(recipe: object, *names: str, least: int = 1) -> None:
    for name in names:
        value = getattr(recipe, name)
        if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
            raise _bad(recipe, name, f"an integer of at least {least}")
        object.__setattr__(recipe, name, int(value))  # numpy's integers become Python's


def _check_numbers(recipe: object, *names: str, or_zero: bool = False, below: float = inf) -> None:
    kind = "zero or positive" if or_zero else "positive"
    expected = f"{kind} and {'finite' if below == inf else f'less than {below:g}'}"
    for name in names:
        value = getattr(recipe, name)
        if not _is_finite(value) or not ((value >= 0 if or_zero else value > 0) and value < below):
            raise _bad(recipe, name, expected)
        object.__setattr__(recipe, name, value if isinstance(value, int) else float(value))


def _is_finite(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    except OverflowError:  # a whole number that is too large for floating point
        return False


def _bad(recipe: object, name: str, expected: str) -> InvalidInputError:
    default = next(field.default for field in fields(recipe) if field.name == name)  # type: ignore[arg-type]
    return InvalidInputError(
        f"{type(recipe).__name__}: {name} must be {expected}; got {getattr(recipe, name)!r}. "
        f"Leave it out for {default!r}."
    )


def _refuse_unless_among(recipe: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(recipe, name)
    if not isinstance(value, str) or value not in choices:
        raise InvalidInputError(f"{type(recipe).__name__}: {name} must be one of {choices}; got {value!r}.")
