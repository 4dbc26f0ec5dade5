"""Outputs in a folder: the same as in memory, resumed where they were stopped, never half a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from networks import N_CLASSES, sequential
from torch import nn

import kcal
from kcal import FileFormatError, InvalidInputError, extract, read_outputs
from kcal.embeddings import folder as folders

X = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(50) % N_CLASSES


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return sequential()


def batches(stop_after: int | None = None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for index, start in enumerate(range(0, 50, 8)):
        if index == stop_after:
            raise KeyboardInterrupt
        yield X[start : start + 8], Y[start : start + 8]


def assert_same(outputs: kcal.ClassifierOutputs, expected: kcal.ClassifierOutputs) -> None:
    for name in ("embeddings", "logits", "labels"):
        np.testing.assert_array_equal(getattr(outputs, name), getattr(expected, name))


def test_folder_holds_what_memory_would(network: nn.Module, tmp_path: Path) -> None:
    outputs = extract(network, batches(), to=tmp_path / "new" / "folder")
    assert_same(outputs, extract(network, batches()))
    assert isinstance(outputs.embeddings, np.memmap)
    assert_same(read_outputs(tmp_path / "new" / "folder"), outputs)
    runs: list[int] = []
    network.register_forward_hook(lambda *_: runs.append(1))
    extract(network, batches(), to=tmp_path / "new" / "folder")  # complete: one batch is compared
    assert len(runs) == 1
    assert np.load(tmp_path / "new" / "folder" / "logits.npy").shape == (50, N_CLASSES)


@pytest.mark.parametrize(("stop_after", "rows_per_commit"), [(1, 8192), (3, 1), (6, 20)])
def test_stopped_run_resumes(
    stop_after: int, rows_per_commit: int, network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "ROWS_PER_COMMIT", rows_per_commit)
    with pytest.raises(KeyboardInterrupt):
        extract(network, batches(stop_after), to=tmp_path)
    with pytest.raises(InvalidInputError, match=f"stopped after {8 * stop_after} rows.*to resume"):
        read_outputs(tmp_path)
    runs: list[int] = []
    network.register_forward_hook(lambda *_: runs.append(1))
    assert_same(extract(network, batches(), to=tmp_path), extract(sequential_like(network), batches()))
    assert len(runs) == 1 + 7 - stop_after  # the first batch finds the head


def sequential_like(network: nn.Module) -> nn.Sequential:
    copy = sequential()
    copy.load_state_dict(network.state_dict())
    return copy


def test_rows_beyond_the_last_complete_one_are_overwritten(network: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        extract(network, batches(3), to=tmp_path)
    for name in ("embeddings", "logits", "labels"):  # as a killed process leaves them
        with (tmp_path / f"{name}.npy").open("ab") as file:
            file.write(b"half a row")
    assert_same(extract(network, batches(), to=tmp_path), extract(network, batches()))


def test_killed_process_leaves_a_folder_that_resumes(network: nn.Module, tmp_path: Path) -> None:
    torch.save(network.state_dict(), tmp_path / "network.pt")
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from networks import sequential
from test_outputs_folder import batches
from kcal import extract
from kcal.embeddings import folder
folder.ROWS_PER_COMMIT = 16
network = sequential()
network.load_state_dict(torch.load({str(tmp_path / "network.pt")!r}))
def killed():
    for index, batch in enumerate(batches()):
        if index == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
extract(network, killed(), to={str(tmp_path / "out")!r})
"""
    done = subprocess.run([sys.executable, "-c", script], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    assert json.loads((tmp_path / "out" / "outputs.json").read_text())["rows"] == 32
    assert_same(extract(network, batches(), to=tmp_path / "out"), extract(network, batches()))


def test_folder_of_another_network_raises(network: nn.Module, tmp_path: Path) -> None:
    extract(network, batches(), to=tmp_path)
    similar = sequential_like(network)
    with torch.no_grad():
        similar[4].bias[0] += 1e-6
    for other in (sequential(), similar):
        with pytest.raises(InvalidInputError, match=r"^to .* network"):
            extract(other, batches(), to=tmp_path)
    assert_same(read_outputs(tmp_path), extract(network, batches()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ('{"format_version": 1, "rows": "3", "batches": 1, "first": 3, "complete": true, "arrays": []}', "is damaged"),
        ('{"format_version": 9, "rows": 3}', "has version 9"),
    ],
)
def test_damaged_record_raises(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "outputs.json").write_text(content)
    with pytest.raises(FileFormatError, match=message):
        read_outputs(tmp_path)


def test_truncated_or_missing_arrays_raise(network: nn.Module, tmp_path: Path) -> None:
    extract(network, batches(), to=tmp_path)
    path = tmp_path / "embeddings.npy"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(FileFormatError, match=r"embeddings\.npy cannot be read"):
        read_outputs(tmp_path)
    path.unlink()
    with pytest.raises(FileFormatError, match=r"embeddings\.npy cannot be read"):
        read_outputs(tmp_path)


def sized(size: int, n_batches: int | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    parts = [(X[start : start + size], Y[start : start + size]) for start in range(0, 50, size)]
    return parts[:n_batches]


def test_another_batch_size_cannot_resume(network: nn.Module, tmp_path: Path) -> None:
    def stopped() -> Iterator[Any]:
        yield from sized(8)[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(network, stopped(), to=tmp_path)
    with pytest.raises(InvalidInputError, match=r"^to .* first batch"):
        extract(network, sized(16), to=tmp_path)
    uneven = [*sized(8)[:2], (X[16:20], Y[16:20]), (X[20:], Y[20:])]  # the first batches are the same, not the third
    with pytest.raises(InvalidInputError, match=r"^to .* first 3 batches"):
        extract(network, uneven, to=tmp_path)
    with pytest.raises(InvalidInputError, match=r"^to .* 3 batches, not 2"):
        extract(network, sized(8, 2), to=tmp_path)
    assert_same(extract(network, sized(8), to=tmp_path), extract(network, sized(8)))


def test_complete_folder_is_not_extended(network: nn.Module, tmp_path: Path) -> None:
    expected = extract(network, sized(10), to=tmp_path)
    for other in (sized(25), sized(5), sized(10, 2)):
        with pytest.raises(InvalidInputError, match=r"^to .* batch"):
            extract(network, other, to=tmp_path)
    longer = [*sized(10), (X[:3], Y[:3])]
    for more in (longer, iter(longer)):
        with pytest.raises(InvalidInputError, match=r"^to .* complete"):
            extract(network, more, to=tmp_path)
    assert_same(extract(network, sized(10), to=tmp_path), expected)
    assert_same(extract(network, iter(sized(10)), to=tmp_path), expected)


def test_labels_are_neither_lost_nor_added(network: nn.Module, tmp_path: Path) -> None:
    extract(network, sized(10), to=tmp_path / "with")
    extract(network, [points for points, _ in sized(10)], to=tmp_path / "without")
    with pytest.raises(InvalidInputError, match=r"^to .* embeddings, logits"):
        extract(network, [points for points, _ in sized(10)], to=tmp_path / "with")
    with pytest.raises(InvalidInputError, match=r"^to .* embeddings, logits"):
        extract(network, sized(10), to=tmp_path / "without")
    assert read_outputs(tmp_path / "with").labels is not None


def test_files_of_others_are_never_overwritten(network: nn.Module, tmp_path: Path) -> None:
    np.save(tmp_path / "labels.npy", np.arange(7))
    with pytest.raises(InvalidInputError, match=r"^to .*labels\.npy"):
        extract(network, sized(10), to=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / "labels.npy"), np.arange(7))


CHANGES: dict[str, Any] = {
    "inputs": lambda points, labels: (
        torch.where(torch.arange(len(points))[:, None] > 3, points + 1e-6, points),
        labels,
    ),
    "labels": lambda points, labels: (points, (labels + 1) % N_CLASSES),
    "type": lambda points, labels: (points, labels.int()),
    "rows": lambda points, labels: (points[:5], labels[:5]),
    "no labels": lambda points, labels: points,
}


@pytest.mark.parametrize(("change", "stop_after"), [*((change, 4) for change in CHANGES), ("inputs", None)])
def test_other_data_after_the_first_batch_raise(
    change: str, stop_after: int | None, network: nn.Module, tmp_path: Path
) -> None:
    if stop_after is None:
        extract(network, batches(), to=tmp_path)
    else:
        with pytest.raises(KeyboardInterrupt):
            extract(network, batches(stop_after), to=tmp_path)
    record = (tmp_path / "outputs.json").read_text()
    changed = [CHANGES[change](*batch) if index == 3 else batch for index, batch in enumerate(batches())]
    with pytest.raises(InvalidInputError, match=rf"^to .* first {stop_after or 7} batches"):
        extract(network, changed, to=tmp_path)
    assert (tmp_path / "outputs.json").read_text() == record
    assert_same(extract(network, batches(), to=tmp_path), extract(network, batches()))


def test_another_head_raises(network: nn.Sequential, tmp_path: Path) -> None:
    def head(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings = network[:4](points)
        return embeddings * 2, network[4](embeddings)

    extract(network, batches(), to=tmp_path)
    with pytest.raises(InvalidInputError, match=r"^to .* first batch"):
        extract(network, batches(), to=tmp_path, head=head)
    extract(network, batches(), to=tmp_path, head="4")


def test_failure_while_writing_keeps_what_is_complete(
    network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, calls = os.fsync, []

    def fill_up(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 6:  # in the second commit of 16 rows
            raise OSError(28, "No space left on device")
        sync(*arguments)

    monkeypatch.setattr(folders, "ROWS_PER_COMMIT", 16)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fill_up)
        with pytest.raises(OSError, match="No space left"):
            extract(network, batches(), to=tmp_path)
    with pytest.raises(InvalidInputError, match="stopped after 16 rows"):
        read_outputs(tmp_path)
    assert_same(extract(network, batches(), to=tmp_path), extract(network, batches()))


@pytest.mark.parametrize("place", ["mkdir", "open"])
def test_folder_that_cannot_be_written_raises(
    place: str, network: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def frozen(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    folder = tmp_path / "new"
    if place == "open":  # the lock of a folder that exists
        folder.mkdir()
    monkeypatch.setattr(*((Path, "mkdir") if place == "mkdir" else (os, "open")), frozen)
    with pytest.raises(InvalidInputError, match=r"^to .*Read-only file system"):
        extract(network, sized(10), to=folder)
