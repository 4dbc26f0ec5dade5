"""The ablations of the appendix: what they measure, and that they resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

from benchmark.conftest import make_task
from experiments.paper import ablations
from experiments.paper.ablations import PaperSetting, all_metrics, case_study, run_ablations, studies
from kcal import metrics
from kcal.projection import PaperRecipe


@pytest.fixture
def setting(tmp_path: Path) -> PaperSetting:
    return PaperSetting(make_task(), folder=tmp_path, recipe=PaperRecipe(epochs=1, batches_per_epoch=2))


def test_every_variant_is_measured_on_every_split_and_once(setting: PaperSetting, tmp_path: Path) -> None:
    csv = tmp_path / "ablations.csv"
    run_ablations(setting, csv, 2, only=["size"])
    first = pandas.read_csv(csv)
    run_ablations(setting, csv, 2)
    found = pandas.read_csv(csv, dtype={"variant": str})
    pandas.testing.assert_frame_equal(found[: len(first)][["split", "bandwidth"]], first[["split", "bandwidth"]])
    names = [(study, variant) for study, variant, _ in studies(setting.task)]
    assert sorted(zip(found["study"], found["variant"], strict=True)) == sorted(names * 2)
    whole, base = (found[found["study"] == name] for name in ("size", "projection"))
    columns = ["negative_log_likelihood", "accuracy"]
    np.testing.assert_array_equal(
        whole.loc[whole["variant"] == "1", columns], base.loc[base["variant"] == "skip", columns]
    )
    assert {path.name for path in tmp_path.glob("*.kcal")} == {
        f"small-{name}.kcal" for name in ("skip", "linear", "logits")
    }


def test_fit_is_kcal_as_published(setting: PaperSetting) -> None:
    split = setting.splits(1)[0]
    fitted = setting.fitted(setting.trained("skip"), split)
    usual = setting.calibrator("kcal-paper", projection=setting.trained("skip"))
    pool = setting.task.pool
    usual.fit(pool.embeddings[split.calibration], pool.labels[split.calibration])
    assert fitted.calibrator.bandwidth_ == usual.bandwidth_
    expected = metrics.classwise_calibration_error(fitted.probs, fitted.labels, bins=20, adaptive=True, threshold="min")
    assert all_metrics(fitted)["classwise_calibration_error_min"] == pytest.approx(expected)


def test_case_study_bins_every_test_row(setting: PaperSetting) -> None:
    found = case_study(setting, 2)
    n_rows = sum(len(split.test) for split in setting.splits(2))
    assert (found.groupby(["method", "event"])["count"].sum() == n_rows).all()
    rarest = np.bincount(setting.task.pool.labels).argmin()
    assert set(found["event"]) == {"predicted class", str(setting.task.classes[rarest])}


def test_overhead_counts_what_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ablations, "NETWORKS", {"MINA": ablations.NETWORKS["MINA"]})
    ablations.overhead(tmp_path / "overhead.csv", 1)
    (row,) = pandas.read_csv(tmp_path / "overhead.csv").to_dict("records")
    assert (row["samples"], row["dimension"], row["numbers"]) == (253, 8, 253 * 8)
    assert row["parameters"] == sum(each.numel() for each in ablations.MINA(4).parameters())
    assert min(row["milliseconds"], row["kcal milliseconds"]) > 0
