"""A calibrator in sync with a store has its samples, whoever changes them."""

from __future__ import annotations

from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kcal import CalibrationStore, ClassifierOutputs, InvalidInputError, KCal, KCalBlend, TemperatureScaling, Updates
from kcal.calibrators import online_ids, predict_on, was_fitted_on
from kcal.errors import KcalWarning

GENERATOR = np.random.default_rng(0)
LABELS = GENERATOR.integers(0, 3, 200)
ROWS = GENERATOR.normal(size=(200, 4)).astype(np.float32)
ROWS[np.arange(200), LABELS] += 2.0
LOGITS = (GENERATOR.normal(size=(200, 3)) + 2.0 * np.eye(3)[LABELS]).astype(np.float32)
QUERIES = ClassifierOutputs(ROWS[:20] + 0.3, LOGITS[:20])
IDS = np.array([f"patient-{row}" for row in range(200)])


def outputs(start: int, stop: int, *, labelled: bool = True) -> ClassifierOutputs:
    rows = slice(start, stop)
    labels = LABELS[rows] if labelled else None
    weights = np.linspace(0.5, 2.0, 200)[rows]
    return ClassifierOutputs(ROWS[rows], LOGITS[rows], labels, np.arange(200)[rows] % 9, weights, IDS[rows])


def change_store(path: Path) -> None:
    """Append, label late, correct and delete, as another process does."""
    with CalibrationStore(path) as store:
        store.append(outputs(120, 140))
        store.append(outputs(140, 150, labelled=False))
        store.correct(IDS[140:145].tolist(), LABELS[140:145])
        store.correct(IDS[:3].tolist(), (LABELS[:3] + 1) % 3)
        store.delete(IDS[50:60].tolist())
        store.append(outputs(150, 151))
        store.delete(IDS[150:151].tolist())


def kcal() -> KCal:
    return KCal(projection="identity", bandwidth=0.6, progress=False)


def in_another_process(path: Path) -> None:
    process = get_context("fork").Process(target=change_store, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_changes_by_another_process_reach_the_calibrator(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with CalibrationStore(path) as store:
        store.append(outputs(0, 120))
        syncs = [store.follow(kcal()), store.follow(KCalBlend(progress=False))]
        assert [sync.update() for sync in syncs] == [120, 120]
        assert [sync.update() for sync in syncs] == [0, 0]
        in_another_process(path)
        assert [sync.update() for sync in syncs] == [20 + 5 + 3 + 10] * 2
        live = syncs[0].calibrator
        fresh = store.fit(kcal())
        np.testing.assert_allclose(predict_on(live, QUERIES), predict_on(fresh, QUERIES), atol=1e-6)
        assert sorted(live.ids_.tolist()) == sorted(fresh.ids_.tolist()) == sorted(store.ids())
        blend: Any = syncs[1].calibrator
        assert sorted(blend.ids_.tolist()) == sorted(store.ids())
        assert len(predict_on(blend, QUERIES)) == 20
        again = store.follow(live)  # as after a restart: what the calibrator knows is not added twice
        again.update()
        np.testing.assert_allclose(predict_on(live, QUERIES), predict_on(fresh, QUERIES), atol=1e-6)


def test_sync_needs_a_calibrator_that_learns_online(tmp_path: Path) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        for wrong in (TemperatureScaling(), None):
            with pytest.raises(InvalidInputError, match=r"^calibrator"):
                store.follow(wrong)
        sync = store.follow(kcal())
        assert sync.update() == 0  # nothing to fit on yet
        store.append(outputs(0, 30))
        assert sync.update() == 30


def moved(start: int, stop: int) -> ClassifierOutputs:
    """Return other embeddings under the same ids."""
    return replace(outputs(start, stop), embeddings=ROWS[start:stop] + 1.0)


@pytest.mark.parametrize("restarted", [False, True])
def test_id_deleted_and_appended_again_is_another_sample(tmp_path: Path, restarted: bool) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(outputs(0, 60))
        sync = store.follow(kcal())
        sync.update()
        store.delete(IDS[5:8].tolist())
        store.append(moved(5, 7))
        sync = store.follow(sync.calibrator) if restarted else sync
        assert sync.update() == 3
        live = sync.calibrator
        assert not was_fitted_on(live, ROWS[5:8]).any()
        assert was_fitted_on(live, ROWS[5:7] + 1.0).all()
        np.testing.assert_allclose(predict_on(live, QUERIES), predict_on(store.fit(kcal()), QUERIES), atol=1e-6)


@pytest.mark.parametrize("make", [kcal, lambda: KCalBlend(progress=False)])
def test_restart_leaves_samples_that_did_not_change(tmp_path: Path, make: Any) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(outputs(0, 60))
        calibrator = store.fit(make())
        assert store.follow(calibrator).update() == 0
        store.correct(IDS[3:5].tolist(), [LABELS[3], (LABELS[4] + 1) % 3])
        assert store.follow(calibrator).update() == 1
        assert store.follow(calibrator).update() == 0


@pytest.mark.parametrize("updates", [Updates(window=40), Updates(max_per_class=12)])
def test_evicted_samples_do_not_return(tmp_path: Path, updates: Updates) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(outputs(0, 60))
        sync = store.follow(kcal().set_params(updates=updates))
        sync.update()
        store.append(outputs(60, 70))
        sync.update()
        kept = online_ids(sync.calibrator)
        assert len(kept) == (40 if updates.window else 36)
        store.correct(IDS[:1].tolist(), (LABELS[:1] + 1) % 3)
        assert sync.update() == 0
        sync = store.follow(sync.calibrator)
        assert sync.update() == 0
        assert online_ids(sync.calibrator) == kept
        store.append(outputs(70, 72))
        assert sync.update() == 2
        assert online_ids(sync.calibrator)[-2:] == IDS[70:72].tolist()


def test_calibrators_that_cannot_follow_the_store_raise(tmp_path: Path) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(replace(outputs(0, 30), ids=np.arange(30)))
        with pytest.raises(InvalidInputError, match="not made of single samples"):
            store.follow(store.fit(kcal()).compress(12))
        with pytest.raises(InvalidInputError, match="fitted without ids"):
            store.follow(kcal().fit(ROWS[30:90], LABELS[30:90]))
        calibrator = kcal()
        sync = store.follow(calibrator)
        calibrator.fit(ROWS[30:90], LABELS[30:90])
        with pytest.raises(InvalidInputError, match="fitted without ids"):
            sync.update()
        updated = kcal().fit(ROWS[30:90], LABELS[30:90]).partial_fit(ROWS[90:95], LABELS[90:95])
        assert updated.ids_ is not None  # row numbers, which are no ids of the store
        with pytest.raises(InvalidInputError, match="fitted without ids"):
            store.follow(updated)


def test_samples_of_several_model_versions_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with CalibrationStore(path, version="network 1") as store:
        store.append(outputs(0, 60))
        store.fit(kcal())
    with CalibrationStore(path, version="network 2") as store:
        with pytest.warns(KcalWarning, match="'network 1'; the store was opened for 'network 2'"):
            store.fit(kcal())
        store.append(outputs(60, 130))
        with pytest.warns(KcalWarning, match="model versions 'network 1', 'network 2'"):
            store.fit(kcal())
        assert len(store.samples().ids) == 130
        for version, ids in (("network 1", IDS[:60]), ("network 2", IDS[60:130])):
            assert store.samples(version=version).ids.tolist() == ids.tolist()
            assert store.fit(kcal(), version=version).ids_.tolist() == ids.tolist()
        sync = store.follow(kcal(), version="network 2")
        assert sync.update() == 70
        store.correct(IDS[:1].tolist(), [2])  # of the other version
        store.delete(IDS[1:3].tolist() + IDS[60:61].tolist())
        assert sync.update() == 1
        assert online_ids(sync.calibrator) == IDS[61:130].tolist()
    with CalibrationStore(path) as store:
        sync = store.follow(kcal())
        with pytest.warns(KcalWarning, match="model versions 'network 1', 'network 2'"):
            sync.update()
        store.append(outputs(130, 132))
        with pytest.warns(KcalWarning, match="model versions '', 'network 1', 'network 2'"):
            sync.update()
        assert sync.update() == 0


@pytest.mark.parametrize("make", [kcal, lambda: KCalBlend(progress=False)])
def test_all_samples_may_be_replaced_at_once(tmp_path: Path, make: Any) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(outputs(0, 60))
        sync = store.follow(make())
        sync.update()
        store.delete(store.ids())
        store.append(moved(0, 50))
        assert sync.update() == 60
        assert sync.update() == 0
        live = sync.calibrator
        assert online_ids(live) == store.ids()
        assert was_fitted_on(live, ROWS[:50] + 1.0).all()
        assert not was_fitted_on(live, ROWS[:60]).any()


def test_calibrator_whose_samples_are_all_gone_follows_again(tmp_path: Path) -> None:
    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(outputs(0, 60))
        calibrator = store.fit(kcal())
        store.delete(store.ids())
        sync = store.follow(calibrator)
        assert sync.update() == 60
        assert "patient-" not in repr(vars(sync))  # not even the ids are left
        store.append(outputs(60, 120))
        assert sync.update() == 60
        np.testing.assert_allclose(predict_on(calibrator, QUERIES), predict_on(store.fit(kcal()), QUERIES), atol=1e-6)


def test_samples_that_were_never_in_the_store_stay_with_keep_others(tmp_path: Path) -> None:
    fitted = kcal().fit(ROWS[:100], LABELS[:100], ids=IDS[:100])
    with CalibrationStore(tmp_path / "more.db") as store:
        more = ClassifierOutputs(ROWS[100:120], labels=LABELS[100:120], ids=IDS[100:120])
        store.append(more)
        sync = store.follow(fitted, keep_others=True)
        assert sync.update() == 20
        expected = kcal().fit(ROWS[:120], LABELS[:120], ids=IDS[:120])
        np.testing.assert_allclose(fitted.predict_proba(QUERIES.embeddings), expected.predict_proba(QUERIES.embeddings))
        store.delete(IDS[110:120].tolist())
        assert sync.update() == 10
        assert online_ids(fitted) == IDS[:110].tolist()
        assert store.follow(fitted).update() == 100  # otherwise they are forgotten
        assert online_ids(fitted) == IDS[100:110].tolist()


def test_blend_follows_a_store_that_was_emptied_and_filled_again(tmp_path: Path) -> None:
    names = np.array(["ant", "bee", "cow"])

    def named(start: int, stop: int) -> ClassifierOutputs:
        return replace(outputs(start, stop), labels=names[LABELS[start:stop]], groups=None)

    with CalibrationStore(tmp_path / "store.db") as store:
        store.append(named(0, 60))
        blend = KCalBlend(progress=False)
        sync = store.follow(blend, classes=names)
        assert sync.update() == 60
        store.delete(store.ids())
        assert sync.update() == 60
        store.append(named(60, 130))
        assert sync.update() == 70
        fresh = store.fit(KCalBlend(progress=False), classes=names)
        np.testing.assert_allclose(predict_on(blend, QUERIES), predict_on(fresh, QUERIES), atol=1e-6)
