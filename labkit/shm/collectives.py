"""The collectives on flat tensors: what each rank puts into its slot, and what it takes from the slots of the others.

Every rank takes part in every turn, even if it has nothing to put or to take, because turns keep the slots apart.
In every function `opts` are c10d's options of the call; only its timeout is used here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.shm import operations
from labkit.shm.errors import Mismatch
from labkit.shm.link import Link
from labkit.shm.operations import reducer


def _cut(tensor: Tensor, low: int, high: int) -> Tensor:
    # most tensors go through in one piece, and cutting that costs as much as copying it
    return tensor if high - low == tensor.numel() else tensor[low:high]


def _nothing(parity: int, low: int, high: int) -> None:
    pass


def _putting(link: Link, tensor: Tensor) -> Callable[[int, int, int], None]:
    def put(parity: int, low: int, high: int) -> None:
        link.view(parity, link.rank, tensor.dtype, high - low).copy_(_cut(tensor, low, high))

    return put


def barrier(link: Link, opts: Any) -> None:
    """Return when every rank has called it.

    Args:
        link: This rank's link into the group.
        opts: c10d's options, of which the timeout is used.
    """
    link.run(operations.pack("barrier"), 0, [(0, 0)], _nothing, _nothing, opts)


def reduce(link: Link, tensor: Tensor, reduction: int, root: int | None, opts: Any) -> None:
    """Reduce `tensor` in place: on the root, or on every rank if root is None (all_reduce).

    Args:
        link: This rank's link into the group.
        tensor: A flat tensor, of one length and dtype on all ranks.
        reduction: The index in `operations.REDUCTIONS`.
        root: The rank that gets the result; None for all.
        opts: c10d's options, of which the timeout is used.
    """
    dtype, numel = tensor.dtype, tensor.numel()
    into = reducer(reduction, dtype, link.size)

    def take(parity: int, low: int, high: int) -> None:
        if root is None or root == link.rank:
            into([link.view(parity, r, dtype, high - low) for r in range(link.size)], _cut(tensor, low, high))

    op = "all_reduce" if root is None else "reduce"
    call = operations.pack(op, dtype, reduction, root or 0)
    link.run(call, numel, link.pieces(numel, dtype), _putting(link, tensor), take, opts)


def gather(link: Link, outputs: Sequence[Tensor] | None, tensor: Tensor, root: int | None, opts: Any) -> None:
    """Copy every rank's `tensor` into the outputs of the root, or of every rank if root is None (all_gather).

    Args:
        link: This rank's link into the group.
        outputs: A flat tensor for each rank, each like `tensor`; None or empty on ranks that get nothing.
        tensor: A flat tensor, of one length and dtype on all ranks.
        root: The rank that gets the tensors; None for all.
        opts: c10d's options, of which the timeout is used.
    """
    dtype, numel = tensor.dtype, tensor.numel()

    def take(parity: int, low: int, high: int) -> None:
        for rank, output in enumerate(outputs or ()):
            _cut(output, low, high).copy_(link.view(parity, rank, dtype, high - low))

    call = operations.pack("all_gather" if root is None else "gather", dtype, 0, root or 0)
    link.run(call, numel, link.pieces(numel, dtype), _putting(link, tensor), take, opts)


def broadcast(link: Link, tensor: Tensor, root: int, opts: Any) -> None:
    """Copy the root's `tensor` into that of every other rank.

    Args:
        link: This rank's link into the group.
        tensor: A flat tensor, of one length and dtype on all ranks.
        root: The rank that sends.
        opts: c10d's options, of which the timeout is used.
    """
    dtype, numel = tensor.dtype, tensor.numel()

    def take(parity: int, low: int, high: int) -> None:
        if root != link.rank:
            _cut(tensor, low, high).copy_(link.view(parity, root, dtype, high - low))

    put = _putting(link, tensor) if root == link.rank else _nothing
    link.run(operations.pack("broadcast", dtype, 0, root), numel, link.pieces(numel, dtype), put, take, opts)


def reduce_scatter(link: Link, output: Tensor, inputs: Sequence[Tensor], reduction: int, opts: Any) -> None:
    """Reduce the ranks' lists of `inputs` item by item; rank i gets item i as its output.

    Args:
        link: This rank's link into the group.
        output: A flat tensor.
        inputs: A flat tensor for each rank, each like `output`.
        reduction: The index in `operations.REDUCTIONS`.
        opts: c10d's options, of which the timeout is used.
    """
    dtype, numel, n = output.dtype, output.numel(), link.size
    into = reducer(reduction, dtype, n)

    def put(parity: int, low: int, high: int) -> None:
        for to in range(n):
            link.view(parity, link.rank, dtype, high - low, to, n).copy_(_cut(inputs[to], low, high))

    def take(parity: int, low: int, high: int) -> None:
        into(
            [link.view(parity, r, dtype, high - low, link.rank, n) for r in range(n)], _cut(output, low, high)
        )

    call = operations.pack("reduce_scatter", dtype, reduction)
    link.run(call, numel, link.pieces(numel, dtype, n), put, take, opts)


def scatter(link: Link, output: Tensor, inputs: Sequence[Tensor] | None, root: int, opts: Any) -> None:
    """Copy `inputs[i]` of the root into the output of rank i; inputs of other ranks are None or empty.

    Args:
        link: This rank's link into the group.
        output: A flat tensor.
        inputs: On the root, a flat tensor for each rank, each like `output`.
        root: The rank that sends.
        opts: c10d's options, of which the timeout is used.
    """
    dtype, numel, n = output.dtype, output.numel(), link.size

    def put(parity: int, low: int, high: int) -> None:
        for to, tensor in enumerate(inputs or ()):
            link.view(parity, root, dtype, high - low, to, n).copy_(_cut(tensor, low, high))

    def take(parity: int, low: int, high: int) -> None:
        _cut(output, low, high).copy_(link.view(parity, root, dtype, high - low, link.rank, n))

    call = operations.pack("scatter", dtype, 0, root)
    link.run(call, numel, link.pieces(numel, dtype, n), put, take, opts)


def all_to_all(
    link: Link, outputs: Sequence[Tensor], inputs: Sequence[Tensor], dtype: torch.dtype, opts: Any
) -> None:
    """Send `inputs[i]` to rank i and receive `outputs[i]` from it; lengths may differ between pairs.

    Args:
        link: This rank's link into the group.
        outputs: A flat tensor from each rank.
        inputs: A flat tensor for each rank.
        dtype: The dtype of all of them.
        opts: c10d's options, of which the timeout is used.

    Raises:
        Mismatch: On every rank, if a rank sends another number of elements than its peer expects.
    """
    n, me, words = link.size, link.rank, link.board.words
    room = link.room(dtype, n)
    counts = [t.numel() for t in (*inputs, *outputs)]
    longest = [0]

    def put(parity: int, low: int, high: int) -> None:
        if low == 0:
            words[link.board.table(me, parity)] = memoryview(array("q", counts))
        for to, tensor in enumerate(inputs):
            count = min(counts[to] - low, room)
            if count > 0:
                link.view(parity, me, dtype, count, to, n).copy_(_cut(tensor, low, low + count))

    def take(parity: int, low: int, high: int) -> None:
        if low == 0:
            longest[0] = _agree([words[link.board.table(r, parity)].tolist() for r in range(n)])
        for rank, tensor in enumerate(outputs):
            count = min(counts[n + rank] - low, room)
            if count > 0:
                _cut(tensor, low, low + count).copy_(link.view(parity, rank, dtype, count, me, n))

    def pieces() -> Any:
        # how many there are is known once the first has shown the longest message of any pair
        yield 0, room
        low = room
        while low < longest[0]:
            yield low, low + room
            low += room

    link.run(operations.pack("all_to_all", dtype), 0, pieces(), put, take, opts)


def _agree(tables: list[list[int]]) -> int:
    """The longest message of any pair, once all pairs agree. Every rank sees all tables, so all raise alike."""
    n = len(tables)
    for source in range(n):
        for target in range(n):
            sent, expected = tables[source][target], tables[target][n + source]
            if sent != expected:
                raise Mismatch(
                    f"ranks disagree in all_to_all: rank {source} sends {sent} elements to rank {target}, "
                    f"which expects {expected}"
                )
    return max(max(table[:n]) for table in tables)
