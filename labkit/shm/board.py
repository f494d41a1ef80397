"""The control pages in shared memory on which the ranks of a group meet in a collective.

Each rank writes a word that says its turn and its call, and waits for the words of the others. A word is
`turn << 32 | call`, so one comparison shows both that a peer has arrived and that it is in the same call.

Words and slots alternate between even and odd turns. A rank that writes its word of turn k has finished reading turn
k - 1. So once all words of turn k - 1 have been seen, nobody reads the slots of turn k - 2 any more.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.shm import operations
from labkit.shm.errors import Deadline, Mismatch, PeerGone, PeerLeft, ShmError
from labkit.shm.segment import MAX_RANKS, PAGE

# a control page in int64 words: two lines of (word, numel, .), who this is, why it left, the tables of all_to_all
WORDS = PAGE // 8
LINE, PID, START, LEFT, LEFT_KIND, LEFT_BYTES, LEFT_TEXT, TABLES = 8, 16, 17, 24, 25, 26, 32, 192
TEXT_BYTES = (TABLES - LEFT_TEXT) * 8
TAKEN_BACK = -1  # in place of a word: this rank came, but its turn failed
LAST_TURN = 2**30 - 1  # an odd number: turns stay even and odd across the wrap
KINDS: tuple[type[ShmError], ...] = (PeerLeft, Mismatch)

SPINS = 300  # a look takes 40 ns: about 12 us, in which a peer that runs alongside arrives
YIELD_S = 2e-3  # then give the core away between looks, for this long
NAP_S = (5e-5, 1e-3)  # then sleep: between these bounds, a 50th of the time waited so far
LOOK_S = 0.02  # how often to look whether the peers are alive

HAS_PROC = Path("/proc/self/stat").exists()
_yield = getattr(os, "sched_yield", lambda: time.sleep(0))

_lock = threading.Lock()


def _fence() -> None:
    # Acquire after release on one lock orders everything before the release with everything after the acquire (ARMv8:
    # [L]; po; [A]). Python offers no fence of its own. Reasoned from the architecture's manual, not tested on ARM.
    _lock.acquire()
    _lock.release()
    _lock.acquire()
    _lock.release()


# x86 keeps stores in order, loads in order, and loads before later stores (TSO), which is all that the protocol
# needs. A word is read and written whole: memoryview copies an aligned int64 with one instruction.
fence: Callable[[], None] | None = None if platform.machine().lower() in ("x86_64", "amd64") else _fence


def started(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot.

    Without /proc it is 0 for every process that can be signalled; a zombie then counts as alive.

    Returns:
        The time; None if there is no such process, or only its zombie.
    """
    if not HAS_PROC:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return 0
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # the name before it may hold anything
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X", b"x") else int(fields[19])


@dataclass(frozen=True)
class Peer:
    """A process by pid and start time, since the system may give the pid to another process."""

    pid: int
    start: int

    @classmethod
    def me(cls) -> Peer:
        """Return this process."""
        return cls(os.getpid(), started(os.getpid()) or 0)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return started(self.pid) == self.start


def cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Board:
    """The control pages as one rank sees them.

    Args:
        memory: The shared segment.
        rank: This rank.
        size: Number of ranks.
        timeout: Seconds that this rank waits for its peers in a call.
    """

    def __init__(self, memory: Any, rank: int, size: int, timeout: float):
        self.words = memoryview(memory).cast("B")[: size * PAGE].cast("q")
        self.rank, self.size, self.timeout = rank, size, timeout
        self.turn = 0
        self.failed = ""
        self.waiting: tuple[int, int, float, list[int]] | None = None  # call, numel, since, missing peers
        others = [peer for peer in range(size) if peer != rank]
        self._mine = tuple(rank * WORDS + parity * LINE for parity in (0, 1))
        self._theirs = tuple([peer * WORDS + parity * LINE for peer in others] for parity in (0, 1))
        self._spins = range(SPINS if size <= cores() else 0)

    def sign_in(self) -> None:
        """Write this process into its page, which tells the others that it has joined."""
        me = Peer.me()
        self.words[self.rank * WORDS + START] = me.start
        if fence:
            fence()
        self.words[self.rank * WORDS + PID] = me.pid

    def peer(self, rank: int) -> Peer | None:
        """Return the process of a rank; None if it has not signed in yet."""
        pid = self.words[rank * WORDS + PID]
        if fence:
            fence()
        return Peer(pid, self.words[rank * WORDS + START]) if pid else None

    def next_turn(self) -> int:
        """Begin a turn and return which of the two slots, 0 or 1, is free for it."""
        self.turn = turn = self.turn + 1 & LAST_TURN
        return turn & 1

    def meet(self, call: int, numel: int, opts: Any = None) -> None:
        """Tell the peers that this rank's slot is written, and wait until each of them has come to the same call.

        Args:
            call: The packed call (`operations.pack`).
            numel: Number of elements of this rank's tensor.
            opts: c10d's options, which may have a timeout for this call alone.

        Raises:
            Mismatch: If a peer is in another call.
            Deadline: If a peer does not come in time.
            PeerGone: If the process of a peer has ended.
            PeerLeft: If a peer has failed, or closed the group.
        """
        words, turn = self.words, self.turn
        parity, word = turn & 1, turn << 32 | call
        at = self._mine[parity]
        words[at + 1] = numel
        if fence:
            fence()
        words[at] = word
        for at in self._theirs[parity]:
            if words[at] != word:
                for _ in self._spins:
                    if words[at] == word:
                        break
                else:
                    self._wait(word, numel, opts)
                    break
            if words[at + 1] != numel:
                self._arrived(at, word, numel)
        if fence:
            fence()

    def _wait(self, word: int, numel: int, opts: Any) -> None:
        now = time.monotonic()
        since, look, limit = now, now + LOOK_S, self._limit(opts)
        missing = list(self._theirs[self.turn & 1])
        try:
            while True:
                missing = [at for at in missing if not self._arrived(at, word, numel)]
                if not missing:
                    return
                now = time.monotonic()
                if now - since < YIELD_S:
                    _yield()
                    continue
                if now >= look:
                    look = now + LOOK_S
                    if self.failed:  # by another thread
                        raise PeerLeft(f"rank {self.rank} stopped waiting: {self.failed}")
                    ranks = [at // WORDS for at in missing]
                    self.waiting = (word & 0xFFFFFFFF, numel, since, ranks)
                    self._look_for_dead(missing, word, numel, now - since)
                    if now - since >= limit:
                        late = "; ".join(map(self._whereabouts, ranks))
                        called = operations.unpack(word & 0xFFFFFFFF, numel)
                        raise Deadline(f"rank {self.rank} waited {now - since:.1f} s in {called} for {late}")
                time.sleep(min(max(NAP_S[0], (now - since) / 50), NAP_S[1], max(limit - (now - since), 0)))
        finally:
            self.waiting = None

    def _limit(self, opts: Any) -> float:
        own = getattr(opts, "timeout", None)
        seconds = own.total_seconds() if own is not None else -1.0
        return seconds if seconds > 0 else self.timeout

    def _arrived(self, at: int, word: int, numel: int) -> bool:
        seen = self.words[at]
        if seen >> 32 != word >> 32:
            left = self.words[at // WORDS * WORDS + LEFT]
            seen = self.words[at]  # again: it may have come, finished and only then left
            if seen >> 32 != word >> 32:
                if left:
                    self._raise_why_it_left(at // WORDS)
                return False
        if fence:
            fence()
        if seen != word or self.words[at + 1] != numel:
            both = sorted(
                [(self.rank, word & 0xFFFFFFFF, numel), (at // WORDS, seen & 0xFFFFFFFF, self.words[at + 1])]
            )
            said = ", ".join(f"rank {rank} called {operations.unpack(call, n)}" for rank, call, n in both)
            raise Mismatch(f"ranks met in different calls: {said}")
        return True

    def _look_for_dead(self, missing: list[int], word: int, numel: int, waited: float) -> None:
        for at in missing:
            peer = self.peer(at // WORDS)
            if peer and not peer.alive() and not self._arrived(at, word, numel):
                raise PeerGone(
                    f"rank {at // WORDS} (pid {peer.pid}) is gone: its process ended while rank {self.rank} waited "
                    f"for it in {operations.unpack(word & 0xFFFFFFFF, numel)}, {waited:.2f} s by now"
                )

    def _whereabouts(self, rank: int) -> str:
        peer = self.peer(rank)
        if not peer:
            return f"rank {rank}, which never joined the group"
        at = rank * WORDS
        last = max(self.words[at], self.words[at + LINE])
        if not last:
            return f"rank {rank} (pid {peer.pid}), which is alive and has called nothing yet"
        op = operations.name(last & 0xFFFFFFFF)
        return f"rank {rank} (pid {peer.pid}), which is alive and was in {op} last"

    def where(self) -> str:
        """Describe what this rank waits for right now; '' if it does not wait."""
        waiting = self.waiting
        if waiting is None:
            return ""
        call, numel, since, ranks = waiting
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        return (
            f"in {operations.unpack(call, numel)}, waiting for {who} since {time.monotonic() - since:.1f} s"
        )

    def fail(self, why: str, kind: type[ShmError] = PeerLeft) -> None:
        """Tell the peers that this turn failed; those that wait for this rank, now or later, raise `kind`.

        Args:
            why: What they say.
            kind: The exception that they raise.
        """
        if not self.failed:
            self._leave(why, kind)
            self.words[self._mine[self.turn & 1]] = TAKEN_BACK

    def _leave(self, why: str, kind: type[ShmError]) -> None:
        self.failed = why
        page, text = self.rank * WORDS, why.encode()[:TEXT_BYTES]
        self.words[page + LEFT_KIND] = KINDS.index(kind)
        self.words[page + LEFT_BYTES] = len(text)
        text = text.ljust(TEXT_BYTES, b"\0")
        self.words[page + LEFT_TEXT : page + TABLES] = memoryview(text).cast("q")
        if fence:
            fence()
        self.words[page + LEFT] = 1
        if fence:
            fence()

    def _raise_why_it_left(self, rank: int) -> None:
        if fence:
            fence()
        page = rank * WORDS
        text = self.words[page + LEFT_TEXT : page + TABLES].tobytes()
        why = text[: self.words[page + LEFT_BYTES]].decode(errors="replace")
        kind = KINDS[self.words[page + LEFT_KIND]]
        raise kind(why if kind is Mismatch else f"rank {rank} is gone from the group: {why}")

    def table(self, rank: int, parity: int) -> slice:
        """Return the slice of `words` with a rank's counts of all_to_all: sent to each rank, then expected of each.

        Args:
            rank: Whose table.
            parity: Which of the two: 0 or 1.
        """
        start = rank * WORDS + TABLES + parity * 2 * MAX_RANKS
        return slice(start, start + 2 * self.size)

    def close(self) -> None:
        """Leave the group without an error; peers can still read what this rank wrote in its last turn."""
        if not self.failed:
            self._leave("it closed the group", PeerLeft)
        self.words.release()
