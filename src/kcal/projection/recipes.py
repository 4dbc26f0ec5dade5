"""How Π is trained: every number of the paper's recipe and of the fast one."""

from __future__ import annotations

from dataclasses import dataclass

from kcal.errors import InvalidInputError


@dataclass(frozen=True)
class PaperRecipe:
    """The paper's training: plain SGD, halved on a plateau, the last weights kept.

    Every step predicts ``predictions`` samples from a background of ``background_per_class`` samples of each class.
    After every epoch the log-loss on what ``monitor`` names decides whether the learning rate is multiplied by
    ``factor``; training ends with the last epoch or when the rate falls below ``least_learning_rate``.

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

    def __post_init__(self) -> None:
        _refuse_unless_positive(self, "learning_rate", "epochs", "batches_per_epoch", "predictions", "bandwidth")
        _refuse_unless_positive(self, "background_per_class")
        _refuse_unless_among(self, "monitor", ("calibration", "training"))


@dataclass(frozen=True)
class FastRecipe:
    """The same objective in a small fraction of the time.

    One stratified batch is prediction and background at once: each sample is predicted from all the others, so that
    a step learns from ``batch_size``² pairs. AdamW with a one-cycle schedule. ``start="pca"`` begins at the principal
    axes of the embeddings, where the distances already mean something, in place of random weights.

    Checkpoints are kept at the start and at steps, steps/2, steps/4, … ``select="calibration"`` takes the one with
    the lowest leave-one-out loss on the calibration set, so that one training serves many calibration sets. It lets Π
    depend on the calibration set through that choice among a handful, which the theorems do not allow;
    ``select="last"`` avoids it.
    """

    steps: int = 400
    batch_size: int = 1000
    learning_rate: float = 5e-3
    weight_decay: float = 1e-2
    warm_up: float = 0.2
    bandwidth: float = 1.0
    start: str = "pca"
    checkpoints: int = 7
    select: str = "calibration"

    def __post_init__(self) -> None:
        _refuse_unless_positive(self, "steps", "batch_size", "learning_rate", "bandwidth", "checkpoints")
        _refuse_unless_among(self, "start", ("pca", "random"))
        _refuse_unless_among(self, "select", ("calibration", "last"))

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


def _refuse_unless_positive(recipe: object, *names: str) -> None:
    for name in names:
        value = getattr(recipe, name)
        if not value > 0:
            raise InvalidInputError(f"{type(recipe).__name__}: {name} must be positive; got {value!r}.")


def _refuse_unless_among(recipe: object, name: str, choices: tuple[str, ...]) -> None:
    value = getattr(recipe, name)
    if value not in choices:
        raise InvalidInputError(f"{type(recipe).__name__}: {name} must be one of {choices}; got {value!r}.")
