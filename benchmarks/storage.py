"""Storage that KCal needs in addition to the network, for the networks of the paper."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kcal import KCal, load_example, save

NETWORKS = {
    # name: (parameters, calibration samples, embedding dimension)
    "ViT-B/16": (85_800_000, 5_000, 768),
    "Mixer-B/16": (59_100_000, 5_000, 768),
    "ResNet-50": (25_600_000, 25_000, 2048),
    "ResNet-56 (CIFAR)": (856_000, 3_000, 64),
}


def projection_parameters(n_features: int, dimension: int) -> int:
    """Return the number of scalars of a projection: batch norm, linear map with bias, second linear map."""
    return 4 * n_features + n_features * dimension + dimension + dimension**2


def main(console: Console) -> None:
    """Print the number of scalars that KCal stores, and its ratio to those of the network."""
    table = Table(
        "network", "its parameters", "support n × d", "support", "projection", "support / network", "all / network"
    )
    table.title = "What KCal stores"
    for name, (parameters, n_support, n_features) in NETWORKS.items():
        dimension = 128 if n_support == 25_000 else min(n_features, 32)
        support, projection = n_support * dimension, projection_parameters(n_features, dimension)
        table.add_row(
            name,
            f"{parameters:,}",
            f"{n_support:,} × {dimension}",
            f"{support:,}",
            f"{projection:,}",
            f"{support / parameters:.1%}",
            f"{(support + projection) / parameters:.1%}",
        )
    console.print(table)
    example = load_example()
    calibrator = KCal(projection="identity").fit(example.calibration.embeddings[:, :32], example.calibration.labels)
    with tempfile.TemporaryDirectory() as folder:
        size = save(calibrator, Path(folder) / "example.kcal").stat().st_size
    n_parameters = sum(weight.numel() for weight in example.network_weights().values())
    console.print(
        f"The embedded example: {len(example.calibration):,} × 32 in a file of {size / 1e3:,.0f} kB, "
        f"beside a network of {4 * n_parameters / 1e3:,.0f} kB\n"
    )
