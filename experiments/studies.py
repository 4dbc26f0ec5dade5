"""All studies, in the order of the page."""

from importlib import import_module

from experiments.study import Study

NAMES = (
    "variants", "remedies", "dimension", "bandwidth_law", "convexity", "sampling", "groups", "shift", "far",
    "growth", "online", "monitoring", "compression", "blend_compression",
)  # fmt: skip
STUDIES: tuple[Study, ...] = tuple(import_module(f"experiments.{name}").STUDY for name in NAMES)
