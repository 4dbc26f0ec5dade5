"""All studies, in the order of the page."""

from experiments import (
    convexity,
    dimension,
    far,
    groups,
    growth,
    ingredients,
    recipes,
    remedies,
    sampling,
    shift,
    sizes,
    variants,
)

STUDIES = (
    variants.STUDY,
    remedies.STUDY,
    dimension.STUDY,
    sizes.STUDY,
    convexity.STUDY,
    sampling.STUDY,
    recipes.STUDY,
    groups.STUDY,
    shift.STUDY,
    far.STUDY,
    ingredients.STUDY,
    growth.STUDY,
)
