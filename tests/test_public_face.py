"""What `import kcal` offers is pinned: a name goes or comes on purpose."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kcal
import kcal.kernels
import kcal.metrics
import kcal.projection

EXPORTED = {
    "METHODS",
    "Method",
    "BetaCalibration",
    "DirichletCalibration",
    "GaussianProcessCalibration",
    "IMaxBinning",
    "OrderPreservingCalibration",
    "SplineCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicCalibration",
    "MatrixScaling",
    "PlattScaling",
    "ScalingBinning",
    "VectorScaling",
    "ClassifierOutputs",
    "FastRecipe",
    "KCal",
    "KCalBlend",
    "KCalLogits",
    "StructuredMatrixScaling",
    "KcalError",
    "KcalWarning",
    "PaperRecipe",
    "TemperatureScaling",
    "TrainedProjection",
    "Uncalibrated",
    "__version__",
    "evaluate",
    "load",
    "load_example",
    "save",
    "train_projection",
}


def test_the_public_names_are_these() -> None:
    assert set(kcal.__all__) == EXPORTED
    for module in (kcal, kcal.kernels, kcal.metrics, kcal.projection):
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def loaded_after(code: str) -> set[str]:
    """Which heavy packages are loaded once the code has run in a fresh interpreter."""
    heavy = ("torch", "sklearn", "pandas", "matplotlib", "gpytorch")
    code = f"import sys\n{code}\nprint(*[name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_metrics_need_neither_torch_nor_pictures() -> None:
    assert loaded_after("import kcal.metrics; kcal.metrics.evaluate([[0.2, 0.8], [0.6, 0.4]], [1, 0])") == set()
    assert loaded_after("import kcal; kcal.evaluate([[0.2, 0.8]], [1]); kcal.metrics.accuracy") == set()


def test_calibrators_load_no_pictures_and_no_gaussian_processes() -> None:
    assert loaded_after("from kcal import KCal, load_example, save").isdisjoint({"matplotlib", "gpytorch"})


def test_names_that_do_not_exist_are_missed_and_all_others_are_listed() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Kcal'"):
        _ = kcal.Kcal
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from kcal import nothing")
    assert set(dir(kcal)) >= EXPORTED
    assert kcal.persistence.save is kcal.save
