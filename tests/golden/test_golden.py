"""Restructuring changes no number: everything is computed anew and compared with what was written before."""

from __future__ import annotations

import numpy as np
import pytest

from .cases import GROUPS, cases
from .write import GOLDEN

TOLERANCE, SINGLE_TOLERANCE = 1e-10, 1e-6
ILL_CONDITIONED = (
    "iop: iop/option-0",
    "gp: gp/",
    "sms: sms/masked",
    "sms: sms/many",
    "blend-learned: kcal-blend/learned-many",
    "kcal-learned: projection/last",
)
"""Cases that move by more than 1e-10 if inputs change by one unit in the last place: a sum that is ordered differently
may move them too. They are compared as strictly as all others, but a failure says so."""


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
        try:
            np.testing.assert_allclose(values, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)
        except AssertionError as error:
            note = "\n(ill-conditioned: rounding errors alone may do this)" if name.startswith(ILL_CONDITIONED) else ""
            differing.append(f"{error}{note}")
    assert not differing, f"{len(differing)} of {len(computed)} cases differ:\n" + "\n".join(differing)
