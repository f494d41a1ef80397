"""Lesson 12: a warmup in lockstep, on raw torch.distributed, and what five jobs logged of their caches."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from course.shared.jobs import hint_by_cause, judge_jobs
from labkit import files, torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, judge_on_three, on_ranks

__all__ = ["LOG", "cache_lines", "caches", "lockstep"]

# what a service has seen: rows of the batch, and whether the rows are to be centred; four kinds, and two versions of
# each: with more, Dynamo reaches its limit of recompiles
ROWS = (4, 4, 8, 4, 4, 1, 8, 8, 4)
SEEN = tuple((rows, i == 3) for i, rows in enumerate(ROWS))
KINDS = tuple(dict.fromkeys(SEEN))
# services by name: the last round of a warmup in which each rank compiles
SERVICES = {"alike": (1, 1), "settling at different times": (3, 2)}
BREAK = ((0, 1), (0, 1))  # in each service every rank has this many graphs and breaks more: equal counts
ODD = {  # graphs and breaks more on rank 0, and on the others
    "a graph break": ((0, 0), (0, 1)),
    "a graph": ((0, 0), (1, 0)),
    "a graph on rank 0, and a break": ((1, 0), (0, 1)),
}
MOST = 10  # rounds
HINT = "it is called as my_warmup(call, counted, plans, followed); plans is None on all ranks but 0: send them first"


def judge_lockstep(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """On the reader's ranks, and on three."""
    _judge_lockstep(attempt, ranks, say)
    if len(ranks) != 3:
        hint = "on two ranks it is right: on any number, each has to hear from all, dist.get_world_size()"
        judge_on_three(_judge_lockstep, attempt, hint)


def _judge_lockstep(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Run a warmup for services whose ranks compile alike, settle at different times, and differ in their counts."""
    for name, settles in SERVICES.items():
        found = list(on_ranks(ranks, _warm, attempt, settles, BREAK, False, hint=HINT))
        _same_calls(found)
        calls, asked = found[0]["calls"], (max(settles) + 1) * len(KINDS)
        seen = f"{name}: {len(calls)} calls on each rank, compiled while serving: {[one['after'] for one in found]}"
        raised = next((one["raised"] for one in found if one["raised"]), "")
        seen += f", RuntimeError: {raised}" * bool(raised)
        missing = [kind for kind in KINDS if kind not in calls]
        if not calls:
            raise Mistake(seen, "nothing is warm yet: answer the plans by call(plan)")
        if missing:
            raise Mistake(seen, f"{missing[0]} comes in production and not in the warmup")
        if len(set(calls[: len(KINDS)])) < len(KINDS):
            raise Mistake(seen, "a warmup costs time: one call of each kind in a round, not all traffic")
        for begin in range(len(KINDS), min(len(calls), asked), len(KINDS)):
            if set(calls[begin : begin + len(KINDS)]) != set(KINDS):
                number = begin // len(KINDS) + 1
                raise Mistake(
                    f"{name}: round {number} has not each kind once",
                    "a kind that compiles nothing now may compile later, once a flag flips: each kind in each round",
                )
        if len(calls) < asked:
            hint = "a call may compile again at its second use: go on until a round in which no rank compiles"
            raise Mistake(seen, hint)
        if len(calls) > asked:
            raise Mistake(seen, "stop after the first round in which no rank has compiled")
        if raised:
            raise Mistake(seen, "at the end the counts are equal on all ranks")
        if not all(one["through"] for one in found):
            raise Mistake(
                f"{name}: a rank calls plans that have not come by `followed`",
                "requests come by `followed`: a warmup takes their path, so that the path is tried, too",
            )
        say(seen)
    for name, more in ODD.items():
        errors = [one["raised"] for one in on_ranks(ranks, _warm, attempt, (1, 1), more, False, hint=HINT)]
        if not all(errors):
            quiet = ", ".join(str(rank) for rank, said in enumerate(errors) if not said)
            raise Mistake(
                f"{name} more on rank 1: no RuntimeError on rank {quiet}",
                "raise on every rank: one that goes on waits for the others in its next collective"
                if any(errors)
                else "at the end gather every rank's counts, and compare them, graphs and breaks each",
            )
        say(f"{name} more on rank 1: a RuntimeError on every rank")
    found = list(on_ranks(ranks, _warm, attempt, (1, 1), BREAK, True, hint=HINT))
    if any(one["endless"] for one in found) or not all(one["raised"] for one in found):
        raise Mistake(
            f"each call compiles: no RuntimeError on every rank after {MOST} rounds",
            f"bound the rounds: a program that compiles in each would warm up for ever; at most {MOST}, then an error",
        )
    say(
        f"each call compiles: a RuntimeError on every rank after {len(found[0]['calls']) // len(KINDS)} rounds"
    )


def _same_calls(found: list[dict[str, Any]]) -> None:
    for rank, other in enumerate(found):
        if other["strange"]:
            raise Mistake(
                f"rank {rank} calls {other['strange']}",
                f"a plan is what stands in plans, a pair of rows and a flag such as {SEEN[0]}",
            )
        short, long = sorted((found[0]["calls"], other["calls"]), key=len)
        if len(short) < len(long) and long[: len(short)] == short:
            raise Mistake(
                f"one rank makes {len(short)} calls, another {len(long)}",
                "the ranks have to agree on the end: gather from each whether it has compiled in this round",
            )
        if short != long:
            raise Mistake(
                f"rank {rank} calls other plans than rank 0, or in another order",
                "all ranks warm up with the same plans in the same order: in a real program each has collectives",
            )


def _warm(
    attempt: Attempt,
    settles: tuple[int, int],
    more: tuple[tuple[int, int], tuple[int, int]],
    always: bool,
) -> dict[str, Any]:
    """Run the attempt, then the day's requests.

    Args:
        attempt: a warmup.
        settles: the last round in which rank 0, and any other rank, compiles.
        more: the graphs and breaks of rank 0, and of any other rank, that are counted besides.
        always: whether each call counts as a compile, in each round.
    """
    torch_compat.dynamo_reset()
    rank, made, calls, came = dist.get_rank(), list[Any](), list[Any](), list[Any]()
    strange = raised = ""
    endless = False

    def keep(graph: Any, inputs: Any) -> Any:
        made.append(graph)
        return graph.forward

    def program(x: Any, centre: bool, version: int) -> Any:
        return (x - x.mean(-1, keepdim=True) if centre else x) * version

    run = torch.compile(program, backend=keep, dynamic=False)

    def answer(plan: Any, use: int) -> None:
        late = use >= settles[min(rank, 1)] and plan != KINDS[-1]  # one kind compiles once
        run(torch.ones(plan[0], 3), plan[1], 2 if late else 1)

    def followed(plans: Iterable[Any] | None = None) -> Iterator[Any]:
        waiting = iter([*(plans or ()), None])
        while True:
            box = [next(waiting) if rank == 0 else None]
            dist.broadcast_object_list(box, src=0)
            if box[0] is None:
                return
            came.append(box[0])
            yield box[0]

    def call(plan: Any) -> None:
        nonlocal strange, endless
        if plan not in KINDS:
            strange = repr(plan)[:60]
            raise ValueError(f"no such plan: {plan!r}")
        if len(calls) == MOST * len(KINDS):
            endless = True
            raise ValueError("too many rounds")
        calls.append(plan)
        answer(plan, calls.count(plan))

    def counted() -> tuple[int, int]:
        graphs, breaks = more[min(rank, 1)] if made else (0, 0)
        return len(made) + graphs + len(calls) * always, breaks

    try:
        with torch.no_grad():
            try:
                attempt(call, counted, list(SEEN) if rank == 0 else None, followed)
            except NotImplementedError:
                raise
            except RuntimeError as error:
                if _of_torch(error):  # such as a collective that does not fit the peers'
                    raise
                raised = str(error)[:200] or "RuntimeError"
            except ValueError:
                if not strange and not endless:
                    raise
            before = len(made)
            for plan in () if strange or raised or endless else SEEN:
                answer(plan, max(settles) + 1)
    finally:
        torch_compat.dynamo_reset()
    said = {"strange": strange, "raised": raised, "endless": endless, "through": set(calls) <= set(came)}
    return {"calls": calls, "after": len(made) - before, **said}


def _of_torch(error: RuntimeError) -> bool:
    """Whether it comes out of a call of torch, and the attempt has not raised it itself."""
    home = os.path.dirname(torch.__file__)
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_filename.startswith(home) for frame, _ in frames)


lockstep = Exercise(
    "cold.lockstep",
    "a warmup in lockstep",
    "medium",
    15,
    (
        "every rank calls rank 0's plans as they come by `followed`, each kind once in a round, in one order",
        "rounds until no rank has compiled in one, and then none more, at most ten",
        "the requests that come afterwards compile nothing",
        "counts that differ at the end, or a tenth round that compiles, are a RuntimeError on every rank",
    ),
    judge_lockstep,
)


# --- five jobs and their caches ---

LOG = files.ours("data/captured/cache_jobs.log")
RIGHT = {
    "A": ({0, 1}, "another rank's code", "the rank in the key or folder"),
    "B": (set[int](), "healthy", "nothing"),
    "C": (set[int](), "healthy", "nothing"),
    "D": ({1}, "an empty folder", "fill the folder first"),
    "E": ({0, 1}, "bypassed", "a custom operator"),
}
CAUSES = ("healthy", "another rank's code", "an empty folder", "bypassed", "other settings")
CHANGES = (
    "nothing", "the rank in the key or folder", "fill the folder first", "a custom operator",
    "delete the folder at each start",
)  # fmt: skip
LINE = re.compile(
    r"(?:AOTAutograd|fx graph) cache (?:hit|miss) for key \w{12}|code written to: \S+"
    r"|Bypassing autograd cache due to: .{1,100}"
)
FORM = 'it returns {"A": ([ranks], "cause", "change"), ...}, with a line for each of the jobs A to E'
LOOK = {
    "A": "which code did each rank write in the first start, and which does it load in the second?",
    "B": "the ranks share an entry: do they also write, and load, one code?",
    "C": "does each rank load what it wrote itself?",
    "D": "is a key that misses in the second start another key than in the first?",
    "E": "which cache is asked, and why is the other one not?",
}


def cache_lines(log: str) -> list[str]:
    """The lines about compile caches in the log of one start, with the rank in front, by rank.

    Args:
        log: what torch wrote under `TORCH_LOGS="aot,inductor,output_code"`, of any number of ranks.

    Returns:
        Each line once. Keys and codes are cut to twelve letters, reasons to a hundred.

    >>> cache_lines("[rank1]:I1127 codecache.py:2299] [0/0] fx graph cache hit for key fg6niuuufed5gkhnttw")
    ['[rank1] fx graph cache hit for key fg6niuuufed5']
    """
    found = []
    for line in log.splitlines():
        rank = re.match(r"\[rank(\d+)\]", line)
        what = LINE.search(line)
        if rank and what:
            short = re.sub(r"written to: .*/(\w{12}).*", r"\1", what[0])
            found.append(f"[rank{rank[1]}] " + re.sub(r" at 0x\w+", "", short).rstrip())
    return sorted(dict.fromkeys(found), key=lambda line: line.partition("]")[0])


def judge_caches(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each job's ranks, cause and change."""
    judge_jobs(attempt, ranks, say, hint_by_cause(RIGHT, LOOK, {}), RIGHT, CAUSES, CHANGES, FORM)


caches = Exercise(
    "cold.caches",
    "five jobs and their caches",
    "medium",
    10,
    ("for each of the five jobs the ranks with a wrong or slow second start, the cause, and the change",),
    judge_caches,
)
