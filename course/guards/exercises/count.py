"""Lesson 09, `guards.count`: how many versions of each frame were compiled, from what TORCH_LOGS=recompiles wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from course.shared.variants import own
from labkit import lessons, torch_compat
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["count"]

FORM = "it is called as my_count(log), with the text of a log, and returns a dict such as {0: 3}: frame and versions"


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The counts of three logs that are written anew on rank 0, against the calls of the backend."""
    for name, kinds in PROGRAMS.items():
        found, truth, entries = on_ranks(ranks, _look, attempt, kinds, only=0, hint=FORM)[0]
        if not isinstance(found, dict):
            raise Mistake(f"my_count returns {found}", FORM)
        if any(type(part) is not int for pair in found.items() for part in pair):
            raise Mistake(f"{name}: {found}", "frames and versions are whole numbers, as in {0: 3}")
        if found != truth:
            raise Mistake(f"{name}: {found}; the backend compiled {truth}", _hint(found, truth, entries))
        say(f"{name}: {truth}")


def _hint(found: dict[int, int], truth: dict[int, int], entries: dict[str, dict[int, int]]) -> str:
    if set(found) != set(truth):
        return "one number for each frame, the first number of [frame/version], also one of two digits"
    for kind, hint in {
        "entries": "count from 0: the first compile writes no entry, so there is one version more than entries",
        "reasons": "an entry has a line for each version that did not fit: count entries, and not reasons",
        "limit": "the limit is a setting, and not 8 in every log: take it from the tags",
        "attempts": "the entry at the limit compiled nothing: its tag stands in a line with 'recompile_limit', too",
    }.items():
        if found == entries[kind]:
            return hint
    return "look at the tags: [0/2] is the third version of frame 0, unless the limit was hit"


def _look(attempt: Attempt, kinds: tuple[str, ...]) -> tuple[Any, dict[int, int], dict[str, dict[int, int]]]:
    """What the attempt says of the log of some programs, what was compiled, and what plausible mistakes count."""
    made: Counter[int] = Counter()

    def backend(graph: Any, inputs: Any) -> Any:
        made[int(torch_compat.current_compile_id().partition("/")[0])] += 1
        return graph.forward

    def work() -> None:
        with torch.no_grad():
            for kind in kinds:
                KINDS[kind](lambda function: torch.compile(function, backend=backend))

    torch_compat.dynamo_reset()
    with torch_compat.patched("dynamo.config", recompile_limit=LIMIT):
        log = lessons.program("guards").logged(work, recompiles=True)
    torch_compat.dynamo_reset()
    heads = Counter(_frame(line) for line in log.splitlines() if "Recompiling function" in line)
    reasons = Counter(
        _frame(line) for line in log.splitlines() if "__recompiles]     - " in line and "/" in line
    )
    truth = {frame: versions for frame, versions in made.items() if frame in heads}
    mistakes = {
        "entries": dict(heads),
        "reasons": {frame: 1 + reasons[frame] for frame in heads},
        "limit": {frame: min(8, 1 + number) for frame, number in heads.items()},
        "attempts": {frame: 1 + number for frame, number in heads.items()},
    }
    found = attempt(log)
    return found if isinstance(found, dict) else type(found).__name__, truth, mistakes


def _frame(line: str) -> int:
    return int(line.partition(" [")[2].partition("/")[0])


def _sizes(compiled: Callable[..., Any]) -> None:
    run = compiled(lambda x: x.sin())
    for size in (4, 4, 6, 8, 1, 5):
        run(torch.ones(size))


def _names(compiled: Callable[..., Any]) -> None:
    run = compiled(lambda x, name: x * len(name))
    for i in range(15):
        run(torch.ones(3), f"request-{i % 14}")


def _types(compiled: Callable[..., Any]) -> None:
    run = compiled(lambda x: x * 2)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        run(torch.ones(3, dtype=dtype))


def _once(compiled: Callable[..., Any]) -> None:
    run = compiled(lambda x: x + 1)
    for _ in range(3):
        run(torch.ones(3))


def _ten(compiled: Callable[..., Any]) -> None:
    for _ in range(10):  # frames, so that the next one has two digits
        compiled(own(lambda x: x - 1))(torch.ones(3))


LIMIT = 11  # another one than torch's, and of two digits
KINDS = {"sizes": _sizes, "names": _names, "types": _types, "once": _once, "ten": _ten}
PROGRAMS = {
    "sizes of a batch": ("sizes",),
    "three functions": ("types", "once", "sizes"),
    "fourteen names": ("types", "ten", "names"),
}

count = Exercise(
    "guards.count",
    "count versions in a log",
    "medium",
    10,
    ("for each frame that compiled again, the number of its versions", "in logs of three other programs"),
    judge,
)
