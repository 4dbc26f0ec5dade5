"""Readers never wait for a writer and never see half an update; no update of any writer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kcal import KCal, Updates
from kcal.calibrators import online_ids
from kcal.samples import Samples

N_READERS = 8
OPERATIONS = 1_500
"""Predictions and updates together."""
GENERATOR = np.random.default_rng(0)
ROWS, LABELS = GENERATOR.normal(size=(60, 2)), np.arange(60) % 3
QUERIES = GENERATOR.normal(size=(3, 2))


def run(*targets: Callable[[], Any]) -> None:
    """Run functions side by side; raise the first error."""
    errors: list[BaseException] = []

    def guarded(target: Callable[[], Any]) -> None:
        torch.set_num_threads(1)
        try:
            target()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_predictions_during_updates_are_those_of_some_state() -> None:
    """One thread repeats a schedule of updates; the predictions of its states are known."""
    live = KCal(projection="identity", bandwidth=0.5, progress=False).fit(ROWS[:30], LABELS[:30])
    schedule = [
        lambda: live.partial_fit(ROWS[30:32], LABELS[30:32], ids=[30, 31]),
        lambda: live.correct([30, 0], [2, 2]),
        lambda: live.partial_fit(ROWS[32:34], LABELS[32:34], ids=[32, 33]),
        lambda: live.correct([0, 33], [0, 0]),
        lambda: live.forget([30, 32]),
        lambda: live.forget([31, 33]),
    ]
    allowed, evidence = [], []
    for step in schedule:
        step()
        allowed.append(live.predict_proba(QUERIES))
        evidence.append(live.evidence(QUERIES))
    stop, counts, updates = threading.Event(), [0] * N_READERS, [0]

    def read(place: int) -> None:
        try:
            while not stop.is_set():
                found, states = (
                    (live.evidence(QUERIES), evidence) if place % 2 else (live.predict_proba(QUERIES), allowed)
                )
                assert any(np.allclose(found, state, atol=1e-12) for state in states)
                counts[place] += 1
        finally:
            stop.set()

    def write() -> None:
        while updates[0] + sum(counts) < OPERATIONS and not stop.is_set():
            schedule[updates[0] % len(schedule)]()
            updates[0] += 1
        stop.set()

    run(write, *(lambda place=place: read(place) for place in range(N_READERS)))
    assert updates[0] > 10
    assert min(counts) > 10


def test_no_update_of_several_writers_is_lost() -> None:
    rows, labels = GENERATOR.normal(size=(640, 2)), np.arange(640) % 3
    live = KCal(projection="identity", bandwidth=0.5, progress=False).fit(ROWS, LABELS, ids=np.arange(1_000, 1_060))

    def write(place: int) -> None:
        for row in range(place, 640, 4):
            live.partial_fit(rows[[row]], labels[[row]], ids=[row])
            if row % 8 == place:
                live.correct([row], [(row + 1) % 3])
            if row % 80 == place:
                live.forget([row])

    run(live.refresh, *(lambda place=place: write(place) for place in range(4)))
    kept = [row for row in range(640) if row % 80 >= 4]
    changed = np.array([label + (row % 8 < 4) for row, label in enumerate(labels)]) % 3
    assert sorted(online_ids(live)) == kept + list(range(1_000, 1_060))
    fresh = KCal(projection="identity", bandwidth=0.5, progress=False)
    fresh.fit(np.concatenate([ROWS, rows[kept]]), np.concatenate([LABELS, changed[kept]]))
    np.testing.assert_allclose(live.predict_proba(QUERIES), fresh.predict_proba(QUERIES), rtol=1e-9)


class Slow(KCal):
    """A KCal whose new models wait until they may be built."""

    entered, go_on = threading.Event(), threading.Event()

    def _bandwidth_choice(self, samples: Samples) -> Any:
        """Wait in a model that has more than the samples of the fit, or fewer."""
        if len(samples) != 30:
            self.entered.set()
            assert self.go_on.wait(10)
        return super()._bandwidth_choice(samples)


def test_readers_use_the_model_before_while_another_thread_builds_the_next() -> None:
    """Neither a prediction nor the evidence waits or builds a model: either would end with an error of ``Slow``."""
    updates = Updates(growth=1e6)
    for change in (lambda live: live.partial_fit(ROWS[30:], LABELS[30:]).refresh(), lambda live: live.forget([0])):
        live = Slow(projection="identity", bandwidth=0.5, progress=False, updates=updates).fit(ROWS[:30], LABELS[:30])
        expected, evidence = live.predict_proba(QUERIES), live.evidence(QUERIES)
        Slow.entered.clear()
        Slow.go_on.clear()
        writer = threading.Thread(target=change, args=(live,))
        writer.start()
        assert Slow.entered.wait(10)
        np.testing.assert_array_equal(live.predict_proba(QUERIES), expected)
        np.testing.assert_array_equal(live.evidence(QUERIES), evidence)
        assert live.bandwidth_ == 0.5
        Slow.go_on.set()
        writer.join()
        assert not np.array_equal(live.predict_proba(QUERIES), expected)


def test_refresh_leaves_no_model_to_build() -> None:
    live = KCal(projection="identity").fit(ROWS[:40], LABELS[:40])
    live.partial_fit(ROWS[40:], LABELS[40:]).refresh()
    model = live.model_
    seen: list[Any] = []
    run(lambda: seen.append(live.model_))
    assert seen[0] is model
    assert len(model.points) == 60


def test_own_updates_are_seen_at_once() -> None:
    live = KCal(projection="identity", bandwidth=0.5).fit(ROWS[:30], LABELS[:30])

    def add_and_predict() -> None:
        for row in range(30, 60):
            live.partial_fit(ROWS[[row]], LABELS[[row]])
            assert live.support_size_ == row + 1

    run(add_and_predict, *([lambda: [live.predict_proba(QUERIES) for _ in range(60)]] * 3))
