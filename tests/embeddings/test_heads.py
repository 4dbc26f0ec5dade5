"""Finding the last layer by comparing outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from networks import N_CLASSES, EcgNetwork, ResNet, Returning, TokenMean, TokenScorer, TwoHeads, sequential
from torch import nn

from kcal import InvalidInputError, extract
from kcal.embeddings import LayerHead, find_head


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def applied(layer: nn.Module, embeddings: np.ndarray) -> np.ndarray:
    """Apply a linear layer by a double loop over samples and classes."""
    weight = torch.as_tensor(layer.weight).detach().flatten(1).double().numpy()
    bias = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().double().numpy()
    rows = [[bias[k] + sum(weight[k] * row) for k in range(len(weight))] for row in embeddings.astype(float)]
    return np.array(rows)


TENSORS: dict[str, tuple[Any, str, Any]] = {
    "one layer": (lambda: nn.Linear(6, N_CLASSES), "", lambda: torch.randn(4, 6)),
    "resnet": (ResNet, "fc", lambda: torch.randn(4, 3, 8, 8)),
    "ecg": (EcgNetwork, "head", lambda: torch.randn(4, 2, 60)),
    "sequential": (sequential, "4", lambda: torch.randn(4, 6)),
    "tokens": (TokenScorer, "score", lambda: torch.tensor([[3, 4, 5, 0], [7, 8, 9, 9], [1, 0, 0, 0], [2, 2, 2, 0]])),
    "tuple": (lambda: Returning(lambda features, logits: (logits, features)), "fc", lambda: torch.randn(4, 6)),
    "tuple, features first": (lambda: Returning(lambda *both: both), "fc", lambda: torch.randn(4, 6)),
    "tuple, loss first": (lambda: Returning(lambda f, z: (z.mean(), z)), "fc", lambda: torch.randn(4, 6)),
    "mapping": (lambda: Returning(lambda f, z: {"out": z, "features": f}), "fc", lambda: torch.randn(4, 6)),
    "logits": (lambda: Returning(lambda f, z: {"logits": z, "aux": z + 1}), "fc", lambda: torch.randn(4, 6)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_layer_applied_to_the_embeddings_gives_the_logits(name: str) -> None:
    make, layer, inputs = TENSORS[name]
    network, batch = make(), inputs()
    outputs = extract(network, [batch])
    network.eval()
    assert find_head(network, batch)[0].name == layer
    np.testing.assert_allclose(applied(network.get_submodule(layer), outputs.embeddings), outputs.logits, atol=1e-5)
    assert outputs.logits.dtype == outputs.embeddings.dtype == np.float32


def test_embedding_of_a_decoder_is_that_of_the_selected_token() -> None:
    network, tokens = TokenScorer().eval(), torch.tensor([[3, 4, 5, 0], [7, 8, 9, 9], [1, 0, 0, 0]])
    with torch.no_grad():
        hidden = network.mix(network.embed(tokens))[0]
    expected = hidden[torch.arange(3), torch.tensor([2, 3, 0])].numpy()
    np.testing.assert_array_equal(extract(network, [{"input_ids": tokens}]).embeddings, expected)


class Features(nn.Module):
    """Returns the output of a linear layer, and probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = nn.Linear(6, 8), nn.Linear(8, N_CLASSES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.body(x)
        return features, torch.softmax(self.fc(features), dim=1)


def equal_heads() -> nn.Module:
    network = TwoHeads()
    network.head_dist.load_state_dict(network.head.state_dict())
    return network


def equal_tokens() -> nn.Module:
    network = TokenScorer()
    nn.init.zeros_(network.score.weight)  # every token has the scores of the selected one
    return network


@pytest.mark.parametrize(
    ("make", "candidates"),
    [
        (TwoHeads, r"head \(8 → 5, input \(3, 8\)\); head_dist \(8 → 5, input \(3, 8\)\)"),
        (equal_heads, "several layers"),
        (equal_tokens, "score"),
        (TokenMean, r"score \(16 → 5, input \(1, 3, 16\)\)"),
        (lambda: nn.Sequential(sequential(), nn.Softmax(dim=1)), r"0\.4 \(8 → 5.*looks like probabilities"),
        (lambda: nn.Sequential(nn.Flatten(), nn.ReLU()), "without linear layers"),
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU()), r"0 \(6 → 8"),
        (lambda: Returning(lambda f, z: z.mul_(2)), "no linear layer"),
        (lambda: Returning(lambda f, z: {"features": f * 2, "out": z}), "several outputs"),
        (lambda: Returning(lambda f, z: (z, z + 1)), "several outputs"),
        (Features, "several outputs, 0, 1"),
    ],
)
def test_candidates_are_listed_where_the_head_is_not_clear(make: Any, candidates: str) -> None:
    network = make()
    inputs = torch.tensor([[1, 2, 3]]) if isinstance(network, TokenMean | TokenScorer) else torch.randn(3, 6)
    with pytest.raises(InvalidInputError, match=f"^head is needed.*{candidates}"):
        extract(network, [inputs])


@pytest.mark.parametrize(
    "output",
    [
        lambda f, z: z[:, :, None, None].expand(-1, -1, 4, 4),
        lambda f, z: "text",
    ],
)
def test_network_without_logits_raises(output: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^network must output logits"):
        extract(Returning(output), [torch.randn(3, 6)])


@pytest.mark.parametrize(
    ("make", "head", "message"),
    [
        (TwoHeads, "nowhere", "Its last linear layers: body, head, head_dist"),
        (TwoHeads, nn.Linear(8, 5), ""),
        (TwoHeads, 3, ""),
        (TwoHeads, lambda x: x, "two tensors"),
        (TwoHeads, lambda x: (x[:, None], x), ""),
        (sequential, "2", "a ReLU"),
        (TokenMean, "score", r"\(2, 3, 16\).*pools the positions"),
    ],
)
def test_wrong_head_raises(make: Any, head: Any, message: str) -> None:
    inputs = torch.tensor([[1, 2, 3], [4, 5, 6]]) if make is TokenMean else torch.randn(3, 6)
    with pytest.raises(InvalidInputError, match=f"^head must .*{message}"):
        extract(make(), [inputs], head=head)


def test_named_layer_decides_between_two_heads() -> None:
    network, inputs = TwoHeads().eval(), torch.randn(4, 6)
    outputs = extract(network, [inputs], head="head_dist")
    with torch.no_grad():
        np.testing.assert_array_equal(outputs.embeddings, torch.relu(network.body(inputs)).numpy())
        np.testing.assert_array_equal(outputs.logits, network(inputs).numpy())


def test_function_returns_embeddings_and_logits() -> None:
    network, tokens = TokenMean().eval(), torch.tensor([[1, 2, 3], [4, 5, 6]])

    def pooled(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(network.embed(inputs)).mean(dim=1), network(inputs)

    outputs = extract(network, [tokens], head=pooled)
    np.testing.assert_allclose(applied(network.score, outputs.embeddings), outputs.logits, atol=1e-6)


def test_layer_that_stops_giving_the_logits_is_noticed() -> None:
    class Routing(nn.Module):
        """Takes another head for large inputs."""

        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Linear(6, N_CLASSES), nn.Linear(6, N_CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small = self.small(x)
            return self.large(x) if x.abs().max() > 10 else small

    with pytest.raises(InvalidInputError, match=r"^head must give the logits of every batch"):
        extract(Routing(), [torch.randn(3, 6), 100 * torch.randn(3, 6)])


def test_layer_that_is_called_twice_counts_where_it_gives_the_logits() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(torch.relu(self.fc(x)))

    network, inputs = Twice(), torch.randn(3, 5)
    assert find_head(network, inputs)[0] == LayerHead("fc", None, call_index=1)
    outputs = extract(network, [inputs])
    np.testing.assert_allclose(applied(network.fc, outputs.embeddings), outputs.logits, atol=1e-6)


def test_embeddings_that_are_changed_in_place_later_are_kept() -> None:
    class Clearing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, N_CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = torch.tanh(x)
            logits = self.fc(features)
            features.zero_()
            return logits

    inputs = torch.randn(3, 6)
    np.testing.assert_array_equal(extract(Clearing(), [inputs]).embeddings, torch.tanh(inputs).numpy())


def test_positions_of_a_chosen_layer_are_checked_in_every_batch() -> None:
    class Pooling(nn.Module):
        """Averages the scores of pixels."""

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Conv2d(3, N_CLASSES, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * self.head(x).mean(dim=(2, 3))

    with pytest.raises(InvalidInputError, match=r"^head must .*\(2, 25, 3\)"):
        extract(Pooling(), [torch.randn(2, 3, 1, 1), torch.randn(2, 3, 5, 5)], head="head")


def test_layers_of_wrapped_networks_have_both_names() -> None:
    network, inputs = ResNet(), torch.randn(4, 3, 8, 8)
    expected = extract(network, [inputs]).embeddings
    wrapped = {"module.fc": nn.DataParallel(network), "_orig_mod.fc": torch.compile(network, backend="eager")}
    for name, wrapper in wrapped.items():
        for head in (name, "fc", network.fc):
            np.testing.assert_array_equal(extract(wrapper, [inputs], head=head).embeddings, expected)
    with pytest.raises(InvalidInputError, match=r"head must be a layer of the network; got 'module\.fc'"):
        extract(network, [inputs], head="module.fc")


def test_weights_may_be_computed_from_others() -> None:
    found, refused = Returning(lambda f, z: z), Returning(lambda f, z: 2 * z)
    for network in (found, refused):
        nn.utils.parametrizations.weight_norm(network.fc)
    outputs = extract(found, [torch.randn(3, 6)])
    np.testing.assert_allclose(applied(found.fc, outputs.embeddings), outputs.logits, atol=1e-6)
    with pytest.raises(InvalidInputError, match=r"head is needed.*fc \(8 → 5, input \(3, 8\)\)"):
        extract(refused, [torch.randn(3, 6)])


def test_input_of_a_layer_may_be_named() -> None:
    class Named(Returning):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(input=torch.relu(self.body(x)))

    network, inputs = Named(None), torch.randn(3, 6)
    for head in (None, "fc"):
        outputs = extract(network, [inputs], head=head)
        np.testing.assert_allclose(applied(network.fc, outputs.embeddings), outputs.logits, atol=1e-6)


class MaskedTransformer(nn.Module):
    """In evaluation mode torch computes it with nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.embed, self.encoder, self.fc = nn.Embedding(20, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.encoder(self.embed(ids), src_key_padding_mask=mask)[:, 0])
        return logits


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_within_a_network_are_passed_over() -> None:
    torch.manual_seed(0)
    network = MaskedTransformer().eval()
    mask = torch.zeros(6, 5, dtype=torch.bool)
    mask[3:, 4:] = True
    with torch.no_grad():
        assert find_head(network, (torch.randint(0, 20, (6, 5)), mask))[0].name == "fc"
