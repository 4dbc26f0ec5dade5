"""From a torch classifier to its embeddings and logits."""

from kcal.embeddings.extraction import BatchReader, check_order, extract, extract_batches
from kcal.embeddings.folder import read_outputs
from kcal.embeddings.heads import FunctionHead, Head, LayerHead, find_head, get_head
from kcal.embeddings.outputs import ClassifierOutputs

__all__ = [
    "BatchReader",
    "ClassifierOutputs",
    "FunctionHead",
    "Head",
    "LayerHead",
    "check_order",
    "extract",
    "extract_batches",
    "find_head",
    "get_head",
    "read_outputs",
]
