"""A kernel density estimate over projected calibration samples as a torch module, and the evidence for a query.

S_k(x) = Σ_{i: y_i = k} w_i·φ_b(Π(x_i) − Π(x))                  the sums of a class; Π the projection, b the bandwidth
evidence(x) = share of calibration samples whose log density, from the other samples, is at most that of x

A projection that divides embeddings by their length cannot see how long they are. There the two-sided share of the
length, 2·min(F, 1 − F), is combined with that of the density: the smaller of the two, s, becomes 1 − (1 − s)². For new
samples of the distribution of the calibration set the evidence is roughly uniform: uniform but for the finite sample,
if density and length are independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from kcal.calibrators.base import CalibrationModel
from kcal.calibrators.class_scores import places
from kcal.errors import FileFormatError, InvalidInputError
from kcal.kernels import ClassSums, PreparedSupport, SortedSupport, get_kernel, leave_out_rule, sorted_support
from kcal.projection import OWN_MODULE, architecture_of, ignores_length, log_lengths, new_projection, project
from kcal.samples import Samples
from kcal.validation import check_number, computing_dtype

Buffers = Mapping[str, torch.Tensor | None]
NO_BUFFERS: Buffers = MappingProxyType({})

MAX_SUMS = 2**22
"""Class sums of a block of predictions: kernel sums have smaller blocks of their own."""
MAX_REFERENCES = 1_000
"""Calibration samples that queries are compared with: a random choice, if there are more."""
COMPARED_ROWS = 100
"""Rows by which a projection is found to divide by the length."""
SAME = 1e-3
"""Relative difference up to which lengths or densities are the same: rounding must not decide."""
EXAMPLE_NOISE, EXAMPLE_DRAWS = 0.1, 2
"""Noise of made-up rows in units of the standard deviation of calibration samples, and random rows per dimension."""


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How a smaller support was made of the samples, and its loss."""

    n_samples: int  # of positive weight, before
    fewest: int  # samples behind a point, at least: 1 if a point may be a single sample
    loss: float  # out-of-fold log-loss, at the bandwidth in use
    method: str = "kmeans"

    def __str__(self) -> str:
        return f"points for {self.n_samples:,} samples ({self.method}), each for {self.fewest} or more"


class KernelModel(CalibrationModel):
    """The projection, the projected samples sorted by class, the bandwidth and the reference of the evidence.

    Parameters
    ----------
    projection : str
        Architecture of Π: one of kcal's, or "module" for one of the caller's, which is then ``module``.
    n_features, dimension : int
        h and d.
    n_points, n_samples, n_classes : int
        Number of support points, of samples of positive weight behind them, and of classes.
    bandwidth, kernel
        b, and the name of the mother kernel φ.
    dtype : str
        Precision of the points.
    weighted : bool
        Whether the points have weights other than 1.
    n_references : int
        Number of samples that queries are compared with.
    compares_lengths : bool
        Whether their lengths are compared too, because the projection ignores them.
    compression : dict, optional
        Fields of :class:`Compression`, if the points are not single samples.
    """

    holds_samples = True
    max_block_entries: ClassVar[int] = MAX_SUMS
    shares_blocks: ClassVar[bool] = False
    points: torch.Tensor  # (n_points, d), sorted by class
    codes: torch.Tensor  # (n_points,), class of each point
    order: torch.Tensor  # (n_points,), position of each point in the fit
    log_weights: torch.Tensor | None  # (n_points,)
    log_densities: torch.Tensor  # (n_references,), of samples from the others, ascending
    log_lengths: torch.Tensor | None  # (n_references,), of embeddings, ascending

    def __init__(
        self,
        *,
        projection: str,
        n_features: int,
        dimension: int,
        n_points: int,
        n_samples: int,
        n_classes: int,
        bandwidth: float,
        kernel: str,
        dtype: str = "float32",
        weighted: bool = False,
        n_references: int = 0,
        compares_lengths: bool = False,
        compression: dict[str, Any] | None = None,
        module: nn.Module | None = None,
        **config: Any,
    ) -> None:
        sizes = {"n_features": n_features, "dimension": dimension, "n_classes": n_classes}
        sizes |= {"n_points": n_points, "n_samples": n_samples}
        options = {"bandwidth": bandwidth, "kernel": kernel, "dtype": dtype, "weighted": weighted}
        reference = {"n_references": n_references, "compares_lengths": compares_lengths, "compression": compression}
        super().__init__(projection=projection, **sizes, **options, **reference, **config)
        self.bandwidth, self.kernel, self.dimension = bandwidth, kernel, dimension
        self.n_samples, self.n_classes = n_samples, n_classes
        check_number(bandwidth, "bandwidth", minimum=0, exclusive=True)
        get_kernel(kernel)
        self.compression = None if compression is None else Compression(**compression)
        self.projection = new_projection(projection, n_features, dimension, dtype) if module is None else module
        precision = {"float32": torch.float32, "float64": torch.float64}[dtype]
        self.declare(dtype=precision, points=(n_points, dimension))
        self.declare(dtype=torch.int64, codes=(n_points,), order=(n_points,))
        self.declare_if(weighted, dtype=precision, log_weights=(n_points,))
        self.declare(log_densities=(n_references,))
        self.declare_if(compares_lengths, log_lengths=(n_references,))
        self._prepared: PreparedSupport | None = None

    @classmethod
    def of(
        cls,
        module: nn.Module,
        samples: Samples,
        n_features: int,
        *,
        compares_lengths: bool = False,
        tensors: Buffers = NO_BUFFERS,
        **config: Any,
    ) -> Self:
        """Return the model of a projection and projected samples, without a reference of the evidence."""
        name = architecture_of(module)
        support = sorted_support(samples)
        given, buffers = support_state(support)
        buffers |= {f"projection.{key}": tensor for key, tensor in module.state_dict().items()}
        nothing = torch.empty(0, dtype=torch.float64, device=support.points.device)
        buffers |= {"log_densities": nothing, "log_lengths": nothing if compares_lengths else None, **tensors}
        kept = {key: tensor for key, tensor in buffers.items() if tensor is not None}
        config |= {"n_features": n_features, "dimension": support.dimension, "compares_lengths": compares_lengths}
        own = {"module": module} if name == OWN_MODULE else {}
        return cls.from_state({"projection": name, **given, **config}, kept, **own)

    def parts(self) -> dict[str, nn.Module]:
        """Return a projection of the caller's own."""
        return {"module": self.projection} if self.config["projection"] == OWN_MODULE else {}

    def check(self) -> None:
        """Raise FileFormatError if the parts of a stored model do not fit together."""
        if len(self.codes) and not 0 <= int(self.codes.min()) <= int(self.codes.max()) < self.n_classes:
            raise FileFormatError("the stored support does not fit the classes.")
        row = self.points.new_zeros(1, self.config["n_features"])
        if project(self.projection, row).shape[1:] != self.points.shape[1:]:
            raise FileFormatError("the stored projection does not lead to the space of the stored support.")

    @property
    def estimate(self) -> KernelModel:
        """The kernel density estimate: the model itself."""
        return self

    def with_estimate(self, estimate: Self) -> Self:
        """Return the model with another kernel density estimate: that one."""
        return estimate

    @property
    def support(self) -> SortedSupport:
        """The projected samples, with classes and weights."""
        return SortedSupport(self.points, self.codes, self.log_weights, self.order, self.n_classes)

    @property
    def prepared(self) -> PreparedSupport:
        """The support at the bandwidth, with all that does not depend on queries; made once."""
        if self._prepared is None:
            self._prepared = PreparedSupport(self.support, [self.bandwidth], get_kernel(self.kernel))
        return self._prepared

    @property
    def evidence_step(self) -> float:  # type: ignore[override]
        """Difference that one calibration sample more or less makes to the evidence, at most."""
        return 2.0 / max(len(self.log_densities), 1)

    def rows(self, embeddings: torch.Tensor | None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return what the projection works on, (n, h)."""
        return as_embeddings(embeddings)

    def forward(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return log-posteriors, (n, n_classes), of embeddings."""
        return self.class_sums(self.rows(embeddings, logits)).posteriors()[0].log()

    def project(self, embeddings: torch.Tensor) -> torch.Tensor:
        """Return projected embeddings, (n, d), in the precision of the support."""
        rows = embeddings.to(self.points)
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            projected: torch.Tensor = self.projection(rows)
            return projected
        return project(self.projection, rows)

    def class_sums(self, embeddings: torch.Tensor) -> ClassSums:
        """Return the class sums of embeddings, (1, n_classes, n)."""
        return self.prepared.class_sums(self.project(embeddings))

    def log_density(self, sums: ClassSums) -> torch.Tensor:
        """Return the log density of the calibration set, (n,), from class sums."""
        volume = get_kernel(self.kernel).log_volume(self.bandwidth, self.dimension)
        return sums.log_densities(sums.offsets.new_tensor(self.prepared.support.log_total_weight + volume))[0]

    def evidence_of(self, embeddings: torch.Tensor | None = None, logits: torch.Tensor | None = None) -> torch.Tensor:
        """Return the evidence of each row, (n,)."""
        rows = self.rows(embeddings, logits)
        return self.evidence(self.class_sums(rows), rows)

    def evidence(self, sums: ClassSums, rows: torch.Tensor) -> torch.Tensor:
        """Return the share of calibration samples with less evidence than each row, (n,), from its class sums."""
        lengths = None if self.log_lengths is None else log_lengths(rows.to(self.log_densities))
        return evidence_share(self.log_density(sums), lengths, self.log_densities, self.log_lengths)

    def with_support(self, support: SortedSupport, *, tensors: Buffers = NO_BUFFERS, **config: Any) -> Self:
        """Return the model with other points and other buffers, without a reference of the evidence."""
        given, buffers = support_state(support)
        nothing = self.log_densities.new_empty(0)
        buffers |= {"log_densities": nothing, "log_lengths": None if self.log_lengths is None else nothing}
        return self.changed({**buffers, **tensors}, n_references=0, **given, **config)

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
        tensors: dict[str, torch.Tensor | None] = {"log_densities": densities}
        if self.log_lengths is not None:
            lengths = torch.from_numpy(samples.log_lengths).to(densities)
            tensors["log_lengths"] = lengths[support.order[chosen]].sort().values
        return self.changed(tensors, n_references=len(densities))

    def entries_per_row(self) -> int:
        """Return the number of class sums of a row."""
        return self.n_classes

    def prepare(self) -> None:
        """Compute what predictions share, before they are traced."""
        with torch.inference_mode(False), torch.no_grad():  # whoever predicts next may need gradients
            _ = self.prepared.prepare().support.log_total_weight

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


def support_state(support: SortedSupport) -> tuple[dict[str, Any], dict[str, torch.Tensor | None]]:
    """Return the configuration and the buffers of a support of single samples."""
    sizes = {"n_points": len(support), "n_samples": len(support.counted), "n_classes": support.n_classes}
    config = {
        **sizes,
        "weighted": support.log_weights is not None,
        "dtype": str(support.points.dtype).removeprefix("torch."),
    }
    return config, {name: getattr(support, name) for name in ("points", "codes", "order", "log_weights")}


def reference_rows(support: SortedSupport) -> torch.Tensor:
    """Return the positions of the support points that queries are compared with."""
    shuffled = torch.randperm(len(support.counted), generator=torch.Generator().manual_seed(0))
    return support.counted[shuffled[:MAX_REFERENCES]].to(support.points.device)


def compares_lengths(module: nn.Module, samples: Samples) -> bool:
    """Return whether the evidence has to compare lengths of embeddings, because the projection ignores them."""
    return ignores_length(module, samples.embeddings[samples.counted[:COMPARED_ROWS]])


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
    if embeddings is None:
        raise InvalidInputError("embeddings", "are needed by this module", got="None")
    return embeddings.to(computing_dtype(embeddings.dtype))


def example_rows(model: KernelModel, n_rows: int, n_features: int) -> torch.Tensor:
    """Return made-up rows, (n_rows, n_features), that the projection maps among the support points.

    The rows of the fit are not stored: random rows are regressed on their projections, and the regression is applied to
    places near support points. Where the projection ignores lengths, they get lengths of calibration samples.
    """
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
