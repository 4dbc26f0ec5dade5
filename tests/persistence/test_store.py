"""The calibration store: what it returns is what was put in, and what it acknowledged is on disk."""

from __future__ import annotations

import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kcal
from kcal import ClassifierOutputs
from kcal.calibrators import make_calibrator
from kcal.errors import FileFormatError, InvalidInputError, KcalError
from kcal.persistence import CalibrationStore


def outputs(n: int = 20, *, seed: int = 0, **parts: Any) -> ClassifierOutputs:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, n)
    embeddings = (generator.normal(size=(n, 4)) + labels[:, None]).astype(np.float32)
    logits = generator.normal(size=(n, 3)).astype(np.float32)
    given: dict[str, Any] = {
        "embeddings": embeddings,
        "logits": logits,
        "labels": labels,
        "ids": [f"s{seed}-{i}" for i in range(n)],
    }
    return ClassifierOutputs(**(given | parts))


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with CalibrationStore(tmp_path / "store.db") as opened:
        yield opened


def test_everything_comes_back_in_order(store: CalibrationStore) -> None:
    first = outputs(7, groups=np.arange(7) % 2, weights=np.linspace(1, 2, 7))
    second = outputs(5, seed=1, groups=np.arange(5), weights=np.full(5, 0.5))
    ids = store.append(first, times=np.arange(7.0)) + store.append(second)
    assert len(store) == 12
    stored = store.samples()
    for name in ("embeddings", "logits", "labels", "groups", "weights", "ids"):
        expected = np.concatenate([np.asarray(getattr(part, name)) for part in (first, second)])
        np.testing.assert_array_equal(getattr(stored, name), expected)
    assert stored.ids.tolist() == ids
    assert store.contains([ids[2], "nobody", ids[0]]) == [True, False, True]


def test_weights_of_any_kind_are_stored(store: CalibrationStore) -> None:
    store.append(outputs(3, weights=torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16, requires_grad=True)))
    assert store.samples().weights.tolist() == [1.0, 2.0, 3.0]


def test_empty_lists_of_ids_change_nothing(store: CalibrationStore) -> None:
    store.append(outputs(3))
    for nobody in ([], np.array([], dtype=object)):
        store.correct(nobody, [])
        store.delete(nobody)
    assert len(store) == 3


def test_reopened_store_has_the_same_samples(store: CalibrationStore, tmp_path: Path) -> None:
    store.append(outputs(20, logits=np.arange(20.0), labels=np.arange(20) % 2))  # one logit for two classes
    (tmp_path / "link.db").symlink_to(store.path)
    with CalibrationStore(tmp_path / "link.db", version="2") as other:
        other.append(outputs(3, seed=1, logits=np.arange(3.0)))
        np.testing.assert_array_equal(other.samples().embeddings, store.samples().embeddings)
        np.testing.assert_array_equal(store.samples().logits[:20], np.arange(20.0)[:, None])
        assert store.count_by_version() == {"": 20, "2": 3}


def test_changes_are_new_corrected_and_deleted_samples(store: CalibrationStore) -> None:
    store.append(outputs(5))
    first = store.changes()
    assert (len(first.samples.ids), first.deleted, first.last) == (5, set(), store.last_change)
    assert store.changes(first.last).samples is None
    store.correct(["s0-3"], [0])
    store.append(outputs(1, seed=1))
    store.append(outputs(1, seed=2, labels=None))
    store.delete(["s0-1", "s1-0"])
    second = store.changes(first.last)
    assert (second.samples.ids.tolist(), second.deleted, second.last) == (["s0-3"], {2, 6}, store.last_change)


def test_labels_may_come_late_and_be_corrected(store: CalibrationStore) -> None:
    store.append(outputs(4, labels=None, ids=[10, 11, 12, 13]))
    assert len(store) == 4
    with pytest.raises(InvalidInputError, match="store must hold samples with labels; got none"):
        store.samples()
    assert store.samples(labelled=False).labels is None
    store.correct([12, 10], ["seizure", "normal"])
    store.correct([10], ["discharge"])
    assert store.samples(labelled=False).labels.tolist() == ["discharge", None, "seizure", None]
    assert store.samples().ids.tolist() == [10, 12]
    assert store.samples().labels.tolist() == ["discharge", "seizure"]


def test_changes_of_a_transaction_are_made_together_or_not_at_all(store: CalibrationStore) -> None:
    store.append(outputs(3, ids=["a", "b", "c"]))
    with CalibrationStore(store.path) as other:
        with store.transaction():
            store.append(outputs(2, seed=1, ids=["d", "e"]))
            store.delete(["a"])
            with pytest.raises(InvalidInputError, match="must be new"):
                store.append(outputs(2, seed=2, ids=["f", "b"]))  # undone, and nothing else
            assert store.ids() == ["b", "c", "d", "e"]
            assert other.ids() == ["a", "b", "c"]
        assert other.ids() == ["b", "c", "d", "e"]

        def fail() -> None:
            with store.transaction():
                store.correct(["b"], [7])
                with store.transaction():
                    store.delete(["c"])
                store.delete(["nobody"])

        with pytest.raises(InvalidInputError, match="'nobody'"):
            fail()
        assert store.ids() == other.ids() == ["b", "c", "d", "e"]
        assert 7 not in store.samples().labels


def test_new_ids_are_of_the_type_of_the_others(store: CalibrationStore) -> None:
    made = store.append(outputs(2, ids=None)) + store.append(outputs(2, ids=None))
    assert [type(name) for name in made] == [str] * 4
    store.delete(store.ids())
    store.append(outputs(3, ids=[4, -2, 17]))
    assert store.append(outputs(2, ids=None)) + store.append(outputs(1, ids=None)) == [18, 19, 20]
    assert store.samples().ids.tolist() == [4, -2, 17, 18, 19, 20]


def test_fit_from_the_store_is_a_fit_from_the_arrays(store: CalibrationStore) -> None:
    rows = outputs(60, weights=np.linspace(1, 3, 60))
    store.append(rows)
    blend = store.fit(kcal.KCalBlend())
    expected = kcal.KCalBlend().fit(rows.embeddings, rows.labels, logits=rows.logits, sample_weight=rows.weights)
    new = outputs(9, seed=3)
    one, other = (each.predict_proba(new.embeddings, logits=new.logits) for each in (blend, expected))
    np.testing.assert_array_equal(one, other)
    scaled = store.fit(make_calibrator("ts"))
    np.testing.assert_array_equal(
        scaled.predict_proba(new.logits),
        make_calibrator("ts").fit(rows.logits, rows.labels, sample_weight=rows.weights).predict_proba(new.logits),
    )


@pytest.mark.parametrize(
    ("call", "parameter"),
    [
        (lambda s: s.append(outputs(2, groups=[1, 2])), "ids"),
        (lambda s: s.append(outputs(2, seed=1, ids=["a", "a"])), "ids"),
        (lambda s: s.append(outputs(2, seed=1, ids=[7, 8])), "outputs.ids"),
        (lambda s: s.append(outputs(2, seed=1, ids=[0.5, 1])), "ids"),
        (lambda s: s.append(outputs(1, seed=1, ids=np.array([2**63]))), "ids"),
        (lambda s: s.append(outputs(2, seed=1, labels=[1, 2**63])), "labels"),
        (lambda s: s.append(outputs(2, seed=1, groups=[1, 2**63])), "outputs.groups"),
        (lambda s: s.append(np.zeros((2, 4))), "outputs"),
        (lambda s: s.append(ClassifierOutputs(labels=[1])), "outputs"),
        (lambda s: s.append(outputs(2, seed=1, embeddings=np.zeros((2, 5)))), "outputs.embeddings"),
        (lambda s: s.append(outputs(2, seed=1, embeddings=None)), "outputs.embeddings"),
        (lambda s: s.append(outputs(2, seed=1, embeddings=np.full((2, 4), np.nan))), "outputs.embeddings"),
        (lambda s: s.append(outputs(2, seed=1, logits=np.zeros((3, 3)))), "outputs.logits"),
        (lambda s: s.append(outputs(2, seed=1, labels=["a", "b"], groups=[1, 2])), "labels"),
        (lambda s: s.append(outputs(2, seed=1, groups=None)), "outputs.groups"),
        (lambda s: s.append(outputs(2, seed=1, groups=["a", "b"])), "outputs.groups"),
        (lambda s: s.append(outputs(2, seed=1), times=[1.0]), "times"),
        (lambda s: s.correct(["s0-0", "nobody"], [1, 1]), "ids"),
        (lambda s: s.correct(["s0-0"], ["x"]), "labels"),
        (lambda s: s.delete(["s0-0", "nobody"]), "ids"),
        (lambda s: s.delete([np.nan]), "ids"),
        (lambda s: s.delete(5), "ids"),
        (lambda s: s.correct(None, [1]), "ids"),
        (lambda s: s.append(outputs(2, seed=1), times={}), "times"),
        (lambda s: s.changes(-1), "since"),
        (lambda s: s.samples(version=3), "version"),
    ],
)
def test_bad_input_changes_nothing(store: CalibrationStore, call: Any, parameter: str) -> None:
    store.append(outputs(groups=np.arange(20)))
    before, change = store.samples(), store.last_change
    with pytest.raises(InvalidInputError) as raised:
        call(store)
    assert raised.value.parameter == parameter
    assert store.last_change == change
    np.testing.assert_array_equal(store.samples().labels, before.labels)


def test_foreign_files_raise_and_not_changed(tmp_path: Path) -> None:
    text, other = tmp_path / "text.db", tmp_path / "other.db"
    text.write_text("no database at all, " * 100)
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE mine (x)")
    for path, message in ((text, "is not a calibration store"), (other, "not a calibration store")):
        before = path.read_bytes()
        with pytest.raises(FileFormatError, match=message):
            CalibrationStore(path)
        if path is text:
            assert path.read_bytes() == before
    (tmp_path / "folder.db").mkdir()
    for wrong in ("nowhere/store.db", "folder.db"):
        with pytest.raises(InvalidInputError, match=r"^path"):
            CalibrationStore(tmp_path / wrong)


def test_closed_store_says_so(store: CalibrationStore) -> None:
    store.append(outputs(2))
    store.close()
    store.close()
    for call in (store.samples, store.__len__, store.changes, store.vacuum, lambda: store.append(outputs(1, seed=1))):
        with pytest.raises(InvalidInputError, match="closed"):
            call()


def test_file_that_cannot_be_written_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, connect = tmp_path / "store.db", sqlite3.connect
    CalibrationStore(path).close()
    monkeypatch.setattr(sqlite3, "connect", lambda file, **rest: connect(f"file:{file}?mode=ro", uri=True, **rest))
    with CalibrationStore(path) as store, pytest.raises(InvalidInputError, match=r"^path"):
        store.append(outputs(1))


def test_store_that_another_process_holds_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcal.persistence.store.BUSY_SECONDS", 0.05)
    path = tmp_path / "store.db"
    with CalibrationStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        store.append(outputs(2))
        other.execute("BEGIN IMMEDIATE")
        for call in (lambda: store.append(outputs(1, seed=1)), store.vacuum):
            with pytest.raises(KcalError, match="Another process holds the store"):
                call()
        assert len(store) == 2
        other.execute("ROLLBACK")
        store.append(outputs(1, seed=1))
        assert len(store) == 3


def test_nothing_of_an_erased_sample_stays_in_the_file(store: CalibrationStore) -> None:
    secret = outputs(1, seed=9, ids=["patient-4711"], labels=None, groups=["ward-xyzzy"])
    store.append(outputs(50, groups=np.repeat("ward-1", 50), labels=np.repeat("normal", 50)))
    store.append(secret)
    store.correct(["patient-4711"], ["plugh"])
    store.append(outputs(50, seed=1, groups=np.repeat("ward-1", 50), labels=np.repeat("normal", 50)))
    traces = [b"patient-4711", b"ward-xyzzy", b"plugh", secret.embeddings.tobytes(), secret.logits.tobytes()]
    with closing(sqlite3.connect(store.path)) as database:
        (checksum,) = database.execute("SELECT checksum FROM samples WHERE id = 'patient-4711'").fetchone()
    traces.append(checksum.to_bytes(8, "big"))
    assert all(any(trace in content for content in contents(store.path)) for trace in traces)
    store.delete(["patient-4711"])
    store.vacuum()
    assert not any(trace in content for trace in traces for content in contents(store.path))
    assert len(store) == 100


def contents(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in path.parent.glob(f"{path.name}*")]


@pytest.mark.parametrize("width", [64, 4096])  # within a page, and on pages of its own
def test_erased_embedding_is_in_no_file_of_a_closed_store(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_usual_deletion(*arguments: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*arguments, **options)
        database.execute("PRAGMA secure_delete = OFF")  # some builds of SQLite have it on
        return database

    path, connect = tmp_path / "store.db", sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", with_usual_deletion)
    samples = outputs(20, embeddings=np.random.default_rng(3).random((20, width), np.float32))
    secrets = [samples.embeddings[row].tobytes()[:200] for row in (7, 8)]
    with CalibrationStore(path) as store:
        store.append(samples)
    assert all(any(secret in content for content in contents(path)) for secret in secrets)
    with CalibrationStore(path) as store:
        store.delete(["s0-7", "s0-8"])
    assert not any(secret in content for secret in secrets for content in contents(path))


def test_deleted_samples_leave_the_totals_of_those_that_remain(tmp_path: Path) -> None:
    totals = []
    for name, extra in (("a.db", []), ("b.db", ["secret"])):
        with CalibrationStore(tmp_path / name) as store:
            store.append(outputs(5), times=np.zeros(5))
            if extra:
                store.append(outputs(1, seed=1, ids=extra))
                store.delete(extra)
        with closing(sqlite3.connect(tmp_path / name)) as database:
            totals.append(database.execute("SELECT samples FROM totals").fetchone())
    assert totals[0] == totals[1]


def append_many(path: Path, seeds: range) -> None:
    with CalibrationStore(path) as store:
        for seed in seeds:
            store.append(outputs(2, seed=seed))


def test_threads_and_processes_write_without_losing_a_sample(tmp_path: Path) -> None:
    path, context = tmp_path / "store.db", get_context("fork")
    ranges = (range(100, 130), range(200, 230))
    others = [context.Process(target=append_many, args=(path, seeds)) for seeds in ranges]
    for other in others:
        other.start()
    with CalibrationStore(path) as store:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda seed: store.append(outputs(2, seed=seed)), range(40)))
        for other in others:
            other.join()
        assert [other.exitcode for other in others] == [0, 0]
        assert len(store) == store.last_change == 2 * (40 + 30 + 30)


def write_until_killed(path: Path, acknowledged: Connection) -> None:
    """Append batches of three samples and tell the number of each after it is acknowledged."""
    with CalibrationStore(path) as store:
        number = len(store) // 3
        while True:
            ids = [f"{number}-{place}" for place in range(3)]
            store.append(ClassifierOutputs(np.full((3, 16), number, np.float32), labels=[number] * 3, ids=ids))
            acknowledged.send(number)
            number += 1


def test_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path, generator, context = tmp_path / "store.db", np.random.default_rng(0), get_context("fork")
    last = -1
    for trial in range(40):
        receiver, sender = context.Pipe(duplex=False)
        writer = context.Process(target=write_until_killed, args=(path, sender))
        writer.start()
        sender.close()
        if trial % 4:  # otherwise it may be killed while it opens the file
            last = receiver.recv()
        time.sleep(generator.uniform(0.0, 0.02))
        writer.kill()
        writer.join()
        with suppress(EOFError):
            while True:
                last = receiver.recv()
        receiver.close()
        check_whole(path, last)
    assert last > 20


def check_whole(path: Path, acknowledged: int) -> None:
    """Every acknowledged batch is there, and no batch in part."""
    with CalibrationStore(path) as store:
        if acknowledged < 0 and len(store) == 0:
            return
        stored = store.samples()
    batches, counts = np.unique(stored.labels, return_counts=True)
    assert (counts == 3).all()
    assert batches.tolist() == list(range(len(batches)))
    assert len(batches) - 1 >= acknowledged
    np.testing.assert_array_equal(stored.embeddings, np.repeat(stored.labels[:, None], 16, axis=1))


def test_truncated_log_ends_with_a_whole_batch(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = CalibrationStore(path)
    for number in range(12):
        store.append(ClassifierOutputs(np.full((3, 16), number, np.float32), labels=[number] * 3))
    log = path.with_name("store.db-wal").read_bytes()
    page = 4096 + 24  # a frame: header and page
    ends = {len(log) - page * back + shift for back in range(8) for shift in (-1, 0, 1, 12, 24, 2048)}
    ends |= {32 + page * frame for frame in range(len(log) // page)} | set(range(len(log) - 40, len(log) + 1))
    seen = set()
    for number, end in enumerate(sorted(end for end in ends if 0 <= end <= len(log))):
        folder = tmp_path / str(number)
        folder.mkdir()
        shutil.copy(path, folder / "store.db")
        (folder / "store.db-wal").write_bytes(log[:end])
        with CalibrationStore(folder / "store.db") as shorter:
            n_samples = len(shorter)
            assert n_samples % 3 == 0
            if n_samples:
                stored = shorter.samples()
                assert stored.labels.tolist() == np.repeat(np.arange(n_samples // 3), 3).tolist()
                np.testing.assert_array_equal(stored.embeddings, np.repeat(stored.labels[:, None], 16, axis=1))
        seen.add(n_samples)
    store.close()
    assert len(seen) > 5
    assert max(seen) == 36
