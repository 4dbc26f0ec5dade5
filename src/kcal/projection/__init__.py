"""The projection Π, the sampling of episodes, and the recipes that train it."""

from kcal.projection.modules import (
    ARCHITECTURES,
    OWN_MODULE,
    UNTRAINED,
    LinearProjection,
    ResidualProjection,
    architecture_of,
    build_projection,
    check_dimension,
    ignores_length,
    log_lengths,
    needs_training,
    project,
)
from kcal.projection.recipes import (
    RECIPES,
    FastRecipe,
    PaperRecipe,
    Recipe,
    get_recipe,
)
from kcal.projection.training import (
    TrainedProjection,
    TrainingCurve,
    check_projection,
    find_projection,
    frozen_copy,
    train_projection,
)

__all__ = [
    "ARCHITECTURES",
    "OWN_MODULE",
    "RECIPES",
    "UNTRAINED",
    "FastRecipe",
    "LinearProjection",
    "PaperRecipe",
    "Recipe",
    "ResidualProjection",
    "TrainedProjection",
    "TrainingCurve",
    "architecture_of",
    "build_projection",
    "check_dimension",
    "check_projection",
    "find_projection",
    "frozen_copy",
    "get_recipe",
    "ignores_length",
    "log_lengths",
    "needs_training",
    "project",
    "train_projection",
]
