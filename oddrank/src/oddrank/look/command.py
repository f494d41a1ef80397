"""`oddrank look`: runs a script on ranks, writes a page of what they recorded, and compares counts with a baseline."""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import time
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from oddrank import machine, tlparse
from oddrank.files import below, write
from oddrank.look import (
    chrome_trace,
    endings,
    failure_page,
    gate,
    journal,
    look,
    page,
    summary,
    switches,
    torchrun,
)
from oddrank.look.endings import STOPPED
from oddrank.look.program import Program
from oddrank.look.rendezvous import Launch, Post, launched
from oddrank.look.steps import Options
from oddrank.look.torchrun import FAILED, INTERRUPTED, LOGS, Request
from oddrank.look.watch import Limits

__all__ = ["FAILURE", "GATE", "folder_for", "limits", "program_of", "run", "world_size"]

GATE, NOTHING = 1, 2  # exit statuses: the gate; a request that cannot be met
FAILURE = "failure.txt"  # why the script failed
MOST_A_CORE = 4  # ranks


def run(given: argparse.Namespace) -> int:
    """Run the command.

    Args:
        given: The parsed command line.

    Returns:
        0; 1 where the gate does not pass; 3 where the script failed. Under torchrun, on other ranks than 0, the
        script's own status.

    Raises:
        ValueError: For a request that cannot be met, and where the script had no step to record.
    """
    launch = launched()
    given.trace = given.trace and given.trace.absolute()  # a script may go to another folder
    if given.merge:
        return _merge(given)
    program = program_of(given)
    ranks = launch.world_size if launch else world_size(given)
    baseline = gate.load(given.against, ranks) if given.against else None
    options = Options(given.skip, given.steps, given.step, given.values)
    request = Request(program, options, limits(given), given.verify)
    if launch is not None:
        return _under_torchrun(given, launch, request, baseline)
    _carried(ranks, given.backend)
    _free(given.trace)
    folder = folder_for(given.out, program.name)
    failure = torchrun.run(request, ranks, folder).said
    return _finish(given, folder, failure, options, baseline)


def _carried(ranks: int, backend: str) -> None:
    """Refuse what this machine cannot carry, before a process is started."""
    if backend == "nccl" and not machine.gpus():
        raise ValueError(f"--backend nccl needs a GPU, and there is {machine.no_gpu()}")
    if ranks > (most := max(32, MOST_A_CORE * machine.cores())):
        raise ValueError(f"-n {ranks}: {machine.cores()} CPU cores carry {most} ranks at most")


def limits(given: argparse.Namespace) -> Limits:
    """The limits of a command line."""
    return Limits(given.timeout, given.stall or Limits().stall)


def world_size(given: argparse.Namespace) -> int:
    """How many ranks the command starts: `-n`, or two."""
    return given.n or 2


def _under_torchrun(
    given: argparse.Namespace, launch: Launch, request: Request, baseline: dict[str, Any] | None
) -> int:
    """Run the script in this process, which torchrun has started."""
    if given.n not in (None, launch.world_size):
        raise ValueError(f"torchrun started {launch.world_size} ranks, and {given.n} were asked for")
    from oddrank.look import rank

    post = Post(launch)

    def choose() -> Path:
        _free(given.trace)
        return folder_for(given.out, request.program.name)

    folder, token = rank.same_folder(launch, post, choose)
    began = time.perf_counter()

    def page(lost: tuple[int, ...], status: int) -> int:
        outcomes, stop = endings.read(folder, launch.world_size, lost=lost)
        otherwise = f"the script ended with exit status {status}" if status else ""
        try:
            ended = endings.ending(outcomes, stop, request, time.perf_counter() - began, otherwise)
        except ValueError as error:
            print(f"oddrank: {error}", file=sys.stderr)
            return NOTHING
        return _finish(given, folder, ended.said, request.options, baseline, hurry=bool(ended.said))

    return rank.run(launch, post, request, folder, token, page)


def _merge(given: argparse.Namespace) -> int:
    """Write the page of what the ranks of a run have written to folders, which may come from several machines."""
    if given.script or given.module is not None:
        raise ValueError("give a script to run, or --merge and folders of a run that is over")
    baseline = gate.load(given.against) if given.against else None
    _free(given.trace)
    folder = folder_for(given.out, "merge") if given.out else given.merge[0]
    look.gather(given.merge, folder)
    return _finish(given, folder, "", Options(given.skip, given.steps, given.step), baseline)


def _page(folder: Path, given: argparse.Namespace, failure: str, hurry: bool = False) -> look.Look | None:
    """Write the page and the trace of what the ranks have written to a folder, and say where they are.

    In a hurry, tlparse is left out: torchrun ends a rank 30 s after another one has failed.
    """
    looked = look.read(folder)
    early = looked is None or not looked.steps
    if early and not failure:
        return looked
    traces = f"the script failed; the traces are in {LOGS}/" if hurry else _tlparse(folder)
    if looked is None or early:
        name = looked.name if looked is not None else _name(given) or folder.name
        said, body = failure_page.text(name, folder), failure_page.html(name, folder, looked, failure, traces)
    else:
        looked.failed = bool(failure)
        said, body = summary.text(looked), page.html(looked, failure, given.step, traces)
    index = write(folder / "index.html", body.encode())
    if given.source and looked is not None and not early:
        said = f"{_source(looked)}\n\n{said}"
    print(f"\n{said}\n\npage: {below(index)}", flush=True)
    if given.trace and looked is not None and not early:
        print(f"trace: {below(chrome_trace.save(looked.record, given.trace))}", flush=True)
    return looked


def _source(looked: look.Look) -> str:
    """The annotated source for this terminal, or for a file."""
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return looked.source.text(colour, shutil.get_terminal_size((118, 24)).columns)


def _why(failure: str, folder: Path) -> str:
    """Why the script failed, with what ranks were compiling meanwhile; '' if it did not fail."""
    head, *rest = failure.splitlines() or [""]
    return "\n".join([head, *journal.ended(journal.read(folder), failure), *rest]) if failure else ""


def _finish(
    given: argparse.Namespace,
    folder: Path,
    failure: str,
    options: Options,
    baseline: dict[str, Any] | None,
    hurry: bool = False,
) -> int:
    failure = _why(failure, folder)
    if failure:
        print(f"\n{failure}", file=sys.stderr, flush=True)
    looked = _page(folder, given, failure, hurry)
    if failure:
        write(folder / FAILURE, failure.encode())
        return INTERRUPTED if failure.startswith(STOPPED) else FAILED
    if looked is None or not looked.steps:
        idle = switches.idle(looked).itertuples() if looked else ()
        never = [f"{row.name}, compiled at {row.place}, is never called; " for row in idle]
        raise ValueError("".join(never) + look.nothing(looked, options))
    if not given.save and baseline is None:
        return 0
    if looked.missing:
        raise ValueError(
            f"rank {looked.missing[-1]} wrote nothing: a baseline needs every rank;"
            " copy its folder here and use --merge"
        )
    counts = gate.counts(looked)
    if given.save:
        gate.save(counts, given.save)
        print(f"baseline saved: {given.save}")
    if baseline is None:
        return 0
    passes, said = gate.verdict(baseline, counts, given.against)
    print(f"\n{said}")
    return 0 if passes else GATE


def _name(given: argparse.Namespace) -> str:
    """The bare name of the script or module; '' where the command has none."""
    words = given.module or given.script or [""]
    return words[0] if given.module else os.path.basename(words[0])


def program_of(given: argparse.Namespace) -> Program:
    """Return the script or module of a command line.

    Raises:
        ValueError: If there is none.
    """
    words = given.module if given.module is not None else given.script
    if not words:
        raise ValueError("oddrank look needs a script, or -m MODULE (see oddrank look --help)")
    target, *arguments = words
    if given.module is None:
        if not os.path.isfile(target):
            raise ValueError(f"there is no script {target}")
        target = os.path.abspath(target)
    elif not _there(target.partition(".")[0]):
        raise ValueError(f"there is no module {target}, neither here nor among the installed ones")
    backend = "" if given.backend == "auto" else given.backend
    return Program(target, given.module is not None, tuple(arguments), backend)


def _there(name: str) -> bool:
    """Whether a module is in this folder, or installed, also editable: such installs have finders of their own."""
    return PathFinder.find_spec(name, [os.getcwd()]) is not None or find_spec(name) is not None


def _free(trace: Path | None) -> None:
    """Refuse a file for the trace that is there already, or whose folder is not."""
    if trace and trace.exists():
        raise ValueError(f"--trace {trace} is there already: nothing is overwritten")
    if trace and not trace.parent.is_dir():
        raise ValueError(f"--trace {trace}: there is no folder {trace.parent}")


def folder_for(out: Path | None, name: str) -> Path:
    """The folder to write to: a new one, unless `out` names it."""
    if out is not None:
        folder = out.absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"--out {out} is there already and not empty: nothing is overwritten")
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    stem = f"look-{Path(name).name.removesuffix('.py')}"
    for number in itertools.count(1):
        folder = Path.cwd() / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise AssertionError


def _tlparse(folder: Path) -> str:
    """Let tlparse make its report of all ranks; its address relative to the page, or why there is none."""
    return tlparse.report(folder / LOGS, folder / "tlparse") or "tlparse/index.html"
