"""`oddrank look` in a process that torchrun has started: runs the script, leaves what was recorded and how it ended."""

from __future__ import annotations

import dataclasses
import datetime
import faulthandler
import importlib
import itertools
import os
import secrets
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from oddrank import places, tlparse
from oddrank.files import write
from oddrank.live import collective_check, introspect
from oddrank.live.failure import Outcome
from oddrank.live.here import Here, declare
from oddrank.live.introspect import aside
from oddrank.look import choices, conditions, decisions, endings, journal, replays, ways
from oddrank.look import program as running
from oddrank.look.rendezvous import MEET_S, Launch, Post
from oddrank.look.steps import Steps
from oddrank.look.torchrun import FAILED, INTERRUPTED, LOGS, Request
from oddrank.look.watch import INTERRUPT, Peers, Stop, Watch, grace
from oddrank.record import install
from oddrank.run_label import run_label
from oddrank.torch_names import DYNAMO, log_to

__all__ = ["run", "same_folder"]

END_S = 60.0  # rank 0 waits so long for what the others say at their end
AFTER_S = 10.0  # and so long where something failed; the others look once a second whether it did
VOTE_S = 3600.0  # ranks run regions again at their own pace; the run's own limits end a wait
WRITE_S = 10.0  # a rank that has failed may take so long to write what it recorded
UNWIND_S = 0.5  # a KeyboardInterrupt in Python code knows best where the script stood


def same_folder(launch: Launch, post: Post, choose: Callable[[], Path]) -> tuple[Path, str]:
    """Agree on the folder of a run: rank 0 chooses it, and each machine makes it.

    Args:
        launch: This process among the others.
        post: What the ranks share.
        choose: Chooses and makes a new folder; called on rank 0 only.

    Returns:
        The folder on this machine, and a name of the run that no other run has.

    Raises:
        ValueError: Rank 0 could not make it, or did not say so in time.
    """
    if launch.rank == 0:
        try:
            folder = choose()
        except ValueError as error:
            post.leave("folder", f"!{error}")
            raise
        token = secrets.token_hex(4)
        post.leave("folder", f"{token} {os.path.relpath(folder)}")
        return folder, token
    said = post.take("folder", MEET_S)
    if said is None:
        raise ValueError(f"rank 0 did not say within {MEET_S:.0f} s where the ranks write to")
    if said.startswith("!"):
        raise ValueError(f"rank 0: {said[1:]}")
    token, _, name = said.partition(" ")
    folder = Path(name).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder, token


def run(
    launch: Launch,
    post: Post,
    request: Request,
    folder: Path,
    token: str,
    page: Callable[[tuple[int, ...], int], int] | None = None,
) -> int:
    """Run the script in this process, and write what was recorded of its steps to `folder` as it goes.

    Args:
        launch: This process among the others.
        post: What the ranks share.
        request: The script, and what to do with it.
        folder: Where `rank-N.json` and `ended-N.json` go; on the rank that makes the page, those of other machines too.
        token: The name of the run.
        page: Makes the page, of ranks whose process is gone and this rank's exit status, and returns the exit status.
            Called on one rank of the first machine: rank 0, or the lowest that is left. None where the launcher does.

    Returns:
        The exit status: the script's own, or 3 where it raised.
    """
    return _Rank(launch, post, request, folder, token, page).run()


class _Rank:
    """One rank of a run; the arguments are those of `run`."""

    def __init__(
        self,
        launch: Launch,
        post: Post,
        request: Request,
        folder: Path,
        token: str,
        page: Callable[[tuple[int, ...], int], int] | None,
    ) -> None:
        self.launch, self.post, self.request = launch, post, request
        self.folder, self.token, self.page = folder, token, page
        self.me, self.lock = os.getpid(), threading.Lock()
        self.backend, self.cuda = request.program.backend, torch.cuda.is_available()
        self.steps: Steps | None = None
        self.failed = self.left = False
        self.stood: tuple[Outcome, Stop] | None = None  # where a signal found this rank
        self.called: list[introspect.Collective] | None = None
        self._turn = threading.Lock()  # held by the thread that ends this process
        self.peers = Peers(launch, post)

    def run(self) -> int:
        self._prepare()
        watch = Watch(self.launch, self.post, self.peers, self.request.limits, self._end)
        self.watch = watch
        with running.followed(self.request.options, self._keep) as self.steps:
            status = self._execute(self.steps)
        if os.getpid() != self.me:  # a script may fork
            sys.stdout.flush()
            os._exit(status)
        if not self._turn.acquire(blocking=False):
            threading.Event().wait()  # the watch is about to end this process
        watch.close()
        if status == 0:
            self._leave(Outcome(self.launch.rank, "ok", collectives=self.called))
        return self._conclude(status)

    def _prepare(self) -> None:
        launch, request = self.launch, self.request
        device = f"cuda:{launch.local_rank % torch.cuda.device_count()}" if self.cuda else "cpu"
        declare(Here(launch.rank, launch.world_size, device, self.backend, self._label()))
        streams: tuple[Any, ...] = (sys.stdout, sys.stderr)
        for stream in streams:  # what is printed stays, though the process may be killed
            with suppress(AttributeError, ValueError):
                stream.reconfigure(line_buffering=True)
        faulthandler.enable(endings.crash_file(self.folder, launch.rank).open("w"), all_threads=True)
        importlib.import_module(DYNAMO)  # it keeps functions of torch that look wraps in a moment
        introspect.prepare()
        install()
        if tlparse.tool():
            logs = self.folder / LOGS
            logs.mkdir(parents=True, exist_ok=True)
            log_to(str(logs / f"rank-{launch.rank}.log"), str(logs))
        if request.verify:
            limit = datetime.timedelta(minutes=30)  # as long as torch's own collectives wait
            store = dist.TCPStore(launch.address, launch.port, timeout=limit, wait_for_workers=False)
            collective_check.install(self.backend, dist.PrefixStore(f"oddrank.check/{launch.attempt}", store))
        running.force_backend(self.backend)
        lines = itertools.count()

        def send(line: str) -> None:
            self.post.leave(f"compiles-{launch.rank}/{next(lines)}", line)

        journal.keep(self.folder, launch.rank, send if launch.machines > 1 else None)
        self.decided: Callable[[], None] = lambda: None
        if request.options.condition is not None:
            self.decided = decisions.keep(self.folder, launch.rank)
            conditions.apply(request.options.condition, self.folder, launch.rank)
        if request.options.way is not None:
            ways.apply(request.options.way, launch.rank)

    def _execute(self, steps: Steps) -> int:
        """Run the script; its exit status."""
        rank = self.launch.rank
        sys.excepthook = traceback.print_exception if self.page is not None else _silent
        again = self._again(steps)
        try:
            running.execute(self.request.program, self.request.options, steps)
            aside(again)
            if self.request.verify:
                collective_check.finish()
            self.called = _called()
            return 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            self.called = _called()
            if status and os.getpid() == self.me:
                self._leave(_raised(rank, end))
            return status
        except KeyboardInterrupt as error:
            where = Outcome(rank, "unfinished", frames=Outcome.of(rank, error).frames)
            self._leave(where, Stop(INTERRUPT))
            return INTERRUPTED
        except BaseException as error:  # torch's CheckpointException is no Exception
            self._leave(_raised(rank, error))  # now: to write the record takes a while
            with suppress(Exception):  # the script's own one, or torch's, which names the rank
                sys.excepthook(type(error), error, _of_script(error))
            return FAILED

    def _again(self, steps: Steps) -> Callable[[], None]:
        """Let the way in which the script runs hold in its steps; what is to be called when it has ended."""
        if (way := self.request.options.way) is None:
            return lambda: None
        if way.nudged is not None:
            replays.nudge_first(steps, way.nudged)
        if not way.again:
            return lambda: None
        asked = itertools.count()

        def votes(said: str) -> list[str | None]:
            key = f"vote-{next(asked)}"
            self.post.leave(f"{key}/{self.launch.rank}", said)
            return [self.post.take(f"{key}/{rank}", VOTE_S) for rank in range(self.launch.world_size)]

        path = self.folder / f"regions-{self.launch.rank}.json"
        kept = replays.Replays(steps, way.again, self.launch.rank, path, votes)
        kept.listen()
        return kept.run

    def _leave(self, outcome: Outcome, stop: Stop | None = None) -> None:
        """Say how this rank ended, in its folder and to the other machines: once."""
        if self.left:
            return
        if self.stood is not None and outcome.type == "SystemExit":  # the script's own handler of the signal
            outcome, stop = self.stood
        self.left, self.failed = True, outcome.kind == "error"
        with suppress(Exception):
            outcome.choices = [list(one) for one in choices.latest()]
        text = endings.dump(outcome, stop)
        write(self.folder / f"ended-{self.launch.rank}.json", text.encode())
        with suppress(Exception):  # the store may be gone with torchrun
            self.post.leave(f"ended-{self.launch.rank}", text)
            if self.failed:
                self.watch.tell_others()

    def _keep(self, steps: Steps) -> None:
        if os.getpid() != self.me:  # a script may fork
            return
        self.watch.groups.look()  # a script may end before the watch looks
        with self.lock:
            self.backend = running.backend_of() or self.backend  # at the end the group may be gone
            program, rank = self.request.program, self.launch.rank
            report = running.report_of(steps, rank, program.name, program.command)
            report = dataclasses.replace(report, label=self._label())
            report.provenance.update(run=self.token, machine=socket.gethostname(), launched="torchrun")
            path = report.save(self.folder)
            if self.launch.machines > 1:
                self.post.leave(f"rank-{rank}", path.read_text(encoding="utf-8"))
            steps.keep_values(self.folder / f"values-{rank}.pt")
            self.decided()

    def _end(self, stop: Stop) -> int | None:
        """End this rank before its script does; called in the watch's thread. None where the script ended by itself."""
        if stop.how == INTERRUPT:
            grace(lambda: self.left, UNWIND_S)
        outcome = endings.stand(self.launch.rank)
        self.stood = outcome, stop
        if stop.by_limit:
            self._leave(outcome, stop)
        elif not outcome.waits:
            grace(lambda: self.failed or self.watch.over)
        if self.failed:
            grace(lambda: self.watch.over, WRITE_S)
        if not self._turn.acquire(blocking=False):
            return None
        self._leave(outcome, stop)
        if self.steps is not None and self.steps.rec is None and self.lock.acquire(blocking=False):
            self.lock.release()
            with suppress(Exception):  # what was compiled so far; the steps were kept when they were over
                self._keep(self.steps)
        # whoever is gone makes others fail, who have yet to say where they stood
        if stop.by_limit and self.page is None:
            self._silent(WRITE_S)
        status = self._conclude(INTERRUPTED if stop.how == INTERRUPT else FAILED)
        sys.stdout.flush()
        sys.stderr.flush()
        return status

    def _conclude(self, status: int) -> int:
        """Let the page be made where this rank is the one to do so; the exit status of this process."""
        launch = self.launch
        if self.page is None or (launch.rank and not status):
            return status
        silent = self._silent(END_S if status == 0 else AFTER_S)
        gone = tuple(rank for rank in self.peers.gone() if rank in silent)
        for rank in gone if launch.node else ():  # the first machine sees its own
            self.post.leave(f"lost-{rank}", endings.dump(endings.gone(self.folder, rank)))
        first = min(
            rank for rank in range(launch.local_world_size) if rank not in silent or rank == launch.rank
        )
        if launch.node or launch.rank != first or not self.post.first("page"):
            return status
        self._collect()
        return self.page(gone, status)

    def _silent(self, wait: float) -> list[int]:
        """The ranks that have not said how they ended, once all others have, or after `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            silent = [
                rank
                for rank in range(self.launch.world_size)
                if rank != self.launch.rank and not self.post.there(f"ended-{rank}")
            ]
            if time.monotonic() >= until or set(silent) <= set(self.peers.gone()):
                return silent
            time.sleep(0.05)

    def _collect(self) -> None:
        """Write what ranks of other machines have left to this rank's folder: machines need not share one."""
        for rank in range(self.launch.world_size):
            record, ended = f"rank-{rank}", f"ended-{rank}"
            for left, name in ((record, record), (ended, ended), (f"lost-{rank}", ended)):
                path = self.folder / f"{name}.json"
                if not path.exists() and (body := self.post.take(left)) is not None:
                    write(path, body.encode())
            if not (path := self.folder / f"compiles-{rank}.jsonl").exists():
                path.write_text("\n".join(_lines(self.post, rank)), "utf-8")

    def _label(self) -> str:
        backend = self.backend.rpartition(":")[2] or ("nccl" if self.cuda else "gloo")
        launch = self.launch
        gpus = min(launch.world_size, torch.cuda.device_count() * launch.machines) if self.cuda else 0
        try:
            label = run_label(backend, "cuda" if self.cuda else "cpu", launch.world_size, gpus)
        except ValueError:  # a backend of the script's own
            label = backend
        return label + f" · {launch.machines} nodes" * (launch.machines > 1)


def _called() -> list[introspect.Collective] | None:
    """The collectives of this rank; None where its group is gone already."""
    try:
        return introspect.collectives() or None
    except Exception:
        return None


def _raised(rank: int, error: BaseException) -> Outcome:
    outcome = Outcome.of(rank, error)
    outcome.collectives = _called()
    return outcome


def _silent(*_: Any) -> None:
    """The launcher says what was raised."""


def _of_script(error: BaseException) -> Any:
    """The traceback of an error, from the first line of the script on."""
    first = error.__traceback__
    while first is not None and places.is_library(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    return first or error.__traceback__


def _lines(post: Post, rank: int) -> Iterator[str]:
    number = 0
    while (line := post.take(f"compiles-{rank}/{number}")) is not None:
        yield line
        number += 1
