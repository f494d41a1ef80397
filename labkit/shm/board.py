"""The control pages in shared memory on which the ranks of a group meet in a collective.

Each rank says its call in words, writes a number for its turn and its call, and waits for the numbers of the others.
One comparison of two numbers shows both that a peer has arrived and that it is in the same call.

Numbers and slots alternate between even and odd turns. A rank that writes its number of turn k has finished reading
turn k - 1. So once all numbers of turn k - 1 have been seen, nobody reads the slots of turn k - 2 any more.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from typing import Any

from labkit.shm.calls import Call
from labkit.shm.errors import Deadline, Mismatch, PeerGone, PeerLeft, ShmError
from labkit.shm.segment import PAGE

# a control page in int64 words: the number and the text of a call for each parity, who this is, why it left
WORDS = PAGE // 8
PARITY, TEXT, PID, START, LEFT, WHY = 32, 1, 64, 65, 66, 67
TEXT_BYTES, WHY_BYTES = 8 * (PARITY - TEXT), 8 * (WORDS - WHY)
KINDS: tuple[type[ShmError], ...] = (PeerLeft, Mismatch)
TURNS = 0x7FFF  # of a turn in a number: it needs to differ from the turns before and after
TAKEN_BACK = -1  # in place of a number: this rank came, but its turn failed
JOINING = Call("joining the group")

SPINS = 300  # a look takes 40 ns: about 12 us, in which a peer that runs alongside arrives
YIELD_S = 2e-3  # then give the core away between looks, for this long
NAP_S = (5e-5, 1e-3)  # then sleep: between these bounds, a 50th of the time waited so far
LOOK_S = 0.02  # how often to look whether the peers are alive

_lock = threading.Lock()


def _no_fence() -> None:
    pass


def _fence() -> None:
    # Acquire after release on one lock orders everything before the release with everything after the acquire (ARMv8:
    # [L]; po; [A]). Python offers no fence of its own. Reasoned from the architecture's manual, not tested on ARM.
    _lock.acquire()
    _lock.release()
    _lock.acquire()
    _lock.release()


# x86 keeps stores in order, loads in order, and loads before later stores (TSO), which is all that the protocol
# needs. A number is read and written whole: memoryview copies an aligned int64 with one instruction.
fence: Callable[[], None] = _no_fence if platform.machine().lower() in ("x86_64", "amd64") else _fence


def started(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if it has ended, as a zombie has.

    Two processes that the system gave the same pid differ in it.
    """
    # read here and not by a helper elsewhere: whoever looks at this rank's stack meanwhile finds that it waits in shm
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()  # the name before it may hold anything
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X", b"x") else int(fields[19])


class Board:
    """The control pages as one rank sees them.

    Args:
        memory: The shared memory.
        rank: This rank.
        size: Number of ranks.
        timeout: Seconds that this rank waits for its peers in a call.
    """

    waits: Board | None = None  # the one in which this process waits

    def __init__(self, memory: Any, rank: int, size: int, timeout: float):
        self._bytes = memoryview(memory).cast("B")[: size * PAGE]
        self.words = self._bytes.cast("q")
        self.rank, self.timeout = rank, timeout
        self.turn = 0
        self.failed = ""
        self._said = [JOINING, JOINING]  # the calls whose text stands in this rank's page
        self._waiting: tuple[Call, float, list[int]] | None = None  # since when, for which ranks
        others = [peer for peer in range(size) if peer != rank]
        self._mine = tuple(rank * WORDS + parity * PARITY for parity in (0, 1))
        self._theirs = tuple([peer * WORDS + parity * PARITY for peer in others] for parity in (0, 1))
        self._spins = range(SPINS if size <= len(os.sched_getaffinity(0)) else 1)
        self.words[rank * WORDS + START] = started(os.getpid())
        fence()
        self.words[rank * WORDS + PID] = os.getpid()

    def next_turn(self) -> int:
        """Begin a turn and return which of the two slots, 0 or 1, is free for it."""
        self.turn = turn = self.turn + 1
        return turn & 1

    def meet(self, call: Call, opts: Any = None) -> None:
        """Tell the peers that this rank's slot is written, and wait until each of them has come to the same call.

        Raises:
            Mismatch: If a peer is in another call.
            Deadline: If a peer does not come in time.
            PeerGone: If the process of a peer has ended.
            PeerLeft: If a peer has failed, or closed the group.
        """
        words, turn = self.words, self.turn
        parity, number = turn & 1, (turn & TURNS) << 48 | call.code
        mine = self._mine[parity]
        if self._said[parity] is not call:
            self._said[parity] = call
            self._write(mine + TEXT, call.text, TEXT_BYTES)
        fence()
        words[mine] = number
        for at in self._theirs[parity]:
            for _ in self._spins:
                if words[at] == number:
                    break
            else:
                self._wait(number, call, opts)
                break
        fence()

    def _wait(self, number: int, call: Call, opts: Any) -> None:
        own = getattr(opts, "timeout", None)
        limit = own.total_seconds() if own and own.total_seconds() > 0 else self.timeout
        since = time.monotonic()
        look = since + LOOK_S
        missing = self._theirs[self.turn & 1]
        try:
            while missing := [at for at in missing if not self._arrived(at, number, call)]:
                waited = (now := time.monotonic()) - since
                if waited < YIELD_S:
                    os.sched_yield()
                    continue
                if now >= look:
                    look = now + LOOK_S
                    self._waiting, Board.waits = (call, since, [at // WORDS for at in missing]), self
                    self._look(missing, number, call, waited, limit)
                time.sleep(min(max(NAP_S[0], waited / 50), NAP_S[1], max(limit - waited, 0)))
        finally:
            self._waiting = Board.waits = None

    def _arrived(self, at: int, number: int, call: Call) -> bool:
        rank = at // WORDS
        # in this order: it may come, finish and only then leave
        left = self.words[rank * WORDS + LEFT]
        fence()
        seen = self.words[at]
        if seen >> 48 != number >> 48:
            if left:
                self._raise_why_it_left(rank, KINDS[left - 1])
            return False
        fence()
        if seen != number:
            both = sorted([(self.rank, call.text), (rank, self._read(at + TEXT, TEXT_BYTES))])
            said = ", ".join(f"rank {who} called {what}" for who, what in both)
            raise Mismatch(f"ranks met in different calls: {said}")
        return True

    def _look(self, missing: list[int], number: int, call: Call, waited: float, limit: float) -> None:
        if self.failed:  # by another thread
            raise PeerLeft(f"rank {self.rank} stopped waiting: {self.failed}")
        for at in missing:
            rank = at // WORDS
            pid, start = self._process(rank)
            if pid and started(pid) != start and not self._arrived(at, number, call):
                raise PeerGone(
                    f"rank {rank} (pid {pid}) is gone: its process ended while rank {self.rank} waited "
                    f"for it in {call.text}, {waited:.2f} s by now"
                )
        if waited >= limit:
            late = "; ".join(map(self._whereabouts, missing))
            raise Deadline(f"rank {self.rank} waited {waited:.1f} s in {call.text} for {late}")

    def _process(self, rank: int) -> tuple[int, int]:
        pid = self.words[rank * WORDS + PID]
        fence()
        return pid, self.words[rank * WORDS + START]

    def _whereabouts(self, at: int) -> str:
        rank = at // WORDS
        pid, _ = self._process(rank)
        if not pid:
            return f"rank {rank}, which never joined the group"
        # this rank has met it in every turn before this one
        last = self._read((at ^ PARITY) + TEXT, TEXT_BYTES)
        did = "has called nothing yet" if not last else f"was in {last} last"
        return f"rank {rank} (pid {pid}), which is alive and {did}"

    def where(self) -> str:
        """Describe what this rank waits for right now; '' if it does not wait."""
        if (waiting := self._waiting) is None:
            return ""
        call, since, ranks = waiting
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        return f"in {call.text}, waiting for {who} since {time.monotonic() - since:.1f} s"

    def check_open(self) -> None:
        """Raise ShmError if the group has failed or was closed."""
        if self.failed:
            raise ShmError(f"this group ended earlier and cannot be used again: {self.failed}")

    def fail(self, why: str, kind: type[ShmError] = PeerLeft) -> None:
        """Tell the peers that this turn failed; those that wait for this rank, now or later, raise `kind`."""
        if not self.failed:
            self._leave(why, kind)
            self.words[self._mine[self.turn & 1]] = TAKEN_BACK

    def _leave(self, why: str, kind: type[ShmError]) -> None:
        self.failed = why
        page = self.rank * WORDS
        self._write(page + WHY, why, WHY_BYTES)
        fence()
        self.words[page + LEFT] = KINDS.index(kind) + 1
        fence()

    def _raise_why_it_left(self, rank: int, kind: type[ShmError]) -> None:
        why = self._read(rank * WORDS + WHY, WHY_BYTES)
        raise kind(why if kind is Mismatch else f"rank {rank} is gone from the group: {why}")

    def _write(self, at: int, text: str, room: int) -> None:
        said = text.encode()[: room - 1] + b"\0"
        self._bytes[8 * at : 8 * at + len(said)] = said

    def _read(self, at: int, room: int) -> str:
        return bytes(self._bytes[8 * at : 8 * at + room]).partition(b"\0")[0].decode(errors="replace")

    def close(self) -> None:
        """Leave the group without an error; peers can still read what this rank wrote in its last turn."""
        if not self.failed:
            self._leave("it closed the group", PeerLeft)
        self.words.release()
        self._bytes.release()
