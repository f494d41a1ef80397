"""The link of one rank: slots to write and read, and the turn-taking around them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from labkit.ranks.shm import calls
from labkit.ranks.shm.board import Board
from labkit.ranks.shm.errors import Mismatch, PeerLeft, ShmError
from labkit.ranks.shm.reduction import Reducer, reducer
from labkit.ranks.shm.segment import Layout

CACHED = 4096  # views and plans kept, at least

Piece = tuple[int, int]  # elements from, to


class Plan:
    """What one shape needs for an all_reduce in one piece, found once."""

    __slots__ = ("call", "numel", "parts", "reduce")

    def __init__(self, call: int, numel: int, parts: tuple[list[Tensor], list[Tensor]], reduce: Reducer):
        self.call, self.numel, self.parts, self.reduce = call, numel, parts, reduce


class Link:
    """The segment as one rank uses it. One collective at a time; a second thread waits for the first."""

    def __init__(self, memory: Any, board: Board, layout: Layout):
        self.board, self.layout = board, layout
        self.rank, self.size = board.rank, board.size
        self._lock = threading.Lock()
        with torch.inference_mode(False):  # a slot must stay writable outside inference mode too
            whole = torch.frombuffer(memory, dtype=torch.uint8)
        self._slots = [
            [
                whole[start : start + layout.slot_bytes]
                for start in (layout.slot(r, parity) for r in range(self.size))
            ]
            for parity in (0, 1)
        ]
        self._views: dict[Any, Tensor] = {}
        self._plans: dict[Any, Plan | None] = {}

    def room(self, dtype: torch.dtype, blocks: int = 1) -> int:
        """How many elements fit in a slot that is cut into `blocks` blocks."""
        return self.layout.slot_bytes // blocks // 64 * 64 // dtype.itemsize

    def view(
        self, parity: int, rank: int, dtype: torch.dtype, shape: Any, block: int = 0, blocks: int = 1
    ) -> Tensor:
        """The front of a slot, or of a block of it, as a tensor."""
        key = (parity, rank, dtype, shape, block, blocks)
        found = self._views.get(key)
        if found is None:
            if len(self._views) >= CACHED:
                self._views.clear()
            numel = shape if isinstance(shape, int) else shape.numel()
            start = block * self.room(dtype, blocks) * dtype.itemsize
            with torch.inference_mode(False):
                raw = self._slots[parity][rank][start : start + numel * dtype.itemsize]
                found = raw.view(dtype).view(shape)
            self._views[key] = found
        return found

    def pieces(self, numel: int, dtype: torch.dtype, blocks: int = 1) -> list[Piece]:
        """The pieces in which `numel` elements go through; one, of nothing, for an empty tensor."""
        room = self.room(dtype, blocks)
        if numel <= room:
            return [(0, numel)]
        return [(low, min(low + room, numel)) for low in range(0, numel, room)]

    def run(
        self,
        call: int,
        numel: int,
        pieces: Iterable[Piece],
        put: Callable[[int, int, int], None],
        take: Callable[[int, int, int], None],
        opts: Any,
    ) -> None:
        """For each piece: put it in the slot, meet the others, take what they put. `put(parity, from, to)`."""
        board = self.board
        with self._lock:
            self.check_open()
            try:
                for low, high in pieces:
                    parity = board.next_turn()
                    put(parity, low, high)
                    board.meet(call, numel, opts)
                    take(parity, low, high)
            except BaseException as error:
                self.give_up(call, numel, error)
                raise

    def all_reduce(self, tensor: Tensor, reduction: int, opts: Any) -> bool:
        """Reduce a contiguous tensor in place; False, and nothing done, when it takes more than one piece.

        This is `run` written out: the call that must be fast.
        """
        key = (tensor.dtype, tensor.shape, reduction)
        plan = self._plans.get(key)
        if plan is None:
            if key not in self._plans:
                self._plans[key] = plan = self._plan(*key)
            if plan is None:
                return False
        board = self.board
        with self._lock:
            if board.failed:
                self.check_open()
            try:
                parts = plan.parts[board.next_turn()]
                parts[self.rank].copy_(tensor)
                board.meet(plan.call, plan.numel, opts)
                plan.reduce(parts, tensor)
            except BaseException as error:
                self.give_up(plan.call, plan.numel, error)
                raise
        return True

    def _plan(self, dtype: torch.dtype, shape: torch.Size, reduction: int) -> Plan | None:
        reduce = reducer(reduction, dtype, self.size)
        if len(self._plans) >= CACHED:
            self._plans.clear()
        if shape.numel() > self.room(dtype):
            return None
        even, odd = ([self.view(p, r, dtype, shape) for r in range(self.size)] for p in (0, 1))
        return Plan(calls.pack("all_reduce", dtype, reduction), shape.numel(), (even, odd), reduce)

    def check_open(self) -> None:
        if self.board.failed:
            raise ShmError(f"this group ended earlier and cannot be used again: {self.board.failed}")

    def give_up(self, call: int, numel: int, error: BaseException) -> None:
        if isinstance(error, Mismatch):
            self.board.fail(str(error), Mismatch)
        else:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self.board.fail(f"rank {self.rank} stopped in {calls.unpack(call, numel)}: {said}", PeerLeft)

    def close(self) -> None:
        """Leave the group and let go of the memory; the last rank to do so frees it."""
        with self._lock:
            self.board.close()
            self._plans, self._views, self._slots = {}, {}, []
