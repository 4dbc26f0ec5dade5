"""The log of samples against a plain list of them: views stay as they were, whatever changes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from kcal.calibrators.online.rows import SampleLog, SampleRows


def empty() -> SampleRows:
    columns: dict[str, Any] = {"codes": np.zeros(0, dtype=np.int64), "values": np.zeros(0)}
    return SampleRows(columns, [], 0, np.arange(4), (0, 1, 2, 3), None)


def shown(view: SampleRows) -> list[tuple[int, int, float]]:
    columns = (view.names(), view.column("codes"), view.column("values"))
    return list(zip(*(column.tolist() for column in columns), strict=True))


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "relabel", "window", "cap", "cap", "erase", "copy"]),
        st.integers(1, 12),
        st.integers(0, 200),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(operations)
def test_a_log_shows_what_a_list_would(steps: list[tuple[str, int, int]]) -> None:
    log, samples, number = SampleLog(empty()), list[tuple[int, int, float]](), 0
    views = [(log.view, list(samples))]
    for kind, size, choice in steps:
        if kind == "add":
            names = [(choice + place) % 150 for place in range(0, 7 * size, 7)]
            codes = np.arange(number, number + size) * choice % 4
            values = np.arange(number, number + size, dtype=np.float64)
            log.append({"codes": codes, "values": values}, names, {})
            samples = [sample for sample in samples if sample[0] not in names]
            samples += zip(names, codes.tolist(), values.tolist(), strict=True)
            number += size
        elif kind == "relabel" and samples:
            changed = {samples[(choice + place) % len(samples)][0] for place in range(size)}
            log.relabel(log.rows_of(list(changed)), np.full(len(changed), choice % 4), {})
            samples = [(n, choice % 4 if n in changed else code, value) for n, code, value in samples]
        elif kind == "window":
            log.evict_oldest(size * 4)
            samples = samples[-size * 4 :]
        elif kind == "cap":
            most = 1 + choice % 5
            log.evict_oldest_of_classes(most)
            by_class = [[sample for sample in samples if sample[1] == code] for code in range(4)]
            kept = {sample[0] for group in by_class for sample in group[-most:]}
            samples = [sample for sample in samples if sample[0] in kept]
        elif kind == "erase" and samples:
            log.erase(log.rows_of([samples[choice % len(samples)][0]]))
            del samples[choice % len(samples)]
        elif kind == "copy":  # of any earlier moment, as a pickle that was made meanwhile
            view, samples = views[choice % len(views)]
            log, samples = SampleLog(copy.deepcopy(view)), list(samples)
        views.append((log.view, list(samples)))
        assert len(log.view) == len(samples)
    for view, expected in views:
        assert shown(view) == expected


def test_removals_touch_no_other_rows() -> None:
    log = SampleLog(empty())
    for first, last in ((0, 199), (199, 200)):  # the second makes room for more
        given = np.arange(first, last)
        log.append({"codes": given % 4, "values": given.astype(np.float64)}, given.tolist(), {})
    log.evict_oldest(199)
    numbers = log.view.removed_at
    for number in range(200, 256):
        log.append({"codes": [number % 4], "values": [0.0]}, [number], {})
        log.evict_oldest(150)
        log.evict_oldest_of_classes(30)
    assert log.view.removed_at is numbers  # written in place: a copy would take time for every row
    assert log.view.names().tolist() == list(range(136, 256))
