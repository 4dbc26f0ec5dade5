"""Ask for everything that needs an extra where no extra is installed, and check that the answer says how to get it.

    python -I scripts/missing_extras.py DEMO     # with the folder that kcal demo wrote

It runs in the environment of a user (``make dist``), so that it needs kcal only.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

MAX_SECONDS = 120


@dataclass(frozen=True)
class Request:
    """Something that needs packages which are not installed.

    Parameters
    ----------
    packages : tuple of str
        The modules that it needs; none of them may be there.
    install : str
        What the answer says: the argument of pip.
    words : tuple of str
        The words of a kcal command, or ``-c`` and code in Python.
    """

    packages: tuple[str, ...]
    install: str
    words: tuple[str, ...]


LOGITS = "numpy.random.default_rng(0).normal(size=(60, 3)), numpy.arange(60) % 3"
SERVE, ONNX = ("fastapi", "uvicorn", "prometheus_client"), ("onnx", "onnxscript", "onnxruntime")
REQUESTS = (
    Request(("matplotlib",), "'kcal[plots]'", ("evaluate", "model.kcal", "test.npz", "--report", "report")),
    Request(
        ("matplotlib",), "'kcal[plots]'", ("explain", "model.kcal", "test.npz", "--row", "0", "--plot", "rows.png")
    ),
    Request(("matplotlib",), "'kcal[plots]'", ("-c", "import kcal.plots")),
    Request(("matplotlib",), "'kcal[plots]'", ("-c", "import kcal.report; kcal.report.write_report")),
    Request(("matplotlib",), "'kcal[plots]'", ("-c", "import kcal; kcal.plots.reliability_diagram")),
    Request(("gpytorch",), "'kcal[gp]'", ("fit", "calibration.npz", "--method", "gp", "--out", "gp.kcal")),
    Request(
        ("gpytorch",), "'kcal[gp]'", ("-c", f"import kcal, numpy; kcal.GaussianProcessCalibration().fit({LOGITS})")
    ),
    Request(("pyarrow",), "'kcal[tables]'", ("predict", "model.kcal", "test.npz", "--out", "probabilities.parquet")),
    Request(("pyarrow",), "'kcal[tables]'", ("fit", "table.parquet", "--out", "table.kcal")),
    Request(("pyarrow",), "'kcal[tables]'", ("evaluate", "model.kcal", "table.parquet")),
    Request(ONNX, "'kcal[onnx]'", ("export", "model.kcal", "--out", "head.onnx")),
    Request(SERVE, "'kcal[serve]'", ("serve", "model.kcal", "--port", "0")),
    Request(("grpc",), "'kcal[grpc]'", ("serve", "model.kcal", "--grpc-port", "8001")),
    Request(("ray",), "'kcal[ray]'", ("predict", "model.kcal", "*.parquet", "--engine", "ray", "--out", "scores")),
    Request(("ray",), "'kcal[ray]'", ("bench", ".", "--engine", "ray")),
    Request(("ray",), "'kcal[ray]'", ("-c", "import kcal; kcal.distributed.connect()")),
    Request(
        ("pyarrow",), "'kcal[tables]'", ("predict", "model.kcal", "*.parquet", "--engine", "local", "--out", "scores")
    ),
)

WITHOUT_RIVER = """
from kcal.calibrators.river import RiverCalibrator
model = RiverCalibrator()
for i in range(40):
    model.learn_one({"x": i % 2 + i / 100}, i % 2)
assert model.predict_one({"x": 1.2}) == 1
"""
"""River is no extra: its interface works without it."""


def run(words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of kcal, or code, in the folder."""
    command = words if words[0] == "-c" else ("-m", "kcal", *words)
    start = [sys.executable, "-I", *command]
    return subprocess.run(start, cwd=folder, capture_output=True, text=True, timeout=MAX_SECONDS)


def complaint(request: Request, folder: Path) -> str:
    """Return what is wrong with the answer to a request; empty if nothing is."""
    installed = [name for name in request.packages if find_spec(name)]
    if installed:
        return f"{', '.join(installed)} must not be installed here"
    done = run(request.words, folder)
    if not done.returncode:
        return "it succeeds"
    if f"pip install {request.install}" not in " ".join(done.stderr.split()):
        return f"the answer does not say pip install {request.install}:\n{done.stderr}"
    if request.words[0] != "-c" and "Traceback" in done.stderr:
        return f"the answer is a traceback:\n{done.stderr}"
    return ""


def main(folder: Path) -> int:
    """Print every request with its answer; return 1 if one is wrong."""
    failed = False
    (folder / "table.parquet").write_text("label,logit_a,logit_b\na,1,0\nb,0,1\n", encoding="utf-8")
    for request in REQUESTS:
        problem = complaint(request, folder)
        failed |= bool(problem)
        answer = problem or f"pip install {request.install}"
        print(f"{' '.join(request.words)[:90]}: {answer}", flush=True)
    river = run(("-c", WITHOUT_RIVER), folder)
    print(f"RiverCalibrator without river: {river.stderr or 'works'}")
    return int(failed or river.returncode != 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
