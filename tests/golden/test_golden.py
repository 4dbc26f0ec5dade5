"""Restructuring changes no number: everything is computed anew and compared with what was written before."""

from __future__ import annotations

import numpy as np
import pytest

from .cases import GROUPS, cases
from .write import GOLDEN

TOLERANCE, SINGLE_TOLERANCE, SOLVER_TOLERANCE = 1e-10, 1e-6, 1e-5
OF_COMMANDS = tuple(f"commands: {name}/blend" for name in ("fit", "predict", "evaluate"))
SOLVERS = ("beta", "blend", "dircal", "gp", "iop", "matrix", "platt", "sms", "spline", "kcal-learned: projection/last")
SOLVERS += ("two-inputs: refit", "dispatched: dispatched/kcal-blend", *OF_COMMANDS)
"""Cases fitted by iterations that stop at a tolerance, or by ill-conditioned equations: rounding errors, which differ
between processors and versions of libraries, move them by more than 1e-10."""
ILL_CONDITIONED = {"sms: sms/masked/log": 1e-4}
"""Log probabilities of masked classes, near −1000."""


def stored(group: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as file:
        return {name: file[name] for name in file.files if name.split(": ")[0] == group}


def test_every_stored_group_is_computed():
    with np.load(GOLDEN) as file:
        assert {name.split(": ")[0] for name in file.files} == set(GROUPS)


@pytest.mark.parametrize("group", GROUPS)
def test_numbers_are_those_of_the_golden_file(group):
    expected, computed = stored(group), cases(group)
    assert computed.keys() == expected.keys()
    differing = []
    for name, values in computed.items():
        tolerance = SINGLE_TOLERANCE if "float32" in name else TOLERANCE
        if name.startswith(SOLVERS):
            tolerance = ILL_CONDITIONED.get(name, SOLVER_TOLERANCE)
        try:
            np.testing.assert_allclose(values, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)
        except AssertionError as error:
            differing.append(str(error))
    assert not differing, f"{len(differing)} of {len(computed)} cases differ:\n" + "\n".join(differing)
