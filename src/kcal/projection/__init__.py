"""The network Π, the sampling of episodes and the recipes that train it."""

from kcal.projection.modules import (
    ARCHITECTURES,
    START_SPREAD,
    UNTRAINED,
    LinearProjection,
    SkipProjection,
    build_projection,
    choose_dimension,
    project,
)
from kcal.projection.recipes import RECIPES, FastRecipe, PaperRecipe, Recipe, get_recipe
from kcal.projection.training import (
    TrainedProjection,
    TrainingCurve,
    TrainingSamples,
    run_training,
    start_projection,
    train_projection,
)

__all__ = [
    "ARCHITECTURES",
    "RECIPES",
    "START_SPREAD",
    "UNTRAINED",
    "FastRecipe",
    "LinearProjection",
    "PaperRecipe",
    "Recipe",
    "SkipProjection",
    "TrainedProjection",
    "TrainingCurve",
    "TrainingSamples",
    "build_projection",
    "choose_dimension",
    "get_recipe",
    "project",
    "run_training",
    "start_projection",
    "train_projection",
]
