"""How the ranks of a group find the memory they share: rank 0 makes it, the others get a ticket through the store."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from labkit.ranks.shm.board import Board
from labkit.ranks.shm.errors import Deadline, OutOfMemory, ShmError
from labkit.ranks.shm.link import Link
from labkit.ranks.shm.segment import MAX_RANKS, Layout, Ticket, attach, create

TICKET = "segment"
_NONE = "none: "  # instead of a ticket
_PATIENCE = timedelta(seconds=0.5)  # the store waits in C++, where an interrupt does not reach it


def join(store: Any, rank: int, size: int, timeout: float) -> tuple[Link, str]:
    """This rank's link into the group, and a name of the group that no other ever had.

    Raises ShmError where memory is short or out of reach, Deadline naming the ranks that did not come.
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
        layout = replace(layout, slot_bytes=ticket.slot_bytes)
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
