"""A fitted blend of a made-up problem."""

from __future__ import annotations

from typing import Any

from kcal import KCalBlend


def blend_of(problem: Any, **parameters: Any) -> KCalBlend:
    return KCalBlend(**parameters).fit(problem.embeddings, problem.labels, logits=problem.logits)
