"""Intra order-preserving calibration: the network's ranking of the classes stays, the gaps between them are learned.

p = softmax(out),   z_1 ≥ … ≥ z_K the log-probabilities of a row in descending order

diag      out_j = −∫_{z_j}^0 g(t) dt,   g > 0: one increasing function of all scores
oi, op    out_K = 0,   out_j = out_{j+1} + (z_j − z_{j+1})·softplus(m_j(x) + c),   mean over folds

m is a network of two hidden layers; its input x is the sorted row (oi), or the row in the order of the classes (op).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from math import expm1, inf, log
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import pad, softplus
from torch.nn.utils import vector_to_parameters

from kcal.calibrators.base import Tags, Tensors, fitted, load_tensors, option, prediction_mode, submodule
from kcal.calibrators.class_scores import MIN_LOG_PROB, places, rank_of_label, sort_classes, unsort_classes
from kcal.calibrators.logits import LogitCalibrator, LogitModel, check_two_parts
from kcal.calibrators.solvers import loss_of_parameters, minimise
from kcal.calibrators.temperature_prior import fit_temperature
from kcal.progress import Advance, progress_bar
from kcal.samples import MAX_FOLDS, Samples
from kcal.validation import check_choice, check_integer, parameter

HIDDEN_WIDTHS = {"diag": (10,), "oi": (2, 10, 50), "op": (2, 10, 50)}
"""Hidden widths that "auto" tries, by form."""
MAX_WIDTH, MAX_EPOCHS = 10_000, 100_000
N_CELLS = 256
"""Cells of the grid of the density of "diag", which is linear in every cell."""
BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 256, 5e-3, 5e-4
MAX_DENSITY_ITERATIONS = 2000
"""Of L-BFGS, for "diag"."""


zeros = partial(torch.zeros, dtype=torch.float64)


class OrderChoice(NamedTuple):
    """A form and width, and its cross-validated log-loss."""

    form: str
    width: int
    log_loss: float


def restore_map(config: Mapping[str, Any], tensors: Tensors) -> nn.Module:
    """Return a stored map: of the networks of a configuration, or the density of an empty one."""
    with torch.device("meta"):
        return load_tensors(GapNetwork(**config) if config else DensityMap(), tensors)


class OrderPreservingModel(LogitModel):
    """The map of a sorted row of the best form and width; ``choices`` are all that were tried."""

    ignores_class_order: ClassVar[bool] = True
    choices: tuple[OrderChoice, ...] = option()
    n_folds: int = option()
    n_classes: int = option()
    map: nn.Module = submodule(restore_map)

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.choices = tuple(OrderChoice(*choice) for choice in self.choices)
        self.best = min(self.choices, key=attrgetter("log_loss"))

    @property
    def config(self) -> dict[str, Any]:
        """What builds the model beside tensors."""
        sizes = {"n_folds": self.n_folds, "n_classes": self.n_classes, "width": self.best.width}
        return {**super().config, "map": {} if self.best.form == "diag" else sizes}

    def log_probs(self, log_probs: torch.Tensor, embeddings: torch.Tensor | None = None) -> torch.Tensor:
        """Return calibrated log-probabilities, (n, n_classes)."""
        scores, order = sort_classes(log_probs.clamp_min(MIN_LOG_PROB))
        rows = unsort_classes(scores, order) if self.best.form == "op" else scores
        return unsort_classes(torch.log_softmax(self.map(rows, scores).mean(dim=0), dim=1), order)

    def entries_per_row(self) -> int:
        """Return the number of output logits of all folds."""
        return self.n_folds * self.n_classes

    def summary(self) -> dict[str, str]:
        """Return form and width for display."""
        return {"form": self.best.form, "width": str(self.best.width)}


class GapNetwork(nn.Module):
    """The networks of all folds, side by side, that stretch the gaps of sorted rows; all numbers are 0 at first.

    Weights and biases have the fold first. Inputs are (x − centre) / scale, and softplus(start) = 1 / T.
    """

    centre: torch.Tensor
    scale: torch.Tensor
    start: torch.Tensor

    def __init__(self, n_folds: int, n_classes: int, width: int) -> None:
        super().__init__()
        sizes = (n_classes, width, width, n_classes - 1)
        self.weights = nn.ParameterList(zeros(n_folds, before, after) for before, after in pairwise(sizes))
        self.biases = nn.ParameterList(zeros(n_folds, 1, after) for after in sizes[1:])
        self.register_buffer("centre", zeros(n_classes))
        self.register_buffer("scale", zeros(n_classes))
        self.register_buffer("start", zeros(n_folds, 1, 1))

    def forward(self, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the output logits of all folds, (n_folds, n, n_classes), from rows x and sorted scores.

        Both are (n, n_classes) or (n_folds, n, n_classes).
        """
        inputs = (rows - self.centre) / self.scale
        hidden = inputs.expand(len(self.start), *inputs.shape[-2:])
        for layer in range(2):
            hidden = torch.tanh(torch.baddbmm(self.biases[layer], hidden, self.weights[layer]))
        outputs = torch.baddbmm(self.biases[2], hidden, self.weights[2])
        factors = torch.logaddexp(outputs + self.start, torch.zeros_like(outputs))  # softplus
        rises = (scores[..., :-1] - scores[..., 1:]) * factors  # (n_folds, n, n_classes - 1)
        return pad(rises.flip(-1).cumsum(dim=-1), (1, 0)).flip(-1)


class DensityMap(nn.Module):
    """The integral of a density g > 0 on a grid: ``depths`` are −t of its points, ascending from 0."""

    depths: torch.Tensor
    density: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("depths", zeros(N_CELLS + 1))
        self.register_buffer("density", zeros(N_CELLS + 1))

    def forward(self, rows: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return the output logits, (1, n, n_classes), of sorted scores."""
        return GridPlaces(scores, self.depths).integrate(self.density)[None]


class GridPlaces:
    """Places of scores on the grid of a density that is linear between its points, and constant below the last.

    out = integrals[cell] − near·density[cell] − far·density[cell + 1]: the trapezoid rule is the exact integral of such
    a density, and the map increases everywhere.
    """

    def __init__(self, scores: torch.Tensor, depths: torch.Tensor) -> None:
        depth = (-scores).clamp_min(0.0)
        self.widths = depths.diff()
        self.cell = places(depths, depth, or_equal=True) - 1  # (n, n_classes), as the others
        into = depth - depths[self.cell]
        self.far = into * into / (2 * pad(self.widths, (0, 1), value=inf)[self.cell])
        self.near = into - self.far

    def integrate(self, density: torch.Tensor) -> torch.Tensor:
        """Return the map at the places, (n, n_classes), of a density at the points of the grid."""
        integrals = -pad((0.5 * (density[1:] + density[:-1]) * self.widths).cumsum(dim=0), (1, 0))
        after = pad(density[1:], (0, 1))
        parts = (values.index_select(0, self.cell.ravel()).view_as(self.far) for values in (integrals, density, after))
        integral, here, there = parts
        return integral - self.near * here - self.far * there


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

    method = "iop"
    _pools_network = True
    _tags = Tags(preserves_order=True)
    _model_class = OrderPreservingModel
    form_ = fitted("best.form")
    width_ = fitted("best.width")
    choices_ = fitted("choices")
    form: str = parameter("auto", check_choice, choices=("auto", *HIDDEN_WIDTHS))
    width: int | str = parameter("auto", check_integer, minimum=1, maximum=MAX_WIDTH)
    folds: int = parameter(5, check_integer, minimum=2, maximum=MAX_FOLDS)
    epochs: int = parameter(50, check_integer, minimum=1, maximum=MAX_EPOCHS)
    progress: bool | None = None

    def _fit_model(self, samples: Samples) -> OrderPreservingModel:
        """Train every form, with increasing width as long as that helps."""
        check_two_parts(samples)
        training = Training(samples, int(self.folds), int(self.epochs), int(self.seed))
        forms = tuple(HIDDEN_WIDTHS) if self.form == "auto" else (self.form,)
        widths = {form: HIDDEN_WIDTHS[form] if self.width == "auto" else (int(self.width),) for form in forms}
        per_width = {form: len(training.parts) if form == "diag" else int(self.epochs) for form in forms}
        n_steps = sum(len(widths[form]) * per_width[form] for form in forms)
        trained: list[tuple[OrderChoice, nn.Module]] = []
        with progress_bar("Order-preserving maps", n_steps, show=self.progress) as advance:
            for form in forms:
                lowest = inf
                for width in widths[form]:
                    module, loss = training.train(form, width, advance)
                    trained.append((OrderChoice(form, width, loss), module))
                    if loss >= lowest:
                        break
                    lowest = loss
        return OrderPreservingModel(
            choices=[choice for choice, _ in trained],
            n_folds=len(training.parts),
            n_classes=samples.n_classes,
            map=min(trained, key=lambda pair: pair[0].log_loss)[1].requires_grad_(False),
        )

    @prediction_mode()
    def predict_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return calibrated probabilities, (n, n_classes), ordered as the logits; every row sums to 1."""
        values, (keys, kind) = super().predict_proba(X, logits=logits), self._check_rows(X)
        return kind.restore(in_exact_order(torch.as_tensor(values), keys))

    @prediction_mode()
    def predict_log_proba(self, X: Any, *, logits: Any = None) -> Any:
        """Return the logarithms of the calibrated probabilities, (n, n_classes), ordered as the logits."""
        values, (keys, kind) = super().predict_log_proba(X, logits=logits), self._check_rows(X)
        return kind.restore(-in_exact_order(torch.as_tensor(values).abs(), -keys))

    @prediction_mode()
    def predict(self, X: Any, *, logits: Any = None) -> NDArray[Any]:
        """Return the most probable class of each row, that of the greatest logit."""
        super().predict(X, logits=logits)
        labels: NDArray[Any] = self.classes_[self._check_rows(X)[0].argmax(dim=1).cpu().numpy()]
        return labels


def in_exact_order(values: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return non-negative ``values`` (n, n_classes), changed so that each row is ordered exactly as its ``keys``.

    Rounding makes ties of near-ties, and zeros of tiny values; such values are moved by as many of the smallest steps
    of their precision as there are keys in between.
    """
    whole = torch.int64 if values.dtype == torch.float64 else torch.int32
    sorted_keys, order = torch.sort(keys, dim=1, stable=True)
    new = pad(sorted_keys[:, 1:] != sorted_keys[:, :-1], (1, 0), value=False)
    group = new.cumsum(dim=1)  # (n, n_classes)
    positions = torch.arange(keys.shape[1], device=keys.device).expand_as(group)
    first = torch.where(new, positions, 0).cummax(dim=1).values  # first position of the key
    # the bits of a non-negative number, read as a whole number, count its smallest steps from 0
    steps = (values.gather(1, order) + 0.0).view(whole).gather(1, first).to(torch.int64)
    raised = (steps - group).cummax(dim=1).values + group
    return torch.empty_like(values).scatter_(1, order, raised.to(whole).view(values.dtype))


class Training:
    """Training of the maps on all folds but one, and their cross-validated log-loss.

    Folds do not depend on the labels. Scores are sorted in descending order, ``own`` is the rank of each label.
    """

    def __init__(self, samples: Samples, n_folds: int, epochs: int, seed: int) -> None:
        self.scores, self.order = sort_classes(samples.logits.clamp_min(MIN_LOG_PROB))  # (n, n_classes)
        self.own, self.weights = rank_of_label(self.order, samples.codes), torch.from_numpy(samples.weights)
        self.epochs, self.seed = epochs, seed
        shuffled = np.random.default_rng(seed).permutation(len(samples))
        self.parts = [np.sort(part) for part in np.array_split(shuffled, min(n_folds, len(samples)))]
        self.kept = [np.setdiff1d(shuffled, part) for part in self.parts]  # the rows to train on, per fold

    def train(self, form: str, width: int, advance: Advance) -> tuple[nn.Module, float]:
        """Return the trained map, and its cross-validated log-loss."""
        module, outputs = (self._train_density if form == "diag" else self._train_gaps)(form, width, advance)
        losses = torch.empty_like(self.weights)
        for out, part in zip(outputs, self.parts, strict=True):
            losses[part] = log_losses(out.detach(), self.own[part])
        return module, float(self.weights @ losses / self.weights.sum())

    def start(self, rows: NDArray[np.intp]) -> float:
        """Return c of temperature scaling on some of the rows: softplus(c) = 1 / T."""
        slope = 1 / fit_temperature(self.scores[rows], self.own[rows].numpy(), self.weights[rows].numpy())
        return slope + log(-expm1(-slope))

    def _train_gaps(self, form: str, width: int, advance: Advance) -> tuple[nn.Module, list[torch.Tensor]]:
        """Train the networks of all folds side by side by Adam; return them, and outputs for rows held out."""
        rows = unsort_classes(self.scores, self.order) if form == "op" else self.scores
        n_folds, n_classes = len(self.parts), rows.shape[1]
        network, generator = GapNetwork(n_folds, n_classes, width), np.random.default_rng([self.seed, width])
        with torch.no_grad():
            scale = rows.std(dim=0, correction=0)
            network.centre.copy_(rows.mean(dim=0))
            network.scale.copy_(torch.where(scale > 1e-9, scale, 1.0))
            network.start.copy_(torch.tensor([[[self.start(kept)]] for kept in self.kept], dtype=torch.float64))
            for weights in network.weights[:2]:
                drawn = generator.normal(scale=weights.shape[1] ** -0.5, size=weights.shape)
                weights.copy_(torch.from_numpy(drawn))
        optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        size = min(len(kept) for kept in self.kept)
        n_batches = -(-size // BATCH_SIZE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=self.epochs * n_batches)
        importance, generator = self.weights / self.weights.mean(), np.random.default_rng([self.seed, 1])
        for _ in range(self.epochs):
            drawn = torch.from_numpy(np.stack([generator.permutation(kept)[:size] for kept in self.kept]))
            for batch in drawn.chunk(n_batches, dim=1):  # (n_folds, n_rows)
                out = network(rows[batch], self.scores[batch])
                loss = (importance[batch] * log_losses(out, self.own[batch])).mean(dim=1).sum()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
            advance(f"{form} {width}")
        return network, [network(rows[part], self.scores[part])[fold] for fold, part in enumerate(self.parts)]

    def _train_density(self, form: str, width: int, advance: Advance) -> tuple[nn.Module, list[torch.Tensor]]:
        """Train fold after fold by L-BFGS; return the mean density, and outputs for rows held out."""
        depths, densities, outputs = grid_depths(self.scores), [], []
        for kept, part in zip(self.kept, self.parts, strict=True):
            densities.append(self._fit_density(kept, depths, width))
            outputs.append(GridPlaces(self.scores[part], depths).integrate(densities[-1]))
            advance(f"{form} {width}")
        module = DensityMap()
        module.load_state_dict({"depths": depths, "density": torch.stack(densities).mean(dim=0)})
        return module, outputs

    def _fit_density(self, kept: NDArray[np.intp], depths: torch.Tensor, width: int) -> torch.Tensor:
        """Return the density, (n_points,), that minimises the log-loss: softplus of a network of log(1 + depth)."""
        on_grid, own, start = GridPlaces(self.scores[kept], depths), self.own[kept], self.start(kept)
        shares, generator = self.weights[kept] / self.weights[kept].sum(), np.random.default_rng([self.seed, width])
        first, bias = generator.normal(scale=3.0, size=(1, width)), generator.normal(size=width)
        second = generator.normal(scale=width**-0.5, size=(width, width))
        arrays = (first, bias, second, np.zeros(width), np.zeros((width, 1)), np.zeros(1))
        layers = [torch.from_numpy(array).requires_grad_() for array in arrays]
        inputs = torch.log1p(depths)[:, None]
        inputs = 2 * inputs / inputs[-1] - 1

        def density() -> torch.Tensor:
            hidden = torch.tanh(torch.tanh(inputs @ layers[0] + layers[1]) @ layers[2] + layers[3])
            return softplus((hidden @ layers[4] + layers[5])[:, 0] + start)

        def evaluate() -> float:
            penalty = sum((layer.square().sum() for layer in layers), torch.zeros(()))
            loss = shares @ log_losses(on_grid.integrate(density()), own) + 0.5 * WEIGHT_DECAY * penalty
            torch.autograd.backward(loss)
            return float(loss.detach())

        loss, point = loss_of_parameters(evaluate, layers)
        name, limit = "the density", MAX_DENSITY_ITERATIONS
        point = minimise(loss, point, name=name, max_iterations=limit, advice=None, ftol=1e-7, gtol=1e-5)
        vector_to_parameters(torch.from_numpy(point), layers)
        return density().detach()


def grid_depths(scores: torch.Tensor) -> torch.Tensor:
    """Return the points of the grid, from 0 to the lowest score, evenly spaced in log(1 + depth)."""
    deepest = max(float(-scores.min()), 1e-3)
    depths = np.expm1(np.linspace(0.0, np.log1p(deepest), N_CELLS + 1))
    depths[0] = 0.0
    return torch.from_numpy(depths)


def log_losses(out: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return the log-loss of each row of output logits (…, n_classes) with its label at ``own`` (…)."""
    return torch.logsumexp(out, dim=-1) - out.gather(-1, own[..., None])[..., 0]
