"""`Ranks`: live rank processes that a notebook kernel starts, feeds, watches and ends."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from labkit import hardware
from labkit.ranks import cells, spawn, wire
from labkit.ranks.errors import Outcome, RankError, how_it_ended
from labkit.ranks.member import Member
from labkit.report import PerRank, run_label

GRACE_S = 0.5  # after the first failure, how long the other ranks have to report their own
ANSWER_S = 0.3  # how long a stuck rank has to say where it stands
HOOKS = ()

_current: weakref.ref[Ranks] | None = None


class Ranks:
    """Start `world_size` ranks in one process group, ready for functions and `%%ranks` cells.

    device: 'auto', 'cpu' or 'cuda'; backend: 'auto', 'nccl', 'gloo', 'shm' (a fast link between CPU ranks of one
    machine) or 'fake' (every rank runs alone and collectives do nothing: real host time, wrong numbers).
    timeout: seconds a call may take unless it says otherwise; None waits for ever.
    collective_timeout: seconds a collective waits for its peers before it raises.
    threads: intra-op threads a rank. port: of the rendezvous store, 0 for any free one.

    Prints one line that says what was chosen and why; `quiet=True` does not. Raises ValueError, before any
    process is started, for a request that this machine cannot carry, and RankError when a rank fails to start.

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
        timeout: float | None = 300.0,
        collective_timeout: float = 120.0,
        threads: int = 1,
        port: int = 0,
        env: dict[str, str] | None = None,
        quiet: bool = False,
    ):
        global _current
        from labkit.torch_compat import check_version

        choice = hardware.choose(world_size, device, backend)
        check_version(hardware.torch_version())
        if sys.platform != "linux":
            raise ValueError(f"Ranks needs Linux (WSL2 included): this is {sys.platform}")
        _positive("timeout", timeout, none=True)
        _positive("collective_timeout", collective_timeout)
        _positive("threads", threads)
        self.world_size, self.device, self.backend, self.why = (
            world_size,
            choice.device,
            choice.backend,
            choice.why,
        )
        self.label = run_label(
            self.backend, self.device, world_size, len(hardware.gpus()) if device != "cpu" else 0
        )
        self.timeout, self.collective_timeout, self.threads, self.port = (
            timeout,
            collective_timeout,
            threads,
            port,
        )
        self.env = dict(env or {})
        self.calls = self.restarts = 0
        self._members: list[Member] = []
        self._number = 0
        self._busy = threading.Lock()
        self._closed = False
        self._spawner: spawn.Spawner | None = None
        self._finalizer: weakref.finalize | None = None
        started = time.perf_counter()
        self._start()
        _current = weakref.ref(self)
        if not quiet:
            print(f"{self.describe()}, up in {time.perf_counter() - started:.2f} s")

    def describe(self) -> str:
        """One line: how many ranks, on what, and why that was chosen."""
        where = {"cpu": "cpu"}.get(self.device, ", ".join(sorted(set(hardware.gpus()))))
        ranks = f"{self.world_size} rank{'s' * (self.world_size != 1)}"
        return f"{ranks} · {self.backend} · {where} ({self.why})"

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"pids {', '.join(str(m.process.pid) for m in self._members)}"
        return f"<Ranks: {self.describe()}; {state}>"

    def __len__(self) -> int:
        return self.world_size

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(
        self,
        fn: Callable[..., Any],
        *args: Any,
        timeout: float | None | str = "default",
        ranks=None,
        **kwargs: Any,
    ) -> PerRank:
        """Call `fn(*args, **kwargs)` on every rank (or on those in `ranks`) and return the values by rank.

        The function and its arguments travel by value; what it prints appears here, labelled, as it is printed.
        Raises RankError when a rank raises, dies or does not finish within `timeout` seconds: the culprit and its
        source lines come first, then where every other rank stood, and the ranks are new afterwards. Raises
        ValueError for something that cannot travel, before any rank hears of the call.

        >>> with Ranks(2, device="cpu", quiet=True) as ranks:
        ...     ranks.run(lambda x: x * 2, 21, ranks=[1])
        PerRank(rank 1: 42)
        """
        if not callable(fn):
            raise ValueError(f"run() needs a function, got {type(fn).__name__}")
        function = _travel(fn, f"function {getattr(fn, '__name__', type(fn).__name__)!r}")
        try:
            arguments = wire.dumps((args, kwargs))
        except Exception:
            for name, value in [*((f"argument {i + 1}", v) for i, v in enumerate(args)), *kwargs.items()]:
                _travel(value, f"{name} ({type(value).__name__})")
            raise
        return self._call(("call", function, arguments), timeout, ranks)

    def run_cell(
        self, source: str, filename: str, first_line: int = 1, timeout="default", ranks=None
    ) -> PerRank:
        """Run source text in the namespace that `%%ranks` cells share; the value of its last expression, by rank."""
        return self._call(("cell", source, filename, first_line), timeout, ranks)

    def push(self, **values: Any) -> None:
        """Define names in the `%%ranks` namespace of every rank."""
        self.run(cells.push, values)

    def pull(self, name: str) -> PerRank:
        """Fetch a name from the `%%ranks` namespace of every rank; RankError when a rank has no such name."""
        return self.run(cells.pull, name)

    def status(self) -> list[dict[str, Any]]:
        """One row a rank: rank, pid, device, backend, alive, calls, restarts."""
        self._hear_idle()
        shared = {
            "device": self.device,
            "backend": self.backend,
            "calls": self.calls,
            "restarts": self.restarts,
        }
        return [{"rank": m.rank, "pid": m.process.pid, "alive": not m.dead, **shared} for m in self._members]

    def restart(self) -> None:
        """Replace every rank by a new process."""
        with self._exclusive():
            self._replace()

    def close(self) -> None:
        """End the ranks. Calling it again does nothing."""
        self._closed = True
        if self._finalizer is not None:
            self._finalizer()

    # -- starting and ending -------------------------------------------------------------------------------

    def _start(self) -> None:
        listener = wire.listening_socket(self.port)
        self._spawner = spawner = spawn.shared()
        processes: list[spawn.Process] = []
        try:
            for rank in range(self.world_size):
                processes.append(spawner.fork(listener if rank == 0 and self.backend != "fake" else None))
        except BaseException:
            spawner.kill(processes)
            raise
        finally:
            port = listener.getsockname()[1]
            listener.close()
        self._members = [Member(rank, process) for rank, process in enumerate(processes)]
        self._finalizer = weakref.finalize(self, _end, spawner, processes, os.getpid())
        for member in self._members:
            member.process.calls.post(wire.frame(self._config(member.rank, port)))
        try:
            ready = self._pump(lambda: all(m.up for m in self._members), 60.0, stop=lambda: any(self._bad()))
        except BaseException:
            self._finalizer()
            raise
        if not ready or any(self._bad()):
            outcomes = [m.outcome or m.unfinished() for m in self._members]
            self._finalizer()
            raise RankError("ranks could not be started", outcomes)

    def _config(self, rank: int, port: int) -> dict[str, Any]:
        return {
            "rank": rank,
            "world_size": self.world_size,
            "backend": self.backend,
            "device": self.device,
            "label": self.label,
            "port": port,
            "threads": self.threads,
            "collective_timeout": self.collective_timeout,
            "env": self.env,
            "path": list(sys.path),
            "cwd": os.getcwd(),
            "hooks": HOOKS,
        }

    def _replace(self) -> float:
        started = time.perf_counter()
        if self._finalizer is not None:
            for member in self._members:
                for printer in member.printers:
                    printer.finish()
            self._finalizer()
        self.restarts += 1
        self._start()
        return time.perf_counter() - started

    # -- one call ------------------------------------------------------------------------------------------

    @contextmanager
    def _exclusive(self):
        if self._closed:
            raise RuntimeError("these ranks are closed: make new ones with labkit.Ranks(...)")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("these ranks are busy with another call")
        try:
            yield
        finally:
            self._busy.release()

    def _call(self, request: tuple, timeout: float | None | str, ranks: Iterable[int] | None) -> PerRank:
        if timeout == "default":
            timeout = self.timeout
        _positive("timeout", timeout, none=True)
        members = self._chosen(ranks)
        with self._exclusive():
            self._hear_idle()
            if any(m.dead for m in self._members):  # one died between calls: nothing to lose, start afresh
                gone = [f"rank {m.rank} ({how_it_ended(m.process.code)})" for m in self._members if m.dead]
                self._replace()
                print(f"{', '.join(gone)} had ended since the last call: ranks replaced", file=sys.stderr)
                members = self._chosen(ranks)
            self.calls += 1
            self._number += 1
            self._send(members, request)
            started = time.perf_counter()
            done = lambda: all(m.outcome for m in members)  # noqa: E731
            bad = lambda: any(m.outcome and m.outcome.kind in ("error", "dead") for m in members)  # noqa: E731
            try:
                finished = self._pump(done, timeout, stop=bad)
                if bad():
                    self._pump(done, GRACE_S)
            except KeyboardInterrupt:
                self._interrupted(members)
                raise
            if not finished or bad():
                raise self._failed(members, time.perf_counter() - started, bool(finished or bad()))
            for member in self._members:
                for printer in member.printers:
                    printer.finish()
            return self._values(members)

    def _chosen(self, ranks: Iterable[int] | None) -> list[Member]:
        if ranks is None:
            return self._members
        wanted = sorted(set([ranks] if isinstance(ranks, int) else ranks))
        for rank in wanted:
            if not isinstance(rank, int) or not 0 <= rank < self.world_size:
                raise ValueError(f"no rank {rank!r} here: ranks are 0 to {self.world_size - 1}")
        if not wanted:
            raise ValueError("no rank was chosen: give at least one in ranks=")
        return [self._members[rank] for rank in wanted]

    def _send(self, members: Sequence[Member], request: tuple) -> None:
        sources = cells.known_sources()
        framed: dict[frozenset[str], list[bytes]] = {}  # ranks that know the same cells share one buffer
        for member in members:
            fresh = frozenset(sources.keys() - member.sent)
            if fresh not in framed:
                kind, *parts = request
                framed[fresh] = wire.frame(
                    (kind, self._number, {name: sources[name] for name in fresh}, *parts)
                )
            member.sent |= fresh
            member.begin(self._number)
            member.process.calls.post(framed[fresh])

    def _values(self, members: Sequence[Member]) -> PerRank:
        outcomes, values = [], {}
        for member in members:
            if member.value is not None:
                try:
                    values[member.rank] = wire.loads(member.value)
                except Exception as error:
                    what = f"it does not unpickle in the kernel ({type(error).__name__}: {error})"
                    member.outcome = Outcome(member.rank, "unpicklable", message=what)
            outcomes.append(member.outcome)
            member.value = None
        if len(values) < len(members):
            raise RankError(
                "the call ran, but a result could not come back", outcomes, "The ranks are still up."
            )
        return PerRank(values)

    def _failed(self, members: Sequence[Member], seconds: float, failed: bool) -> RankError:
        with _no_interrupt():
            self._ask_where([m for m in members if not m.outcome])
            outcomes = [m.outcome or m.unfinished() for m in members]
            again = self._replace()
        after = f"All ranks were replaced in {again:.2f} s; names that %%ranks cells had defined are gone."
        if failed:
            first = min(outcomes, key=lambda o: (o.order, o.rank))
            error = RankError(f"rank {first.rank} failed after {seconds:.2f} s", outcomes, after)
            if first.exception:
                try:
                    error.__cause__ = wire.loads(first.exception)
                except Exception:
                    pass
            return error
        return RankError(f"no end after {seconds:.1f} s (timeout)", outcomes, after)

    def _interrupted(self, members: Sequence[Member]) -> None:
        with _no_interrupt():
            stuck = [m for m in members if not m.outcome]
            self._ask_where(stuck)
            assert self._spawner is not None
            self._spawner.signal([m.process.pid for m in stuck], signal.SIGINT)
            self._pump(lambda: all(m.outcome for m in stuck), GRACE_S)
            lines = [m.unfinished().describe() for m in stuck]
            again = self._replace()
            print(
                "\n".join(["interrupted", *lines, f"All ranks were replaced in {again:.2f} s."]),
                file=sys.stderr,
            )

    def _ask_where(self, members: Sequence[Member]) -> None:
        for member in members:
            member.process.control.post(wire.frame("where"))
        self._pump(lambda: all(m.standing is not None or m.dead for m in members), ANSWER_S)

    # -- waiting -------------------------------------------------------------------------------------------

    def _bad(self) -> Iterable[Outcome]:
        return [m.outcome for m in self._members if m.outcome and m.outcome.kind in ("dead", "error")]

    def _pump(
        self, done: Callable[[], bool], limit: float | None, stop: Callable[[], bool] | None = None
    ) -> bool:
        """Serve every rank's sockets, pipes and death from this thread until `done()`; False at the limit."""
        deadline = None if limit is None else time.monotonic() + limit
        while not done():
            if stop is not None and stop():
                return True
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self._serve(left)
        return True

    def _serve(self, wait: float | None) -> None:
        assert self._spawner is not None
        poller = select.poll()
        handlers: dict[int, Callable[[], Any]] = {self._spawner.fileno(): self._spawner.hear}
        poller.register(self._spawner.fileno(), select.POLLIN)
        for member in self._members:
            if not member.dead:
                calls, control = member.process.calls, member.process.control
                handlers[calls.fileno()] = self._calls_handler(member)
                poller.register(calls, select.POLLIN | (select.POLLOUT if calls.wants_write else 0))
                handlers[control.fileno()] = member.hear_control
                poller.register(control, select.POLLIN)
            for printer in member.printers:
                if printer.open:
                    handlers[printer.fd] = printer.drain
                    poller.register(printer.fd, select.POLLIN)
        for fd, _ in poller.poll(None if wait is None else max(wait, 0) * 1000 + 0.5):
            handlers[fd]()
        for member in self._members:
            if member.dead and not member.noted:
                self._note_death(member)

    def _calls_handler(self, member: Member) -> Callable[[], None]:
        def handle() -> None:
            member.process.calls.flush()
            member.hear_calls()

        return handle

    def _note_death(self, member: Member) -> None:
        assert self._spawner is not None
        pid, ended = member.process.pid, self._spawner.ended
        if pid not in ended:  # the connection closes a moment before the zygote has reaped the process
            try:
                self._spawner._wait(lambda: pid in ended, 1.0, "a rank's end")
            except spawn.StartError:
                pass
        member.process.code, member.noted = ended.get(pid), True
        if member.outcome is None:
            member.outcome = Outcome(member.rank, "dead", code=member.process.code)

    def _hear_idle(self) -> None:
        """Between calls: print what arrived, notice who died."""
        if not self._closed:
            self._serve(0)


def _end(spawner: spawn.Spawner, processes: list[spawn.Process], owner: int) -> None:
    if os.getpid() == owner:
        spawner.kill(processes)


def _positive(name: str, value: float | None, none: bool = False) -> None:
    if value is None and none:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"{name} must be a number above 0{' or None' if none else ''}, got {value!r}")


def _travel(value: Any, what: str) -> bytes:
    try:
        return wire.dumps(value)
    except Exception as error:
        hint = ""
        if hasattr(value, "_torchdynamo_orig_callable") or type(value).__name__ == "OptimizedModule":
            hint = "; a compiled object stays in its process: call torch.compile inside the function"
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{what} cannot travel to the ranks: {reason}{hint}") from None


@contextmanager
def _no_interrupt():
    """Hold SIGINT back while ranks are being replaced: a second press of stop must not leave half of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def current() -> Ranks | None:
    """The ranks that were started last and are still up, if any."""
    ranks = _current() if _current is not None else None
    return None if ranks is None or ranks._closed else ranks
