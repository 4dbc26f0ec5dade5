"""What `import kcal` offers is pinned: a name goes or comes on purpose."""

from __future__ import annotations

import subprocess
import sys

import kcal
import kcal.kernels
import kcal.losses
import kcal.metrics
import kcal.projection

EXPORTED = {
    "CALIBRATORS",
    "BetaCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "IsotonicRegression",
    "MatrixScaling",
    "PlattScaling",
    "ScalingBinning",
    "VectorScaling",
    "ClassifierOutputs",
    "DirichletCalibration",
    "FastRecipe",
    "IMaxBinning",
    "GaussianProcessCalibration",
    "KCal",
    "KCalLogits",
    "KcalError",
    "KcalWarning",
    "OrderPreservingCalibration",
    "PaperRecipe",
    "SplineCalibration",
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
    for module in (kcal, kcal.kernels, kcal.losses, kcal.metrics, kcal.projection):
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def test_importing_kcal_loads_no_plotting_and_no_gpytorch() -> None:
    code = "import sys, kcal; print('matplotlib' in sys.modules or 'gpytorch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
