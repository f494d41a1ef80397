"""The parts of shm that one process can show: the segment and its places, peers, words, and what a call says."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch

from labkit import shm
from labkit.shm import board, operations, segment
from labkit.shm.board import Board
from labkit.shm.segment import Layout, Ticket, attach, create


def test_a_segment_can_be_opened_while_it_is_made_and_never_after():
    layout = Layout(2, 4096)
    with create(layout) as (memory, ticket):
        ticket = Ticket.loads(ticket.dumps())
        other = attach(ticket, layout)
        memory[10] = 77
        assert other[10] == 77 and len(other) == layout.total
    other[layout.total - 1] = 5
    assert memory[layout.total - 1] == 5
    with pytest.raises(shm.ShmError, match="cannot open the memory of rank 0"):
        attach(ticket, layout)


def test_without_memfd_it_is_a_file_for_a_moment(monkeypatch, tmp_path):
    def no_memfd():
        raise AttributeError("no memfd_create here")

    monkeypatch.setattr(
        segment, "PLACES", (("memfd", no_memfd), ("folder", lambda: segment._file(str(tmp_path))))
    )
    layout = Layout(2, 4096)
    with create(layout) as (memory, ticket):
        assert [str(path) for path in tmp_path.iterdir()] == [ticket.path]
        other = attach(ticket, layout)
    assert not list(tmp_path.iterdir())
    memory[3] = 9
    assert other[3] == 9


def test_a_place_that_is_full_leaves_nothing_and_the_next_is_tried(monkeypatch, tmp_path):
    sizes = []

    def full(fd, nbytes):
        sizes.append(nbytes)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segment, "_reserve", full)
    monkeypatch.setattr(
        segment, "PLACES", (("here", lambda: segment._file(str(tmp_path))), segment.PLACES[0])
    )
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(shm.OutOfMemory, match=r"here: No space left on device; memfd: No space"):
        with create(Layout(8)):
            pass
    assert sizes == [Layout(8).total] * 2
    assert not list(tmp_path.iterdir()) and len(os.listdir("/proc/self/fd")) == descriptors


def test_slots_and_pages_do_not_overlap():
    layout = Layout(3, 8192)
    starts = sorted(layout.slot(rank, parity) for rank in range(3) for parity in (0, 1))
    assert starts[0] == 3 * segment.PAGE
    assert [b - a for a, b in zip(starts, starts[1:], strict=False)] == [8192] * 5
    assert starts[-1] + 8192 == layout.total


def test_a_zombie_and_another_process_of_the_same_number_are_dead():
    me = board.Peer.me()
    assert me.alive() and not board.Peer(me.pid, me.start + 1).alive()
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        deadline = time.monotonic() + 5
        while board.started(pid) is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.path.exists(f"/proc/{pid}/stat")  # it is still there, as a zombie
        assert board.started(pid) is None
    finally:
        os.waitpid(pid, 0)
    assert board.started(pid) is None


def test_every_call_survives_packing():
    for op in operations.OPS:
        for dtype in (None, torch.bool, torch.complex128, torch.float8_e5m2):
            for reduction in range(len(operations.REDUCTIONS)):
                packed = operations.pack(op, dtype, reduction, 63)
                text = operations.unpack(packed, 12)
                assert 0 <= packed < 2**31 and operations.name(packed) == op
                assert operations.REDUCTIONS[reduction] in text and (dtype is None or str(dtype)[6:] in text)


BARRIER = operations.pack("barrier")


def pair(timeout=5.0):
    layout = Layout(2, 4096)
    with create(layout) as (memory, _):
        both = [Board(memory, rank, 2, timeout) for rank in (0, 1)]
    for one in both:
        one.sign_in()
    return both


def meet(one, times):
    for _ in range(times):
        one.next_turn()
        one.meet(BARRIER, 0)


@pytest.mark.parametrize("start", [0, board.LAST_TURN - 3])
def test_ranks_stay_in_step_also_where_turns_begin_anew(start):
    both = pair()
    for one in both:
        one.turn = start
    other = threading.Thread(target=meet, args=(both[1], 10))
    other.start()
    meet(both[0], 10)
    other.join(5)
    assert not other.is_alive() and both[0].turn == both[1].turn == (start + 10) % 2**30


def test_leaving_in_good_order_does_not_spoil_a_turn_that_others_still_read():
    early, late = pair()
    late.next_turn()
    late.words[late._mine[1]] = 1 << 32 | BARRIER  # late has raised its word and not looked yet
    meet(early, 1)
    early.close()
    late.meet(BARRIER, 0)
    with pytest.raises(shm.PeerLeft, match="rank 0 is gone from the group: it closed the group"):
        meet(late, 1)


def test_a_turn_that_failed_is_taken_back():
    one, other = pair(timeout=0.05)
    with pytest.raises(shm.Deadline, match="rank 0 waited 0.1 s in barrier"):
        meet(one, 1)
    one.fail("rank 0 stopped in barrier(): Deadline")
    with pytest.raises(shm.PeerLeft, match="stopped in barrier"):
        meet(other, 1)


def test_the_fence_for_other_processors_lets_a_thread_through_again():
    for _ in range(3):
        board._fence()
    assert not board._lock.locked()
    assert (board.fence is None) == (os.uname().machine == "x86_64")
