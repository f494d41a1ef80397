"""Two messages to one peer in one batch: told where they cross, silent where order or meaning are right."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oddrank.live import messages
from oddrank.look.crossed import Batches, crossed


def isend() -> None: ...


def irecv() -> None: ...


def batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
    for _ in p2p_op_list:
        messages._tell_batch(sys._getframe())  # as a process group's `send` does
    return []


def P2POp(op: Callable[..., Any], tensor: torch.Tensor, peer: int, tag: int = 0) -> Any:
    return SimpleNamespace(op=op, tensor=tensor, peer=peer, tag=tag, group=None)


class Ring:
    def __init__(self, rank: int, size: int) -> None:
        self.above = (rank + 1) % size
        self.below = (rank - 1 + size) % size


def tensors(count: int = 4) -> list[torch.Tensor]:
    return [torch.ones(2, 3) for _ in range(count)]


def halo(rank: int, size: int) -> None:
    a, b, c, d = tensors()
    up, down = (rank + 1) % size, (rank - 1) % size
    ops = [P2POp(isend, a, up), P2POp(irecv, b, up), P2POp(isend, c, down), P2POp(irecv, d, down)]
    batch_isend_irecv(ops)


def stages(rank: int, size: int) -> None:
    a, b, c, d = tensors()
    ring, ops = Ring(rank, size), []
    ops.append(P2POp(isend, a, ring.below))
    ops.append(P2POp(irecv, b, ring.below))
    if rank >= 0:
        ops.append(P2POp(isend, c, peer=ring.above))
    ops.append(P2POp(irecv, d, ring.above))
    batch_isend_irecv(ops)


def one_of_two_orders(rank: int, size: int) -> None:
    a, b, c, d = tensors()
    up, down = (rank + 1) % size, (rank - 1) % size
    if rank < 0:
        ops = [
            P2POp(isend, a, up, 1),
            P2POp(irecv, d, down, 1),
            P2POp(isend, c, down, 2),
            P2POp(irecv, b, up, 2),
        ]
    else:
        ops = [
            P2POp(isend, a, up),
            P2POp(isend, c, down),
            P2POp(irecv, tensor=b, peer=up),
            P2POp(irecv, d, down),
        ]
    for _ in batch_isend_irecv(ops):
        pass


def opposite_order(rank: int, size: int) -> None:
    a, b, c, d = tensors()
    up, down = (rank + 1) % size, (rank - 1) % size
    batch_isend_irecv(
        [P2POp(isend, a, up), P2POp(isend, c, down), P2POp(irecv, d, down), P2POp(irecv, b, up)]
    )


def keys_and_values(rank: int, size: int) -> None:
    k, v, other_k, other_v = tensors()
    up, down = (rank + 1) % size, (rank - 1) % size
    batch_isend_irecv(
        [P2POp(isend, k, up), P2POp(isend, v, up), P2POp(irecv, other_k, down), P2POp(irecv, other_v, down)]
    )


def partners(rank: int, size: int) -> None:
    a, b, c, d = tensors()
    near, far = rank ^ 1, size - 1 - rank
    batch_isend_irecv(
        [P2POp(isend, a, near), P2POp(irecv, b, near), P2POp(isend, c, far), P2POp(irecv, d, far)]
    )


def tags(rank: int, size: int) -> None:
    a, b, c, d = tensors()
    up, down = (rank + 1) % size, (rank - 1) % size
    ops = [P2POp(isend, a, up, 1), P2POp(irecv, b, up, 2), P2POp(isend, c, down, 2), P2POp(irecv, d, down, 1)]
    batch_isend_irecv(ops)


def shapes(rank: int, size: int) -> None:
    a, b = tensors(2)
    c, d = a[:1], b[:1]
    up, down = (rank + 1) % size, (rank - 1) % size
    batch_isend_irecv(
        [P2POp(isend, a, up), P2POp(irecv, d, up), P2POp(isend, c, down), P2POp(irecv, b, down)]
    )


def in_a_loop(rank: int, size: int) -> None:
    ops = []
    for peer in ((rank + 1) % size, (rank - 1) % size):
        a, b = tensors(2)
        ops += [P2POp(isend, a, peer), P2POp(irecv, b, peer)]
    batch_isend_irecv(ops)


def told(exchange: Callable[[int, int], None], size: int) -> list[str]:
    noted = Batches()
    with noted.watching():
        for _ in range(2):
            exchange(1, size)
    assert messages.batches == []
    return [f"{one.place}: {one.said}" for one in crossed(noted.table().assign(rank=1))]


@pytest.mark.parametrize(
    ("exchange", "names"),
    [(halo, ("up", "down")), (stages, ("ring.below", "ring.above")), (one_of_two_orders, ("up", "down"))],
)
def test_messages_that_cross_are_told_once_with_their_line(exchange, names):
    (said,) = told(exchange, 2)
    assert said.startswith("test_crossed.py:") and f"({exchange.__name__})" in said
    assert f"two messages to rank 0 cross in one batch: the ones to `{names[0]}` and to `{names[1]}`" in said
    assert told(exchange, 3) == [], "with three ranks the neighbours are two"


@pytest.mark.parametrize("exchange", [opposite_order, keys_and_values, partners, tags, shapes, in_a_loop])
def test_messages_that_arrive_where_they_belong_are_not_told(exchange):
    assert told(exchange, 2) == []
