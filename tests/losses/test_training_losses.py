"""Losses equal direct loops and hand-worked examples, and their gradients are right and finite at every edge."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from kcal.errors import InvalidInputError
from kcal.losses import MMCE, FocalLoss, MMCELoss, focal_loss, mmce, mmce_loss

LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "focal 3": lambda z, y: focal_loss(z, y, gamma=3.0),
    "focal 1000": lambda z, y: focal_loss(z, y, gamma=1000),
    "flsd-53": lambda z, y: focal_loss(z, y),
    "mmce plain": lambda z, y: mmce(z, y, weighted=False),
    "mmce weighted": lambda z, y: mmce(z, y),
    "mmce loss": lambda z, y: mmce_loss(z, y),
}
EDGES: dict[str, tuple[list[list[float]], list[int]]] = {
    "all right": ([[2.0, 0, 0], [0, 3, 1]], [0, 1]),
    "all wrong": ([[2.0, 0, 0], [0, 3, 1]], [1, 2]),
    "one sample": ([[1.0, 2, 0]], [1]),
    "p = 1": ([[1e4, 0, 0], [0, 500, 0], [0, 0, 200]], [0, 1, 2]),
    "p = 0": ([[1e4, 0, -1e4], [0, 500, 0], [300, 0, 200]], [2, 0, 1]),
    "right and wrong, both sure": ([[1e4, 0], [0, 1e4]], [0, 0]),
    "largest logits": ([[1e30, -1e30, 0], [0, 1e30, -1e30], [-1e30, 0, 1e30]], [0, 2, 1]),
    "ties": ([[1.0, 1, 1], [0, 0, 0]], [0, 2]),
}


def batch(seed: int, n: int = 9, n_classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, n_classes, generator=generator, dtype=torch.float64)
    return logits.requires_grad_(), torch.randint(0, n_classes, (n,), generator=generator)


def focal_by_loop(logits: torch.Tensor, labels: torch.Tensor, gamma: float | str) -> list[torch.Tensor]:
    losses = []
    for row, label in zip(logits, labels, strict=True):
        p = (row - row.max()).exp()[label] / (row - row.max()).exp().sum()
        power = gamma if not isinstance(gamma, str) else (5 if float(p.detach()) < 0.2 else 3)
        losses.append(-((1 - p) ** power) * p.log())
    return losses


def mmce_by_loop(logits: torch.Tensor, labels: torch.Tensor, *, weighted: bool) -> torch.Tensor:
    tops = [(row.softmax(0).max(), int(row.argmax()) == int(y)) for row, y in zip(logits, labels, strict=True)]

    def kernel(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (-(a - b).abs() / 0.4).exp()

    def mean(terms: list[torch.Tensor]) -> torch.Tensor:
        return sum(terms, torch.zeros(())) / len(terms)

    if not weighted:
        square = mean([(int(c) - r) * (int(d) - s) * kernel(r, s) for r, c in tops for s, d in tops])
    else:
        right, wrong = [r for r, c in tops if c], [r for r, c in tops if not c]
        square = torch.zeros(())
        if right and wrong:
            square = mean([(1 - r) * (1 - s) * kernel(r, s) for r in right for s in right])
            square = square + mean([r * s * kernel(r, s) for r in wrong for s in wrong])
            square = square - 2 * mean([(1 - r) * s * kernel(r, s) for r in right for s in wrong])
    return (square.clamp_min(0) + 1e-10).sqrt()


def gradient(loss: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, logits)[0]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0, 3.0, "flsd-53"]))
def test_focal_loss_and_its_gradient_equal_the_loop(seed: int, gamma: float | str) -> None:
    logits, labels = batch(seed)
    expected = sum(focal_by_loop(logits, labels, gamma)) / len(labels)
    found = focal_loss(logits, labels, gamma=gamma)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(gradient(found, logits), gradient(expected, logits), rtol=1e-8, atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.booleans())
def test_mmce_and_its_gradient_equal_the_loop(seed: int, weighted: bool) -> None:
    logits, labels = batch(seed)
    expected, found = mmce_by_loop(logits, labels, weighted=weighted), mmce(logits, labels, weighted=weighted)
    torch.testing.assert_close(found, expected.double(), rtol=1e-9, atol=1e-12)
    if float(found.detach()) > 1e-4:
        torch.testing.assert_close(gradient(found, logits), gradient(expected, logits), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_equal_finite_differences(name: str) -> None:
    logits, labels = batch(0, n=6)
    assert torch.autograd.gradcheck(lambda z: LOSSES[name](z, labels), (logits,))


def test_gamma_0_and_coefficient_0_are_cross_entropy() -> None:
    logits, labels = batch(0)
    for reduction in ("none", "mean", "sum"):
        expected = cross_entropy(logits, labels, reduction=reduction)
        torch.testing.assert_close(focal_loss(logits, labels, gamma=0, reduction=reduction), expected)
        torch.testing.assert_close(mmce_loss(logits, labels, coefficient=0, reduction=reduction), expected)


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_finite_at_every_edge(name: str, edge: str) -> None:
    rows, labels = EDGES[edge]
    logits = torch.tensor(rows, dtype=torch.float32, requires_grad=True)
    loss = LOSSES[name](logits, torch.tensor(labels))
    assert bool(torch.isfinite(loss))
    assert bool(torch.isfinite(gradient(loss, logits)).all())


@pytest.mark.parametrize("edge", ["all right", "all wrong", "one sample"])
def test_weighted_mmce_is_zero_if_all_are_correct_or_all_wrong(edge: str) -> None:
    rows, labels = EDGES[edge]
    logits = torch.tensor(rows, requires_grad=True)
    error = mmce(logits, torch.tensor(labels))
    assert float(error.detach()) == pytest.approx(1e-5)
    assert not gradient(error, logits).any()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("module", [FocalLoss(), MMCE(weighted=False), MMCELoss()])
def test_mixed_precision_computes_in_float32(module: torch.nn.Module, half: torch.dtype) -> None:
    torch.manual_seed(0)
    network, rows = torch.nn.Linear(5, 4), torch.randn(64, 5)
    labels = torch.randint(0, 4, (64,))
    with torch.autocast("cpu", dtype=half):
        logits = network(rows)
        loss = module(logits, labels)
    assert (logits.dtype, loss.dtype) == (half, torch.float32)
    torch.testing.assert_close(loss, module(logits.float(), labels))
    assert bool(torch.isfinite(gradient(loss, network.weight)).all())


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("gamma", lambda: FocalLoss(gamma=-1.0)),
        ("gamma", lambda: FocalLoss(gamma="flsd")),
        ("reduction", lambda: FocalLoss(reduction="median")),
        ("coefficient", lambda: MMCELoss(coefficient=float("nan"))),
        ("weighted", lambda: MMCE(weighted="yes")),
        ("logits", lambda: mmce([[0.0, 1.0]], torch.tensor([0]))),
        ("logits", lambda: focal_loss(torch.zeros(2, 2, dtype=torch.int64), torch.tensor([0, 1]))),
        ("logits", lambda: focal_loss(torch.zeros(3), torch.tensor([0]))),
        ("logits", lambda: mmce(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))),
        ("logits", lambda: mmce(torch.zeros(1, 2).expand(10**6, 2), torch.zeros(10**6, dtype=torch.int64))),
        ("labels", lambda: mmce(torch.zeros(3, 2), torch.tensor([0, 1]))),
        ("labels", lambda: mmce(torch.zeros(2, 2), torch.tensor([0.0, 1.0]))),
        ("labels", lambda: focal_loss(torch.zeros(2, 3), torch.tensor([0, 3]))),
        ("labels", lambda: mmce_loss(torch.zeros(2, 3), torch.tensor([0, -100]))),
    ],
)
def test_invalid_arguments_are_named(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInputError, match=name):
        call()
