"""What `import kcal` offers is pinned: a name goes or comes on purpose."""

from __future__ import annotations

import subprocess
import sys

import kcal
import kcal.kernels
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
    "FastRecipe",
    "KCal",
    "KCalLogits",
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


def test_importing_kcal_loads_no_plotting() -> None:
    code = "import sys, kcal; print('matplotlib' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
