"""From a torch classifier to its embeddings and logits."""

from kcal.embeddings.extraction import BatchReader, extract
from kcal.embeddings.folder import read_outputs
from kcal.embeddings.heads import FunctionHead, Head, LayerHead, find_head
from kcal.embeddings.outputs import ClassifierOutputs

__all__ = [
    "BatchReader",
    "ClassifierOutputs",
    "FunctionHead",
    "Head",
    "LayerHead",
    "extract",
    "find_head",
    "read_outputs",
]
