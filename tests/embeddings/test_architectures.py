"""The last layer of real architectures with random weights, compared with what their own libraries call features."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from networks import N_CLASSES

from kcal import extract
from kcal.embeddings import find_head

TIMM: dict[str, tuple[dict[str, Any], int, str]] = {
    "vit_tiny_patch16_224": ({"img_size": 32, "depth": 2}, 32, "head"),
    "mixer_s32_224": ({"img_size": 32}, 32, "head"),
    "resnetv2_50x1_bit": ({}, 32, "head.fc"),  # the head is a 1 × 1 convolution
    "convnext_atto": ({}, 32, "head.fc"),
    "mobilenetv3_small_050": ({}, 32, "classifier"),
}
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TOKENS = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 0, 0], [6, 6, 0, 0, 0]])
TEXT = {"input_ids": TOKENS, "attention_mask": (TOKENS != 0).long()}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def timm() -> Any:
    return pytest.importorskip("timm")


@pytest.fixture(scope="module")
def transformers() -> Any:
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("name", TIMM)
def test_embeddings_are_the_features_before_the_classifier_of_timm(name: str, timm: Any) -> None:
    options, size, layer = TIMM[name]
    network, images = timm.create_model(name, num_classes=N_CLASSES, **options), torch.randn(3, 3, size, size)
    outputs = extract(network, [(images, torch.arange(3))])
    network.eval()
    with torch.no_grad():
        assert find_head(network, images)[0].name == layer
        features = network.forward_head(network.forward_features(images), pre_logits=True).flatten(1)
        logits = network(images)
    np.testing.assert_allclose(outputs.embeddings, features.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.logits, logits.numpy(), rtol=1e-4, atol=1e-5)


def bert(transformers: Any) -> tuple[Any, Any]:
    config = transformers.BertConfig(vocab_size=20, num_labels=N_CLASSES, **SIZES)
    network = transformers.BertForSequenceClassification(config).eval()
    return network, lambda: network.bert(**TEXT).pooler_output


def distilbert(transformers: Any) -> tuple[Any, Any]:
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=N_CLASSES
    )
    network = transformers.DistilBertForSequenceClassification(config).eval()
    return network, lambda: torch.relu(network.pre_classifier(network.distilbert(**TEXT).last_hidden_state[:, 0]))


def roberta(transformers: Any) -> tuple[Any, Any]:
    config = transformers.RobertaConfig(vocab_size=20, pad_token_id=0, num_labels=N_CLASSES, **SIZES)
    network = transformers.RobertaForSequenceClassification(config).eval()
    return network, lambda: torch.tanh(network.classifier.dense(network.roberta(**TEXT).last_hidden_state[:, 0]))


def gpt2(transformers: Any) -> tuple[Any, Any]:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(vocab_size=20, n_embd=16, n_layer=2, n_head=2, num_labels=N_CLASSES, **ids)
    network = transformers.GPT2ForSequenceClassification(config).eval()
    last = torch.tensor([4, 2, 1])
    return network, lambda: network.transformer(**TEXT).last_hidden_state[torch.arange(3), last]


@pytest.mark.parametrize("make", [bert, distilbert, roberta, gpt2], ids=lambda make: make.__name__)
def test_embeddings_of_text_classifiers_are_their_own(make: Any, transformers: Any) -> None:
    network, features = make(transformers)
    outputs = extract(network, [{**TEXT, "labels": torch.arange(3)}])
    with torch.no_grad():
        np.testing.assert_allclose(outputs.embeddings, features().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(outputs.logits, network(**TEXT).logits.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(outputs.labels, [0, 1, 2])


def test_embedding_of_a_vision_transformer_is_its_class_token(transformers: Any) -> None:
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_labels=N_CLASSES, **SIZES)
    network, images = transformers.ViTForImageClassification(config).eval(), torch.randn(3, 3, 16, 16)
    outputs = extract(network, [{"pixel_values": images}])
    with torch.no_grad():
        expected = network.vit(images).last_hidden_state[:, 0]
    np.testing.assert_allclose(outputs.embeddings, expected.numpy(), rtol=1e-4, atol=1e-5)
