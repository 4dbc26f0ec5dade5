"""KCal-Logits: KCal on the network's logits in place of its embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch

from kcal.calibrators.kcal.estimator import KCal
from kcal.projection import FastRecipe, Recipe, get_recipe


class KCalLogits(KCal):
    """KCal on the network's logits in place of its embeddings.

    Log-softmax of the logits is the embedding, so that a constant added to a row changes nothing. ``X`` and
    ``train_embeddings`` are logits; all else is as in :class:`KCal`: columns of the probabilities follow the labels
    seen or ``classes``, not the columns of the logits. The length of a row of logits tells how sure the network is,
    so that the fast recipe keeps it unless told otherwise.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "kcal-logits"

    def _as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        dtype = rows.dtype
        return torch.log_softmax(rows if rows.device.type == "mps" else rows.double(), dim=1).to(dtype)

    def _training_recipe(self) -> Recipe:
        recipe = get_recipe(self.recipe)
        if isinstance(recipe, FastRecipe) and recipe.unit_length == "auto":
            return replace(recipe, unit_length=False)
        return recipe
