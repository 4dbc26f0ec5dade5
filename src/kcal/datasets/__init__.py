"""Data that comes with the package; knows no network and no calibrator."""

from kcal.datasets.example import Example, ExamplePart, load_example

__all__ = ["Example", "ExamplePart", "load_example"]
