"""What readers of a page have: trained models with random weights, and data, as files in the folder of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

WORDS = {"praise": "good great fine", "complaint": "bad broken late", "question": "when where how"}
COLOURS = {"blue": (40, 60, 220), "green": (60, 200, 60), "red": (220, 60, 40)}


def language_model(folder: Path) -> None:
    """Write a small BERT with its tokenizer, and tables of texts and labels."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", *" ".join(WORDS.values()).split(), "the", "parcel", "was"]
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 32}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / "my-model")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(words), id2label=dict(enumerate(WORDS)), **sizes)
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "my-model")
    random = np.random.default_rng(0)
    for name in ("calibration", "new"):
        labels = random.integers(3, size=150)
        choices = [list(WORDS.values())[label].split() for label in labels]
        texts = [" ".join(["the parcel was", *random.choice(words, 12)]) for words in choices]
        pd.DataFrame({"text": texts, "label": labels}).to_csv(folder / f"{name}.csv", index=False)


def image_folders(folder: Path, network: torch.nn.Module) -> None:
    """Write the weights of a network, and folders of small images, each of the colour of its class and noise."""
    from PIL import Image

    torch.save(network.state_dict(), folder / "weights.pt")
    random = np.random.default_rng(0)
    for part in ("calibration", "new"):
        for name, colour in COLOURS.items():
            place = folder / "images" / part / name
            place.mkdir(parents=True)
            for number in range(20):
                pixels = np.clip(random.normal(colour, 60, size=(32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.png")


def timm_model(folder: Path) -> None:
    timm = pytest.importorskip("timm")
    image_folders(folder, timm.create_model("mobilenetv3_small_050", num_classes=3))


def torchvision_model(folder: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    image_folders(folder, models.mobilenet_v3_small(num_classes=3))


def needs(package: str) -> Any:
    """Return a preparation of a page that needs nothing but a package."""
    return lambda folder: pytest.importorskip(package)


PREPARED = {
    "docs/how-to/huggingface.md": language_model,
    "docs/how-to/timm.md": timm_model,
    "docs/how-to/torchvision.md": torchvision_model,
    "docs/how-to/lightning.md": needs("pytorch_lightning"),
    "docs/how-to/prediction-sets.md": needs("mapie"),
}
"""What writes the files that a page begins with."""
