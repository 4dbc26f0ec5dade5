"""The operators of torchvision, which has its own only beside the torch that it was built for."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch


def define_missing_operators() -> torch.library.Library:
    """Declare the operators that torchvision asks for at its import, if its library cannot be loaded.

    They live as long as what is returned. Where the library is loaded, a second declaration would end the process.
    """
    fragment = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    spec = find_spec("torchvision")
    libraries = [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("_C*.so")
    try:
        for library in libraries:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except OSError:
        for name in ("nms", "qnms"):
            schema = f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            fragment.define(schema)  # type: ignore[no-untyped-call]
    return fragment
