"""Intra order-preserving calibration: the network's ranking of the classes stays, their distances are learned.

out_j = out_{j+1} + (z_j − z_{j+1}) softplus(m_j(x)),   z_1 ≥ … ≥ z_K,   p = softmax(out)
"""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from kcal.calibrators.base import Calibrator, CalibratorState, refuse_extra
from kcal.calibrators.logits import REPRESENTATIONS, encode_columns, log_probabilities
from kcal.calibrators.order_preserving.maps import GapMap, MonotoneMap, in_exact_order
from kcal.calibrators.order_preserving.training import WIDTHS, OrderChoice, OrderMap, SortedRows, train
from kcal.errors import FileFormatError, InvalidInputError
from kcal.progress import progress_bar
from kcal.validation import check_weights

FORMS = tuple(WIDTHS)


class OrderPreservingCalibration(Calibrator):
    """Learn how far apart the logits should be, never their order: accuracy and every top-k accuracy stay exactly.

    Of two classes the one with the greater logit gets the greater probability, in the precision that comes back, and
    equal logits get equal probabilities. Three forms: "diag", one rising function for all logits, by L-BFGS; "oi",
    a network that sees the sorted row stretches its gaps; "op", one that sees the row as the classes stand, so that
    classes may differ; both by Adam. Each is trained on every fold but one, starting from that part's temperature,
    and the calibrator is the mean of the folds' output logits.

    Two things differ from the published method: "diag" integrates its network by the trapezoid rule on a fixed grid of
    256 cells, not by Clenshaw-Curtis quadrature for every logit, and the learning rate of Adam, 5e-3, falls linearly
    to 0 over the epochs.

    Parameters
    ----------
    form : "auto", "diag", "oi" or "op"
        "auto" takes the form of least cross-validated log-loss.
    width : "auto" or int
        Of the network's two hidden layers; "auto" tries 10 for "diag", and for the others 2, 10 and 50, as long as
        wider is better.
    folds : int
        Parts of the calibration set; fewer if there are fewer samples.
    epochs : int
        Of Adam, for "oi" and "op".
    representation : "logits" or "probabilities"
        What ``X`` holds; it is never guessed.
    seed : int
        Of the folds, the initial weights and the batches.
    progress : bool, optional
        Show a progress bar; None shows it in a terminal only.

    Attributes
    ----------
    form_, width_ :
        What was chosen.
    choices_ : tuple of OrderChoice
        All that was tried, with its cross-validated log-loss.
    """

    inputs: ClassVar[str] = "logits"
    method: ClassVar[str] = "iop"
    preserves_order: ClassVar[bool] = True
    form_: str
    width_: int
    choices_: tuple[OrderChoice, ...]
    _map: OrderMap

    def __init__(
        self,
        *,
        form: str = "auto",
        width: int | str = "auto",
        folds: int = 5,
        epochs: int = 50,
        representation: str = "logits",
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.form = form
        self.width = width
        self.folds = folds
        self.epochs = epochs
        self.representation = representation
        self.seed = seed
        self.progress = progress

    def fit(self, X: Any, y: Any, *, sample_weight: Any = None, classes: Any = None) -> Self:
        """Learn the map from logits ``X`` (n, n_classes) and labels ``y``; integer labels are columns."""
        self._check_parameters()
        rows, _ = self._check_rows(X, fitting=True)
        scores, order = self._sorted(rows)
        codes, self.classes_ = encode_columns(y, len(scores), scores.shape[1], classes)
        weights = np.ones(len(scores)) if sample_weight is None else check_weights(sample_weight, len(scores))
        counted = torch.from_numpy(weights > 0)
        if int(counted.sum()) < 2:
            raise InvalidInputError(
                f"{type(self).__name__} cross-validates: it needs at least two samples; got 1 sample."
            )
        self._remember(rows)
        own = (order == torch.from_numpy(codes)[:, None]).int().argmax(dim=1)  # where the sorted row has the label
        self._choose(SortedRows(*(part[counted] for part in (scores, order, own, torch.from_numpy(weights)))))
        return self

    def _choose(self, data: SortedRows) -> None:
        """Train every form that may be meant, ever wider until that no longer helps, and keep the best."""
        forms = FORMS if self.form == "auto" else (self.form,)
        folds = min(int(self.folds), len(data.own))
        steps = sum(len(self._widths(form)) * (folds if form == "diag" else self.epochs) for form in forms)
        found: list[tuple[OrderMap, OrderChoice]] = []
        with progress_bar("Order-preserving maps", steps, show=self.progress) as advance:
            for form in forms:
                least = inf
                for width in self._widths(form):
                    found.append(
                        train(data, form, width, folds=folds, epochs=self.epochs, seed=int(self.seed), advance=advance)
                    )
                    if found[-1][1].log_loss >= least:
                        break
                    least = found[-1][1].log_loss
        self.choices_ = tuple(choice for _, choice in found)
        self._map, best = min(found, key=lambda pair: pair[1].log_loss)
        self.form_, self.width_ = best.form, best.width

    def _widths(self, form: str) -> tuple[int, ...]:
        return (int(self.width),) if self.width != "auto" else WIDTHS[form]

    def _sorted(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log probabilities of the classes in descending order, and that order, both (n, n_classes)."""
        descending, order = torch.sort(rows.cpu(), dim=1, descending=True, stable=True)
        return log_probabilities(descending, self.representation), order

    def _logarithms(self, rows: torch.Tensor) -> torch.Tensor:
        scores, order = self._sorted(rows)
        return torch.empty_like(scores).scatter_(1, order, torch.log_softmax(self._map(scores, order), dim=1))

    def _probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return in_exact_order(torch.exp(self._logarithms(rows)).to(rows.dtype), rows.cpu())

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return -in_exact_order(self._logarithms(rows).abs().to(rows.dtype), -rows.cpu())

    def _check_parameters(self) -> None:
        if not isinstance(self.form, str) or self.form not in ("auto", *FORMS):
            raise InvalidInputError(f'form must be "auto" or one of {FORMS}; got {self.form!r}.')
        for name, least, limit in (("width", 1, 10**4), ("folds", 2, 10**4), ("epochs", 1, 10**6), ("seed", 0, 2**64)):
            value = getattr(self, name)
            if name == "width" and isinstance(value, str) and value == "auto":
                continue
            if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) < limit:
                raise InvalidInputError(f"{name} must be an integer from {least} to {limit - 1}; got {value!r}.")
        if self.representation not in REPRESENTATIONS:
            raise InvalidInputError(f"representation must be one of {REPRESENTATIONS}; got {self.representation!r}.")

    def state(self) -> CalibratorState:
        """Return what the fitted calibrator is made of."""
        check_is_fitted(self)
        parameters = {
            name: int(value) if isinstance(value, Integral) and not isinstance(value, bool) else value
            for name, value in self.get_params().items()
        }
        values = {"form": self.form_, "width": self.width_, "choices": [asdict(choice) for choice in self.choices_]}
        return self._state(parameters, values, **_tensors_of(self._map))

    @classmethod
    def from_state(cls, state: CalibratorState, **extra: Any) -> Self:
        """Return the fitted calibrator that ``state`` describes."""
        refuse_extra(cls, extra)
        calibrator = cls(**state.parameters)._restore(state)
        try:
            calibrator._check_parameters()
        except InvalidInputError as error:
            raise FileFormatError(f"a stored parameter is damaged: {error}") from error
        calibrator.choices_ = tuple(OrderChoice(**choice) for choice in state.values["choices"])
        calibrator.form_, calibrator.width_ = state.values["form"], state.values["width"]
        calibrator._map = _map_from(calibrator.form_, state.tensors, calibrator.n_features_in_)
        return calibrator


def _tensors_of(found: OrderMap) -> dict[str, torch.Tensor]:
    if isinstance(found, MonotoneMap):
        return {"depths": found.depths, "density": found.density}
    layers = {f"layer.{place}": layer for place, layer in enumerate(found.layers)}
    return {"centre": found.centre, "scale": found.scale, "start": found.start, **layers}


def _map_from(form: Any, tensors: dict[str, torch.Tensor], n_classes: int) -> OrderMap:
    """Return the stored map, or say that it cannot be one."""
    if form not in FORMS:
        raise FileFormatError(f"the stored form must be one of {FORMS}; got {form!r}.")
    found: OrderMap
    if form == "diag":
        found = MonotoneMap(tensors["depths"], tensors["density"])
        rising = found.depths.ndim == 1 and bool((found.depths.diff() > 0).all()) and bool(found.depths[0] == 0)
        sound = rising and found.density.shape == found.depths.shape and bool((found.density >= 0).all())
    else:
        layers = tuple(tensors[f"layer.{place}"] for place in range(6))
        found = GapMap(form == "op", tensors["centre"], tensors["scale"], tensors["start"], layers)
        folds, width = layers[0].shape[0], layers[0].shape[-1]
        sizes = ((n_classes, width), (1, width), (width, width), (1, width), (width, n_classes - 1), (1, n_classes - 1))
        fits = all(layer.shape == (folds, *size) for layer, size in zip(layers, sizes, strict=True))
        fits = fits and found.start.shape == (folds, 1, 1) and found.centre.shape == (n_classes,)
        sound = fits and found.scale.shape == (n_classes,) and bool((found.scale > 0).all())
    if not sound or not all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in _tensors_of(found).values()):
        raise FileFormatError("the stored map is damaged: its parts are not numbers, or do not fit together.")
    return found
