"""KCal-Logits: KCal on the network's logits in place of its embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.kcal.estimator import KCal
from kcal.calibrators.kcal.module import KCalModule
from kcal.calibrators.modules import required
from kcal.calibrators.online.snapshots import on_snapshot
from kcal.projection import FastRecipe, Recipe
from kcal.validation import unchecked_logits

LOWEST_LOG_PROB = -1e8
"""Bound of the log-softmax: its variance, which a projection stores, stays far from overflow for masked logits."""


class KCalLogitsModule(KCalModule):
    """The prediction of KCal on logits; embeddings are ignored."""

    def embeddings_of(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None) -> torch.Tensor:
        """Return the log-softmax of logits, (n, n_columns), bounded below."""
        return bounded_log_softmax(unchecked_logits(required(logits, "logits"), "logits"))


class KCalLogits(KCal):
    """KCal on the network's logits in place of its embeddings.

    The log-softmax of the logits is the embedding, so that a constant added to a row changes nothing. ``X`` and
    ``train_embeddings`` are logits; everything else is as in :class:`KCal`: columns of the probabilities follow the
    labels or ``classes``, not the columns of the logits. The length of a row of logits is informative (it is the
    network's confidence), so that the fast recipe keeps it unless ``unit_length`` is set.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "kcal-logits"

    def as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the log-softmax of logits, (n, n_columns), bounded below."""
        return bounded_log_softmax(rows)

    @on_snapshot
    def as_module(self) -> KCalLogitsModule:
        """Return the prediction as a torch module of logits."""
        check_is_fitted(self)
        return KCalLogitsModule(self.model_)

    def training_recipe(self) -> Recipe:
        """Return the recipe of the projection; by default it keeps the length of the rows."""
        recipe = super().training_recipe()
        if isinstance(recipe, FastRecipe) and recipe.unit_length == "auto":
            return replace(recipe, unit_length=False)
        return recipe


def bounded_log_softmax(rows: torch.Tensor) -> torch.Tensor:
    """Return the log-softmax of logits, (n, n_columns), bounded below."""
    wide = rows if rows.device.type == "mps" else rows.double()
    return torch.log_softmax(wide, dim=1).clamp_min(LOWEST_LOG_PROB).to(rows.dtype)
