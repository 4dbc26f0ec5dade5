"""The paper's step by hand: loss, gradients and running statistics against automatic differentiation and a loop."""

import numpy as np
import pytest
import torch
from torch import nn

from kcal.projection import PaperRecipe, SkipProjection, paper_loss
from kcal.projection.episodes import Episode
from kcal.projection.paper_loss import Step, paper_gradients

CODES = np.repeat([0, 1, 2, 3], [9, 6, 2, 1])
PARAMETERS = ["norm.weight", "norm.bias", "reduce.weight", "reduce.bias", "bend.weight"]


class Differentiated(SkipProjection):
    """The same Π, of which the step by hand knows nothing."""


def step_of(queries, background, *, bandwidth=0.8, spread=1.0, dtype=torch.float64):
    embeddings = torch.from_numpy(spread * np.random.default_rng(3).normal(size=(18, 5)) + 1.0).to(dtype)
    log_weights = np.random.default_rng(4).normal(size=len(background))
    episode = Episode(np.array(queries), np.array(background), log_weights)
    recipe = PaperRecipe(bandwidth=bandwidth, background_per_class=3)
    return Step.of(episode, embeddings, torch.from_numpy(CODES), recipe)


FULL = step_of([0, 10, 15, 1, 6], [2, 3, 4, 11, 12, 13, 16, 17])
ALONE = step_of([17, 0, 10, 17], [2, 3, 11, 12, 13, 16])  # the fourth class is queried and has no background


def modules(dtype=torch.float64):
    """Two equal projections with parameters and running statistics away from their start."""
    generator = torch.Generator().manual_seed(5)
    by_hand, differentiated = SkipProjection(5, 3), Differentiated(5, 3)
    with torch.no_grad():
        for parameter in by_hand.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    differentiated.load_state_dict(by_hand.state_dict())
    return by_hand.to(dtype).train(), differentiated.to(dtype).train()


@pytest.mark.parametrize("step", [FULL, ALONE], ids=["full", "alone"])
def test_loss_gradients_and_statistics_are_those_of_automatic_differentiation(step):
    by_hand, differentiated = modules()
    for _ in range(2):  # statistics accumulate
        (loss, gradients), (other_loss, other_gradients) = (
            paper_gradients(module, step) for module in (by_hand, differentiated)
        )
        torch.testing.assert_close(loss, other_loss, rtol=1e-12, atol=0)
        for gradient, other in zip(gradients, other_gradients, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-12)
    for (name, value), other in zip(by_hand.named_buffers(), differentiated.buffers(), strict=True):
        torch.testing.assert_close(value, other, msg=name)


class Doubled(nn.BatchNorm1d):
    """A batch norm of another kind."""

    def forward(self, rows):
        return 2 * super().forward(rows)


NORMS = {
    "plain": lambda: nn.BatchNorm1d(5),
    "another momentum": lambda: nn.BatchNorm1d(5, momentum=0.4, eps=0.1),
    "not affine": lambda: nn.BatchNorm1d(5, affine=False),
    "no running statistics": lambda: nn.BatchNorm1d(5, track_running_stats=False),
    "cumulative mean": lambda: nn.BatchNorm1d(5, momentum=None),
    "subclass": lambda: Doubled(5),
    "another module": lambda: nn.LayerNorm(5),
    "evaluation mode": lambda: nn.BatchNorm1d(5).eval(),
}


@pytest.mark.parametrize("name", NORMS)
def test_every_norm_has_the_loss_gradients_and_statistics_of_automatic_differentiation(name, monkeypatch):
    by_hand, differentiated = modules()
    for module in (by_hand, differentiated):
        module.norm = NORMS[name]().double()
        for parameter in module.norm.parameters():
            nn.init.uniform_(parameter.data, 0.5, 2.0, generator=torch.Generator().manual_seed(6))
    calls = []
    plain = paper_loss._skip_gradients
    monkeypatch.setattr(paper_loss, "_skip_gradients", lambda *given: (calls.append(1), plain(*given))[1])
    for _ in range(2):
        (loss, gradients), (other_loss, other_gradients) = (
            paper_gradients(module, FULL) for module in (by_hand, differentiated)
        )
        torch.testing.assert_close(loss, other_loss, rtol=1e-12, atol=0)
        for gradient, other in zip(gradients, other_gradients, strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-12)
    assert len(calls) == (2 if name in ("plain", "another momentum") else 0)
    for (buffer, value), other in zip(by_hand.named_buffers(), differentiated.buffers(), strict=True):
        torch.testing.assert_close(value, other, msg=buffer)


@pytest.mark.parametrize("kind", [0, 1], ids=["by hand", "differentiated"])
def test_the_loss_is_the_mean_over_queries_with_background_of_their_class(kind):
    module = modules()[kind]
    z = module.norm(ALONE.embeddings)
    z = z @ module.reduce.weight.T + module.reduce.bias
    z = (z + nn.functional.elu(z) @ module.bend.weight.T).tolist()
    losses = []
    for query, code in zip(z[:4], ALONE.query_codes.tolist(), strict=True):
        mass = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0}
        for point, other, weight in zip(
            z[4:], ALONE.background_codes.tolist(), ALONE.log_weights.tolist(), strict=True
        ):
            square = sum((a - b) ** 2 for a, b in zip(query, point, strict=True))
            mass[other] += np.exp(weight - square / (2 * 3 * 0.8**2))
        if mass[code] > 0:
            losses.append(-np.log(mass[code] / sum(mass.values())))
    assert len(losses) == 2  # both queries of the fourth class have none
    assert float(paper_gradients(module, ALONE)[0]) == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize("kind", [0, 1], ids=["by hand", "differentiated"])
def test_without_any_background_of_the_queried_classes_there_is_nothing_to_learn(kind):
    loss, gradients = paper_gradients(modules()[kind], step_of([17, 15], [2, 3, 11, 12]))
    assert float(loss) == 0.0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("kind", [0, 1], ids=["by hand", "differentiated"])
@pytest.mark.parametrize("name", PARAMETERS)
def test_the_gradient_is_that_of_finite_differences_at_a_share_of_1e_40(kind, name):
    """Queries whose own class is far from them: the mean log-loss is above 92, and still falls."""
    step = step_of([0, 1, 5, 6, 9, 10], [2, 3, 4, 11, 12, 13], bandwidth=0.01)
    module = modules()[kind]
    loss, gradients = paper_gradients(module, step)
    assert float(loss) > -np.log(1e-40)
    gradient = gradients[PARAMETERS.index(name)]
    values = module.get_parameter(name).data.view(-1)
    place = int(gradient.abs().argmax())
    sides = []
    for change in (1e-6, -1e-6):
        values[place] += change
        sides.append(float(paper_gradients(module, step)[0]))
        values[place] -= change
    assert float(gradient.view(-1)[place]) == pytest.approx((sides[0] - sides[1]) / 2e-6, rel=1e-5)
    assert abs(float(gradient.view(-1)[place])) > 1.0


def test_a_frozen_parameter_has_no_gradient():
    by_hand, _ = modules()
    by_hand.norm.requires_grad_(False)
    _, gradients = paper_gradients(by_hand, FULL)
    assert [gradient is None for gradient in gradients] == [True, True, False, False, False]


def test_single_precision_gives_the_numbers_of_double_precision():
    single = step_of([0, 10, 15, 1, 6], [2, 3, 4, 11, 12, 13, 16, 17], dtype=torch.float32)
    loss, gradients = paper_gradients(modules(torch.float32)[0], single)
    exact_loss, exact = paper_gradients(modules()[0], FULL)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact_loss, rtol=1e-5, atol=0)
    for gradient, other in zip(gradients, exact, strict=True):
        torch.testing.assert_close(gradient.double(), other, rtol=1e-4, atol=1e-4)
