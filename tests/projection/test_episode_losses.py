"""The training objective: its value against a direct loop, its gradient against finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kcal.kernels import LeaveOutLoss, sort_support
from kcal.projection.objective import episode_losses, mean_loss

steady = settings(deadline=None, derandomize=True, max_examples=40)


def losses_of(*step, **options):
    return episode_losses(*step, **options)[0]


def slow_losses(queries, background, query_codes, background_codes, log_weights, bandwidth, blocked=None):
    """−log p of each query's own class, by a double loop over numbers; 0 where its class has no background."""
    d, result = queries.shape[1], []
    for i, query in enumerate(queries.tolist()):
        own, total = [], []
        for j, point in enumerate(background.tolist()):
            if blocked is not None and blocked[i, j]:
                continue
            square = sum((a - b) ** 2 for a, b in zip(query, point, strict=True))
            exponent = -square / (2 * d * bandwidth**2) + float(log_weights[j])
            total.append(exponent)
            if int(query_codes[i]) == int(background_codes[j]):
                own.append(exponent)
        result.append(np.logaddexp.reduce(total) - np.logaddexp.reduce(own) if own else 0.0)
    return np.array(result)


def episode(seed, *, n_query=7, n_background=11, d=3, n_classes=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return {
        "queries": torch.randn(n_query, d, generator=generator, dtype=torch.float64).to(dtype),
        "background": torch.randn(n_background, d, generator=generator, dtype=torch.float64).to(dtype),
        "query_codes": torch.randint(n_classes, (n_query,), generator=generator),
        "background_codes": torch.randint(n_classes, (n_background,), generator=generator),
        "log_weights": torch.randn(n_background, generator=generator, dtype=torch.float64).to(dtype),
    }


def mask(seed, n_query, n_background, share=0.3):
    return torch.rand(n_query, n_background, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("bandwidth", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("is_blocked", [False, True])
def test_losses_equal_the_double_loop(is_blocked, bandwidth):
    for seed in range(5):
        step = episode(seed)
        blocked = mask(seed, 7, 11) if is_blocked else None
        computed = losses_of(**step, bandwidth=bandwidth, blocked=blocked)
        slow = slow_losses(*step.values(), bandwidth, blocked)
        np.testing.assert_allclose(computed, slow, rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_blocked", [False, True])
def test_gradients_equal_finite_differences(is_blocked):
    for seed in range(3):
        step = episode(10 + seed, n_query=4, n_background=6, d=2)
        blocked = mask(seed, 4, 6) if is_blocked else None
        rest = [step[name] for name in ("query_codes", "background_codes", "log_weights")]

        def losses(queries, background, rest=rest, blocked=blocked):
            return losses_of(queries, background, *rest, bandwidth=0.8, blocked=blocked)

        points = [step[name].requires_grad_() for name in ("queries", "background")]
        assert torch.autograd.gradcheck(losses, points, atol=1e-7)


def test_gradients_equal_finite_differences_when_every_sample_is_query_and_background():
    step = episode(20, n_query=8, d=2)
    codes, itself = step["query_codes"], torch.eye(8, dtype=torch.bool)
    log_weights = step["log_weights"][:8]

    def losses(points):
        return losses_of(points, points, codes, codes, log_weights, blocked=itself)

    assert torch.autograd.gradcheck(losses, step["queries"].requires_grad_(), atol=1e-7)


def test_gradients_equal_those_of_automatic_differentiation_through_the_formula():
    step = episode(21, n_query=30, n_background=50, d=8, n_classes=4)
    points = [step[name].requires_grad_() for name in ("queries", "background")]
    shares = torch.rand(30, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (losses_of(**step, bandwidth=0.7) * shares).sum().backward()
    by_hand = [point.grad.clone() for point in points]
    squares = (points[0][:, None] - points[1][None]).square().sum(dim=2)
    exponents = -squares / (2 * 8 * 0.7**2) + step["log_weights"]
    own = step["query_codes"][:, None] == step["background_codes"][None, :]
    losses = exponents.logsumexp(dim=1) - exponents.masked_fill(~own, -torch.inf).logsumexp(dim=1)
    automatic = torch.autograd.grad((losses * shares).sum(), points)
    for one, other in zip(by_hand, automatic, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_a_query_without_background_of_its_class_contributes_nothing():
    step = episode(22)
    step["query_codes"][2] = 7
    blocked = torch.zeros(7, 11, dtype=torch.bool)
    blocked[4] = step["background_codes"] == step["query_codes"][4]  # its class exists but is hidden from it
    for name in ("queries", "background"):
        step[name].requires_grad_()
    losses = losses_of(**step, blocked=blocked)
    assert losses[2] == 0.0
    assert losses[4] == 0.0
    losses[[2, 4]].sum().backward()
    assert not step["queries"].grad.any()
    assert not step["background"].grad.any()


def test_with_every_sample_of_a_set_the_loss_is_the_leave_one_out_loss():
    """What training minimises on the whole set at once is what the bandwidth search measures."""
    step = episode(23, n_query=40, d=3)
    points, codes = step["queries"], step["query_codes"]
    losses = losses_of(
        points, points, codes, codes, torch.zeros(40, dtype=torch.float64),
        bandwidth=0.9, blocked=torch.eye(40, dtype=torch.bool),
    )  # fmt: skip
    assert float(losses.mean()) == pytest.approx(LeaveOutLoss(sort_support(points, codes, 3))(0.9), rel=1e-12)


def test_a_weight_counts_as_repetition():
    step = episode(24, n_background=6)
    times = torch.tensor([1, 3, 2, 1, 1, 4])
    weighted = losses_of(**{**step, "log_weights": times.double().log()})
    for name in ("background", "background_codes"):
        step[name] = step[name].repeat_interleave(times, dim=0)
    repeated = losses_of(**{**step, "log_weights": torch.zeros(12, dtype=torch.float64)})
    torch.testing.assert_close(weighted, repeated, rtol=0, atol=1e-13)


@pytest.mark.parametrize("scale", [1.0, 1e1, 1e3, 1e6])
def test_points_far_apart_never_give_nan(scale):
    step = episode(25, n_query=50, n_background=80, d=8, dtype=torch.float32)
    for name in ("queries", "background"):
        step[name] = (scale * step[name]).requires_grad_()
    losses = losses_of(**step)
    losses.sum().backward()
    assert bool((losses >= -1e-5).all())
    assert torch.isfinite(losses).all()
    for name in ("queries", "background"):
        assert torch.isfinite(step[name].grad).all()


@pytest.mark.parametrize("log_share", [-10.0, -92.1, -1e3, -1e5])
def test_however_small_the_share_of_the_own_class_is_the_gradient_is_that_of_finite_differences(log_share):
    """exp(−92.1) = 1e-40 and less: no floor stops the gradient."""
    queries = torch.tensor([[0.1, -0.2], [0.3, 0.0]], dtype=torch.float64)
    background = torch.tensor([[0.2, 0.1], [-0.3, 0.2], [0.0, 0.4]], dtype=torch.float64)
    background[0, 0] = (-4.0 * log_share) ** 0.5  # of the first query's class: exponent −‖·‖²/4
    codes, others = torch.tensor([0, 1]), torch.tensor([0, 1, 1])
    log_weights = torch.tensor([0.0, 0.5, -0.3], dtype=torch.float64)
    points = [queries.requires_grad_(), background.requires_grad_()]
    losses = losses_of(*points, codes, others, log_weights)
    assert float(losses[0].detach()) == pytest.approx(-log_share, rel=0.2)
    np.testing.assert_allclose(
        losses.detach(), slow_losses(*(x.detach() for x in points), codes, others, log_weights, 1)
    )
    assert torch.autograd.gradcheck(lambda *x: losses_of(*x, codes, others, log_weights), points, rtol=1e-6)
    assert float(torch.autograd.grad(losses[0], points[0])[0].abs().max()) > 1.0


def test_in_single_precision_a_far_query_has_the_gradient_of_double_precision():
    step = episode(26, n_query=20, n_background=30, d=4)
    step["queries"] *= 100.0
    gradients = []
    for dtype in (torch.float32, torch.float64):
        queries, background, log_weights = (step[name].to(dtype) for name in ("queries", "background", "log_weights"))
        losses = losses_of(
            queries.requires_grad_(), background, step["query_codes"], step["background_codes"], log_weights
        )
        gradients.append(torch.autograd.grad(losses.sum(), queries)[0].double())
    assert float(losses.detach().max()) > 100.0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_mean_is_over_the_queries_that_have_background_of_their_class(weighted):
    step = episode(27)
    step["query_codes"][[1, 5]] = 7
    shares = torch.rand(7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) if weighted else None
    losses, counted = episode_losses(**step)
    assert counted.tolist() == [int(code) != 7 for code in step["query_codes"]]
    total = weight = 0.0
    for i, value in enumerate(slow_losses(*step.values(), 1.0)):
        if int(step["query_codes"][i]) in step["background_codes"].tolist():
            share = 1.0 if shares is None else float(shares[i])
            total, weight = total + share * value, weight + share
    assert float(mean_loss(losses, counted, shares)) == pytest.approx(total / weight, rel=1e-12)


def test_a_mean_over_no_query_is_zero_without_gradient():
    step = episode(28)
    step["query_codes"][:] = 7
    loss = mean_loss(*episode_losses(**{**step, "queries": step["queries"].requires_grad_()}))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert not step["queries"].grad.any()


@steady
@given(seed=st.integers(0, 10**6), bandwidth=st.floats(0.1, 10), share=st.floats(0, 0.6))
def test_any_losses_equal_the_double_loop(seed, bandwidth, share):
    step = episode(seed, n_query=5, n_background=6, d=2, n_classes=4)
    blocked = mask(seed, 5, 6, share)
    blocked[:, 0] = False  # each query sees something
    slow = slow_losses(*step.values(), bandwidth, blocked)
    computed = losses_of(**step, bandwidth=bandwidth, blocked=blocked)
    np.testing.assert_allclose(computed, slow, rtol=1e-9, atol=1e-9)
