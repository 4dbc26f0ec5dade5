"""A blend with a learned metric that takes a moment."""

from __future__ import annotations

from typing import Any

from kcal import FastRecipe, KCalBlend

QUICK = FastRecipe(steps=12, batch_size=120, checkpoints=3)


def blend_of(problem: Any, **parameters: Any) -> KCalBlend:
    return KCalBlend(recipe=QUICK, **parameters).fit(
        problem.embeddings,
        problem.labels,
        logits=problem.logits,
        train_embeddings=problem.train_embeddings,
        train_labels=problem.train_labels,
    )
