"""Threads: limits are restored, blocks come in order, and every block runs on one thread."""

from __future__ import annotations

import threading

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from kcal.threads import LARGE_OPERATION, allowed_threads, map_blocks, one_thread, threads_for

CPU = torch.device("cpu")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.mark.usefixtures("three_threads")
def test_small_operations_run_on_one_thread_and_blocks_on_all():
    with threads_for(LARGE_OPERATION - 1):
        assert torch.get_num_threads() == 1
        assert blas_threads() == {1}
        assert allowed_threads() == 3
        with threads_for(0):
            assert allowed_threads() == 3
    assert torch.get_num_threads() == allowed_threads() == 3


def test_the_last_of_several_threads_restores_the_limit_of_blas():
    before, entered, leave = blas_threads(), threading.Event(), threading.Event()

    def compute():
        with threads_for(0):
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=compute)
    with threadpool_limits(2, user_api="blas"):
        with threads_for(0):
            other.start()
            assert entered.wait(60)
        assert blas_threads() == {1}  # the other thread still computes
        leave.set()
        other.join()
        assert blas_threads() == {2}
    assert blas_threads() == before


@pytest.mark.usefixtures("three_threads")
def test_large_operations_keep_their_threads():
    with threads_for(LARGE_OPERATION):
        assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_one_thread_holds_for_blocks_too():
    with one_thread():
        assert allowed_threads() == torch.get_num_threads() == 1
        assert set(map_blocks(lambda _: threading.get_ident(), range(8), CPU)) == {threading.get_ident()}
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_limits_are_restored_after_an_error():
    with pytest.raises(ZeroDivisionError), threads_for(0):
        _ = 1 / 0
    assert torch.get_num_threads() == allowed_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_blocks_come_in_order_each_on_one_thread_without_gradients_if_there_are_none():
    together = threading.Barrier(3, timeout=60)  # breaks unless three blocks run at the same time

    def compute(block: int) -> tuple[int, int, bool]:
        together.wait()
        return block, torch.get_num_threads(), torch.is_grad_enabled()

    with torch.no_grad():
        assert map_blocks(compute, range(6), CPU) == [(block, 1, False) for block in range(6)]
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_error_in_a_block_reaches_the_caller():
    def compute(block: int) -> int:
        if block == 2:
            raise ValueError("block 2")
        return block

    with pytest.raises(ValueError, match="block 2"):
        map_blocks(compute, range(6), CPU)


def test_other_devices_take_their_blocks_one_after_the_other():
    assert set(map_blocks(lambda _: threading.get_ident(), range(4), torch.device("meta"))) == {threading.get_ident()}
