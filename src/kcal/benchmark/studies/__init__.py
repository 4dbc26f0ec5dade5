"""Studies of what KCal is made of; each takes tasks and gives tables and a figure."""

from kcal.benchmark.studies.convexity import study_convexity
from kcal.benchmark.studies.shift import study_shift
from kcal.benchmark.studies.sizes import study_sizes
from kcal.benchmark.studies.study import Study, StudyFunction, read_studies, write_study

STUDIES: dict[str, StudyFunction] = {
    "sizes": study_sizes,
    "convexity": study_convexity,
    "shift": study_shift,
}
"""In the order of the page about a run."""

__all__ = ["STUDIES", "Study", "read_studies", "write_study"]
