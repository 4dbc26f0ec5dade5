"""The published training of Dirichlet calibration, against torch's own Adam for one penalty alone."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from experiments.paper import dirichlet
from experiments.paper.dirichlet import PublishedDirichlet
from kcal.samples import stratified_folds

PENALTIES = [(0.03, 0.2, 0.05), (10.0, 1e-3, 0.0), (1e-3, 10.0, 1.0)]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"BATCH_SIZE": 25, "EPOCHS": 40, "PATIENCE": 3, "LEARNING_RATES": (0.1, 0.01)}.items():
        monkeypatch.setattr(dirichlet, name, value)


def train_alone(logs: torch.Tensor, labels: torch.Tensor, penalty: tuple[float, ...], seed: list[int]) -> torch.Tensor:
    """The published training of one penalty, with the formula of the documentation."""
    n, n_classes = logs.shape
    off_diagonal, intercept, diagonal = penalty
    best = torch.eye(n_classes, n_classes + 1, dtype=torch.float64)
    for phase, rate in enumerate((0.1, 0.01)):
        generator = np.random.default_rng([*seed, phase])
        model, lowest, waited = best.clone().requires_grad_(), inf, 0
        optimizer = torch.optim.Adam([model], lr=rate, eps=1e-7)
        for _ in range(40):
            total = 0.0
            for rows in torch.split(torch.from_numpy(generator.permutation(n)), 25):
                weights, own = model[:, :-1], torch.diagonal(model)
                fit = torch.nn.functional.cross_entropy(logs[rows] @ weights.T + model[:, -1], labels[rows])
                outside = (weights - torch.diag(own)).square().sum()
                loss = fit + off_diagonal * outside + intercept * model[:, -1].square().sum()
                loss = loss + diagonal * (own - own.mean()).square().sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += float(loss.detach()) * len(rows)
            waited += 1
            if total < lowest:
                best, lowest, waited = model.detach().clone(), total, 0
            if waited == 3:
                break
    return best


@pytest.mark.usefixtures("short")
def test_each_model_is_what_the_training_of_its_penalty_alone_gives(problem: Any) -> None:
    logs = torch.log_softmax(torch.from_numpy(problem.logits), dim=1).clamp_min(np.log(2.2e-16))
    labels, folds = torch.from_numpy(problem.labels), stratified_folds(problem.labels, 2, 4)
    together = PublishedDirichlet(grid=PENALTIES, folds=2, seed=4).fit(problem.logits, problem.labels)
    assert [point[:3] for point in together.search_] == PENALTIES
    for number, penalty in enumerate(PENALTIES):
        fitted = PublishedDirichlet(grid=[penalty], folds=2, seed=4).fit(problem.logits, problem.labels)
        assert together.search_[number][3] == pytest.approx(fitted.search_[0][3], abs=1e-9)
        for fold in range(2):
            kept = torch.from_numpy(folds != fold)
            expected = train_alone(logs[kept], labels[kept], penalty, [4, fold]).numpy()
            np.testing.assert_allclose(fitted.weights_[fold], expected[:, :-1], atol=1e-9)
            np.testing.assert_allclose(fitted.intercepts_[fold], expected[:, -1], atol=1e-9)
