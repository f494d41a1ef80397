"""The link of one rank into a group: how it joins, its views of the slots, and the turns of a collective."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.shm import operations
from labkit.shm.board import Board
from labkit.shm.errors import Deadline, Mismatch, OutOfMemory, PeerLeft, ShmError
from labkit.shm.operations import Reducer, reducer
from labkit.shm.segment import MAX_RANKS, Layout, Ticket, attach, create

CACHED = 4096  # views and plans kept, at least

TICKET = "segment"
_NONE = "none: "  # instead of a ticket
_PATIENCE = timedelta(seconds=0.5)  # the store waits in C++, where an interrupt does not reach it

Piece = tuple[int, int]  # elements from, to


class Plan:
    """What an all_reduce of one shape and dtype in one piece needs, computed once."""

    __slots__ = ("call", "numel", "parts", "reduce")

    def __init__(self, call: int, numel: int, parts: tuple[list[Tensor], list[Tensor]], reduce: Reducer):
        self.call, self.numel, self.parts, self.reduce = call, numel, parts, reduce


class Link:
    """One rank's use of the segment; a collective of a second thread waits for that of the first.

    Args:
        memory: The shared segment.
        board: The control pages in it.
        layout: Where the slots are.
    """

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
        """Return how many elements of `dtype` fit into a block of a slot that is cut into `blocks`.

        Args:
            dtype: The dtype.
            blocks: Number of blocks.
        """
        return self.layout.slot_bytes // blocks // 64 * 64 // dtype.itemsize

    def view(
        self, parity: int, rank: int, dtype: torch.dtype, shape: Any, block: int = 0, blocks: int = 1
    ) -> Tensor:
        """Return the front of a rank's slot, or of a block of it, as a tensor of `shape` (a size or torch.Size).

        Args:
            parity: Which of the two slots: 0 or 1.
            rank: Whose slot.
            dtype: The dtype of the tensor.
            shape: Number of elements, or a torch.Size.
            block: Which block of the slot.
            blocks: Number of blocks that the slot is cut into.
        """
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
        """Return the pieces (from, to) in which `numel` elements go through; an empty tensor is one empty piece.

        Args:
            numel: Number of elements.
            dtype: Their dtype.
            blocks: Number of blocks that a slot is cut into.
        """
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
        """Run a collective: for each piece put it into the slot, meet the peers, and take what they have put.

        Args:
            call: The packed call.
            numel: Number of elements, which the peers compare.
            pieces: The pieces (from, to) in elements.
            put: Writes a piece into this rank's slot; called with the slot's parity, from and to.
            take: Reads the peers' slots; called likewise.
            opts: c10d's options.

        Raises:
            ShmError: If the collective fails; the group refuses every later call then.
        """
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
        """Reduce a contiguous tensor in place, if it fits into one piece. It is `run` written out, to be fast.

        Args:
            tensor: A contiguous CPU tensor.
            reduction: The index in `operations.REDUCTIONS`.
            opts: c10d's options, of which the timeout is used.

        Returns:
            Whether it was reduced; False if it takes more than one piece.
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
        return Plan(operations.pack("all_reduce", dtype, reduction), shape.numel(), (even, odd), reduce)

    def check_open(self) -> None:
        """Raise ShmError if the group has failed or was closed."""
        if self.board.failed:
            raise ShmError(f"this group ended earlier and cannot be used again: {self.board.failed}")

    def give_up(self, call: int, numel: int, error: BaseException) -> None:
        """Tell the peers that this rank's call failed, and why.

        Args:
            call: The packed call.
            numel: Its number of elements.
            error: What was raised in it.
        """
        if isinstance(error, Mismatch):
            self.board.fail(str(error), Mismatch)
        else:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            self.board.fail(f"rank {self.rank} stopped in {operations.unpack(call, numel)}: {said}", PeerLeft)

    def close(self) -> None:
        """Leave the group and unmap the memory, which is freed when the last rank has done so."""
        with self._lock:
            self.board.close()
            self._plans, self._views, self._slots = {}, {}, []


def join(store: Any, rank: int, size: int, timeout: float) -> tuple[Link, str]:
    """Join a group: rank 0 makes the memory, the others get a ticket for it through the store.

    Args:
        store: The rendezvous store of the group.
        rank: This rank.
        size: Number of ranks, at most MAX_RANKS.
        timeout: Seconds to wait for the others, and later the timeout of collectives.

    Returns:
        The link, and a token that no other group has.

    Raises:
        ShmError: If the memory cannot be made or opened.
        Deadline: If ranks did not come, with their names.
        ValueError: If there are more than MAX_RANKS ranks.
    """
    if size > MAX_RANKS:
        raise ValueError(f"shm carries up to {MAX_RANKS} ranks, got {size}")
    layout = Layout(size)
    if rank == 0:
        try:
            with create(layout) as (memory, ticket):
                board = Board(memory, rank, size, timeout)
                board.sign_in()
                store.set(TICKET, ticket.dumps())
                _wait_for_all(board, store, ticket)
        except OutOfMemory as error:
            store.set(TICKET, f"{_NONE}{error}")
            raise
        store.delete_key(TICKET)  # the same store may carry another group of this name later
    else:
        ticket = _ticket(store, rank, timeout)
        try:
            memory = attach(ticket, layout)
        except ShmError as error:
            store.set(_refusal(ticket), f"rank {rank}: {error}")
            raise
        board = Board(memory, rank, size, timeout)
        board.sign_in()
    return Link(memory, board, layout), ticket.token


def _refusal(ticket: Ticket) -> str:
    return f"refused/{ticket.token}"


def _ticket(store: Any, rank: int, timeout: float) -> Ticket:
    since = time.monotonic()
    while True:
        try:
            store.wait([TICKET], _PATIENCE)
        except dist.DistStoreError:
            waited = time.monotonic() - since
            if waited >= timeout:
                raise Deadline(f"rank {rank} waited {waited:.1f} s for rank 0 to make the group") from None
            continue
        text = store.get(TICKET).decode()
        if text.startswith(_NONE):
            raise OutOfMemory(f"rank 0 could not make the group: {text.removeprefix(_NONE)}")
        return Ticket.loads(text)


def _wait_for_all(board: Board, store: Any, ticket: Ticket) -> None:
    since = time.monotonic()
    look = since + 0.2
    while missing := [rank for rank in range(board.size) if not board.peer(rank)]:
        now = time.monotonic()
        if now >= look:
            look = now + 0.2
            if store.check([_refusal(ticket)]):
                raise ShmError(store.get(_refusal(ticket)).decode())
            if now - since >= board.timeout:
                names = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                raise Deadline(f"rank 0 waited {now - since:.1f} s for {names} to join the group")
        time.sleep(1e-4)
