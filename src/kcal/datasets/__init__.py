"""Data that comes with the package; knows no network and no calibrator."""

from kcal.datasets.example import COMPANIONS, Companion, Example, ExamplePart, load_example

__all__ = ["COMPANIONS", "Companion", "Example", "ExamplePart", "load_example"]
