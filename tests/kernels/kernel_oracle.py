"""Slow oracles for the kernel sums: double loops over numbers, written from the formulas alone; short calls."""

import math
from decimal import Decimal, localcontext

import numpy as np
import torch

from kcal.kernels import KERNELS, PreparedSupport

DTYPES = (torch.float32, torch.float64)
COMPACT = ("epanechnikov", "biweight", "triweight")


def log_kernel(name, t, d):
    """log φ of t = ‖u‖² / (d·b²), for numbers or Decimals; None outside the reach."""
    one = t * 0 + 1
    log = (lambda value: value.ln()) if isinstance(t, Decimal) else math.log
    root = (lambda value: value.sqrt()) if isinstance(t, Decimal) else math.sqrt
    if name == "rbf":
        return -t / 2
    if name == "laplace":
        return -root((d + 1) * t)
    if name == "matern32":
        r = root((d + 3) * t)
        return log(one + r) - r
    if name == "matern52":
        r = root((d + 5) * t)
        return log(one + r + r * r / 3) - r
    power = {"epanechnikov": 1, "biweight": 2, "triweight": 3}[name]
    s = t / (d + 2 * power + 2)
    return power * log(one - s) if s < 1 else None


def squared_distance(left, right):
    return sum((a - b) ** 2 for a, b in zip(left, right, strict=True))


def slow_log_sums(queries, points, codes, n_classes, bandwidth, *, kernel, weights=None, hidden=None):
    """log Σ_{i: y_i = k} w_i·φ for every query and class, in float64; ``hidden(q, i)`` says what q must not see."""
    queries, points, codes = as_lists(queries), as_lists(points), [int(code) for code in codes]
    weights = [1.0] * len(points) if weights is None else [float(weight) for weight in weights]
    d = len(points[0])
    result = np.full((len(queries), n_classes), -np.inf)
    for q, query in enumerate(queries):
        terms = [[] for _ in range(n_classes)]
        for i, point in enumerate(points):
            if weights[i] == 0 or (hidden is not None and hidden(q, i)):
                continue
            value = log_kernel(kernel, squared_distance(query, point) / (d * bandwidth**2), d)
            if value is not None:
                terms[codes[i]].append(value + math.log(weights[i]))
        for k, values in enumerate(terms):
            if values:
                largest = max(values)
                result[q, k] = largest + math.log(sum(math.exp(value - largest) for value in values))
    return result


def slow_posteriors(queries, points, codes, n_classes, bandwidth, *, kernel, weights=None, hidden=None):
    """p_k for every query; beyond the reach of every point the nearest ones decide, by their weight."""
    log_sums = slow_log_sums(
        queries, points, codes, n_classes, bandwidth, kernel=kernel, weights=weights, hidden=hidden
    )
    result = np.zeros_like(log_sums)
    for q, row in enumerate(log_sums):
        if np.isneginf(row).all():
            result[q] = slow_nearest(queries[q], points, codes, n_classes, weights, hidden and (lambda i: hidden(q, i)))  # noqa: B023
        else:
            sums = np.exp(row - row.max())
            result[q] = sums / sums.sum()
    return result


def slow_nearest(query, points, codes, n_classes, weights=None, hidden=None):
    points = as_lists(points)
    visible = [i for i in range(len(points)) if not (hidden and hidden(i)) and (weights is None or weights[i] > 0)]
    distances = {i: squared_distance(as_list(query), points[i]) for i in visible}
    mass = np.zeros(n_classes)
    for i in visible:
        if distances[i] == min(distances.values()):
            mass[int(codes[i])] += 1.0 if weights is None else float(weights[i])
    return mass / mass.sum()


def exact_posteriors(queries, points, codes, n_classes, bandwidth, *, kernel):
    """The same with 100 digits, for queries so far away that float64 cannot tell one distance from another."""
    with localcontext() as context:
        context.prec = 100
        points = [[Decimal(value) for value in row] for row in as_lists(points)]
        d, width = len(points[0]), Decimal(bandwidth) ** 2
        result = np.zeros((len(queries), n_classes))
        for q, row in enumerate(as_lists(queries)):
            query = [Decimal(value) for value in row]
            distances = [squared_distance(query, point) for point in points]
            values = [log_kernel(kernel, distance / (d * width), d) for distance in distances]
            if all(value is None for value in values):
                values = [Decimal(0) if distance == min(distances) else None for distance in distances]
            largest = max(value for value in values if value is not None)
            for value, code in zip(values, codes, strict=True):
                if value is not None and value - largest > -1000:
                    result[q, int(code)] += float((value - largest).exp())
        return result / result.sum(axis=1, keepdims=True)


def as_list(row):
    return [float(value) for value in row]


def as_lists(rows):
    return [as_list(row) for row in rows]


def cloud(seed, n, d, n_classes, *, dtype=torch.float64, weighted=False):
    """Normal points with random classes and weights: points, codes, weights."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(n, d, generator=generator, dtype=torch.float64).to(dtype)
    codes = torch.randint(n_classes, (n,), generator=generator)
    weights = None
    if weighted:
        weights = (0.1 + 3.0 * torch.rand(n, generator=generator, dtype=torch.float64)).to(dtype)
    return points, codes, weights


def class_sums(queries, support, bandwidths, *, kernel=KERNELS["rbf"], leave_out=None):
    """The class sums of the library, at bandwidths that serve these queries only."""
    return PreparedSupport(support, bandwidths, kernel).class_sums(queries, leave_out=leave_out)


def log_densities(queries, support, bandwidth, *, kernel=KERNELS["rbf"]):
    """The log densities of the library, at a bandwidth that serves these queries only."""
    return PreparedSupport(support, [bandwidth], kernel).log_densities(queries)[0]
