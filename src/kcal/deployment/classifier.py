"""A network and a calibrator in one torch module: inputs to calibrated probabilities."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import nn

from kcal.calibrators import (
    Calibrator,
    Explanation,
    PredictionModule,
    accuracy_of,
    fit_on,
    make_calibrator,
    predict_on,
    update_on,
)
from kcal.calibrators.state import below
from kcal.deployment.export import (
    MIN_LOGIT,
    TOLERANCE,
    Predictor,
    export_program,
    metadata_of,
    network_metadata,
    prediction_outputs,
    read_example,
    taken_outputs,
    write_onnx,
)
from kcal.deployment.reference import (
    check_outputs,
    check_pair,
    check_state,
    head_from_reference,
    head_reference,
    network_reference,
)
from kcal.embeddings import BatchReader, ClassifierOutputs, Head, check_order, extract_batches, get_head, read_outputs
from kcal.embeddings.extraction import SplitBatch, check_finite
from kcal.embeddings.heads import Outputs, layer_name
from kcal.embeddings.networks import checksum, count_rows, device_of, evaluation_mode, preserve_state, unwrap
from kcal.errors import InvalidInputError, NetworkWarning, RepresentationWarning, warn, without_warnings
from kcal.modes import without_autocast
from kcal.persistence import from_parts, load_with_network, save, to_parts
from kcal.validation import (
    check_columns,
    check_labels,
    collect_classes,
    encode_labels,
    shown,
    to_array,
    warn_probabilities,
)

ARRAYS = (torch.Tensor, np.ndarray)
BATCH_ROWS = 256
"""Rows of an array that the network gets at once."""
NO_NETWORK = (
    "A scikit-learn classifier clf needs no network: StructuredMatrixScaling().fit(clf.decision_function(X), y, "
    'classes=clf.classes_), or StructuredMatrixScaling(representation="probabilities") with clf.predict_proba(X).'
)
RETURN_LOGITS = (
    "Leave out the softmax or sigmoid or, of several probabilities, pass TemperatureScaling(representation="
    '"probabilities") as the method.'
)
Source = ClassifierOutputs | Iterable[Any] | str | os.PathLike[str]
"""A loader, a batch, outputs, or a folder of outputs."""


class CalibratedClassifier(nn.Module):
    """A trained network with calibrated probabilities as its output.

    The network always runs in evaluation mode; a network in training mode is switched for the time of a call, so call
    ``eval()`` before several threads use it.

    Parameters
    ----------
    network : nn.Module
        A trained classifier; it is neither changed nor copied.
    method : str or Calibrator
        Name of a method (see ``kcal.METHODS``), or an unfitted calibrator.
    head, batch, autocast, progress
        As in :func:`kcal.extract`.

    Attributes
    ----------
    calibrator : Calibrator
        Fitted by :meth:`fit`.
    calibrated_head : PredictionModule
        The same prediction as a module of embeddings and logits, around the ``model_`` of the calibrator.

    Examples
    --------
    >>> import kcal
    >>> example = kcal.load_example()
    >>> network, calibration_loader = example.network(), example.calibration.loader()
    >>> model = kcal.CalibratedClassifier(network).fit(calibration_loader)
    >>> probs = model(example.test.inputs()[:5])
    >>> probs.shape
    torch.Size([5, 10])
    """

    calibrator: Calibrator | None
    calibrated_head: PredictionModule | None
    _head: Head | None

    def __init__(
        self,
        network: nn.Module,
        method: str | Calibrator = "kcal-blend",
        *,
        head: Any = None,
        batch: SplitBatch | None = None,
        autocast: torch.dtype | None = None,
        progress: bool | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(network, nn.Module):
            remedy = "" if not hasattr(network, "predict_proba") else NO_NETWORK
            raise InvalidInputError("network", "must be an nn.Module", got=shown(network), remedy=remedy)
        if not isinstance(method, str | Calibrator):
            raise InvalidInputError("method", "must be the name of a method or a calibrator", got=shown(method))
        self.network = unwrap(network)
        self.method = make_calibrator(method) if isinstance(method, str) else method
        head = layer_name(head, network) if isinstance(head, str | nn.Module) else head
        self.options = {"head": head, "batch": batch, "autocast": autocast}
        self.progress = progress
        self.calibrator = self.calibrated_head = self._head = None
        self._checksum: str | None = None  # of the network at the fit

    def fit(
        self,
        loader: Source,
        y: Any = None,
        *,
        train_loader: Source | None = None,
        groups: Any = None,
        sample_weight: Any = None,
        classes: Any = None,
    ) -> Self:
        """Fit the calibrator to the network's outputs for data that it was not trained on.

        Parameters
        ----------
        loader : iterable of batches, ClassifierOutputs or folder
            The calibration set, with labels; outputs of this network that :func:`kcal.extract` returned or wrote
            to a folder are not computed again. With ``y``, the inputs of the network as one array, tensor or mapping.
        y : (n,) array, optional
            Labels of inputs that are arrays: columns of the logits, or names of ``classes``.
        train_loader : the same, optional
            The network's own training set, for methods that learn from it, such as KCal its projection; an error for
            others.
        groups, sample_weight : (n,) arrays, optional
            Of the calibration samples, as in the calibrator's ``fit``; an error for methods that do not use them.
        classes : sequence, optional
            Names of the classes, in the order of the logits.
        """
        calibrator = clone(self.method)
        classes = None if classes is None else collect_classes([], classes)
        if train_loader is not None and not calibrator.tags.uses_training_set:
            expected = f"must be left out: method {calibrator.method} with these parameters learns nothing from it"
            raise InvalidInputError("train_loader", expected, remedy="A projection is learned by KCal, for example.")
        for name, values in (("groups", groups), ("sample_weight", sample_weight)):
            if values is not None and name not in calibrator.tags.fit_options:
                expected = f"must be left out: method {calibrator.method} does not use them"
                raise InvalidInputError(name, expected, remedy="KCal and KCalBlend do, for example.")
        calibration = self._labelled(loader, y, classes=classes, groups=groups, weights=sample_weight)
        logits, of_what = calibration.logits, calibrator.get_params().get("representation")
        if of_what == "probabilities" and logits is not None and logits.shape[1] == 2 and not logits[:, 0].any():
            expected, got = "must return one logit, or several probabilities", "one probability"
            remedy = "Leave out its sigmoid, or wrap it to return both, torch.cat([1 - p, p], dim=1)."
            raise InvalidInputError("network", expected, got=got, remedy=remedy)
        training = None
        if train_loader is not None:
            training = with_class_names(self.outputs(train_loader), classes)
        if classes is None and calibration.logits is not None and "classes" in calibrator.tags.fit_options:
            classes = np.arange(calibration.logits.shape[1])  # a column for each logit, also without samples
        if logits is not None and of_what is not None:
            warn_probabilities(torch.from_numpy(np.asarray(logits)), of_what, "outputs of the network", RETURN_LOGITS)
        with without_warnings(RepresentationWarning):
            self._hold(fit_on(calibrator, with_class_names(calibration, classes), training, classes=classes))
        self._checksum = checksum(self.network)
        return self

    def partial_fit(
        self, loader: Source, y: Any = None, *, ids: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add labelled samples to a fitted calibrator that learns online: KCal or KCalBlend.

        ``loader`` and ``y`` are as in :meth:`fit`, the others as in the calibrator's ``partial_fit``.
        """
        calibrator = self._fitted()[0]
        given = {"ids": ids, "groups": groups, "weights": sample_weight}
        samples = self._labelled(loader, y, classes=calibrator.classes_, **given)
        update_on(calibrator, with_class_names(samples, calibrator.classes_))
        return self

    def _labelled(self, loader: Source, y: Any, *, classes: Any, **given: Any) -> ClassifierOutputs:
        """Return the outputs for labelled data, with what is given beside them in the order of their rows."""
        given = {name: part for name, part in given.items() if part is not None}
        if y is not None:
            loader = batches_of(loader, y, classes)
        outputs = self.outputs(loader)
        if given:
            check_order(loader, beside={"weights": "sample_weight"}.get(next(iter(given)), next(iter(given))))
        if outputs.labels is None:
            remedy = "Yield (inputs, labels), pass y, or pass batch= to CalibratedClassifier."
            raise InvalidInputError("loader", "must yield labels to fit", got="inputs only", remedy=remedy)
        return replace(outputs, **given)

    @property
    def classes_(self) -> NDArray[Any]:
        """Labels, in the order of the columns of the probabilities."""
        return self._fitted()[0].classes_

    def __getattr__(self, name: str) -> Any:
        """Raise for what does not exist; for ``classes_`` before a fit, which a property raises for, say so."""
        return self._fitted() if name == "classes_" else super().__getattr__(name)

    def forward(self, *inputs: Any, **named_inputs: Any) -> torch.Tensor:
        """Return calibrated probabilities, (n, n_classes), of inputs that the network takes."""
        module, outputs = self._fitted()[1], self.embeddings_and_logits(*inputs, **named_inputs)
        with without_autocast():
            probs: torch.Tensor = module(*outputs)
        return probs

    def with_evidence(self, *inputs: Any, **named_inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return calibrated probabilities, (n, n_classes), and evidence, (n,), of inputs that the network takes."""
        module, outputs = self._fitted()[1], self.embeddings_and_logits(*inputs, **named_inputs)
        with without_autocast():
            return module.with_evidence(*outputs)

    def embeddings_and_logits(self, *inputs: Any, **named_inputs: Any) -> Outputs:
        """Return embeddings, (n, h), and logits, (n, n_classes), of inputs that the network takes."""
        arguments = network_inputs(self.network, inputs, named_inputs)
        self.locate_head(arguments)
        assert self._head is not None
        with evaluation_mode(self.network):
            outputs = self._head.outputs(self.network, arguments)
        if not torch.compiler.is_compiling():
            check_widths(self._fitted()[0], *outputs)
            check_finite(*outputs)
        return outputs

    def predict_proba(self, data: Source) -> NDArray[np.float32]:
        """Return calibrated probabilities, (n, n_classes), of a loader, a batch, outputs or a folder of them.

        A batch is a tensor, a tuple or a mapping. The network runs in evaluation mode and stays as it was.
        """
        calibrator, _ = self._fitted()
        outputs = self.outputs(data, labelled=False)
        with without_warnings(RepresentationWarning):  # the fit has warned
            probs: NDArray[np.float32] = predict_on(calibrator, outputs)
        return probs

    def predict(self, data: Source) -> NDArray[Any]:
        """Return the most probable class of each sample; ``data`` as in :meth:`predict_proba`."""
        probs, calibrator = self.predict_proba(data), self._fitted()[0]
        labels: NDArray[Any] = calibrator.classes_[probs.argmax(axis=1)]
        return labels

    def score(self, data: Source, y: Any = None, sample_weight: Any = None) -> float:
        """Return the accuracy on labelled data; ``data`` and ``y`` as in :meth:`fit`."""
        calibrator = self._fitted()[0]
        classes = calibrator.classes_
        samples = with_class_names(self._labelled(data, y, classes=classes, weights=sample_weight), classes)
        with without_warnings(RepresentationWarning):  # the fit has warned
            predicted = classes[predict_on(calibrator, samples).argmax(axis=1)]
        return accuracy_of(predicted, samples.labels, samples.weights)

    def evidence(self, data: Source) -> NDArray[np.float32]:
        """Return the share of calibration samples with less evidence than each sample, (n,), from 0 to 1.

        For KCal and its blend; see their ``evidence``. ``data`` as in :meth:`predict_proba`.
        """
        calibrator = self._fitted()[0]
        if not calibrator.tags.has_evidence:
            expected, got = "must be a method with evidence, such as kcal-blend", calibrator.method
            raise InvalidInputError("method", expected, got=got)
        shares: NDArray[np.float32] = calibrator.evidence(self.outputs(data, labelled=False).matrix(calibrator.inputs))
        return shares

    def explain(self, data: Source, k: int = 5) -> Explanation:
        """Return the ``k`` most influential calibration samples of each prediction; ``data`` as in ``predict_proba``.

        For KCal and its blend; see their ``explain``.
        """
        calibrator = self._fitted()[0]
        if not calibrator.tags.has_explanations:
            expected, got = "must be a method with explanations, such as kcal-blend", calibrator.method
            raise InvalidInputError("method", expected, got=got)
        outputs = self.outputs(data, labelled=False)
        logits = outputs.logits if calibrator.inputs == "both" else None
        explanation: Explanation = calibrator.explain(outputs.matrix(calibrator.inputs), k, logits=logits)
        return explanation

    def outputs(self, data: Source, *, labelled: bool = True) -> ClassifierOutputs:
        """Return embeddings, logits and, if ``labelled``, labels; ``data`` as in :meth:`predict_proba`.

        Without labels the order of the rows matters: a loader that shuffles warns.
        """
        if isinstance(data, ClassifierOutputs | str | os.PathLike):
            computed = data if isinstance(data, ClassifierOutputs) else read_outputs(data)
            if self.options["head"] is None:
                check_outputs(computed, self.network)
            return computed
        if not labelled:
            check_order(data)
        loader = batches_of(data) if isinstance(data, ARRAYS) else [data] if is_batch(data) else data
        options = self.options | ({"head": self._head} if self._head else {})
        reader = BatchReader(self.network, labelled=labelled, needs_embeddings=self._needs_embeddings, **options)
        outputs = extract_batches(reader, loader, progress=self.progress)
        self._head = reader.head
        return outputs

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the calibrator, the name of the head and a checksum of the network to one file; not the network."""
        calibrator, _ = self._fitted()
        return save(calibrator, path, network=self.network_reference())

    def network_reference(self) -> dict[str, Any]:
        """Return class, checksum and head of the network, as files name it; warn if it has changed since the fit."""
        reference = network_reference(self.network, self._head)
        if self._checksum not in (None, reference["checksum"]):
            message = (
                "The weights of the network have changed since the fit: its probabilities may no longer be calibrated."
            )
            warn(message, NetworkWarning, remedy="Fit again.")
        return reference

    @classmethod
    def load(cls, path: str | os.PathLike[str], network: nn.Module, **options: Any) -> Self:
        """Return the classifier that :meth:`save` wrote, with its ``network``, which must be the same.

        Weights and buffers are compared with those of the fit, but not the code that computes with them.
        ``options`` are those of the constructor; a ``head`` that is a function has to be given again.
        """
        calibrator, reference = load_with_network(path)
        classifier = cls(network, calibrator, **options)
        if reference is None:
            message = f"{path} does not say which network it belongs to: a wrong one is not noticed."
            warn(message, NetworkWarning, remedy="Write it with CalibratedClassifier.save.")
        else:
            check_pair(reference, network_reference(classifier.network, None), path)
            if classifier.options["head"] is None:
                classifier._head = head_from_reference(reference.get("head"))
        classifier._hold(calibrator)
        return classifier

    def to_onnx(self, path: str | os.PathLike[str], example: Any, *, tolerance: float = TOLERANCE) -> Path:
        """Write the network and its calibration as one ONNX file, with any number of rows; return the path.

        Outputs are ``probabilities`` and, for KCal and its blend, ``evidence``; the metadata name classes, method and
        version. The file is kept only if onnxruntime agrees with torch, on the example at several batch sizes and far
        from the calibration set.

        Parameters
        ----------
        path : path
            The file. Beyond 1 GB the tensors go to a second file beside it, PATH.data.
        example : tensor, tuple of tensors or mapping of tensors
            Real inputs of the network, one row or more; the first 256 are used.
        tolerance : float
            Largest difference of a probability or of the evidence; :func:`kcal.deployment.write_onnx` has the details.
        """
        predictor, parts = self._predictor(example)
        metadata = metadata_of(self._fitted()[0])
        return write_onnx(predictor, parts, path, metadata=metadata, tolerance=tolerance, progress=self.progress)

    def network_to_onnx(self, path: str | os.PathLike[str], example: Any, *, tolerance: float = TOLERANCE) -> Path:
        """Write the network alone as an ONNX file, with any number of rows; return the path.

        ``kcal serve model.kcal --network PATH`` runs it before the calibrator that :meth:`save` wrote, which then
        learns from feedback. Outputs are ``embeddings`` and ``logits``, as far as the calibrator takes them. The
        metadata hold the checksum of the network, by which a wrong pair of files is noticed.

        Parameters
        ----------
        path, example
            As in :meth:`to_onnx`. The file is kept only if onnxruntime agrees with the network, at several batch sizes
            and on 10 and 100 times the example.
        tolerance : float
            Largest difference of an output, relative to its largest number.
        """
        predictor, parts = self._predictor(example, alone=True)
        metadata = network_metadata(self.network_reference())
        return write_onnx(predictor, parts, path, metadata=metadata, tolerance=tolerance, progress=self.progress)

    def to_exported(self, example: Any) -> torch.export.ExportedProgram:
        """Return the program of ``torch.export``, with any number of rows; ``example`` as in :meth:`to_onnx`.

        It is verified as the file of :meth:`to_onnx` is.
        """
        return export_program(*self._predictor(example))

    def _predictor(self, example: Any, *, alone: bool = False) -> tuple[Predictor, tuple[torch.Tensor, ...]]:
        """Return what is exported, with its calibration or ``alone``, and the tensors of the example."""
        calibrator = self._fitted()[0]
        names, by_name, parts = read_example(example)
        classifier = self if device_of(self.network).type == "cpu" else deepcopy(self).cpu()
        classifier.locate_head(example)
        self._head = classifier._head
        if not alone:
            return Predictor(classifier, names, prediction_outputs(calibrator), by_name=by_name), parts
        taken = taken_outputs(calibrator)

        def run(*inputs: Any, **named_inputs: Any) -> tuple[torch.Tensor, ...]:
            embeddings, logits = classifier.embeddings_and_logits(*inputs, **named_inputs)
            found: dict[str, Any] = {"embeddings": embeddings, "logits": logits.float().clamp(min=MIN_LOGIT)}
            return tuple(found[name].float() for name in taken)

        return Predictor(classifier.network, names, dict.fromkeys(taken, 0.0), by_name=by_name, run=run), parts

    def locate_head(self, inputs: Any) -> None:
        """Find the last layer by the inputs of a batch, if it is not known yet."""
        if self._head is None:
            with preserve_state(self.network), torch.no_grad():
                given, needs = self.options["head"], self._needs_embeddings
                self._head, _ = get_head(given, self.network, inputs, needs_embeddings=needs)

    @property
    def _needs_embeddings(self) -> bool:
        return (self.calibrator or self.method).inputs != "logits"

    def get_extra_state(self) -> Any:
        """Return what a state dictionary needs beside tensors: the calibrator without its model, and the head."""
        if self.calibrator is None:
            return None
        header, tensors = to_parts(self._fitted()[0])
        others = {name: tensor for name, tensor in tensors.items() if not name.startswith("model.")}
        return {"header": header, "tensors": others, "head": head_reference(self._head)}

    def set_extra_state(self, state: Any) -> None:
        """Do nothing: ``_load_from_state_dict`` reads it together with the tensors of the model."""

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Any, strict: bool, *rest: Any
    ) -> None:
        """Restore the calibrator, and with it the shapes of the calibrated head; torch then fills head and network.

        A state of another network raises before anything is changed; that of an unfitted classifier has no calibrator.
        """
        check_state(self.network, below(state_dict, f"{prefix}network."), strict=strict)
        state = state_dict.get(f"{prefix}_extra_state")
        if state is not None:
            tensors = {
                name: part.detach().cpu().clone()
                for name, part in below(state_dict, f"{prefix}calibrated_head.").items()
            }
            calibrator = from_parts(state["header"], {**tensors, **state["tensors"]}, "The state dictionary")
            assert isinstance(calibrator, Calibrator)
            if self.options["head"] is None:
                self._head = head_from_reference(state["head"])
            self._hold(calibrator)
        elif f"{prefix}_extra_state" in state_dict:
            self.calibrator = self.calibrated_head = self._head = None
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, *rest)

    def __getstate__(self) -> dict[str, Any]:
        if self.calibrator is not None:
            self._fitted()  # a copy or a pickle has nothing of samples that the calibrator forgot
        return dict(self.__dict__)

    def _hold(self, calibrator: Calibrator) -> None:
        self.calibrator = calibrator
        self.calibrated_head = PredictionModule(calibrator.model_).to(device_of(self.network))

    def _fitted(self) -> tuple[Calibrator, PredictionModule]:
        if self.calibrator is None or self.calibrated_head is None:
            raise NotFittedError("This CalibratedClassifier is not fitted yet: call fit with a calibration set first.")
        if not torch.compiler.is_compiling() and self.calibrator.model_ is not self.calibrated_head.model:
            self._hold(self.calibrator)  # it learned from further samples
        return self.calibrator, self.calibrated_head


def network_inputs(network: nn.Module, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the inputs of a call as those of a batch; raise if they are arrays, or without a sample."""
    if positional and named:
        try:
            by_name = signature(network.forward).bind_partial(*positional).arguments
        except TypeError as error:  # more than the network has
            raise InvalidInputError("inputs", "must be arguments of the network", got=str(error)) from error
        if repeated := by_name.keys() & named.keys():
            raise InvalidInputError("inputs", "must be given once each", got=f"{min(repeated)} twice")
        positional, named = (), by_name | named
    arrays = [part for part in (*positional, *named.values()) if isinstance(part, np.ndarray)]
    if arrays:
        remedy = "Convert it with torch.from_numpy, or call predict_proba."
        raise InvalidInputError("inputs", "must be tensors", got=shown(arrays[0]), remedy=remedy)
    inputs = named or (positional[0] if len(positional) == 1 else positional)
    if not torch.compiler.is_compiling() and count_rows(inputs) == 0:
        raise InvalidInputError("inputs", "must hold at least one sample", got="none")
    return inputs


def batches_of(inputs: Any, y: Any = None, classes: NDArray[Any] | None = None) -> list[Any]:
    """Return inputs of a network, arrays or a mapping of arrays, in batches; with labels ``y``, pairs of both."""

    def rows(part: Any, block: slice) -> Any:
        if isinstance(part, Mapping):
            return {key: rows(value, block) for key, value in part.items()}
        return tuple(rows(value, block) for value in part) if isinstance(part, tuple | list) else part[block]

    n_rows = count_rows(inputs)
    if n_rows is None:
        expected = "must be arrays" if y is None else "must be arrays, with a row for each label"
        raise InvalidInputError("X", expected, got=shown(inputs))
    labels = None if y is None else label_codes(y, classes, n_rows)
    blocks = [slice(start, start + BATCH_ROWS) for start in range(0, max(n_rows, 1), BATCH_ROWS)]
    return [rows(inputs, block) if labels is None else (rows(inputs, block), labels[block]) for block in blocks]


def label_codes(y: Any, classes: NDArray[Any] | None, n_samples: int) -> NDArray[Any]:
    """Return labels as columns of the logits; names, which may be integers, are looked up in ``classes``."""
    labels = check_labels(y, n_samples)
    if classes is None or (labels.dtype.kind in "iub" and classes.dtype.kind not in "iu"):
        return labels
    return encode_labels(labels, classes, "y")


def check_widths(calibrator: Calibrator, embeddings: torch.Tensor | None, logits: torch.Tensor) -> None:
    """Raise if embeddings or logits have not the columns that a calibrator was fitted with."""
    given = {"embeddings": 0 if embeddings is None else embeddings.shape[1], "logits": logits.shape[1]}
    expected = {"embeddings": calibrator.n_features_in_, "logits": len(calibrator.classes_)}
    if calibrator.inputs == "logits":
        expected["logits"] = max(calibrator.n_features_in_, 2)  # one column has the logits of both classes
    for name in taken_outputs(calibrator):
        if given[name] != expected[name]:
            remark = f"must give {name} with the {expected[name]:,} columns of the fit"
            remedy = "Pass the network, and the head=, of the fit."
            raise InvalidInputError("network", remark, got=f"{given[name]:,}", remedy=remedy)


def with_class_names(outputs: ClassifierOutputs, classes: NDArray[Any] | None) -> ClassifierOutputs:
    """Return outputs with names of classes as labels in place of column indices; without ``classes``, as they are."""
    if classes is None or outputs.labels is None:
        return outputs
    labels = to_array(outputs.labels, "labels")
    if labels.dtype.kind not in "iu":
        return outputs
    if outputs.logits is not None and len(classes) != outputs.logits.shape[1]:
        expected = f"must name every column of the logits ({outputs.logits.shape[1]})"
        raise InvalidInputError("classes", expected, got=shown(classes))
    return replace(outputs, labels=classes[check_columns(labels, labels.size, len(classes)).astype(np.intp)])


def is_batch(data: Any) -> bool:
    """Return whether data are one batch: a tensor, an array, a mapping, a tuple, or a list of inputs and labels.

    A tuple of batches is not a batch.
    """
    if isinstance(data, list) and len(data) == 2 and all(isinstance(part, ARRAYS) for part in data):
        inputs, labels = data
        return labels.ndim == 1 and inputs.ndim > 1 and len(inputs) == len(labels)
    if isinstance(data, tuple):
        return not data or not all(map(_holds_arrays, data))
    return isinstance(data, (*ARRAYS, Mapping))


def _holds_arrays(part: Any) -> bool:
    """Return whether a part of a tuple is a batch itself: a mapping or a sequence of arrays, not an array."""
    parts = part.values() if isinstance(part, Mapping) else part
    return isinstance(part, Mapping | tuple | list) and any(isinstance(value, ARRAYS) for value in parts)
