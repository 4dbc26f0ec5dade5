"""How the network of each data set is trained: one table, after the appendix "Training Details" of the paper.

As in the published code, SGD has no momentum, the 50 epochs of a cosine schedule are 40 and 10 of cool-down, and the
last checkpoint is the one in use. What the paper leaves open and is filled in here: the cosine starts and ends at 1e-5
(timm's, which changes it once an epoch; here with every batch), augmentation of images is timm's (random resized crops,
and flips except for digits), and the plateau rule of PN2017 monitors the log-loss of a validation part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kcal.errors import InvalidInputError

LOSSES = ("cross-entropy", "focal", "mmce")


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    Attributes
    ----------
    network : str
        A name of ``experiments.paper.networks.NETWORKS``.
    epochs : int
        Epochs of the schedule. With 0 the network stays as it is built: pretrained.
    learning_rate : float
        The highest.
    optimizer : "sgd" or "adamw"
    weight_decay : float
    batch_size : int
    schedule : "cosine", "plateau" or "constant"
        Cosine, changed with every batch, after ``warmup_epochs``, then ``cooldown_epochs`` more at the lowest rate; or
        half the rate whenever the validation loss has not improved for 10 epochs.
    warmup_epochs, cooldown_epochs : int
    smoothing : float
        Of the labels, in the cross-entropy; vote distributions are not smoothed.
    balance : float, optional
        An epoch draws as many samples as there are without the oversampled ones, class k with a share ∝ n_k^(1 −
        balance): 1 draws all classes equally often, 0 as they are. None: every training sample once.
    augment : bool
        Random crops of images; scale, sign, tempo, position and noise of signals.
    flip : bool
        Images are flipped at random.
    image_size : int
        Height and width to which images are resized.
    crop_share : float
        Share of the shorter side of a file's image that is kept in its middle.
    keep : "last" or "best"
        The checkpoint to use: the last one, or that of the best validation macro-F1.
    max_gradient : float, optional
        Norm to which gradients are clipped.
    by_group : bool
        Whether the validation score is by group: the groups are recordings of one class each.
    bfloat16 : bool
        Train in mixed precision.
    sizes : mapping
        Arguments of the network.
    """

    network: str
    epochs: int
    learning_rate: float
    optimizer: str = "sgd"
    weight_decay: float = 1e-4
    batch_size: int = 128
    schedule: str = "cosine"
    warmup_epochs: int = 0
    cooldown_epochs: int = 0
    smoothing: float = 0.1
    balance: float | None = None
    augment: bool = False
    flip: bool = False
    image_size: int = 224
    crop_share: float = 1.0
    keep: str = "last"
    max_gradient: float | None = None
    by_group: bool = False
    bfloat16: bool = False
    sizes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def all_epochs(self) -> int:
        """Epochs of the schedule and those after it."""
        return self.epochs + self.cooldown_epochs


CIFAR = Settings(
    "vit", epochs=40, learning_rate=2e-4, warmup_epochs=3, cooldown_epochs=10, augment=True, flip=True, sizes={}
)
SETTINGS: dict[str, Settings] = {
    "cifar10": CIFAR,
    "cifar100": CIFAR,
    "svhn": replace(CIFAR, flip=False),
    "imagenet": Settings(
        "inception-resnet-v2", epochs=0, learning_rate=0.0, image_size=299, crop_share=0.8975, batch_size=64
    ),
    "isruc": Settings("spectrogram-resnet", epochs=40, learning_rate=5e-3, warmup_epochs=3, cooldown_epochs=10),
    "iiic": Settings(
        "spectrogram-resnet",
        epochs=100,  # the paper does not say
        learning_rate=1e-3,
        optimizer="adamw",
        weight_decay=1e-5,
        schedule="constant",
    ),
    "pn2017": Settings("mina", epochs=100, learning_rate=1e-2, schedule="plateau", by_group=True),
}
"""The paper's settings by data set; ``network`` is the first where it has two."""

SHORT: dict[str, Settings] = {
    "pn2017": replace(
        SETTINGS["pn2017"],
        epochs=16,
        learning_rate=3e-3,
        optimizer="adamw",
        weight_decay=0.02,
        batch_size=64,
        schedule="cosine",
        warmup_epochs=2,
        balance=0.5,
        augment=True,
        keep="best",
        max_gradient=5.0,
        bfloat16=True,
    )
}
"""Settings for a processor, with a fifth of the epochs or less."""


def settings_for(name: str, *, short: bool = False, **changes: Any) -> Settings:
    """Return the settings of a data set with some changed; a change to None keeps the table's."""
    table = SHORT if short else SETTINGS
    if name not in table:
        which = "short settings" if short else "settings"
        raise InvalidInputError("data", f"must be one of {', '.join(table)} to have {which}", got=repr(name))
    return replace(table[name], **{key: value for key, value in changes.items() if value is not None})
