"""One pass over a loader: what is read, what is refused, and that nothing of the network changes."""

from __future__ import annotations

import random
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from networks import N_CLASSES, Returning, sequential
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from kcal import InvalidInputError, LoaderWarning, RepresentationWarning, extract

X = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(20) % N_CLASSES


@pytest.fixture
def network() -> nn.Sequential:
    torch.manual_seed(1)
    return sequential()


def expected_of(network: nn.Module) -> np.ndarray:
    copy = sequential().eval()
    copy.load_state_dict(network.state_dict())
    with torch.no_grad():
        return copy(X).numpy()


class Encoding(UserDict[str, Any]):
    """A mapping that is no dict, as HuggingFace's encodings."""


class Stream(IterableDataset[Any]):
    """A data set without a length."""

    def __iter__(self) -> Any:
        return zip(X, Y, strict=True)


BATCHES: dict[str, Any] = {
    "tuples": [(X[:12], Y[:12]), (X[12:], Y[12:])],
    "lists": [[X[:12], Y[:12]], [X[12:], Y[12:]]],
    "column of labels": [(X, Y[:, None])],
    "floats": [(X, Y.double())],
    "mappings": [{"input": X, "labels": Y}],
    "encodings": [Encoding(input=X, label=Y)],
    "tuple of inputs": [((X,), Y)],
    "list of labels": [(X, Y.tolist())],
    "loader": DataLoader(TensorDataset(X, Y), batch_size=7),
    "stream": DataLoader(Stream(), batch_size=6),
    "numpy": [(X.numpy(), Y.numpy())],
    "reversed view": [(X.numpy()[::-1].copy()[::-1], Y.numpy()[::-1].copy()[::-1])],
    "generator": lambda: ((X[i : i + 5], Y[i : i + 5]) for i in range(0, 20, 5)),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_batches_of_every_kind_give_the_same(kind: str, network: nn.Module) -> None:
    batches = BATCHES[kind]
    outputs = extract(network, batches() if callable(batches) else batches)
    np.testing.assert_allclose(outputs.logits, expected_of(network), atol=1e-6)
    np.testing.assert_array_equal(outputs.labels, Y.numpy())
    assert outputs.embeddings.shape == (20, 8)
    assert repr(outputs) == "ClassifierOutputs(embeddings (20, 8), logits (20, 5), labels (20,))"


def test_function_splits_other_batches(network: nn.Module) -> None:
    outputs = extract(network, [{"x": X, "y": Y, "id": 3}], batch=lambda part: (part["x"], part["y"]))
    np.testing.assert_array_equal(outputs.labels, Y.numpy())


def test_without_labels_there_are_none(network: nn.Module) -> None:
    assert extract(network, [X]).labels is None
    assert extract(network, [(X,)]).labels is None
    assert extract(network, [{"input": X}]).labels is None


def test_wrapped_networks_are_unwrapped(network: nn.Module) -> None:
    for wrapped in (nn.DataParallel(network), torch.compile(network, backend="eager")):
        np.testing.assert_allclose(extract(wrapped, [X]).logits, expected_of(network), atol=1e-6)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch before 2.6 runs it compiled, and warns")
def test_network_compiled_in_place_runs_uncompiled(network: nn.Module) -> None:
    network.compile(backend="eager")
    network.eval()(X)
    np.testing.assert_allclose(extract(network, [X]).logits, expected_of(network), atol=1e-6)


def test_distributed_network_is_unwrapped(network: nn.Module, tmp_path: Any) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network)
        np.testing.assert_allclose(extract(wrapped, [X]).logits, expected_of(network), atol=1e-6)
    finally:
        torch.distributed.destroy_process_group()


def state_of(network: nn.Module) -> Any:
    """Return everything about a network that extraction must not change."""
    return (
        [module.training for module in network.modules()],
        [(p.requires_grad, p.dtype, p.device, p.grad, p.tolist()) for p in network.parameters()],
        [buffer.tolist() for buffer in network.buffers()],
        [len(module._forward_hooks) for module in network.modules()],
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002 (what data sets draw from)
        torch.get_rng_state().tolist(),
        torch.is_inference_mode_enabled(),
    )


def drawing(stop: type[BaseException] | None = None) -> Any:
    """Yield batches, drawing random numbers; raise after the first if asked to."""
    for start in (0, 10):
        random.random()
        np.random.rand()  # noqa: NPY002
        yield X[start : start + 10] + 0 * torch.randn(10, 6), Y[start : start + 10]
        if stop is not None:
            raise stop


@pytest.mark.parametrize("stop", [None, RuntimeError, KeyboardInterrupt])
def test_nothing_of_the_network_changes(stop: type[BaseException] | None, network: nn.Sequential) -> None:
    network.train()
    network[1].eval()  # a frozen batch norm
    network[0].weight.requires_grad_(False)
    before = state_of(network)
    if stop is None:
        extract(network, drawing())
    else:
        with pytest.raises(stop):
            extract(network, drawing(stop))
    assert state_of(network) == before


def test_network_that_caches_can_be_trained_afterwards() -> None:
    class Caching(Returning):
        """Computes a tensor in its first forward pass, as rotary embeddings do."""

        cache: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.cache is None:
                self.cache = torch.linspace(1, 2, 6)
                self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)
            return super().forward(x * self.cache * self.scale)

    network = Caching(lambda features, logits: logits)
    extract(network, [X])
    network(X.requires_grad_()).sum().backward()
    X.requires_grad_(False)
    assert network.cache is not None
    assert not network.cache.is_inference()
    assert list(network.state_dict()) == ["body.weight", "body.bias", "fc.weight", "fc.bias"]


def test_dropout_and_gradients_are_off() -> None:
    modes: list[tuple[bool, bool]] = []

    class Watching(Returning):
        def forward(self, x: torch.Tensor) -> Any:
            modes.append((self.training, torch.is_grad_enabled()))
            return super().forward(x)

    extract(Watching(lambda features, logits: logits).train(), [X])
    assert set(modes) == {(False, False)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_networks_of_other_precisions_give_float32(dtype: torch.dtype, network: nn.Module) -> None:
    exact = sequential().double().eval()
    exact.load_state_dict(network.state_dict())
    with torch.no_grad():
        embeddings = exact[:4](X.double()).numpy()
        logits = exact[4](torch.from_numpy(embeddings)).numpy()
    outputs = extract(network.to(dtype), [X.to(dtype)])
    assert outputs.embeddings.dtype == outputs.logits.dtype == np.float32
    assert next(network.parameters()).dtype == dtype
    error = 4 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    np.testing.assert_allclose(outputs.embeddings, embeddings, rtol=0, atol=error * np.abs(embeddings).max())
    np.testing.assert_allclose(outputs.logits, logits, rtol=0, atol=error * np.abs(embeddings).max())


def test_autocast_is_an_option(network: nn.Module) -> None:
    outputs, exact = extract(network, [X], autocast=torch.bfloat16), extract(network, [X])
    assert outputs.logits.dtype == np.float32
    assert 0 < np.abs(outputs.logits - exact.logits).max() < 0.05


def test_masked_classes_are_kept_finite() -> None:
    network = Returning(lambda f, z: z)
    network.fc.bias.data[2] = -torch.inf
    assert extract(network, [X]).logits[:, 2].max() == np.finfo(np.float32).min


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_raise_with_the_batch(value: float, network: nn.Sequential) -> None:
    bad = X.clone()
    bad[3, 0] = value
    with pytest.raises(InvalidInputError, match=r"^network .* embeddings .* batch 1, at its row 3"):
        extract(network, [(X, Y), (bad, Y)])
    network[4].bias.data[1] = value
    with pytest.raises(InvalidInputError, match=r"^network .* logits .* batch 0, at its row 0"):
        extract(network, [X])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "loader"),
        ([(X, Y), (X[:0], Y[:0])], "batches .* batch 1"),
        (X, "loader .*Pass a DataLoader"),
        (7, "loader"),
        ("outputs.npz", "batches .* batch 0"),
        ([1.0, 2.0], "batches .* batch 0"),
        ([None], "batches .* batch 0"),
        ([(np.ma.masked_array(X.numpy(), X.numpy() > 0), Y)], "batches .*masked"),
        ([(X, Y, Y)], "batches .*Pass batch="),
        ([{"input": X, "labels": Y, "label": Y}], "batches .*'labels' and 'label'"),
        ([{"input": X, "labels": Y, "index": torch.arange(20)}], "batches .*'index'.*Pass batch="),
        ([(X, Y[:-1])], "labels of batch 0"),
        ([(X, nn.functional.one_hot(Y))], "labels of batch 0 .*argmax"),
        ([(X, Y), (X, Y + 1)], "labels of batch 1 .* 5 at row 4"),
        ([(X, Y - 1)], "labels of batch 0"),
        ([(X, Y + 0.5)], "labels of batch 0"),
        ([(X, ["cat"] * 20)], "labels of batch 0"),
        ([(X, Y), X], "batches .* batch 1"),
    ],
)
def test_wrong_batches_raise_with_their_place(batches: Any, message: str, network: nn.Module) -> None:
    with pytest.raises(InvalidInputError, match=f"^{message}"):
        extract(network, batches)


def test_wrong_arguments_raise_by_name(network: nn.Module) -> None:
    wrong = {"network": "resnet", "batch": 3, "autocast": "bfloat16"}
    for name, value in (*wrong.items(), ("batch", lambda part: part)):
        with pytest.raises(InvalidInputError, match=f"^{name} must"):
            extract(**{"network": network, "loader": [X], name: value})


def test_outputs_that_look_like_probabilities_warn() -> None:
    network = Returning(lambda f, z: torch.softmax(z, dim=1))
    with pytest.warns(RepresentationWarning, match="The network's outputs look like probabilities"):
        extract(network, [X], head="fc")


class Drawing(Sampler[int]):
    """Draws the order with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Any:
        return iter(torch.randperm(20, generator=self.generator).tolist())

    def __len__(self) -> int:
        return 20


def test_modules_that_act_in_eval_are_left_alone() -> None:
    class Merging(nn.Linear):
        """Merges weights in evaluation mode, as adapters do."""

        def train(self, mode: bool = True) -> Any:
            self.weight.data += 1.0 if not mode else -1.0
            return super().train(mode)

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), Merging(8, N_CLASSES))
    before = network[2].weight.clone()
    extract(network, [X])
    torch.testing.assert_close(network[2].weight, before, rtol=0, atol=0)


def test_loaders_that_shuffle_or_drop_samples_warn(network: nn.Module) -> None:
    data = TensorDataset(X, Y)
    samplers = (
        RandomSampler(data),
        SubsetRandomSampler(range(20)),
        WeightedRandomSampler([1.0] * 20, 20),
        Drawing(),
        DistributedSampler(data, num_replicas=1, rank=0),
    )
    loaders = [DataLoader(data, sampler=sampler, batch_size=10) for sampler in samplers]
    loaders.append(DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 10, drop_last=False)))
    for loader in loaders:
        with pytest.warns(LoaderWarning, match="shuffles"):
            extract(network, loader)
    full = BatchSampler(SequentialSampler(X), 15, drop_last=True)
    for loader in (DataLoader(data, batch_size=15, drop_last=True), DataLoader(data, batch_sampler=full)):
        with pytest.warns(LoaderWarning, match="drops the last batch"):
            extract(network, loader)
    in_order = DistributedSampler(data, num_replicas=1, rank=0, shuffle=False)
    for sampler in (SequentialSampler(data), in_order):  # without a warning
        outputs = extract(network, DataLoader(data, sampler=sampler, batch_size=7))
        np.testing.assert_array_equal(outputs.labels, Y.numpy())
