"""The table of all parts, in the order of the page."""

from experiments.theory import allocation, consistency, levels, optimal_rate, pointwise, tail, uniform
from experiments.theory.output import Part

PARTS: tuple[Part, ...] = (
    consistency.PART,
    optimal_rate.PART,
    pointwise.PART,
    uniform.PART,
    levels.PART,
    tail.PART,
    allocation.PART,
)
