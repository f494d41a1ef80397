"""`labkit look` in a process that torchrun has started: the process is a rank already, and runs the script itself."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import secrets
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from oddrank.files import write
from oddrank.record import install
from oddrank.run_label import run_label

from labkit.look import ends, journal
from labkit.look import program as running
from labkit.look.launch import MEET_S, Launch, Post
from labkit.look.program import Program
from labkit.look.steps import Options, Steps
from labkit.ranks import Here, Outcome, declare
from labkit.torch_compat import log_to
from oddrank import places

__all__ = ["collect", "run", "same_folder"]

END_S = 60.0  # rank 0 waits so long for what the others say at their end
AFTER_S = 2.0  # and so long where something failed: torchrun is about to end everybody
TERMINATED = 128 + signal.SIGTERM


def same_folder(launch: Launch, post: Post, choose: Callable[[], Path]) -> tuple[Path, str]:
    """Agree on the folder of a run: rank 0 chooses it, and each machine makes it.

    Args:
        launch: this process among the others.
        post: what the ranks share.
        choose: chooses and makes a new folder; called on rank 0 only.

    Returns:
        The folder on this machine, and a name of the run that no other run has.

    Raises:
        ValueError: rank 0 could not make it, or did not say so in time.
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
    program: Program,
    options: Options,
    folder: Path,
    token: str,
    logs: Path | None,
    page: Callable[[], Any],
) -> int:
    """Run the script in this process, and write what was recorded of its steps to `folder` as it goes.

    Where torchrun ends this process, it writes what it has, though its main thread may be inside a collective.

    Args:
        launch: this process among the others.
        post: gets the record, for rank 0.
        program: the script.
        options: which steps to record.
        folder: where `rank-N.json` goes; on rank 0, at the end, those of the others as well.
        token: the name of the run.
        logs: the folder for torch's logs and traces; None for none.
        page: writes the page of what is in the folder; called on rank 0 where torchrun ends it.

    Returns:
        The exit status: the script's own, or 3 where it raised.
    """
    cuda = torch.cuda.is_available()
    device = f"cuda:{launch.local_rank % torch.cuda.device_count()}" if cuda else "cpu"
    backend = program.backend
    declare(Here(launch.rank, launch.world_size, device, backend, _label(backend, cuda, launch)))
    install()
    if logs is not None:
        logs.mkdir(parents=True, exist_ok=True)
        log_to(str(logs / f"rank-{launch.rank}.log"), str(logs))
    running.let_groups_end()
    running.force_backend(backend)
    lines = itertools.count()

    def send(line: str) -> None:
        post.leave(f"compiles-{launch.rank}/{next(lines)}", line)

    journal.keep(folder, launch.rank, send if launch.machines > 1 else None)
    lock, me = threading.Lock(), os.getpid()
    seen: list[Steps] = []

    def keep(steps: Steps) -> None:
        nonlocal backend
        if os.getpid() != me:  # a script may fork
            return
        with lock:
            backend = running.backend_of() or backend  # at the end the group may be gone
            report = running.report_of(steps, launch.rank, program.name, program.command)
            report = dataclasses.replace(report, label=_label(backend, cuda, launch))
            report.provenance.update(run=token, machine=socket.gethostname(), launched="torchrun")
            post.leave(f"rank-{launch.rank}", report.save(folder).read_text(encoding="utf-8"))
            steps.keep_values(folder / f"values-{launch.rank}.pt")

    failed = False

    def ended_by_torchrun() -> None:
        if not failed:
            ends.leave(post, ends.stand(launch.rank))
        if seen and seen[0].rec is None:  # what was compiled so far; the steps were kept when they were over
            with contextlib.suppress(Exception):
                keep(seen[0])
        if launch.rank == 0:
            collect(launch, post, folder, AFTER_S)
            page()

    with _told_of_the_end(ended_by_torchrun):
        with running.followed(options, keep) as steps:
            seen.append(steps)
            try:
                running.execute(program, options, steps)
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
            except Exception as error:
                failed = True
                ends.leave(post, Outcome.of(launch.rank, error))  # to write the record takes a while
                traceback.print_exception(type(error), error, _of_script(error))
                status = 3
            else:
                status = 0
        if os.getpid() != me:
            sys.stdout.flush()
            os._exit(status)
    post.leave(f"end-{launch.rank}", str(status))
    if launch.rank == 0:
        collect(launch, post, folder, END_S if status == 0 else AFTER_S)
    return status


def collect(launch: Launch, post: Post, folder: Path, wait: float) -> None:
    """Write what the other ranks have left for rank 0 to its folder: machines need not share one.

    Args:
        launch: rank 0.
        post: where they left it.
        folder: rank 0's.
        wait: seconds to wait for all of them to end.
    """
    until = time.monotonic() + wait
    for rank in range(launch.world_size):
        post.take(f"end-{rank}", max(until - time.monotonic(), 0))
        body = None if rank == launch.rank else post.take(f"rank-{rank}")
        if body is not None:
            write(folder / f"rank-{rank}.json", body.encode())
        if not (path := folder / f"compiles-{rank}.jsonl").exists():  # on another machine
            path.write_text("\n".join(_lines(post, rank)), "utf-8")


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


def _label(backend: str, cuda: bool, launch: Launch) -> str:
    backend = backend.rpartition(":")[2] or ("nccl" if cuda else "gloo")
    gpus = min(launch.world_size, torch.cuda.device_count() * launch.machines) if cuda else 0
    try:
        label = run_label(backend, "cuda" if cuda else "cpu", launch.world_size, gpus)
    except ValueError:  # a backend of the script's own
        label = backend
    return label + f" · {launch.machines} nodes" * (launch.machines > 1)


@contextlib.contextmanager
def _told_of_the_end(act: Callable[[], None]) -> Any:
    """Call `act` and exit when SIGTERM comes in the block, also where the main thread is inside a collective.

    What comes after the block, such as writing the page, is not broken off: torchrun sends SIGKILL only 30 s later.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    inside = threading.Event()

    def wait() -> None:
        while number := os.read(reading, 1):
            if number[0] == signal.SIGTERM and inside.is_set():
                try:
                    act()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(TERMINATED)

    threading.Thread(target=wait, daemon=True, name="labkit-look-end").start()
    # only with a handler in Python is the signal's number written to the pipe
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    inside.set()
    try:
        yield
    finally:
        inside.clear()
