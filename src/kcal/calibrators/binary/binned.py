"""The model of histogram binning and of scaling-binning: a value per bin of a class's log-odds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kcal.calibrators.binary.one_versus_rest import Maps, OneVersusRestModel
from kcal.calibrators.logit_base import Floats
from kcal.calibrators.model_state import SMALLEST_POSITIVE, ragged


@dataclass(frozen=True)
class BinnedModel(OneVersusRestModel):
    """g(s) = value of the bin of s; a score at an edge belongs to the lower bin."""

    edges: Maps = ragged(ascending=True)  # log-odds
    values: Maps = ragged(SMALLEST_POSITIVE, 1.0, like="edges", longer_by=1)

    def log_map(self, scores: Floats, place: int) -> Floats:
        """Return log g(s) of scores (n,)."""
        values: Floats = np.log(self.values[place].numpy())[np.searchsorted(self.edges[place].numpy(), scores)]
        return values
