"""From a torch classifier to its embeddings and logits."""

from kcal.embeddings.extraction import BatchReader, check_order, extract, extract_batches
from kcal.embeddings.heads import FunctionHead, Head, LayerHead, find_head, get_head
from kcal.embeddings.outputs import ClassifierOutputs
from kcal.embeddings.read import FileOutputs, read_outputs

__all__ = [
    "BatchReader",
    "ClassifierOutputs",
    "FileOutputs",
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
