"""KCal-Logits: KCal on the network's logits in place of its embeddings."""

from __future__ import annotations

from typing import ClassVar

import torch

from kcal.calibrators.kcal import KCal


class KCalLogits(KCal):
    """KCal on the network's logits in place of its embeddings.

    Log-softmax of the logits is the embedding, so that a constant added to a row changes nothing. ``X`` and
    ``train_embeddings`` are logits; all else is as in :class:`KCal`: columns of the probabilities follow the labels
    seen or ``classes``, not the columns of the logits.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "kcal-logits"

    def _as_embeddings(self, rows: torch.Tensor) -> torch.Tensor:
        dtype = rows.dtype
        return torch.log_softmax(rows if rows.device.type == "mps" else rows.double(), dim=1).to(dtype)
