"""The kernel estimate of a blend: calibration samples near an embedding, beside the network's prediction.

d_k(x) = (β·f_k(x) + S_k(x)) / (β + Σ_l S_l(x)),     S_k(x) = Σ_{i: y_i = k} w_i·φ_b(x_i − x)

S_k counts the samples of class k near x, each by a kernel that is 1 at distance 0. d is the mean of a Dirichlet
posterior whose prior is the network's prediction f, worth β samples: far from all samples d is f. In the pool f is an
expert itself, so that d has a much smaller background there, which matters only where no sample is near.
"""

from __future__ import annotations

import torch

from kcal.calibrators.kernel_model import KernelModel
from kcal.kernels import ClassSums, PreparedSupport, SortedSupport, get_kernel, leave_out_rule
from kcal.samples import Samples

BANDWIDTHS = tuple(0.04 * 2 ** (place / 2) for place in range(12))
"""Bandwidths that are tried, in units of the root mean square distance of the samples from their mean."""
BACKGROUNDS = (1e-3, 1e-2, 0.05, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
"""Values of β that are tried."""
POOL_SHARE = 1e-5
"""Background of the estimate in the pool, in units of the median count at a sample from the others."""
BLOCK_ENTRIES = 2_000_000
"""Numbers of class sums at once."""


def counts_of(sums: ClassSums, log_scale: float) -> torch.Tensor:
    """Return S, (n_bandwidths, n, n_classes), from class sums; ``log_scale`` makes numbers of samples of them."""
    return (sums.sums * torch.exp(sums.offsets + log_scale)[:, None]).transpose(1, 2)


def log_estimate(counts: torch.Tensor, network: torch.Tensor, background: float) -> torch.Tensor:
    """Return log d, (n, n_classes), of counts and the network's probabilities."""
    masses = background * network + counts
    return torch.log(masses / masses.sum(dim=1, keepdim=True))  # ONNX graphs drop the addition of a tiny constant


def log_scale_of(support: SortedSupport, n_samples: float) -> float:
    """Return the logarithm of the factor by which class sums of the support become numbers of samples."""
    return float(torch.tensor(n_samples).log()) - support.log_total_weight


def choose_bandwidth(
    support: SortedSupport, samples: Samples, network: torch.Tensor, index: torch.Tensor, kernel: str
) -> tuple[float, float]:
    """Return b and β of the lowest leave-one-out log-loss of d on the samples of ``index``; ``network`` is their f."""
    points = support.points.double()
    spread = float((points - points.mean(dim=0)).square().sum(dim=1).mean().sqrt()) or 1.0
    scale = spread / support.dimension**0.5  # kernels divide distances by √d
    bandwidths = [scale * value for value in BANDWIDTHS]
    prepared = PreparedSupport(support, bandwidths, get_kernel(kernel))
    codes, weights = torch.from_numpy(samples.codes)[index], torch.from_numpy(samples.weights)[index]
    place = torch.argsort(support.order).cpu()[index]
    rule, losses = leave_out_rule(support, samples.keys()), torch.zeros(len(bandwidths), len(BACKGROUNDS))
    log_scale = log_scale_of(support, len(samples.codes))
    backgrounds = torch.tensor(BACKGROUNDS, dtype=torch.float64)[:, None]
    step = max(BLOCK_ENTRIES // (len(bandwidths) * len(samples.classes)), 1)
    for start in range(0, len(index), step):
        block = slice(start, start + step)
        rows = place[block].to(support.order.device)
        sums = prepared.class_sums(support.points[rows], leave_out=rule.select(rows))
        counts = counts_of(ClassSums(sums.sums.cpu().double(), sums.offsets.cpu().double()), log_scale)
        label = codes[block, None]
        own = counts.gather(2, label.expand(len(counts), -1, 1))  # (n_bandwidths, rows, 1)
        mass, prior = counts.sum(dim=2), network[block].gather(1, label)[:, 0]
        shares = (backgrounds * prior + own.transpose(1, 2)) / (backgrounds + mass[:, None])  # (…, n_backgrounds, rows)
        losses -= shares.clamp_min(torch.finfo(torch.float64).tiny).log() @ weights[block]
    best = int(losses.argmin())
    return bandwidths[best // len(BACKGROUNDS)], BACKGROUNDS[best % len(BACKGROUNDS)]


def leave_out_counts(estimate: KernelModel, samples: Samples, index: torch.Tensor, log_scale: float) -> torch.Tensor:
    """Return S at the samples of ``index`` from the others (of other groups), (n_index, n_classes), in float64."""
    support = estimate.support
    place = torch.argsort(support.order)[index.to(support.order.device)]
    rule = leave_out_rule(support, samples.keys()).select(place)
    sums = estimate.prepared.class_sums(support.points[place], leave_out=rule)
    return counts_of(ClassSums(sums.sums.cpu().double(), sums.offsets.cpu().double()), log_scale)[0]
