"""The example data and the small network that come with the package."""

from kcal.datasets.example import COMPANIONS, Companion, Example, ExamplePart, load_example
from kcal.datasets.network import SmallCNN

__all__ = ["COMPANIONS", "Companion", "Example", "ExamplePart", "SmallCNN", "load_example"]
