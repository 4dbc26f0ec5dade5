"""The projection Π, the sampling of episodes, and the recipes that train it."""

from kcal.projection.modules import (
    ARCHITECTURES,
    START_SPREAD,
    UNTRAINED,
    LinearProjection,
    SkipProjection,
    build_projection,
    check_dimension,
    check_projection,
    ignores_length,
    log_lengths,
    needs_training,
    project,
)
from kcal.projection.recipes import RECIPES, FastRecipe, PaperRecipe, Recipe, get_recipe
from kcal.projection.training import (
    FoundProjection,
    TrainedProjection,
    TrainingCurve,
    find_projection,
    frozen_copy,
    train_projection,
)

__all__ = [
    "ARCHITECTURES",
    "RECIPES",
    "START_SPREAD",
    "UNTRAINED",
    "FastRecipe",
    "FoundProjection",
    "LinearProjection",
    "PaperRecipe",
    "Recipe",
    "SkipProjection",
    "TrainedProjection",
    "TrainingCurve",
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
