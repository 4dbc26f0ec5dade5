"""Readers never wait for a writer and never see half an update."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from kcal.calibrators.online.rows import SampleLog, SampleRows
from kcal.calibrators.online.stream import Snapshot, Stream

from kcal import KCal

N_READERS = 8
N_STATES = 6
"""The schedule goes round so many states."""
OPERATIONS = 100_000
PREDICTIONS = 1_500
"""Predictions and updates of a KCal, which take longer."""


def samples() -> SampleRows:
    columns: dict[str, Any] = {"codes": np.zeros(1, dtype=np.int64), "values": np.zeros((1, 4), dtype=np.int64)}
    return SampleRows(columns, [0], 1, np.array([0]), (0,), None)


def make(base: int, rows: SampleRows) -> Snapshot[Any]:
    values = rows.column("values").copy()
    return Snapshot((len(rows.names()), values), base + 1)


def finish(latest: Any, rows: SampleRows) -> Any:
    return (*latest, rows.names())


def test_every_snapshot_is_a_state_that_was_published() -> None:
    """Rows count upwards, four equal numbers each, and are forgotten in blocks: half an update would show."""
    stream = Stream(0, SampleLog(samples()), make, finish)
    stop, errors, reads = threading.Event(), [], [0] * N_READERS

    def read(place: int) -> None:
        last = 0
        while not stop.is_set():
            if place % 2:
                n_rows, values, names = stream.complete()
                assert names.tolist() == values[:, 0].tolist()
            else:
                n_rows, values = stream.latest()
            assert len(values) == n_rows
            assert (values == values[:, :1]).all()
            assert (np.diff(values[:, 0]) == 1).all()
            assert values[-1, 0] % 5 == 0
            assert values[0, 0] == 0 or values[0, 0] % 5 == 1
            assert values[-1, 0] >= last
            last = values[-1, 0]
            reads[place] += 1

    def guarded(place: int) -> None:
        try:
            read(place)
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=guarded, args=(place,)) for place in range(N_READERS)]
    for thread in threads:
        thread.start()
    number, writes = 1, 0
    while writes + sum(reads) < OPERATIONS and not stop.is_set():
        new = np.arange(number, number + 5)
        with stream.update() as log:
            log.append(
                {"codes": np.zeros(5, dtype=np.int64), "values": np.repeat(new[:, None], 4, 1)}, new.tolist(), {}
            )
            if len(log.view) > 60:
                log.evict(log.rows_of(range(int(log.view.names()[0]), number - 30)))
            if number % 100 == 1:
                log.erase(log.rows_of(range(int(log.view.names()[0]), number - 10)))
        number, writes = number + 5, writes + 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert writes + sum(reads) >= OPERATIONS
    assert min(reads) > 0


def test_predictions_during_updates_are_those_of_some_state() -> None:
    """One thread goes round a schedule of updates; the predictions of its states are known."""
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(34, 2)), np.arange(34) % 3
    queries = generator.normal(size=(3, 2))
    live = KCal(projection="identity", bandwidth=0.5, progress=False).fit(rows[:30], labels[:30])
    schedule = [
        lambda: live.partial_fit(rows[30:32], labels[30:32], ids=[30, 31]),
        lambda: live.correct([30, 0], [2, 2]),
        lambda: live.partial_fit(rows[32:34], labels[32:34], ids=[32, 33]),
        lambda: live.correct([0, 33], [0, 0]),
        lambda: live.forget([30, 32]),
        lambda: live.forget([31, 33]),
    ]
    allowed = []
    for step in schedule:
        step()
        allowed.append(live.predict_proba(queries))
    stop, errors, counts = threading.Event(), [], [0] * N_READERS

    def read(place: int) -> None:
        torch.set_num_threads(1)
        try:
            while not stop.is_set():
                probs = live.predict_proba(queries)
                np.testing.assert_allclose(probs.sum(axis=1), 1.0, atol=1e-9)
                assert any(np.allclose(probs, state, atol=1e-12) for state in allowed)
                counts[place] += 1
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=read, args=(place,)) for place in range(N_READERS)]
    for thread in threads:
        thread.start()
    updates = 0
    while updates + sum(counts) < PREDICTIONS and not stop.is_set():
        schedule[updates % N_STATES]()
        updates += 1
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert updates > 10
    assert min(counts) > 10


def test_readers_use_the_snapshot_before_while_another_makes_the_next() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(base: int, rows: SampleRows) -> Snapshot[Any]:
        if len(rows) > 1:
            entered.set()
            assert go_on.wait(10)
        return Snapshot(len(rows), base)

    stream = Stream(0, SampleLog(samples()), slow, lambda latest, rows: latest)
    assert stream.latest() == 1
    changed = threading.Thread(target=add_one, args=(stream,))
    changed.start()
    changed.join()
    maker = threading.Thread(target=stream.latest)
    maker.start()
    assert entered.wait(10)
    assert stream.latest() == 1  # neither waits nor makes one itself: both would end with an error of slow()
    go_on.set()
    maker.join()
    assert stream.latest() == 2
    add_one(stream)
    assert stream.latest() == 3  # the thread that made the update sees it


def test_readers_do_not_wait_for_an_erasure_either() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(base: int, rows: SampleRows) -> Snapshot[Any]:
        if rows.n_erasures:
            entered.set()
            assert go_on.wait(10)
        return Snapshot(len(rows), base)

    def change() -> None:
        add_one(stream)
        with stream.update() as log:
            log.erase(log.rows_of([0]))

    stream = Stream(0, SampleLog(samples()), slow, lambda latest, rows: latest)
    assert stream.latest() == 1
    writer = threading.Thread(target=change)
    writer.start()
    assert entered.wait(10)
    assert stream.latest() == stream.complete() == 2  # of the samples before the erasure, which is not complete yet
    go_on.set()
    writer.join()
    assert stream.latest() == 1
    assert stream._published.rows.names().tolist() == [1]


def add_one(stream: Stream[Any]) -> None:
    with stream.update() as log:
        columns = {"codes": np.zeros(1, dtype=np.int64), "values": np.zeros((1, 4), dtype=np.int64)}
        log.append(columns, log.new_ids(1), {})


def test_a_refreshed_calibrator_leaves_nothing_for_readers_to_make() -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 4)), np.arange(60) % 3
    live = KCal(projection="identity").fit(x[:40], y[:40])
    live.partial_fit(x[40:], y[40:]).refresh()
    made = live.predict_proba(x[:5] + 0.1)
    seen: list[Any] = []
    reader = threading.Thread(target=lambda: seen.append(live.frozen(complete=False)))
    reader.start()
    reader.join()
    assert seen[0] is live.frozen(complete=False)
    np.testing.assert_array_equal(seen[0].predict_proba(x[:5] + 0.1), made)


def test_readers_have_the_fitted_calibrator_while_the_first_snapshot_is_made() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow(base: int, rows: SampleRows) -> Snapshot[Any]:
        entered.set()
        assert go_on.wait(10)
        return Snapshot(len(rows), base)

    stream = Stream(0, SampleLog(samples()), slow, lambda latest, rows: latest, first=1)
    assert stream.latest() == 1
    writer = threading.Thread(target=lambda: (add_one(stream), stream.latest()))
    writer.start()
    assert entered.wait(10)
    assert stream.latest() == 1
    go_on.set()
    writer.join()
    assert stream.latest() == 2
