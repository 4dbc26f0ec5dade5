"""One pass over a loader: what is read, what is refused, and that nothing of the network changes."""

from __future__ import annotations

import random
import warnings
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
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import kcal
from kcal import InvalidInputError, KCalBlend, LoaderWarning, RepresentationWarning, extract

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


def test_a_function_splits_other_batches(network: nn.Module) -> None:
    outputs = extract(network, [{"x": X, "y": Y, "id": 3}], batch=lambda part: (part["x"], part["y"]))
    np.testing.assert_array_equal(outputs.labels, Y.numpy())


def test_without_labels_there_are_none(network: nn.Module) -> None:
    assert extract(network, [X]).labels is None
    assert extract(network, [(X,)]).labels is None
    assert extract(network, [{"input": X}]).labels is None


def test_what_is_extracted_can_be_fitted(network: nn.Module) -> None:
    outputs = extract(network, [(X, Y)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kcal.KcalWarning)
        blend = kcal.fit_on(KCalBlend(), outputs)
    assert blend.n_features_in_ == 8


def test_wrapped_networks_are_unwrapped(network: nn.Module) -> None:
    for wrapped in (nn.DataParallel(network), torch.compile(network, backend="eager")):
        np.testing.assert_allclose(extract(wrapped, [X]).logits, expected_of(network), atol=1e-6)


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch before 2.6 runs it compiled, and warns")
def test_a_network_compiled_in_place_runs_uncompiled(network: nn.Module) -> None:
    network.compile(backend="eager")
    network.eval()(X)
    np.testing.assert_allclose(extract(network, [X]).logits, expected_of(network), atol=1e-6)


def test_a_distributed_network_is_unwrapped(network: nn.Module, tmp_path: Any) -> None:
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


def test_a_network_that_caches_can_be_trained_afterwards() -> None:
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
    with pytest.raises(InvalidInputError, match="autocast must be a floating-point type of torch"):
        extract(network, [X], autocast="bfloat16")  # type: ignore[arg-type]


def test_masked_classes_are_kept_finite() -> None:
    network = Returning(lambda f, z: z)
    network.fc.bias.data[2] = -torch.inf
    assert extract(network, [X]).logits[:, 2].max() == np.finfo(np.float32).min


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_with_the_batch(value: float, network: nn.Module) -> None:
    bad = X.clone()
    bad[3, 0] = value
    with pytest.raises(InvalidInputError, match=r"must give finite numbers; got embeddings.*in batch 1, at its row 3"):
        extract(network, [(X, Y), (bad, Y)])


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "loader must yield at least one batch; got none"),
        ([(X, Y), (X[:0], Y[:0])], "batches must hold at least one sample; got none in batch 1"),
        (X, "loader must yield batches.*Pass a DataLoader"),
        (7, "loader must yield batches; got 7"),
        ([(X, Y, Y)], r"batches must be \(inputs, labels\).*got 3 parts.*Pass batch="),
        ([{"input": X, "labels": Y, "label": Y}], "under one name; got both 'labels' and 'label'"),
        ([(X, Y[:-1])], r"one class index for each of the 20 samples.*got shape \(19,\) in batch 0"),
        ([(X, nn.functional.one_hot(Y))], r"got shape \(20, 5\) in batch 0.*argmax"),
        ([(X, Y), (X, Y + 1)], "labels must be from 0 to 4, columns of the logits; got 5 in batch 1"),
        ([(X, Y - 1)], "got -1 in batch 0"),
        ([(X, Y + 0.5)], "labels must be class indices; got fractions in batch 0"),
        ([(X, ["cat"] * 20)], "labels must be class indices; got .* in batch 0"),
        ([(X, Y), X], "batches must hold the same parts; got embeddings, logits in batch 1"),
    ],
)
def test_wrong_batches_are_refused(batches: Any, message: str, network: nn.Module) -> None:
    with pytest.raises(InvalidInputError, match=message):
        extract(network, batches)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"network": "resnet"}, "network must be an nn.Module; got 'resnet'"),
        ({"batch": 3}, r"batch must be a function that returns \(inputs, labels\)"),
        ({"batch": lambda part: part}, r"batch must return a tuple \(inputs, labels\)"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str, network: nn.Module) -> None:
    with pytest.raises(InvalidInputError, match=message):
        extract(**{"network": network, "loader": [X], **arguments})


def test_a_loader_that_shuffles_or_drops_warns(network: nn.Module) -> None:
    with pytest.warns(LoaderWarning, match="The loader shuffles"):
        extract(network, DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True))
    with pytest.warns(LoaderWarning, match="drops the last batch"):
        extract(network, DataLoader(TensorDataset(X, Y), batch_size=15, drop_last=True))
    full = BatchSampler(SequentialSampler(X), 15, drop_last=True)
    with pytest.warns(LoaderWarning, match="drops the last batch"):
        extract(network, DataLoader(TensorDataset(X, Y), batch_sampler=full))


def test_outputs_that_look_like_probabilities_warn() -> None:
    network = Returning(lambda f, z: torch.softmax(z, dim=1))
    with pytest.warns(RepresentationWarning, match="The network's outputs look like probabilities"):
        extract(network, [X], head="fc")


def test_progress_is_shown_on_request(network: nn.Module, capfd: pytest.CaptureFixture[str]) -> None:
    extract(network, [X, X], progress=True)
    assert "Running the network" in capfd.readouterr().err
    extract(network, iter([X]), progress=True)
    assert "Running the network" in capfd.readouterr().err


class Drawing(Sampler[int]):
    """Draws the order with a generator of its own."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Any:
        return iter(torch.randperm(20, generator=self.generator).tolist())

    def __len__(self) -> int:
        return 20


def test_other_samplers_that_shuffle_warn(network: nn.Module) -> None:
    data = TensorDataset(X, Y)
    samplers = (SubsetRandomSampler(range(20)), WeightedRandomSampler([1.0] * 20, 20))
    loaders = [DataLoader(data, sampler=sampler, batch_size=10) for sampler in samplers]
    loaders.append(DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 10, drop_last=False)))
    loaders.append(DataLoader(data, sampler=Drawing(), batch_size=10))
    loaders.append(DataLoader(data, sampler=DistributedSampler(data, num_replicas=1, rank=0), batch_size=10))
    for loader in loaders:
        with pytest.warns(LoaderWarning, match="The loader shuffles"):
            extract(network, loader)


def test_samplers_that_keep_the_order_do_not_warn(network: nn.Module) -> None:
    data = TensorDataset(X, Y)
    in_order = DistributedSampler(data, num_replicas=1, rank=0, shuffle=False)
    for sampler in (SequentialSampler(data), in_order):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            outputs = extract(network, DataLoader(data, sampler=sampler, batch_size=7))
        np.testing.assert_array_equal(outputs.labels, Y.numpy())


def test_tensors_that_a_data_set_caches_can_be_trained_on(network: nn.Module) -> None:
    class Caching(torch.utils.data.Dataset[Any]):
        cache: dict[int, torch.Tensor]

        def __init__(self) -> None:
            self.cache = {}

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            return self.cache.setdefault(index, X[index] * 2), int(Y[index])

    data = Caching()
    extract(network, DataLoader(data, batch_size=10))
    network.train()(torch.stack([data[index][0] for index in range(20)]).requires_grad_()).sum().backward()
    assert not any(tensor.is_inference() for tensor in data.cache.values())


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


def test_logits_that_are_not_numbers_are_refused_with_finite_embeddings() -> None:
    network = Returning(lambda f, z: z)
    network.fc.bias.data[1] = torch.nan
    with pytest.raises(InvalidInputError, match="got logits with NaN or infinity in batch 0, at its row 0"):
        extract(network, [X])


def test_an_iterable_data_set_has_no_length(network: nn.Module) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            return zip(X, Y, strict=True)

    outputs = extract(network, DataLoader(Stream(), batch_size=6))
    np.testing.assert_array_equal(outputs.labels, Y.numpy())


def test_numpy_batches_become_tensors(network: nn.Module) -> None:
    outputs = extract(network, [(X.numpy(), Y.numpy())])
    np.testing.assert_allclose(outputs.logits, expected_of(network), atol=1e-6)


def test_keys_that_the_network_does_not_take_are_named(network: nn.Module) -> None:
    with pytest.raises(InvalidInputError, match=r"keyword arguments of the network.*'index'.*Pass batch="):
        extract(network, [{"input": X, "labels": Y, "index": torch.arange(20)}])


def test_tensors_that_a_network_caches_in_containers_can_be_trained_on() -> None:
    class Caching(Returning):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "cache"):
                self.cache: dict[str, Any] = {"scales": ([torch.linspace(1, 2, 6)],)}
                self.cache["itself"] = self.cache
            return super().forward(x * self.cache["scales"][0][0])

    network = Caching(lambda features, logits: logits)
    extract(network, [X])
    network(X.clone().requires_grad_()).sum().backward()
    assert not network.cache["scales"][0][0].is_inference()
