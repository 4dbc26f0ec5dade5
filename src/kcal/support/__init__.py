"""A smaller support that stands for a larger one: merging within classes, thinning, herding."""

from kcal.support.merging import merge_by_kmeans
from kcal.support.reduction import REDUCTIONS, Reduction
from kcal.support.sizes import sizes_per_class
from kcal.support.thinning import herd, thin_by_kernel, thin_randomly
from kcal.support.weighted_points import ReducedPoints, WeightedPoints

__all__ = [
    "REDUCTIONS",
    "ReducedPoints",
    "Reduction",
    "WeightedPoints",
    "herd",
    "merge_by_kmeans",
    "sizes_per_class",
    "thin_by_kernel",
    "thin_randomly",
]
