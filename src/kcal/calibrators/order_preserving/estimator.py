"""Intra order-preserving calibration: the network's ranking of the classes stays, the gaps between them are learned."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import ClassVar

import torch

from kcal.calibrators.class_scores import rank_of_label, sort_classes, unsort_classes
from kcal.calibrators.logit_base import Codes, Floats, LogitCalibrator, fitted
from kcal.calibrators.model_state import LogitModel, nested, tensor
from kcal.calibrators.order_preserving.maps import GapMap, MonotoneMap, in_exact_order
from kcal.calibrators.order_preserving.training import WIDTHS, OrderChoice, OrderMap, SortedRows, train
from kcal.errors import InvalidInputError
from kcal.progress import progress_bar
from kcal.samples import MAX_FOLDS
from kcal.validation import check_choice, check_integer, parameter

FORMS = tuple(WIDTHS)
MAX_WIDTH, MAX_EPOCHS = 10_000, 100_000
LOWEST_LOG_PROB = -1e5
"""Scores of masked classes are clipped here: beside greater numbers the gaps of the others would be rounded away."""


@dataclass(frozen=True)
class OrderPreservingModel(LogitModel):
    """The map of the sorted row, and the forms and widths that were tried."""

    order_map: OrderMap = nested(GapMap, MonotoneMap)
    tried: torch.Tensor = tensor("tried", 3)  # place in FORMS, width, cross-validated log-loss

    @property
    def choices(self) -> tuple[OrderChoice, ...]:
        """Every form and width that was tried."""
        return tuple(OrderChoice(FORMS[int(form)], int(width), loss) for form, width, loss in self.tried.tolist())

    @property
    def best(self) -> OrderChoice:
        """The form and width of lowest cross-validated log-loss."""
        return min(self.choices, key=lambda choice: choice.log_loss)

    @property
    def numbers_per_score(self) -> int:
        """Size of the largest tensor, per score: one number for every fold."""
        return self.order_map.n_maps

    def log_probs(self, log_probs: torch.Tensor) -> torch.Tensor:
        """Return calibrated log probabilities, (n, n_classes)."""
        scores, order = sort_classes(log_probs.clamp_min(LOWEST_LOG_PROB))
        return unsort_classes(torch.log_softmax(self.order_map.output_logits(scores, order), dim=1), order)

    def summary(self) -> dict[str, str]:
        """Return form and width for display."""
        return {"form": self.best.form, "width": str(self.best.width)}


@dataclass(kw_only=True, eq=False, repr=False)
class OrderPreservingCalibration(LogitCalibrator):
    """Learn the gaps between the logits, never their order: accuracy and every top-k accuracy stay exactly.

    Of two classes the one with the greater logit gets the greater probability, in the precision of the output, and
    equal logits get equal probabilities; what ``as_module`` returns is not corrected for rounding. Three forms: "diag",
    one increasing function of all logits, by L-BFGS; "oi", a network of the sorted row that scales its gaps; "op", a
    network of the row in the order of the classes, so that classes may differ; both by Adam. Each is trained on all
    folds but one, starting at the temperature of that part, and the calibrator is the mean of the folds' output logits.

    Two things differ from the published method: "diag" integrates its network by the trapezoid rule on a fixed grid of
    256 cells, not by Clenshaw-Curtis quadrature for every logit, and the learning rate of Adam, 5e-3, decreases
    linearly to 0 over the epochs.

    Parameters
    ----------
    form : "auto", "diag", "oi" or "op"
        "auto" takes the form of lowest cross-validated log-loss.
    width : "auto" or int
        Width of the network's two hidden layers; "auto" tries 10 for "diag", and for the others 2, 10 and 50, as long
        as wider is better.
    folds : int
        Folds of the cross-validation; fewer if there are fewer samples.
    epochs : int
        Epochs of Adam, for "oi" and "op".
    representation, seed
        As in :class:`TemperatureScaling`; the seed is that of the folds, the initial weights and the batches.
    progress : bool, optional
        Show a progress bar; None shows it in a terminal only.

    Attributes
    ----------
    form_, width_ : str, int
        Of the lowest cross-validated log-loss.
    choices_ : tuple of OrderChoice
        Every form and width that was tried, with its cross-validated log-loss.
    """

    method: ClassVar[str] = "iop"
    pools_network: ClassVar[bool] = True
    ignores_class_order: ClassVar[bool] = True
    preserves_order: ClassVar[bool] = True
    model_class = OrderPreservingModel
    form_ = fitted("best.form")
    width_ = fitted("best.width")
    choices_ = fitted("choices")
    form: str = parameter("auto", check_choice, choices=("auto", *FORMS))
    width: int | str = parameter("auto", check_integer, minimum=1, maximum=MAX_WIDTH)
    folds: int = parameter(5, check_integer, minimum=2, maximum=MAX_FOLDS)
    epochs: int = parameter(50, check_integer, minimum=1, maximum=MAX_EPOCHS)
    progress: bool | None = None
    model_: OrderPreservingModel = field(init=False)

    def _fit_log_probs(self, log_probs: torch.Tensor, codes: Codes, weights: Floats) -> OrderPreservingModel:
        if len(codes) < 2:
            raise InvalidInputError("X", "must hold at least two samples for cross-validation", got="1 sample")
        scores, order = sort_classes(log_probs.clamp_min(LOWEST_LOG_PROB))
        trained = self._train_all(SortedRows(scores, order, rank_of_label(order, codes), torch.from_numpy(weights)))
        tried = [(FORMS.index(choice.form), choice.width, choice.log_loss) for _, choice in trained]
        best, _ = min(trained, key=lambda pair: pair[1].log_loss)
        return OrderPreservingModel(best, torch.tensor(tried, dtype=torch.float64))

    def _train_all(self, data: SortedRows) -> list[tuple[OrderMap, OrderChoice]]:
        """Train every form, with increasing width as long as that helps."""
        forms = FORMS if self.form == "auto" else (self.form,)
        widths = {form: WIDTHS[form] if self.width == "auto" else (int(self.width),) for form in forms}
        folds, epochs, seed = min(int(self.folds), len(data.own)), int(self.epochs), int(self.seed)
        steps = sum(len(widths[form]) * (folds if form == "diag" else epochs) for form in forms)
        trained: list[tuple[OrderMap, OrderChoice]] = []
        with progress_bar("Order-preserving maps", steps, show=self.progress) as advance:
            for form in forms:
                lowest = inf
                for width in widths[form]:
                    trained.append(train(data, form, width, folds=folds, epochs=epochs, seed=seed, advance=advance))
                    loss = trained[-1][1].log_loss
                    if loss >= lowest:
                        break
                    lowest = loss
        return trained

    def _probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return in_exact_order(torch.exp(super()._log_probabilities(rows)).to(rows.dtype), rows.cpu())

    def _log_probabilities(self, rows: torch.Tensor) -> torch.Tensor:
        return -in_exact_order(super()._log_probabilities(rows).abs().to(rows.dtype), -rows.cpu())
