"""What is missing or cannot be reached is said at once."""

from __future__ import annotations

import socket
import sys

import numpy as np
import pytest

import kcal
from kcal.distributed import connect
from kcal.distributed.engine import check_address
from kcal.distributed.shards import cut


def test_without_ray_the_message_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(kcal.MissingExtraError, match=r"pip install 'kcal\[ray\]'"):
        connect()


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_does_not_answer_is_named(form):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]  # bound, but nobody listens
        with pytest.raises(kcal.InvalidInputError, match=r"must be that of a Ray cluster that runs; got .*refused"):
            check_address(form.format(port))


def test_an_address_has_a_host_and_a_port():
    with pytest.raises(kcal.InvalidInputError, match='address must be "host:port"'):
        check_address("somewhere")
    check_address(None)
    check_address("auto")


def test_shards_end_between_classes_where_one_is_near():
    codes = [0] * 48 + [1] * 52
    (first, second) = cut(np.array(codes), 2)
    assert (first.stop, first.first_class, first.stop_class) == (48, 0, 1)
    assert (second.start, second.stop, second.first_class, second.stop_class) == (48, 100, 1, 2)


def test_a_large_class_is_cut():
    shards = cut(np.array([0] * 10 + [1] * 90), 3)
    assert [(shard.start, shard.stop) for shard in shards] == [(0, 33), (33, 66), (66, 100)]
    assert [(shard.first_class, shard.stop_class) for shard in shards] == [(0, 2), (1, 2), (1, 2)]
