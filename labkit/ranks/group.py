"""`Ranks`: rank processes that a notebook kernel starts, gives calls to, watches and ends."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oddrank.live.failure import explain
from oddrank.run_label import run_label

from labkit import hardware
from labkit.pace import patience
from labkit.per_rank import PerRank
from labkit.ranks import environment, spawn
from labkit.ranks.call import Call
from labkit.ranks.environment import complete
from labkit.ranks.interrupts import no_interrupt, stoppable
from labkit.ranks.pool import Member, Pool
from labkit.ranks.process import StartError
from labkit.ranks.progress import Progress
from labkit.ranks.transfer import pack_call
from labkit.torch_compat import check_version

ZYGOTE_IMPORTS = "the import of torch, Dynamo and Inductor, once for all ranks of this kernel"
TIMEOUT_S = 300.0  # of a call, on a quiet machine
AGAIN_S = 0.5  # a second press of stop within this time means the same call

_current: weakref.ref[Ranks] | None = None


def _positive(name: str, value: Any, none: bool = False) -> float | None:
    if value is None and none:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} must be a number above 0{' or None' if none else ''}, got {value!r}")
    return value


class Ranks:
    """Rank processes in one process group, started here, which run functions and `%%ranks` cells.

    Prints what was chosen and why, in one line.

    Args:
        world_size: Number of ranks.
        device: 'auto', 'cpu' (the ranks see no GPU) or 'cuda'.
        backend: 'auto', 'nccl' (by name also for ranks that share a GPU; NCCL then goes over TCP), 'gloo', 'shm'
            (shared memory, for CPU ranks of one machine) or 'fake' (each rank runs alone and collectives do nothing:
            real host time, wrong numbers).
        timeout: Seconds that a call may take unless it says otherwise; None for no limit. 'auto' is 300, and more where
            the machine is slow or busy (`labkit.pace`).
        stall: Seconds that every unfinished rank may wait in the same collective or store call. Then the call ends with
            an error that has each rank's last collectives and their first difference. None for no limit. Compiling and
            computing do not count, however long they take.
        collective_timeout: Seconds that a collective waits for its peers before it raises. NCCL ends its process
            instead.
        verify: Compare every collective between the ranks before it runs (name, shapes, dtypes, reduction, root,
            source lines). Ranks that diverge then raise instead of computing something wrong. It works on gloo and
            shm.
        env: Environment variables of the ranks, on top of `os.environ`; None as a value means not set. For a variable
            that torch reads as it is imported, such as TORCH_LOGS, torch is imported once more, which takes seconds;
            the next ranks with the same variables start fast.
        live: Whether a call of more than 2 s shows below its cell where each rank is.
        quiet: Whether to print nothing at the start.

    Raises:
        ValueError: Before any process is started, for a request that this machine cannot meet.
        RankError: If a rank fails to start.
        StartError: If the processes cannot be started.

    >>> import labkit
    >>> with labkit.Ranks(2, device="cpu", quiet=True) as ranks:
    ...     ranks.run(max, 3, 4)
    PerRank(rank 0: 4, rank 1: 4)
    """

    def __init__(
        self,
        world_size: int = 2,
        device: str = "auto",
        backend: str = "auto",
        *,
        timeout: float | None | str = "auto",
        stall: float | None = 30.0,
        collective_timeout: float = 120.0,
        verify: bool = False,
        env: Mapping[str, str | None] | None = None,
        live: bool = True,
        quiet: bool = False,
    ):
        global _current
        choice = hardware.choose(world_size, device, backend)
        check_version(hardware.torch_version())
        self.env = environment.check(env)
        if hardware.VISIBLE in self.env:
            raise ValueError(f"set {hardware.VISIBLE} in os.environ, not in env: device and backend go by it")
        if sys.platform != "linux":
            raise ValueError(f"Ranks needs Linux (WSL2 included), and this is {sys.platform}")
        if timeout != "auto":
            _positive("timeout", timeout, none=True)
        _positive("stall", stall, none=True)
        _positive("collective_timeout", collective_timeout)
        if not isinstance(verify, bool):
            raise ValueError(f"verify must be True or False, got {verify!r}")
        if verify and choice.backend not in ("gloo", "shm"):
            raise ValueError(f"verify=True works on gloo and shm, and this is {choice.backend}")
        self.world_size, self.device = world_size, choice.device
        self.backend, self.why = choice.backend, choice.why
        gpus = min(world_size, len(hardware.gpus())) if self.device != "cpu" else 0
        self.label = run_label(self.backend, self.device, world_size, gpus)
        self.timeout, self.collective_timeout = timeout, collective_timeout
        self.stall, self.verify = stall, verify
        self._progress = Progress(f"{world_size} rank{'s' * (world_size != 1)} · {self.label}", bool(live))
        self._environ = dict(os.environ)  # a rank's successor has the same
        if self.device == "cpu":  # where compiling would use a GPU that it sees
            self._environ[hardware.VISIBLE] = ""
        self.calls = self.restarts = 0
        self._busy = threading.Lock()
        self._stop: threading.Event | None = None  # of the call that runs
        self._closed = False
        started = time.perf_counter()
        self._pool = self._start()
        _current = weakref.ref(self)
        if not quiet:
            print(f"{self.describe()}, up in {time.perf_counter() - started:.2f} s")

    def describe(self) -> str:
        """Return one line: how many ranks, on what, and why that was chosen."""
        where = "cpu" if self.device == "cpu" else ", ".join(sorted(set(hardware.gpus())))
        return f"{self.world_size} rank{'s' * (self.world_size != 1)} · {self.backend} · {where} ({self.why})"

    def __repr__(self) -> str:
        pids = ", ".join(str(m.process.pid) for m in self._pool.members)
        state = "closed" if self._closed else f"pids {pids}"
        return f"<Ranks: {self.describe()}; {state}>"

    def __len__(self) -> int:
        return self.world_size

    def __reduce__(self) -> Any:
        raise TypeError("ranks stay in the process that made them: give the function what it needs of them")

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float | None | str = "default",
        stall: float | None | str = "default",
        ranks: int | Iterable[int] | None = None,
        **kwargs: Any,
    ) -> PerRank:
        """Call `fn(*args, **kwargs)` on the ranks and return the values by rank.

        The function and its arguments travel by value. What it prints appears here, labelled, as it is printed. After
        a failure all ranks are replaced by new processes.

        Args:
            fn: The function.
            *args: Its positional arguments.
            timeout: Seconds that the call may take; None for no limit; by default that of the ranks.
            stall: Seconds that the call may stall; None for no limit; by default that of the ranks.
            ranks: The rank or ranks that run it; None for all.
            **kwargs: Its keyword arguments.

        Raises:
            RankError: If a rank raises or dies, if the call runs into a limit, or if a value cannot travel back. The
                culprit and its source lines come first, then where every other rank stood.
            ValueError: If the function or an argument cannot travel; no rank has heard of the call then.
            RuntimeError: If the ranks are closed, or busy with another call.

        >>> with Ranks(2, device="cpu", quiet=True) as ranks:
        ...     ranks.run(lambda x: x * 2, 21, ranks=[1])
        PerRank(rank 1: 42)
        """
        return self._call(("call", *pack_call(fn, args, kwargs)), ranks, timeout, stall)

    def interrupt(self) -> bool:
        """End the call that runs in another thread, as the stop button ends one in a cell. Any thread may call this.

        The call raises KeyboardInterrupt in its own thread, with where each rank stood, and the ranks are replaced.
        This method waits for neither: once that thread is out of the call, the ranks take the next one.

        Returns:
            Whether a call runs.

        >>> import threading, time
        >>> def stop(ranks):
        ...     while not ranks.interrupt():
        ...         time.sleep(0.01)
        >>> with Ranks(2, device="cpu", quiet=True) as ranks:
        ...     threading.Thread(target=stop, args=[ranks]).start()
        ...     try:
        ...         ranks.run(time.sleep, 600)
        ...     except KeyboardInterrupt:
        ...         print("stopped")
        ...     ranks.run(max, 3, 4)
        stopped
        PerRank(rank 0: 4, rank 1: 4)
        """
        stop = self._stop
        if stop is not None:
            stop.set()
        return stop is not None

    def restart(self) -> None:
        """Replace every rank by a new process."""
        self._begin()
        try:
            self._replace()
        finally:
            self._busy.release()

    def close(self) -> None:
        """End the ranks; calling it again does nothing. A call that another thread is in raises RuntimeError then."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                self._pool.close()
            finally:
                self._busy.release()
        else:
            self._pool.kill()  # the thread that runs the call serves the pool: it hears of it and closes the pool

    # -- starting and ending -------------------------------------------------------------------------------

    def _start(self) -> Pool:
        config: dict[str, Any] = {
            "backend": self.backend,
            "device": self.device,
            "label": self.label,
            "collective_timeout": self.collective_timeout,
            "verify": self.verify,
            "path": list(sys.path),
            "cwd": os.getcwd(),
        }
        whole = {**self._environ, **self.env}
        wanted = complete({name: value for name, value in whole.items() if value is not None})
        with self._progress.of_start(ZYGOTE_IMPORTS) as waiting:
            zygote = spawn.shared(wanted, waiting)
            zygote.wait_ready(waiting)
            config["env"] = zygote.started.overlay(wanted)
            return Pool(self.world_size, config, zygote, waiting)

    def _replace(self) -> float:
        started = time.perf_counter()
        self._pool.close()
        self.restarts += 1
        self._pool = self._start()
        return time.perf_counter() - started

    def _start_again(self) -> str:
        """Replace every rank after a failure, and say so; does not raise, since the failure itself is to be raised."""
        if self._closed:
            self._pool.close()
            return "The ranks are closed."
        try:
            seconds = self._replace()
        except StartError as error:
            return f"The ranks could not be replaced: {error}."
        return f"All ranks were replaced in {seconds:.2f} s; names that %%ranks cells had defined are gone."

    # -- one call ------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Take the lock of these ranks; whoever calls this releases it."""
        if self._closed:
            raise RuntimeError("these ranks are closed: make new ones with labkit.Ranks(...)")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("these ranks are busy with another call: wait until it has ended, or stop it")

    def _call(
        self,
        request: tuple,
        ranks: int | Iterable[int] | None,
        timeout: float | None | str = "default",
        stall: float | None | str = "default",
    ) -> PerRank:
        timeout = self.timeout if timeout == "default" else timeout
        limit = patience(TIMEOUT_S) if timeout == "auto" else _positive("timeout", timeout, none=True)
        longest = self.stall if stall == "default" else _positive("stall", stall, none=True)
        members = self._chosen(ranks)
        with stoppable() as stop:
            self._begin()
            self._stop = stop
            try:
                self._pool.serve(0)
                gone = [f"rank {m.rank} ({m.process.ending()})" for m in self._pool.members if m.dead]
                if gone:  # between calls there is nothing to lose: start afresh
                    self._replace()
                    print(f"{', '.join(gone)} had ended since the last call: ranks replaced", file=sys.stderr)
                    members = self._chosen(ranks)
                self.calls += 1
                call = Call(self._pool, members, self.calls, limit, longest, self._progress, stop)
                try:
                    call.send(request)
                    how = call.watch()
                except KeyboardInterrupt as interrupted:
                    with no_interrupt(linger=AGAIN_S):
                        lines = ["interrupted", *call.interrupt()]
                        lines.append(self._start_again())
                    interrupted.add_note("\n".join(lines))
                    # IPython shows this instead of labkit's own frames
                    interrupted._render_traceback_ = lambda: ["KeyboardInterrupt", *lines]  # type: ignore[attr-defined]
                    raise
                except BaseException:
                    # a signal handler of the reader's, for example: the call goes on without anybody
                    with no_interrupt():
                        self._start_again()
                    raise
                if how != "done":
                    with no_interrupt():
                        outcomes, seconds = call.outcomes(how), call.seconds
                        after = self._start_again()
                    if self._closed:
                        raise RuntimeError("these ranks were closed while this call ran")
                    raise explain(how, outcomes, seconds, limit, longest, after)
                self._pool.finish_output()
                return call.values()
            finally:
                self._stop = None
                self._busy.release()

    def _chosen(self, ranks: int | Iterable[int] | None) -> list[Member]:
        if ranks is None:
            return self._pool.members
        wanted = sorted(set([ranks] if isinstance(ranks, int) else ranks))
        for rank in wanted:
            if not isinstance(rank, int) or not 0 <= rank < self.world_size:
                raise ValueError(f"no rank {rank!r} here: ranks are 0 to {self.world_size - 1}")
        if not wanted:
            raise ValueError("no rank was chosen: give at least one in ranks=")
        return [self._pool.members[rank] for rank in wanted]


def current() -> Ranks | None:
    """Return the ranks that were started last and are still up, if any."""
    ranks = _current() if _current is not None else None
    return None if ranks is None or ranks._closed else ranks
