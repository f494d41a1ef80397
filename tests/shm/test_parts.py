"""The parts of shm that one process can show: the memory, peers, what a call says, and how ranks meet."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections import Counter
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from labkit import shm
from labkit.shm import board, segment
from labkit.shm.board import Board
from labkit.shm.calls import Call, call

SECOND = timedelta(seconds=1)


def test_the_memory_can_be_opened_while_it_is_made_and_never_after():
    store, descriptors = dist.HashStore(), len(os.listdir("/proc/self/fd"))
    with segment.share(store, 0, 2, SECOND) as (memory, token):
        ticket = store.get(segment.TICKET)
        with segment.share(store, 1, 2, SECOND) as (other, same):
            memory[10] = 77
            assert other[10] == 77 and same == token
    other[len(other) - 1] = 5
    assert memory[len(other) - 1] == 5
    with pytest.raises(shm.Deadline, match="rank 1 waited 1.0 s for rank 0 to make the group"):
        with segment.share(store, 1, 2, SECOND):
            pass
    store.set(segment.TICKET, ticket)  # such as a rank has read before
    with pytest.raises(shm.ShmError, match="cannot open the memory of rank 0"):
        with segment.share(store, 1, 2, SECOND):
            pass
    assert len(os.listdir("/proc/self/fd")) == descriptors + 2  # one for each mapping


def test_another_file_under_the_same_path_is_not_opened():
    store = dist.HashStore()
    with open("/dev/null") as other:
        store.set(segment.TICKET, f"{segment.NAME}123 /proc/{os.getpid()}/fd/{other.fileno()}")
        with pytest.raises(shm.ShmError, match="it is another file here; shm joins ranks of one machine"):
            with segment.share(store, 1, 2, SECOND):
                pass


def test_slots_and_pages_do_not_overlap():
    size, half = 3, segment.SLOT_BYTES // 2
    with segment.share(dist.HashStore(), 0, size, SECOND) as (memory, _):
        of = segment.slots(memory, size)
        for turn, parts in enumerate(of(torch.float32, (2, segment.SLOT_BYTES // 8))):
            for rank, part in enumerate(parts):
                part.fill_(10 * turn + rank + 1)
        halves = [[part.unique().tolist() for part in parts] for parts in of(torch.float32, (half // 4,))]
        assert halves == [[[1], [2], [3]], [[11], [12], [13]]]
        assert not any(memory[: size * segment.PAGE])


def test_a_zombie_and_another_process_of_the_same_number_are_dead():
    assert board.started(os.getpid()) > 0
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    try:
        deadline = time.monotonic() + 5
        while board.started(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.path.exists(f"/proc/{pid}/stat")  # it is still there, as a zombie
        assert board.started(pid) == 0
    finally:
        os.waitpid(pid, 0)
    assert board.started(pid) == 0
    one, other = pair(timeout=0.1)
    other.words[board.WORDS + board.START] += 1
    with pytest.raises(shm.PeerGone, match=rf"rank 1 \(pid {os.getpid()}\) is gone"):
        meet(one, 1)


def test_calls_are_the_same_only_in_all_of_their_words():
    calls = [
        call(op, how, dtype, (numel,))
        for op in ("all_reduce", "reduce")
        for how in ("sum", "max")
        for dtype in (torch.float32, torch.float64)
        for numel in (1, 2, 2**20)
    ]
    assert len({one.code for one in calls}) == len({one.text for one in calls}) == len(calls)
    assert calls[0].text == "all_reduce(sum, float32, 1 element)" and max(c.code for c in calls) < 2**48
    assert (
        call("all_reduce", "sum", torch.float32, (4, 2)).code
        == call("all_reduce", "sum", torch.float32, (8,)).code
    )


def test_pieces_hold_every_element_once():
    room = segment.SLOT_BYTES // 8
    for numel in (0, 1, room - 1, room, room + 1, 3 * room, 3 * room + 1):
        pieces = Call("", torch.int64, (numel,)).pieces
        ends = [0, *(high for _, high, _ in pieces)]
        assert [low for low, _, _ in pieces] == ends[:-1] and ends[-1] == numel
        assert all(high - low == shape[0] <= room for low, high, shape in pieces)
        assert len(pieces) == max(1, -(-numel // room))


BARRIER = Call("barrier()")


def pair(timeout=5.0):
    memory = mmap.mmap(-1, 2 * segment.PAGE)
    return [Board(memory, rank, 2, timeout) for rank in (0, 1)]


def meet(one, times):
    for _ in range(times):
        one.next_turn()
        one.meet(BARRIER)


@pytest.mark.parametrize("start", [0, board.TURNS - 3])
def test_ranks_stay_in_step_also_where_turns_begin_anew(start):
    both = pair()
    for one in both:
        one.turn = start
    other = threading.Thread(target=meet, args=(both[1], 10))
    other.start()
    meet(both[0], 10)
    other.join(5)
    assert not other.is_alive() and both[0].turn == both[1].turn == start + 10


def test_leaving_in_good_order_does_not_spoil_a_turn_that_others_still_read():
    early, late = pair()
    late.next_turn()
    late.words[late._mine[1]] = 1 << 48 | BARRIER.code  # late has raised its word and not looked yet
    meet(early, 1)
    early.close()
    late.meet(BARRIER)
    with pytest.raises(shm.PeerLeft, match="rank 0 is gone from the group: it closed the group"):
        meet(late, 1)


def test_a_turn_that_failed_is_taken_back():
    one, other = pair(timeout=0.05)
    with pytest.raises(shm.Deadline, match="rank 0 waited 0.1 s in barrier.*rank 1 .* has called nothing"):
        meet(one, 1)
    one.fail("rank 0 stopped in barrier(): Deadline")
    with pytest.raises(shm.PeerLeft, match="stopped in barrier"):
        meet(other, 1)


def test_whoever_looks_at_a_rank_that_waits_finds_it_in_shm():
    one, _ = pair(timeout=0.3)
    main, seen, over = threading.get_ident(), Counter(), threading.Event()

    def look():
        while not over.is_set():
            before, frame, after = one._waiting, sys._current_frames()[main], one._waiting
            if before is not None and after is before:
                seen[frame.f_code.co_filename] += 1

    looker = threading.Thread(target=look)
    one.next_turn()
    with pytest.raises(shm.Deadline):
        looker.start()
        one.meet(BARRIER)
    over.set()
    looker.join()
    assert set(seen) == {board.__file__}


def test_the_fence_for_other_processors_lets_a_thread_through_again():
    for _ in range(3):
        board._fence()
    assert not board._lock.locked()
    assert (board.fence is board._no_fence) == (os.uname().machine == "x86_64")
