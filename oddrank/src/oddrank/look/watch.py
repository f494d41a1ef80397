"""Watches this rank among the others: whether all of them wait for each other, whose process is gone, and signals."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from oddrank.live.introspect import Activity, Inspector
from oddrank.live.proc import IDLE, computed, stat
from oddrank.look.kept_groups import KeptGroups
from oddrank.look.rendezvous import Launch, Post

__all__ = ["Limits", "Peers", "Stop", "Watch", "grace"]

EVERY_S = 1.0
JUDGES = 8  # so many ranks compare what all have said: one whose Python stands still cannot
GRACE_S = 2.0  # for the main thread to fail by itself once torchrun ends the ranks
TIMEOUT, STALL, ENDED, INTERRUPT = "timeout", "stalled", "ended", "interrupted"


@dataclass(frozen=True)
class Limits:
    """When a run is ended.

    Args:
        timeout: Seconds that it may take; None for no limit.
        stall: Seconds that all ranks may wait for each other.
    """

    timeout: float | None = None
    stall: float = 60.0


@dataclass(frozen=True)
class Stop:
    """Why this rank ends before its script does.

    Attributes:
        how: 'timeout', 'stalled', 'ended' (torchrun ends the ranks) or 'interrupted'.
        seconds: The age of the run.
    """

    how: str
    seconds: float = 0.0

    @property
    def by_limit(self) -> bool:
        """Whether a limit of the command ended the run."""
        return self.how in (TIMEOUT, STALL)


class Peers:
    """The processes of this machine's ranks: which of them are gone, and which stand still.

    Args:
        launch: This process among the others.
        post: Where each leaves its number.
    """

    def __init__(self, launch: Launch, post: Post) -> None:
        self._launch, self._post = launch, post
        self._known: dict[int, tuple[int, str]] = {}  # process and its start, which tells it from a later one
        self._used: dict[int, tuple[float, float]] = {}
        post.say(f"process-{launch.rank}", f"{launch.node} {os.getpid()} {_born(stat(os.getpid()))}")

    def local(self) -> dict[int, int]:
        """The processes of this machine's ranks, as far as they have begun."""
        first = self._launch.rank - self._launch.local_rank
        for rank in range(first, min(first + self._launch.local_world_size, self._launch.world_size)):
            if rank not in self._known and (said := self._post.said([f"process-{rank}"])):
                node, pid, born = said[0].split(" ")
                if int(node) == self._launch.node:
                    self._known[rank] = int(pid), born
        return {rank: pid for rank, (pid, _) in self._known.items()}

    def gone(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return [rank for rank, pid in self.local().items() if self._ended(rank, pid)]

    def _ended(self, rank: int, pid: int) -> bool:
        if not os.path.isdir("/proc/self"):
            try:
                os.kill(pid, 0)
            except OSError:
                return True
            return False
        fields = stat(pid)
        return fields[0] in ("", "Z", "X") or _born(fields) != self._known[rank][1]

    def idle(self, rank: int) -> bool:
        """Whether a rank of this machine sleeps, and has computed nearly nothing since this was asked last."""
        pid = self.local().get(rank)
        fields = stat(pid) if pid else [""]
        if fields[0] not in ("S", "D"):
            return False
        spent, asked = computed(fields), time.monotonic()
        (before, last), self._used[rank] = self._used.get(rank, (spent, 0.0)), (spent, asked)
        return spent - before < IDLE * (asked - last)


def _born(fields: list[str]) -> str:
    """When a process began, from what `stat` returns."""
    return fields[19] if len(fields) > 19 else "-"


class Watch:
    """A thread that looks at the main thread, tells the others what it saw, and ends this rank where it has to end.

    All ranks wait for each other where each has stood in one collective, message or store wait, without a step of
    progress, in as many looks as make up the limit. A look that comes late on a busy machine makes the limit longer.

    Args:
        launch: This process among the others.
        post: What the ranks share.
        peers: The processes of this machine.
        limits: When a run is ended.
        end: Called in this thread, where this rank has to end; the process exits with what it returns, if anything.
    """

    def __init__(
        self, launch: Launch, post: Post, peers: Peers, limits: Limits, end: Callable[[Stop], int | None]
    ) -> None:
        self._launch, self._post, self._peers, self._limits, self._end = launch, post, peers, limits, end
        self._began = time.monotonic()
        self._inspector = Inspector(lambda: True)
        self.groups = KeptGroups()
        self._seen: Activity | None = None
        self._quiet = 0.0
        self._turn = 0
        self._told = False
        # what each said last, and how long it has said so, idle
        self._heard: dict[int, tuple[str, float]] = {}
        self._every = min(EVERY_S, limits.stall / 4) * max(1.0, launch.world_size / 256)
        self._over = threading.Event()
        self._reading, writing = os.pipe()
        os.set_blocking(writing, False)
        post.say(f"stands-{launch.rank}", "0 0")
        # only with a handler in Python is the signal's number written to the pipe
        before = signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

        def in_child() -> None:  # such as a worker of a DataLoader: its end is not this rank's
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, before)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

        # a SIGTERM that comes before the child has come so far would be told to this process
        os.register_at_fork(
            before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]),
            after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM]),
            after_in_child=in_child,
        )
        threading.Thread(target=self._run, daemon=True, name="look-watch").start()

    def close(self) -> None:
        """The script is over: nothing ends this rank any more, and the others need not wait for it."""
        self._over.set()
        with suppress(Exception):  # a script may have closed what it did not open
            self._post.say(f"stands-{self._launch.rank}", "over")

    def tell_others(self) -> None:
        """This rank has failed: the others say where they stand."""
        self._told = True
        self._post.say("stop", json.dumps({"how": ENDED, "seconds": time.monotonic() - self._began}))

    @property
    def over(self) -> bool:
        """Whether the script is over."""
        return self._over.is_set()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        while True:
            stop: Stop | None = None
            try:
                number = os.read(self._reading, 1) if poller.poll(self._every * 1000) else b""
            except OSError:  # the script has closed it
                return
            if number == bytes([signal.SIGTERM]):
                stop = Stop(ENDED)
            elif number == bytes([signal.SIGINT]):
                stop = Stop(INTERRUPT)
            elif not number and not self.over:
                # the store is gone with torchrun, or the script replaced what is asked
                with suppress(Exception):
                    stop = self._look()
            if stop is not None and not self.over:
                try:
                    status = self._end(stop)
                except BaseException:
                    traceback.print_exc()
                    status = 1
                if status is not None:
                    os._exit(status)

    def _look(self) -> Stop | None:
        self._turn += 1
        self.groups.look()
        now = self._inspector.look()
        self._quiet = self._quiet + self._every if now.waits and now == self._seen else 0.0
        self._seen = now
        self._post.say(f"stands-{self._launch.rank}", f"{self._turn} {self._quiet:g}")
        said = next(iter(self._post.said(["stop"])), "")
        age = time.monotonic() - self._began
        if not said and self._launch.rank < JUDGES:
            how = ""
            if self._limits.timeout is not None and age >= self._limits.timeout:
                how = TIMEOUT
            elif self._all_wait():
                how = STALL
            if how:
                said = json.dumps({"how": how, "seconds": age})
                self._post.say("stop", said)
        stop = Stop(**json.loads(said)) if said else None
        return None if stop is not None and self._told and not stop.by_limit else stop

    def _all_wait(self) -> bool:
        every: list[float] = []
        stands = self._post.said([f"stands-{rank}" for rank in range(self._launch.world_size)])
        for rank, said in enumerate(stands):  # none where one has not begun
            if said == "over":
                continue
            before, still = self._heard.get(rank, ("", 0.0))
            still = still + self._every if said == before and self._peers.idle(rank) else 0.0
            self._heard[rank] = said, still
            every.append(max(float(said.split()[1]), still))
        return bool(every) and min(every) >= self._limits.stall


def grace(failed: Callable[[], Any], seconds: float = GRACE_S) -> None:
    """Give the main thread a moment to fail by itself."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and not failed():
        time.sleep(0.05)
