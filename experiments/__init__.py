"""Studies of what KCal is made of; each takes tasks and gives tables and a figure."""

from kcal.benchmark.studies.convexity import study_convexity
from kcal.benchmark.studies.dimension import study_dimension
from kcal.benchmark.studies.far import study_far
from kcal.benchmark.studies.growth import study_growth
from kcal.benchmark.studies.ingredients import study_ingredients
from kcal.benchmark.studies.recipes import study_recipes
from kcal.benchmark.studies.remedies import study_remedies
from kcal.benchmark.studies.sampling import study_sampling
from kcal.benchmark.studies.shift import study_shift
from kcal.benchmark.studies.sizes import study_sizes
from kcal.benchmark.studies.study import Study, StudyFunction, read_studies, write_study
from kcal.benchmark.studies.variants import study_variants

STUDIES: dict[str, StudyFunction] = {
    "variants": study_variants,
    "remedies": study_remedies,
    "dimension": study_dimension,
    "sizes": study_sizes,
    "convexity": study_convexity,
    "sampling": study_sampling,
    "recipes": study_recipes,
    "shift": study_shift,
    "far": study_far,
    "ingredients": study_ingredients,
    "growth": study_growth,
}
"""In the order of the page about a run."""

__all__ = ["STUDIES", "Study", "read_studies", "write_study"]
