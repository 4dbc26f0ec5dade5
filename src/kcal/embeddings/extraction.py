"""Embeddings, logits and labels of a torch classifier, in one pass over a loader."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from numbers import Number
from operator import length_hint
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from kcal.embeddings.folder import Arrays, outputs_writer, read_outputs
from kcal.embeddings.heads import Head, Outputs, get_head, layer_name
from kcal.embeddings.networks import (
    BATCH_REMEDY,
    checksum,
    count_rows,
    device_of,
    dtype_of,
    preserve_state,
    to_device,
    unwrap,
)
from kcal.embeddings.outputs import ClassifierOutputs
from kcal.errors import InvalidInputError, LoaderWarning, RepresentationWarning, warn
from kcal.progress import progress_bar
from kcal.validation import check_columns, look_like_probabilities, shown, to_array

SplitBatch = Callable[[Any], tuple[Any, Any]]
"""Returns the inputs of the network and the labels (or None) of a batch."""
LABEL_KEYS = ("labels", "label", "targets", "target")
"""Names of the labels in a batch that is a mapping."""
SHUFFLING = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
ROWS_TO_CHECK = 1_000
"""Rows by which probabilities are recognised."""


def extract(
    network: nn.Module,
    loader: Iterable[Any],
    *,
    head: Any = None,
    batch: SplitBatch | None = None,
    autocast: torch.dtype | None = None,
    to: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> ClassifierOutputs:
    """Return embeddings, logits and labels of a network, in one pass in evaluation mode.

    The embedding is the input of the last layer. The network stays as it was: its mode, its parameters, its hooks, and
    the random states.

    Parameters
    ----------
    network : nn.Module
        A trained classifier, on any device. DataParallel, DistributedDataParallel and ``torch.compile`` are unwrapped.
        It returns logits, (n, n_classes): a tensor, a tuple, a mapping or an object with ``logits``.
    loader : iterable of batches
        A DataLoader, for example. A batch is (inputs, labels), inputs alone, or a mapping of keyword arguments of the
        network, with "labels" or "label".
    head : str, nn.Module or callable, optional
        The last layer, as its name ("head.fc") or itself; or a function of the inputs of a batch that returns
        (embeddings, logits). By default the one linear layer (or 1 × 1 convolution) whose output is the network's.
    batch : callable, optional
        A function that returns (inputs, labels) of a batch. Inputs that are a mapping are keyword arguments of the
        network, a tuple or list are positional ones.
    autocast : torch.dtype, optional
        Run in mixed precision with this type, such as ``torch.bfloat16``. Results are float32.
    to : path, optional
        Write the outputs to this folder, chunk by chunk, and return memory maps. A run that was stopped resumes. What
        the folder holds must be of the same network (its weights) and batches (their inputs and labels): all of them
        are read again and compared, but not run. :func:`kcal.read_outputs` reads a complete folder without a loader.
    progress : bool, optional
        Show a progress bar; by default in a terminal only.

    Returns
    -------
    ClassifierOutputs
        ``embeddings`` (n, h) and ``logits`` (n, n_classes) in float32, and ``labels`` (n,), or None without them.

    Examples
    --------
    >>> import kcal
    >>> example = kcal.load_example()
    >>> network, calibration_loader = example.network(), example.calibration.loader()
    >>> outputs = kcal.extract(network, calibration_loader)
    >>> outputs.embeddings.shape[1], outputs.logits.shape[1]
    (64, 10)
    >>> blend = kcal.KCalBlend().fit(outputs.embeddings, outputs.labels, logits=outputs.logits)
    """
    reader = BatchReader(network, head=head, batch=batch, autocast=autocast)
    check_order(loader)
    outputs = extract_batches(reader, loader, to=to, progress=progress)
    if look_like_probabilities(torch.from_numpy(outputs.logits[:ROWS_TO_CHECK])):
        warn(
            "The network's outputs look like probabilities: they lie between 0 and 1 and sum to 1.",
            RepresentationWarning,
            remedy='If they are, fit a calibrator with representation="probabilities".',
        )
    return outputs


def extract_batches(
    reader: BatchReader,
    loader: Iterable[Any],
    *,
    to: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> ClassifierOutputs:
    """Return the outputs of all batches of a loader; arguments as in :func:`extract`."""
    if isinstance(loader, torch.Tensor | np.ndarray) or not isinstance(loader, Iterable):
        remedy = "Pass a DataLoader, or a list of batches: [images]."
        raise InvalidInputError("loader", "must yield batches", got=shown(loader), remedy=remedy)
    parts: list[Arrays] = []
    total = length_hint(loader) or None  # None for an iterable data set, which has no length
    with ExitStack() as stack:
        writer = None if to is None else stack.enter_context(outputs_writer(to, checksum(reader.network)))
        stack.enter_context(preserve_state(reader.network))
        advance = stack.enter_context(progress_bar("Running the network", total, show=progress))
        index = -1
        for index, batch in enumerate(loader):
            if writer is None:
                parts.append(reader.read(batch, index))
            else:
                writer.add(reader.split(batch), partial(reader.read, batch, index))
            advance("")
        if index < 0:
            raise InvalidInputError("loader", "must yield at least one batch", got="none")
    if to is not None:
        return read_outputs(to)
    for index, part in enumerate(parts):
        if list(part) != list(parts[0]):
            got = f"{', '.join(part)} in batch {index} after {', '.join(parts[0])}"
            raise InvalidInputError("batches", "must hold the same parts", got=got, remedy=BATCH_REMEDY)
    return ClassifierOutputs(**{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


class BatchReader:
    """Runs a network on batches; the head is found with the first.

    Labels are ignored unless ``labelled``. Without ``needs_embeddings`` the logits suffice, and no layer is looked for.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        head: Any = None,
        batch: SplitBatch | None = None,
        autocast: torch.dtype | None = None,
        labelled: bool = True,
        needs_embeddings: bool = True,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise InvalidInputError("network", "must be an nn.Module", got=shown(network))
        if batch is not None and not callable(batch):
            raise InvalidInputError("batch", "must be a function that returns (inputs, labels)", got=shown(batch))
        if autocast is not None and not (isinstance(autocast, torch.dtype) and autocast.is_floating_point):
            expected = "must be a floating-point type of torch, such as torch.bfloat16"
            raise InvalidInputError("autocast", expected, got=shown(autocast))
        self.network = unwrap(network)
        self.autocast, self.labelled, self.needs_embeddings = autocast, labelled, needs_embeddings
        self.head: Head | None = None
        self._batch = split_batch if batch is None else batch
        self._given_head = layer_name(head, network) if isinstance(head, str | nn.Module) else head

    def read(self, batch: Any, index: int) -> Arrays:
        """Return the outputs of a batch, on the CPU; ``index`` is that of the batch, for messages."""
        inputs, labels = self.split(batch)
        if inputs is None or isinstance(inputs, str | bytes | Number | np.generic):
            got = f"{shown(inputs)} in batch {index}"
            raise InvalidInputError("batches", "must hold tensors or arrays", got=got, remedy=BATCH_REMEDY)
        if count_rows(inputs) == 0:
            raise InvalidInputError("batches", "must hold at least one sample", got=f"none in batch {index}")
        if not self.labelled and getattr(labels, "ndim", 1) > 1 and labels.shape[1] != 1:
            expected, got = "must be (inputs, labels)", f"a second part of shape {tuple(labels.shape)} in batch {index}"
            remedy = "Pass several inputs as a mapping of the network's arguments, or as the first part of a pair."
            raise InvalidInputError("batches", expected, got=got, remedy=remedy)
        device = device_of(self.network)
        inputs = to_device(inputs, device, dtype_of(self.network))
        try:
            outputs = self._run(inputs, device)
        except Exception as error:
            error.add_note(f"The network was run on batch {index} of the loader.")
            raise
        check_finite(*outputs, where=f" in batch {index}")
        named = zip(("embeddings", "logits"), outputs, strict=True)
        arrays = {name: part.detach().float().cpu().numpy() for name, part in named if part is not None}
        logits = arrays["logits"] = arrays["logits"].clip(min=np.finfo(np.float32).min)  # −∞: a masked class
        if labels is not None and self.labelled:
            arrays["labels"] = check_batch_labels(labels, f"labels of batch {index}", *logits.shape)
        elif isinstance(labels, torch.Tensor) and labels.is_floating_point() and bool((labels % 1 != 0).any()):
            expected, got = "must be (inputs, labels)", f"a second part with fractions in batch {index}"
            raise InvalidInputError("batches", expected, got=got, remedy=BATCH_REMEDY)
        return arrays

    def split(self, batch: Any) -> tuple[Any, Any]:
        """Return the inputs and the labels of a batch."""
        pair = self._batch(batch)
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidInputError("batch", "must return a tuple (inputs, labels)", got=shown(pair))
        return pair

    def _run(self, inputs: Any, device: torch.device) -> Outputs:
        """Return embeddings and logits; not in inference mode: autograd would reject what the network caches there."""
        precision: AbstractContextManager[Any] = nullcontext()
        if self.autocast is not None:
            precision = torch.autocast(device.type, dtype=self.autocast)
        with torch.no_grad(), precision:
            if self.head is not None:
                return self.head.outputs(self.network, inputs)
            self.head, outputs = get_head(
                self._given_head, self.network, inputs, needs_embeddings=self.needs_embeddings
            )
            return outputs


def check_finite(embeddings: torch.Tensor | None, logits: torch.Tensor, *, where: str = "") -> None:
    """Raise if outputs of a network hold NaN or infinity; a logit of −∞ is a class that is masked out."""
    for name, values in (("embeddings", embeddings), ("logits", logits)):
        if values is None:
            continue
        finite = torch.isfinite(values) if name == "embeddings" else values < torch.inf
        rows = finite.all(dim=1)
        if not bool(rows.all()):
            got = f"{name} with NaN or infinity{where}, at its row {int(rows.int().argmin())}"
            raise InvalidInputError("network", "must give finite numbers", got=got)


def split_batch(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the labels of a batch; the labels are None if it has none.

    A batch is (inputs, labels), inputs alone, or a mapping in which the labels have one of the names ``LABEL_KEYS``.
    """
    if isinstance(batch, Mapping):
        keys = [key for key in LABEL_KEYS if key in batch]
        if len(keys) > 1:
            got = f"both {keys[0]!r} and {keys[1]!r}"
            raise InvalidInputError("batches", "must hold their labels under one name", got=got, remedy=BATCH_REMEDY)
        inputs = {key: value for key, value in batch.items() if key not in keys}
        return inputs, batch[keys[0]] if keys else None
    if not isinstance(batch, tuple | list):
        return batch, None
    if len(batch) not in (1, 2):
        expected, got = "must be (inputs, labels), inputs alone, or a mapping", f"{len(batch)} parts"
        raise InvalidInputError("batches", expected, got=got, remedy=BATCH_REMEDY)
    return batch[0], batch[1] if len(batch) == 2 else None


def check_batch_labels(labels: Any, name: str, n_samples: int, n_classes: int) -> NDArray[np.int64]:
    """Return the labels of a batch, (n_samples,); raise if they are not columns of the logits."""
    array = to_array(labels, name)
    column = array[:, 0] if array.shape[1:] == (1,) else array
    return check_columns(column, n_samples, n_classes, name).astype(np.int64)


def check_order(loader: Any, *, beside: str = "") -> None:
    """Warn if a DataLoader is known not to yield every sample in the order of its data set.

    Raise if it shuffles and ``beside`` names arrays that are given in the order of the data set.
    """
    if not isinstance(loader, DataLoader):
        return
    if any(map(shuffles, (loader.sampler, getattr(loader.batch_sampler, "sampler", None)))):
        if beside:
            expected = "must be in the order of the loader's batches"
            raise InvalidInputError(
                beside, expected, got="a loader that shuffles", remedy="Use a loader that does not."
            )
        warn(
            "The loader shuffles: embeddings, logits and labels belong together, but not to the order of the data set.",
            LoaderWarning,
            remedy="Pass shuffle=False.",
        )
    if loader.drop_last or getattr(loader.batch_sampler, "drop_last", False) is True:
        warn("The loader drops the last batch if it is not full.", LoaderWarning, remedy="Pass drop_last=False.")


def shuffles(sampler: Any) -> bool:
    """Return whether a sampler is known to shuffle: by its type, a ``shuffle`` that is true, or a random generator."""
    drawing = isinstance(getattr(sampler, "generator", None), torch.Generator)
    return drawing or isinstance(sampler, SHUFFLING) or getattr(sampler, "shuffle", False) is True
