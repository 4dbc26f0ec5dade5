"""The projection Π, the sampling of episodes, and the recipes that train it."""

from kcal.projection.lengths import ignores_length, log_lengths
from kcal.projection.modules import (
    ARCHITECTURES,
    START_SPREAD,
    UNTRAINED,
    LinearProjection,
    SkipProjection,
    build_projection,
    check_dimension,
    check_projection,
    choose_dimension,
    needs_training,
    project,
)
from kcal.projection.recipes import RECIPES, FastRecipe, PaperRecipe, Recipe, get_recipe
from kcal.projection.training import (
    Checkpoint,
    FoundProjection,
    TrainedProjection,
    TrainingCurve,
    find_projection,
    frozen_copy,
    start_projection,
    train_checkpoints,
    train_projection,
)

__all__ = [
    "ARCHITECTURES",
    "RECIPES",
    "START_SPREAD",
    "UNTRAINED",
    "Checkpoint",
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
    "choose_dimension",
    "find_projection",
    "frozen_copy",
    "get_recipe",
    "ignores_length",
    "log_lengths",
    "needs_training",
    "project",
    "start_projection",
    "train_checkpoints",
    "train_projection",
]
