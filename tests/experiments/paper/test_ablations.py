"""The ablations of the appendix: what they measure, and that they resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas
import pytest

from benchmark.conftest import make_task
from experiments.paper.ablations import PaperSetting, all_metrics, run_ablations, studies
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
