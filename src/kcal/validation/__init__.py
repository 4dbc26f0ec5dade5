"""The border: arrays, labels, groups, weights and options, checked once for calibrators, metrics and the command line.

Only numpy is imported; torch is loaded where a tensor is passed in or asked for.
"""

from kcal.validation.arrays import refuse_where, to_array, to_numbers
from kcal.validation.labels import (
    LARGEST_WEIGHT_RATIO,
    check_columns,
    check_groups,
    check_ids,
    check_labels,
    check_nonnegative,
    check_weights,
    collect_classes,
    column_names,
    encode_labels,
    of_one_type,
    require_two_columns,
    table_classes,
)
from kcal.validation.matrices import (
    ALMOST_ZERO,
    LARGEST,
    SUM_TOLERANCE,
    ArrayKind,
    check_matrix,
    check_probs,
    check_scores,
    computing_dtype,
    kind_of,
    row_fingerprints,
    unchecked_logits,
)
from kcal.validation.optional import require_pandas
from kcal.validation.parameters import checked_parameters, parameter
from kcal.validation.representation import look_like_probabilities, warn_of_probabilities
from kcal.validation.scalars import (
    check_choice,
    check_device,
    check_flag,
    check_integer,
    check_number,
    check_seed,
    shown,
)

__all__ = [
    "ALMOST_ZERO",
    "LARGEST",
    "LARGEST_WEIGHT_RATIO",
    "SUM_TOLERANCE",
    "ArrayKind",
    "check_choice",
    "check_columns",
    "check_device",
    "check_flag",
    "check_groups",
    "check_ids",
    "check_integer",
    "check_labels",
    "check_matrix",
    "check_nonnegative",
    "check_number",
    "check_probs",
    "check_scores",
    "check_seed",
    "check_weights",
    "checked_parameters",
    "collect_classes",
    "column_names",
    "computing_dtype",
    "encode_labels",
    "kind_of",
    "look_like_probabilities",
    "of_one_type",
    "parameter",
    "refuse_where",
    "require_pandas",
    "require_two_columns",
    "row_fingerprints",
    "shown",
    "table_classes",
    "to_array",
    "to_numbers",
    "unchecked_logits",
    "warn_of_probabilities",
]
