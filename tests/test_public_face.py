"""What `import kcal` offers is pinned: a name goes or comes on purpose."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

import kcal
import kcal.kernels
import kcal.metrics
import kcal.projection
from kcal.errors import KcalWarning, warn, without_warnings

NAMES = """
METHODS Method BetaCalibration DensityAwareCalibration DirichletCalibration GaussianProcessCalibration IMaxBinning
OrderPreservingCalibration SplineCalibration EnsembleTemperatureScaling HistogramBinning IsotonicCalibration
MatrixScaling PlattScaling ScalingBinning VectorScaling VennAbers CalibratedClassifier CalibrationStore
CalibrationMonitor ClassifierOutputs ExportError FastRecipe KCal KCalBlend KCalLogits KNNInterpolation LastLayerRefit
StructuredMatrixScaling StructuredVectorScaling KcalError InvalidInputError FileFormatError MissingExtraError
KcalWarning BandwidthWarning ConvergenceWarning FewSamplesWarning IdentifiabilityWarning LeakageWarning LoaderWarning
NetworkWarning MissingClassWarning RepresentationWarning PaperRecipe TemperatureScaling TrainedProjection Uncalibrated
Updates __version__ estimate_performance estimate_prior evaluate extract fit_on load load_example predict_on
read_outputs save train_projection
"""
EXPORTED = set(NAMES.split())


def test_every_error_and_warning_is_exported() -> None:
    defined = {name for name, value in vars(kcal.errors).items() if isinstance(value, type)}
    assert {name for name in defined if name.endswith(("Error", "Warning"))} <= EXPORTED


def test_the_public_names_are_these() -> None:
    assert set(kcal.__all__) == EXPORTED
    for module in (kcal, kcal.kernels, kcal.metrics, kcal.projection):
        assert sorted(set(module.__all__)) == sorted(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)


def loaded_after(code: str) -> set[str]:
    """Return the heavy packages that are imported once the code has run in a fresh interpreter."""
    heavy = ("torch", "sklearn", "pandas", "matplotlib", "gpytorch")
    code = f"import sys\n{code}\nprint(*[name for name in {heavy} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(found.stdout.split())


def test_metrics_need_neither_torch_nor_figures() -> None:
    assert loaded_after("import kcal; print(*{'numpy', 'rich'} & sys.modules.keys())") == set()
    # One interpreter for both ways, the lazy name last: it would import what the module itself may not.
    code = "import kcal.metrics; kcal.metrics.evaluate([[0.2, 0.8], [0.6, 0.4]], [1, 0]); import kcal; kcal.evaluate"
    assert loaded_after(code) == set()


def test_plots_need_no_torch() -> None:
    assert loaded_after("import kcal.plots").isdisjoint({"torch", "sklearn"})


def test_names_that_do_not_exist_are_missed_and_all_others_are_listed() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Kcal'"):
        _ = kcal.Kcal
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from kcal import nothing")
    assert "TYPE_CHECKING" not in dir(kcal)
    assert set(dir(kcal)) >= EXPORTED | {"metrics", "monitoring", "plots"}
    assert kcal.persistence.save is kcal.save


def test_warnings_can_be_left_out_in_one_thread_alone() -> None:
    @without_warnings()
    def warn_twice() -> None:
        warn("not heard", KcalWarning)
        other = threading.Thread(target=warn, args=("heard", KcalWarning))
        other.start()
        other.join()

    with pytest.warns(KcalWarning, match="heard") as caught:
        warn_twice()
    assert len(caught) == 1
    with without_warnings(kcal.BandwidthWarning):
        warn("not heard", kcal.BandwidthWarning)
        with pytest.warns(kcal.FewSamplesWarning):
            warn("heard", kcal.FewSamplesWarning)
