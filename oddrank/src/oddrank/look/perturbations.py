"""`oddrank look --perturb`: a script as it is, and then with one difference on one rank at a time."""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oddrank import machine
from oddrank.counted import counted
from oddrank.files import below, write, write_json
from oddrank.look import command, decisions, look, values
from oddrank.look.command import world_size
from oddrank.look.conditions import Condition, done
from oddrank.look.endings import STOPPED
from oddrank.look.outcomes import OUTCOMES, Outcome, compare, verdict
from oddrank.look.perturbations_page import html, text
from oddrank.look.program import Program
from oddrank.look.runs import Stopped, Trial, refuse, trial
from oddrank.look.steps import Options
from oddrank.look.torchrun import FAILED, INTERRUPTED

__all__ = ["Perturbation", "run", "perturbations"]

TIMEOUT_S, STALL_S = 300.0, 30.0  # of each run, unless the command says otherwise
AS_LONG = 10  # times the run as it is, if that is more
BASE = ("as it is, cold caches", "as it is, warm caches")


@dataclass(frozen=True)
class Perturbation:
    """One difference on one rank.

    Args:
        name: What `--only` and `--allow` call it.
        said: The difference in words, after 'rank N has'.
        env: What differs in the rank's environment; None as a value means not set.
        cache: The compile cache that the rank has: 'warm' (its own of the run as it is), 'none' or 'other' (another
            rank's).
        condition: What differs on the rank besides.
        numbers: Whether what ranks compute must stay the same; else only what ranks hold alike must.
        verify: Whether collectives are compared before they run. Ranks then wait for each other outside of the
            script's own process groups, whose timeouts do not end that.
    """

    name: str
    said: str
    env: Mapping[str, str | None] = field(default_factory=dict)
    cache: str = "warm"
    condition: Condition = Condition()
    numbers: bool = True
    verify: bool = True


def perturbations(
    rank: int, batch: int = 3, delay_s: float = 20.0, more: Sequence[str] = ()
) -> list[Perturbation]:
    """List the differences that are tried, one at a time.

    Args:
        rank: The rank that has them.
        batch: The batch of each DataLoader, counted from 1, that is a row shorter there.
        delay_s: Seconds that the rank's first compile takes longer.
        more: Environment variables as NAME=VALUE, or NAME for not set; each is a difference.

    >>> [one.name for one in perturbations(1, more=["NCCL_ALGO=Ring"])][-2:]
    ['threads', 'NCCL_ALGO=Ring']
    """
    threads = "2" if os.environ.get("OMP_NUM_THREADS") != "2" else "1"
    own = [
        Perturbation(each, f"{name}={value}" if mark else f"no {name}", {name: value if mark else None})
        for each in more
        for name, mark, value in [each.partition("=")]
    ]
    return [
        Perturbation("hash-seed", "another PYTHONHASHSEED: another order of sets", {"PYTHONHASHSEED": "1"}),
        Perturbation("cold-cache", "an empty compile cache, the others a warm one", cache="none"),
        Perturbation("other-cache", "the warm compile cache of another rank", cache="other"),
        Perturbation(
            "batch", f"a row less in batch {batch}", condition=Condition(rank, batch=batch), numbers=False
        ),
        Perturbation(
            "slow-compile",
            f"a first compile that takes {delay_s:g} s longer",
            cache="none",
            condition=Condition(rank, delay_s),
            verify=False,
        ),
        Perturbation("threads", f"OMP_NUM_THREADS={threads}", {"OMP_NUM_THREADS": threads}),
        *own,
    ]


def _check(given: argparse.Namespace) -> None:
    """Refuse a request that cannot be met, before a rank is started."""
    refuse(given, "perturb")
    world = world_size(given)
    if world < 2:
        raise ValueError("--perturb needs two ranks or more: one of them differs")
    if given.perturb_rank is not None and given.perturb_rank >= world:
        raise ValueError(f"--perturb-rank {given.perturb_rank}: ranks are 0 to {world - 1}")
    names = [one.name for one in perturbations(0, more=given.perturb_env)]
    if wrong := [name for name in given.only if name not in names]:
        raise ValueError(f"--only {wrong[0]}: the differences are {', '.join(names)}")
    for allowed in given.allow:
        name, _, outcome = allowed.rpartition(":")
        if outcome not in OUTCOMES or (name and name not in names):
            raise ValueError(
                f"--allow {allowed}: give one of {', '.join(OUTCOMES)}, or DIFFERENCE:OUTCOME, such as"
                f" {names[3]}:{OUTCOMES[-1]}"
            )
    for each in given.perturb_env:
        if not each.partition("=")[0]:
            raise ValueError(f"--perturb-env {each}: give NAME=VALUE, or NAME for not set")


def run(given: argparse.Namespace) -> int:
    """Run the command.

    Args:
        given: The parsed command line.

    Returns:
        0; 1 where a difference changed more than `--allow` names; 3 where the script fails as it is.

    Raises:
        ValueError: For a request that cannot be met, and where the script had no step to record.
    """
    _check(given)
    program = command.program_of(given)
    folder = command.folder_for(given.out, program.name)
    world = world_size(given)
    rank = world - 1 if given.perturb_rank is None else given.perturb_rank
    batch = given.perturb_step or given.skip + 1
    nccl = given.backend == "nccl" or (given.backend == "auto" and len(machine.gpus()) >= world)
    given.verify = not nccl  # of gloo each of its collectives can be compared before it runs
    every = perturbations(rank, batch, given.perturb_delay, given.perturb_env)
    every = [one for one in every if not given.only or one.name in given.only]
    given.stall = given.stall or STALL_S
    runs = len(every) + len(BASE)
    print(
        f"{runs} runs of {program.name} on {world} ranks; rank {rank} differs. A run ends after {given.stall:g} s in"
        " which all ranks wait (--stall)",
        flush=True,
    )
    caches = folder / "caches"
    rows: list[Outcome] = []
    noise = label = ""
    try:
        cold = _trial(given, program, folder / "cold", _caches(caches / "base", world))
        if cold.ending.said:
            return _fails(cold, BASE[0])
        if cold.looked is None or not cold.looked.steps:
            raise ValueError(look.nothing(cold.looked, Options(given.skip, given.steps, given.step)))
        label = cold.looked.record.label
        given.timeout = given.timeout or math.ceil(max(TIMEOUT_S, AS_LONG * cold.seconds))
        left = round(((runs - 1) * cold.seconds + 2 * given.perturb_delay) / 60) or 1
        limit = f"a run ends after at most {given.timeout:g} s (--timeout)"
        print(f"one run took {cold.seconds:.0f} s: about {left} min left; {limit}\n", flush=True)
        warm = _trial(given, program, folder / "warm", _copied(caches, "warm", world))
        if warm.ending.said:
            return _fails(warm, BASE[1])
        noise = _said(values.apart(cold.folder, warm.folder))
        rows.append(_row(BASE[1], "", warm, cold, -1, numbers=not noise))
        print(text(rows[-1:]), flush=True)
        for one in every:
            kept = _copied(caches, "now", world)
            if one.cache != "warm":
                shutil.rmtree(kept[rank])
            if one.cache == "other":
                shutil.copytree(kept[0 if rank else 1], kept[rank])
            ran = _trial(given, program, folder / one.name.replace("/", "_"), kept, one, rank)
            row = _row(one.name, one.said, ran, warm, rank, one.numbers and not noise, rows[0].found)
            if did := done(ran.folder):
                row = replace(row, said=did)
            elif one.condition != Condition() and not ran.ending.said:
                row = replace(row, found=[], why=[], parting="", untried=_untried(one))
            rows.append(row)
            print(text([row]), flush=True)
    except Stopped:
        print(STOPPED, file=sys.stderr)
        return INTERRUPTED
    finally:
        shutil.rmtree(caches, ignore_errors=True)
        for path in folder.glob("*/values-*.pt"):
            path.unlink()
        if rows:
            body = {"program": program.command, "label": label, "ranks": world, "rank": rank, "noise": noise}
            _write(folder, body, rows)
    over = [row for row in rows[1:] if not row.allowed(given.allow)]
    covered = sum(bool(row.found) for row in rows[1:]) - len(over)
    notes = [f"--allow covers {covered} of them"] if covered else []
    print("\n".join(["", verdict(rows, rank, noise), *notes, f"page: {below(folder / 'index.html')}"]))
    return command.GATE if over else 0


def _caches(folder: Path, world: int) -> tuple[str, ...]:
    """The compile cache of each rank: a folder of its own."""
    return tuple(str(folder / f"rank-{rank}") for rank in range(world))


def _copied(caches: Path, name: str, world: int) -> tuple[str, ...]:
    """Copy the caches of the first run: a run writes to them."""
    shutil.rmtree(caches / name, ignore_errors=True)
    kept = _caches(caches / name, world)
    for first, copied in zip(_caches(caches / "base", world), kept, strict=True):
        os.makedirs(first, exist_ok=True)  # where nothing was compiled
        shutil.copytree(first, copied)
    return kept


def _trial(
    given: argparse.Namespace,
    program: Program,
    folder: Path,
    caches: tuple[str, ...],
    one: Perturbation | None = None,
    rank: int = -1,
) -> Trial:
    """Run the script once, with a difference on one rank."""
    condition = replace(one.condition if one else Condition(), caches=caches)
    options = Options(given.skip, given.steps, given.step, values=True, condition=condition)
    own = {rank: one.env} if one and one.env else {}
    return trial(given, program, folder, options, own, given.verify and (one is None or one.verify))


def _row(
    name: str, said: str, trial: Trial, base: Trial, rank: int, numbers: bool, own: Sequence[str] = ()
) -> Outcome:
    """What a run changed, without the kinds `own` in which the program as it is differs from run to run."""
    told, why = compare(trial.ending, trial.looked, base.looked, rank)
    if numbers and not trial.ending.said:
        apart = values.apart(base.folder, trial.folder)
        if wrong := [each for each in apart.kinds.values() if not each.close]:
            told.append("numbers")
            why.append(f"numbers differ from those without it: {_said(apart)}")
        compared = (
            counted(sum(each.compared for each in apart.kinds.values()), "tensors") if not wrong else ""
        )
    else:
        compared = ""
    mine, theirs = decisions.read(trial.folder), decisions.read(base.folder)
    if not trial.ending.said and decisions.graphs(mine) != decisions.graphs(theirs) and "graph" not in told:
        told.append("graph")
    if not trial.ending.said:
        told = [kind for kind in told if kind not in own]
        why = why if told else []
    parting = decisions.parting(mine, theirs, rank) if rank >= 0 else ""
    return Outcome(name, said, sorted(told, key=OUTCOMES.index), why, parting, trial.seconds, trial.folder.name,
                   compared)  # fmt: skip


def _said(apart: values.Apart) -> str:
    """What is not close, in words; '' where all is."""
    return "; ".join(
        f"{kind} by up to {each.relative:.1g} of the largest number ({each.where})"
        for kind, each in apart.kinds.items()
        if not each.close
    )


def _untried(one: Perturbation) -> str:
    if one.condition.batch:
        return (
            f"not tried: no DataLoader of the script gave a batch {one.condition.batch} of two rows or more"
        )
    return "not tried: the rank compiled nothing"


def _fails(trial: Trial, name: str) -> int:
    print(f"the script fails {name}: nothing was compared\n{trial.ending.said}", file=sys.stderr)
    return FAILED


def _write(folder: Path, about: dict[str, Any], rows: Sequence[Outcome]) -> None:
    body = about | {"rows": [row.facts() for row in rows]}
    write_json(folder / "perturb.json", body)
    page_of_all = html(about["program"], about["label"], about["ranks"], about["rank"], rows, about["noise"])
    write(folder / "index.html", page_of_all.encode())
