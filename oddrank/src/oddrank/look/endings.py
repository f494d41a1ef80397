"""How the ranks of a run ended: what each raised, where it stood when it was ended, or that its process is gone."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from oddrank.live.failure import (
    PEER_GONE,
    Outcome,
    RankError,
    crash_frames,
    differences,
    explain,
    how_it_ended,
    name_all,
    paragraphs,
)
from oddrank.live.introspect import Collective, Inspector
from oddrank.look.parting import parted
from oddrank.look.torchrun import OUTPUT, Request
from oddrank.look.watch import ENDED, INTERRUPT, Stop

__all__ = ["Ending", "crash_file", "dump", "ending", "gone", "read", "stand"]

STOPPED = "the script was interrupted"
GONE = "its process is gone, and it left no error; torchrun's own report has its exit code"
ALONE = "its process ended, and left no error (os._exit is one cause)"
SILENT = "in native code that holds Python's lock, or stopped"
NO_WORD = "gone without a word (os._exit, or ended by the launcher)"
ENDED_BY_SIGTERM = "ended from outside, by SIGTERM"
# where a rank stands whose collective gloo has ended, and what gloo says where it raises
_IN_COLLECTIVE = ("torch/distributed/distributed_c10d.py", "torch/autograd/graph.py")
_FUNCTIONAL = "torch/distributed/_functional_collectives.py"
_MISMATCH = "distributed collective mismatch"
# what C++ prints of an exception that nobody caught, without the line of C++ that raised it
_UNCAUGHT = re.compile(rb"^  what\(\):  (?:\[enforce fail at [^\]]*\] )?(.*)", re.MULTILINE)
_LAST = 1 << 16  # bytes of what a rank printed
_KEPT = ("kind", "type", "message", "frames", "code", "waits", "compiling", "sends", "choices")


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        said: Why the script failed, with where each rank stood; '' if it did not.
        hung: Whether a limit ended it.
        diverged: Whether the comparison of collectives before they run ended it.
    """

    said: str = ""
    hung: bool = False
    diverged: bool = False


def stand(rank: int) -> Outcome:
    """Return where the main thread of this process stands; called from another thread."""
    now = Inspector(lambda: True).where()
    return Outcome(
        rank,
        "unfinished",
        frames=now.frames,
        waits=now.waits,
        collectives=now.collectives,
        compiling=now.compiling,
        sends=now.message,
    )


def dump(outcome: Outcome, stop: Stop | None = None) -> str:
    """Return the text of an outcome, for other ranks and for `read`.

    Args:
        outcome: How this rank ended.
        stop: Why it was ended, where it was.
    """
    calls = outcome.collectives
    said = {name: getattr(outcome, name) for name in _KEPT}
    said |= {"collectives": None if calls is None else [asdict(call) for call in calls]}
    said |= {"members": [json.loads(dump(one)) for one in outcome.members], "rank": outcome.rank}
    return json.dumps(said | {"stop": vars(stop) if stop else None})


def _load(text: str) -> tuple[Outcome, Stop | None]:
    said = json.loads(text)
    stop = said.pop("stop")
    return _outcome(said), Stop(**stop) if stop else None


def _outcome(said: dict[str, Any]) -> Outcome:
    said.pop("stop", None)
    said["frames"] = [(where, line, bool(library)) for where, line, library in said["frames"]]
    said["sends"] = tuple(said["sends"]) if said["sends"] else None
    said["members"] = [_outcome(one) for one in said["members"]]
    if said["collectives"] is not None:
        said["collectives"] = [_call(one) for one in said["collectives"]]
    return Outcome(**said)


def _call(said: dict[str, Any]) -> Collective:
    lists = {each.name for each in fields(Collective) if str(each.type).startswith("tuple")}
    kept = {name: tuple(value) if name in lists else value for name, value in said.items()}
    return Collective(**kept | {"shapes": tuple(map(tuple, kept["shapes"]))})


def crash_file(folder: Path, rank: int) -> Path:
    """Where a rank's process writes its stacks as a fatal signal ends it."""
    return folder / f"crash-{rank}.txt"


def read(
    folder: Path,
    world_size: int,
    codes: Mapping[int, int | None] = {},
    lost: tuple[int, ...] = (),
    stop: Stop | None = None,
) -> tuple[list[Outcome], Stop | None]:
    """Read how the ranks of a run ended.

    Args:
        folder: Where they wrote.
        world_size: Number of ranks.
        codes: The exit codes of processes that failed, as far as they are known.
        lost: Further ranks whose process is gone.
        stop: Why the launcher ended the run, where it did.

    Returns:
        One outcome for each rank, and why the run was ended, if it was.
    """
    found: list[Outcome] = []
    for rank in range(world_size):
        path = folder / f"ended-{rank}.json"
        if path.exists():
            outcome, why = _load(path.read_text(encoding="utf-8"))
            found.append(outcome)
            stop = why if why and (stop is None or why.by_limit) else stop
        elif rank in codes or rank in lost:
            found.append(gone(folder, rank, codes.get(rank)))
        else:
            found.append(Outcome(rank, "unfinished", message=NO_WORD))
    if stop is not None and stop.by_limit:  # whoever said nothing then was ended by the launcher
        silent = [one.rank for one in found if one.kind == "dead" or one.message == NO_WORD]
        found = [
            Outcome(one.rank, "unfinished", message=SILENT) if one.rank in silent else one for one in found
        ]
    return found, stop


def gone(folder: Path, rank: int, code: int | None = None) -> Outcome:
    """Return how a rank ended that left no word.

    Args:
        folder: Where it wrote.
        rank: The rank.
        code: The exit code of its process; None where it is not known.
    """
    crash = crash_file(folder, rank)
    frames = crash_frames(crash.read_text(errors="replace")) if crash.exists() else []
    said = GONE if code is None else ""
    if code == -signal.SIGABRT and (words := _last_words(folder, rank)):
        said = f"{how_it_ended(code)} ({words})"
    return Outcome(rank, "dead", "", said, frames, code)


def _last_words(folder: Path, rank: int) -> str:
    """What the exception says that ended a rank in C++; '' where that is not known."""
    for path in folder.glob(f"{OUTPUT}/*/*/{rank}/stderr.log"):
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _LAST, 0))
            if said := _UNCAUGHT.findall(file.read()):
                return str(said[-1].decode(errors="replace")).strip()
    return ""


def ending(
    outcomes: list[Outcome],
    stop: Stop | None,
    request: Request,
    seconds: float,
    otherwise: str = "",
) -> Ending:
    """Say how a run ended, the cause first.

    Args:
        outcomes: How its ranks ended.
        stop: Why it was ended.
        request: What was asked for.
        seconds: How long it took.
        otherwise: What is said where no rank failed.

    Raises:
        ValueError: If the function that is a step is not there.
    """
    first = min(outcomes, key=lambda one: (one.order, one.rank))
    if first.kind == "error" and first.message.startswith("--step "):
        raise ValueError(first.message)
    if first.order == PEER_GONE:  # then a rank that left no word is the cause
        outcomes = [Outcome(o.rank, "dead", message=ALONE) if o.message == NO_WORD else o for o in outcomes]
    failed = [one for one in outcomes if one.kind in ("error", "dead")]
    if stop is not None and stop.by_limit:
        error = explain(stop.how, outcomes, stop.seconds, request.limits.timeout, request.limits.stall, "")
        return Ending(_with_parting(error, outcomes), True)
    if stop is not None and stop.how == INTERRUPT and not any(one.kind == "dead" for one in failed):
        return Ending("\n".join([STOPPED, *paragraphs([o for o in outcomes if o.kind == "unfinished"])]))
    if not failed:
        if stop is not None and stop.how == ENDED:
            otherwise = ENDED_BY_SIGTERM
        return Ending("\n".join([otherwise, *paragraphs(outcomes)]) if otherwise else "")
    error = explain("failed", outcomes, seconds, None, None, _left_alone(outcomes))
    said = "\n".join(filter(None, [_with_parting(error, outcomes), _hint(error, request)]))
    return Ending(said, diverged=any(one.type == "Diverged" for one in outcomes))


def _with_parting(error: RankError, outcomes: list[Outcome]) -> str:
    """The error, with the branch at which ranks parted after its headline."""
    own = any(o.kind == "error" and o.order < PEER_GONE and o.type != "Diverged" for o in outcomes)
    head, _, rest = str(error).partition("\n")
    return "\n".join(filter(None, [head, "" if own else parted(outcomes), rest]))


def _left_alone(outcomes: list[Outcome]) -> str:
    """Which ranks had ended their script when others called a further collective, and which one; '' where none had."""
    over = [one.rank for one in outcomes if one.kind == "ok"]
    if not over or min(one.order for one in outcomes) != PEER_GONE:
        return ""
    said = f"{name_all(over)} had ended the script by then, and the others called a further collective."
    return "\n".join([said, *map(str, differences(outcomes))])


def _hint(error: RankError, request: Request) -> str:
    """What differs, or what to run next, where gloo has ended a rank that got a message of another size; else ''.

    Such a process aborts, and takes along what it knew of its collectives, or its call raises.
    """
    aborts = [one for one in error.outcomes if one.kind == "dead" and one.frames]
    aborts = [one for one in aborts if one.code in (-signal.SIGABRT, None)]
    inside = any(one.frames[-1][0].startswith(_IN_COLLECTIVE) for one in aborts) or any(
        where.startswith(_FUNCTIONAL) for one in aborts for where, *_ in one.frames
    )
    gloo = request.program.backend in ("gloo", "")
    if not gloo or request.verify or not (inside or _MISMATCH in str(error)):
        return ""
    known = [
        one for one in differences(error.outcomes) if not one.only_lines and None not in one.calls.values()
    ]
    if known and len(known[0].calls) == len(error.outcomes):
        return f"gloo ends a rank that gets data of another size.\n{known[0]}"
    return (
        "gloo ends a rank that gets data of another size: ranks were in different collectives, or in one with other"
        " sizes. Run it with --verify, which compares each collective before it runs, with its sizes."
    )
