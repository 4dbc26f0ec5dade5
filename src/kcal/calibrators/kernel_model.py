"""A kernel density estimate over projected calibration samples as a torch module, and the evidence for a query.

S_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x))                  the sums of a class; Π the projection, b the bandwidth
evidence(x) = share of calibration samples whose log density, from the other samples, is at most that of x

A projection that divides embeddings by their length cannot see how long they are. There the two-sided share of the
length, 2·min(F, 1 − F), is combined with that of the density: the smaller of the two, s, becomes 1 − (1 − s)². For new
samples of the distribution of the calibration set the evidence is roughly uniform: uniform but for the finite sample,
if density and length are independent.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import MAX_EXAMPLE_ROWS, CalibrationModel, Tensors, buffer, load_tensors, option, submodule
from kcal.calibrators.class_scores import places
from kcal.calibrators.explain import attribute
from kcal.calibrators.logits import required
from kcal.calibrators.prior import apply_prior, smooth
from kcal.calibrators.state import LoadArgumentError
from kcal.errors import FileFormatError, InvalidInputError
from kcal.kernels import (
    ClassSums,
    Contributions,
    PreparedSupport,
    SortedSupport,
    get_kernel,
    leave_out_rule,
    mean_log_loss,
)
from kcal.projection import OWN_MODULE, architecture_of, build_projection, frozen_copy, log_lengths, project
from kcal.samples import Samples
from kcal.validation import check_integer, check_number, computing_dtype, shown, unchecked_logits

MAX_SUMS = 2**22
"""Class sums of a block of predictions: kernel sums have smaller blocks of their own."""
MAX_REFERENCES = 1_000
"""Calibration samples that queries are compared with: a random choice, if there are more."""
COMPARED_ROWS = 100
"""Rows by which a projection is found to divide by the length."""
SAME = 1e-3
"""Relative difference up to which lengths or densities are the same: rounding must not decide."""
MAX_SCORED = 1_000
"""Samples by which the leave-one-out accuracy is estimated, at most."""
ROUNDING = 1e-15
"""Relative difference of a probability and its logarithm's exponential."""
LOWEST_LOG_PROB = -1e8
"""Bound of the log-softmax: its variance, which a projection stores, stays far from overflow for masked logits."""
EXAMPLE_NOISE, EXAMPLE_DRAWS = 0.1, 2
"""Noise of made-up rows in units of the standard deviation of calibration samples, and random rows per dimension."""


class Compression(NamedTuple):
    """How a smaller support was made of the samples, and its loss."""

    n_samples: int  # of positive weight, before
    fewest: int  # samples behind a point, at least: 1 if a point may be a single sample
    loss: float  # out-of-fold log-loss, at the bandwidth in use
    method: str = "kmeans"

    def __str__(self) -> str:
        return f"points for {self.n_samples:,} samples ({self.method}), each for {self.fewest} or more"


def restore_projection(
    config: Mapping[str, Any], tensors: Tensors, *, projection: nn.Module | None = None
) -> nn.Module:
    """Return a stored projection: of an architecture of kcal, or the caller's own."""
    architecture, like = config["architecture"], next(filter(torch.is_floating_point, tensors.values()), torch.empty(0))
    if (projection is None) == (architecture == OWN_MODULE):
        expected, remedy = f'is not needed: "{architecture}" is stored whole', "Leave it out."
        if projection is None:
            expected = "is needed: the projection is a module of your own, of which only the tensors are stored"
            remedy = "Build the module again and pass it: kcal.load(path, projection=module)."
        raise LoadArgumentError("projection", expected, remedy=remedy)
    if projection is not None:
        return load_tensors(frozen_copy(projection, like), tensors)
    with torch.device("meta"):
        return load_tensors(
            build_projection(architecture, config["n_features"], config["dimension"]).to(like.dtype), tensors
        )


class KernelModel(CalibrationModel):
    """The projection, the projected samples sorted by class, the bandwidth and the reference of the evidence.

    Base class of the models of KCal and its blend, which make probabilities of class sums.
    """

    holds_samples = True
    max_block_entries: ClassVar[int] = MAX_SUMS
    shares_blocks: ClassVar[bool] = False
    projection: nn.Module = submodule(restore_projection)  # Π
    points: torch.Tensor = buffer("n_points", "dimension", dtype=None)  # sorted by class
    codes: torch.Tensor = buffer("n_points", dtype=torch.int64)  # class of each point
    order: torch.Tensor = buffer("n_points", dtype=torch.int64)  # position of each point in the fit
    log_weights: torch.Tensor | None = buffer("n_points", dtype=None, optional=True)
    log_densities: torch.Tensor = buffer("n_references")  # of samples from the others, ascending
    log_lengths: torch.Tensor | None = buffer("n_references", optional=True)  # where Π ignores lengths, ascending
    n_features: int = option()
    n_classes: int = option()
    bandwidth: float = option()
    kernel: str = option()
    compression: Compression | None = option(None)  # if the points are not single samples
    frequencies: torch.Tensor = buffer("n_classes")  # that the probabilities assume without a prior
    prior: torch.Tensor | None = buffer("n_classes", optional=True)  # class frequencies of deployment

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        check_number(self.bandwidth, "bandwidth", minimum=0, exclusive=True)
        get_kernel(self.kernel)
        if self.compression is not None:
            self.compression = Compression(*self.compression)
        floats = [self.points, *self.projection.parameters()] + ([] if self.log_weights is None else [self.log_weights])
        if {tensor.dtype for tensor in floats} not in ({torch.float32}, {torch.float64}):
            raise ValueError("points, weights and projection are to have one precision")
        self._prepared: PreparedSupport | None = None

    @property
    def config(self) -> dict[str, Any]:
        """What builds the model beside tensors."""
        sizes = {name: self.sizes[name] for name in ("n_features", "dimension")}
        return {**super().config, "projection": {"architecture": architecture_of(self.projection), **sizes}}

    def check(self) -> None:
        """Raise FileFormatError if the parts of a stored model do not fit together."""
        if len(self.codes) and not 0 <= int(self.codes.min()) <= int(self.codes.max()) < self.n_classes:
            raise FileFormatError("the stored support does not fit the classes.")
        row = self.points.new_zeros(1, self.n_features)
        if project(self.projection, row).shape[1:] != self.points.shape[1:]:
            raise FileFormatError("the stored projection does not lead to the space of the stored support.")

    @property
    def dimension(self) -> int:
        """Number of dimensions of the projected space, d."""
        return self.points.shape[1]

    @property
    def n_samples(self) -> int:
        """Number of samples of positive weight behind the points."""
        return len(self.support.counted) if self.compression is None else self.compression.n_samples

    @property
    def support(self) -> SortedSupport:
        """The projected samples, with classes and weights."""
        return self.prepared.support

    @property
    def prepared(self) -> PreparedSupport:
        """The support at the bandwidth, with all that does not depend on queries; made once."""
        if self._prepared is None:
            support = SortedSupport(self.points, self.codes, self.log_weights, self.order, self.n_classes)
            self._prepared = PreparedSupport(support, [self.bandwidth], get_kernel(self.kernel))
        return self._prepared

    def changed(self, **values: Any) -> Self:
        """Return a model with other buffers, parts or options; one of the same points shares what they prepared."""
        other = super().changed(**values)
        if not values.keys() & {"points", "codes", "order", "log_weights", "n_classes", "bandwidth", "kernel"}:
            other._prepared = self._prepared
        return other

    def project(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return projected embeddings, (n, d), in the precision of the support."""
        rows = embeddings.to(self.points)
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            projected: torch.Tensor = self.projection(rows)
            return projected
        return project(self.projection, rows)

    @abstractmethod
    def log_probs(
        self, sums: ClassSums, points: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor | None
    ) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes), of class sums, points, (n, d), rows, (n, h), and logits."""

    def rows(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the projection works on, (n, h)."""
        return as_embeddings(embeddings)

    def class_sums(
        self, embeddings: torch.Tensor | None, logits: torch.Tensor | None = None
    ) -> tuple[ClassSums, torch.Tensor, torch.Tensor]:
        """Return the class sums of rows, (1, n_classes, n), their points, (n, d), and the rows, (n, h)."""
        rows = self.rows(embeddings, logits)
        points = self.project(rows)
        return self.prepared.class_sums(points), points, rows

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes)."""
        return self.log_probs(*self.class_sums(embeddings, logits), logits)

    def with_evidence(
        self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities, (n, n_classes), and evidence, (n,), from the same class sums."""
        sums, points, rows = self.class_sums(embeddings, logits)
        return self.log_probs(sums, points, rows, logits), self.evidence(sums, rows)

    def evidence_of(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the evidence of each row, (n,)."""
        sums, _, rows = self.class_sums(embeddings, logits)
        return self.evidence(sums, rows)

    @property
    def evidence_step(self) -> float:  # type: ignore[override]
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return 2.0 / max(len(self.log_densities), 1)

    def entries_per_row(self) -> int:
        """Return the number of class sums of a row."""
        return self.n_classes

    def log_density(self, sums: ClassSums) -> torch.Tensor:
        """Return the log density of the calibration set, (n,), from class sums."""
        volume = get_kernel(self.kernel).log_volume(self.bandwidth, self.dimension)
        return sums.log_densities(sums.offsets.new_tensor(self.prepared.support.log_total_weight + volume))[0]

    def evidence(self, sums: ClassSums, rows: torch.Tensor) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,), from its class sums."""
        lengths = None if self.log_lengths is None else log_lengths(rows.to(self.log_densities))
        return evidence_share(self.log_density(sums), lengths, self.log_densities, self.log_lengths)

    def with_support(self, support: SortedSupport, **values: Any) -> Self:
        """Return the model with other points and other ``values``, without a reference of the evidence."""
        points = support_values(support, compares_lengths=self.log_lengths is not None)
        return self.changed(**{**points, **values})

    def with_reference(self, samples: Samples) -> Self:
        """Return the model with the evidence of its samples given the others (other groups): what queries compare to.

        ``samples`` are those of the support, in the order of the fit.
        """
        support = self.support
        chosen = reference_rows(support)
        groups = None
        if samples.groups is not None and len(np.unique(samples.groups)) > 1:
            groups = torch.from_numpy(samples.groups)
        rule = leave_out_rule(support, groups).select(chosen)
        densities = self.prepared.log_densities(support.points[chosen], leave_out=rule)[0].double().sort().values
        lengths = None
        if self.log_lengths is not None:
            lengths = torch.from_numpy(samples.log_lengths).to(densities)[support.order[chosen]].sort().values
        return self.changed(log_densities=densities, log_lengths=lengths)

    def prepare(self) -> None:
        """Compute what predictions share, before they are traced."""
        with torch.inference_mode(False), torch.no_grad():  # whoever predicts next may need gradients
            _ = self.prepared.prepare().support.log_total_weight, self.n_samples

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepared": None}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        moved = super()._apply(fn, recurse)
        self._prepare_anew()
        return moved

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._prepare_anew()

    def _prepare_anew(self) -> None:
        """Compute what predictions share of other tensors, if it had been computed."""
        if self._prepared is not None:
            self._prepared = None
            if not self.points.is_meta:
                self.prepare()


def support_values(support: SortedSupport, *, compares_lengths: bool) -> dict[str, Any]:
    """Return what a :class:`KernelModel` has of a support of single samples, without a reference of the evidence."""
    names = ("points", "codes", "order", "log_weights", "n_classes")
    nothing = support.points.new_empty(0, dtype=torch.float64)
    reference = {"log_densities": nothing, "log_lengths": nothing if compares_lengths else None}
    return {name: getattr(support, name) for name in names} | {"compression": None, **reference}


class KCalModel(KernelModel):
    """Class probabilities from a kernel density estimate."""

    smoothing: float | None = option(None)
    inputs: str = option("embeddings")  # what the projection works on; of "logits" the log-softmax

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.smoothing is not None:
            check_number(self.smoothing, "smoothing", minimum=0, maximum=1)
        self.even_share = 1 / (self.n_samples + 2) if self.smoothing is None else self.smoothing

    def rows(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the projection works on, (n, h)."""
        if self.inputs != "logits":
            return super().rows(embeddings)
        return bounded_log_softmax(unchecked_logits(required(logits, "logits"), "logits"))

    def log_probs(
        self, sums: ClassSums, points: torch.Tensor, rows: torch.Tensor, logits: torch.Tensor | None
    ) -> torch.Tensor:
        """Return log-probabilities, (n, n_classes), of class sums."""
        return self.corrected(sums.posteriors()[0]).log()

    def attribute(
        self, embeddings: torch.Tensor | None, logits: torch.Tensor | None, probs: torch.Tensor, k: int
    ) -> dict[str, Any]:
        """Return the shares of samples, smoothing and prior in ``probs``, (n, n_classes) in float64, of rows."""
        points, even = self.project(self.rows(embeddings, logits)), self.even_share / probs.shape[1]
        by_samples = torch.where(probs > (1 + ROUNDING) * even, probs - even, 0.0)
        parts = {"smoothing": torch.full_like(probs, even)}
        if self.prior is not None:
            posteriors = self.prepared.posteriors(points)[0].cpu()
            reached = (posteriors[:, self.prior.cpu() > 0] > 0).any(dim=1, keepdim=True)
            parts["prior"] = torch.where(reached, 0.0, by_samples)
            by_samples = torch.where(reached, by_samples, 0.0)
        return attribute(Contributions(self.prepared, points), by_samples, k, parts)

    def corrected(self, posteriors: torch.Tensor) -> torch.Tensor:
        """Return posteriors, (n, n_classes), corrected for the prior and smoothed."""
        return smooth(apply_prior(posteriors, self.prior, self.frequencies), self.even_share)

    def leave_one_out_probs(self, groups: torch.Tensor | None, rows: Any = slice(None)) -> torch.Tensor:
        """Return probabilities of support samples ``rows`` given the others (other groups), in the order of points."""
        rule = leave_out_rule(self.support, groups).select(rows)
        return self.corrected(self.prepared.posteriors(self.points[rows], leave_out=rule)[0])

    def leave_one_out_score(self, groups: torch.Tensor | None) -> tuple[float, float]:
        """Return accuracy and log-loss of support samples given the others, of at most ``MAX_SCORED`` of them."""
        support = self.support
        rows = support.counted[:: -(-len(support.counted) // MAX_SCORED)].to(support.points.device)
        probs, codes = self.leave_one_out_probs(groups, rows), support.codes[rows]
        log_weights = torch.zeros(len(rows)) if support.log_weights is None else support.log_weights[rows].cpu()
        shares = torch.softmax(log_weights.double(), dim=0)
        correct = (probs.argmax(dim=1) == codes).cpu().double()
        own = probs.gather(1, codes[:, None]).squeeze(1)
        return float(shares @ correct), mean_log_loss(torch.log(own).cpu(), log_weights)


def reference_rows(support: SortedSupport) -> torch.Tensor:
    """Return the positions of the support points that queries are compared with."""
    shuffled = torch.randperm(len(support.counted), generator=torch.Generator().manual_seed(0))
    return support.counted[shuffled[:MAX_REFERENCES]].to(support.points.device)


def evidence_share(
    log_densities: torch.Tensor,
    lengths: torch.Tensor | None,
    reference_densities: torch.Tensor,
    reference_lengths: torch.Tensor | None,
) -> torch.Tensor:
    """Return the evidence, (n,), of log densities and log lengths of queries, beside those of samples, ascending."""
    denser = share_below(reference_densities, log_densities.to(reference_densities) + SAME, or_equal=True)
    if lengths is None or reference_lengths is None:
        return denser
    no_longer = share_below(reference_lengths, lengths + SAME, or_equal=True)
    no_shorter = 1.0 - share_below(reference_lengths, lengths - SAME)
    smallest = torch.minimum(denser, 2.0 * torch.minimum(no_longer, no_shorter)).clamp_max(1.0)
    return 1.0 - (1.0 - smallest).square()


def share_below(ascending: torch.Tensor, values: torch.Tensor, *, or_equal: bool = False) -> torch.Tensor:
    """Return the share of numbers that are less than (or equal to) each value, in float64."""
    counts = places(ascending, values[:, None], or_equal=or_equal)[:, 0]
    return counts.to(ascending.dtype) / max(len(ascending), 1)


def as_embeddings(embeddings: torch.Tensor | None) -> torch.Tensor:
    """Return embeddings in the precision in which they are computed; raise for an empty array."""
    rows = required(embeddings, "embeddings")
    return rows.to(computing_dtype(rows.dtype))


def bounded_log_softmax(rows: torch.Tensor) -> torch.Tensor:
    """Return the log-softmax of logits, (n, n_columns), bounded below."""
    wide = rows if rows.device.type == "mps" else rows.double()
    return torch.log_softmax(wide, dim=1).clamp_min(LOWEST_LOG_PROB).to(rows.dtype)


def example_rows(model: KernelModel, n_rows: int, n_features: int) -> torch.Tensor:
    """Return made-up rows, (n_rows, n_features), that the projection maps among the support points.

    The rows of the fit are not stored: random rows are regressed on their projections, and the regression is applied to
    places near support points. Where the projection ignores lengths, they get lengths of calibration samples.
    """
    check_integer(n_rows, "n_rows", minimum=1, maximum=MAX_EXAMPLE_ROWS)
    points, projection = model.support.points[model.support.counted].cpu(), deepcopy(model.projection).cpu()
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(points)

    places = torch.linspace(0, len(points) - 1, n_rows).long()
    targets = points[places] + EXAMPLE_NOISE * points.std(dim=0, correction=0) * noise(n_rows, points.shape[1])
    drawn = noise(EXAMPLE_DRAWS * max(n_features, points.shape[1]), n_features)
    for part in projection.modules():  # a batch norm knows means and variances of the embeddings
        if isinstance(part, nn.BatchNorm1d) and part.num_features == n_features and part.running_var is not None:
            drawn = part.get_buffer("running_mean") + part.running_var.sqrt() * drawn
    projected = project(projection, model.rows(drawn, drawn))
    centred = (projected - projected.mean(dim=0)).double()
    slopes = torch.linalg.pinv(centred.T @ centred, hermitian=True) @ (centred.T @ drawn.double())
    rows: torch.Tensor = drawn.mean(dim=0) + ((targets - projected.mean(dim=0)).double() @ slopes).to(drawn)
    if model.log_lengths is not None:
        lengths = model.log_lengths.cpu().exp()
        order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(0))
        middle = (0.25 + 0.5 * order / n_rows) * (len(lengths) - 1)  # the middle half
        rows = nn.functional.normalize(rows, dim=1) * lengths[middle.long()][:, None].to(rows)
    return rows


def check_bandwidth(bandwidth: Any, reference: Any) -> None:
    """Raise if a bandwidth is not "cv", "published", "rule" (which needs a reference) or a positive number."""
    is_rule = isinstance(bandwidth, str) and bandwidth == "rule"
    if is_rule and reference is None:
        raise InvalidInputError("bandwidth", '"rule" needs bandwidth_reference=(b, size of the rarest class)')
    if reference is not None and not is_rule:
        raise InvalidInputError("bandwidth_reference", 'has an effect only with bandwidth="rule"', got=shown(reference))
    if not (isinstance(bandwidth, str) and bandwidth in ("cv", "published", "rule")):
        expected = 'must be "cv", "published", "rule" or a positive number'
        check_number(bandwidth, "bandwidth", minimum=sys.float_info.min, expected=expected)


def check_positive_pair(pair: Any, name: str) -> None:
    """Raise if a pair is neither None nor a tuple or list of two positive numbers."""
    if pair is None:
        return
    expected = "must be a pair of two positive, finite numbers"
    if not (isinstance(pair, tuple | list) and len(pair) == 2):
        raise InvalidInputError(name, expected, got=shown(pair))
    for entry in pair:
        check_number(entry, name, minimum=sys.float_info.min, expected=expected)
