"""Lesson 03: find the breaks of a block one did not write, make five graphs one, count graphs before compiling."""

from __future__ import annotations

import inspect as python
import linecache
from collections.abc import Callable
from typing import Any

import torch

from labkit.contract.exchange import listed
from labkit.graphs import inspect, record
from labkit.lessons.reading.exercises.unfamiliar import SNIPPETS, block, tangled
from labkit.lessons.shared.harness import own_reduce
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import dynamo_reset

__all__ = ["COUNT", "FIND", "ONE"]

CLOSE = 1e-5
COUNTED = (
    "unrolled",
    "stepped",
    "scaled",
)  # of labkit.lessons.reading.exercises.unfamiliar, which imports torch


# --- reading.find ---


def _find(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The lines named are those at which the compiled block breaks, neither more nor fewer."""
    hint = "my_breaks() takes nothing and returns a list: the text of each line that breaks"
    seen = on_ranks(ranks, _look_for_breaks, attempt, only=0, hint=hint)[0]
    named, found = seen["named"], seen["breaks"]
    if not isinstance(named, (list, tuple, set)) or not all(isinstance(line, str) for line in named):
        raise Mistake(f"it returns {named!r}", hint)
    if not named:
        raise Mistake(
            "it names no line", "inspect the block: frames.breaks has every frame that ends in a break"
        )
    lines = seen["lines"]
    wanted = [_tight(line) for line in named]
    unknown = [line for line in wanted if not any(line and line in _tight(text) for text in lines)]
    written = dict(zip(wanted, named, strict=True))
    if unknown:
        raise Mistake(
            f"{written[unknown[0]]!r} is in no line of the block", "copy the words of the line as they stand"
        )
    right = {_tight(line): reason for line, reason in found.items()}
    hit = {line: [name for name in wanted if name in line] for line in right}
    false = [name for name in wanted if not any(name in line for line in right)]
    if false:
        callers = ("clip(", "score(")
        if any(part in false[0] for part in callers):
            raise Mistake(
                f"{written[false[0]]!r} does not break itself",
                "the call is inlined; `frame.breaks.place` names the line inside the function that it calls",
            )
        raise Mistake(
            f"{written[false[0]]!r} does not break",
            "it looks like a reason, and Dynamo can trace it: branches on shapes and lists of tensors are Python to it",
        )
    missed = [line for line, names in hit.items() if not names]
    if missed:
        said = f"{len(right) - len(missed)} of {len(right)} breaks are named"
        raise Mistake(said, "look at every frame: a resumed one may break again, further down")
    say(f"{listed([repr(name) for name in named])}: {len(right)} breaks, and no other")


def _look_for_breaks(attempt: Attempt) -> dict[str, Any]:
    """On a rank: what the attempt names, and the lines at which the block breaks on this torch."""
    named = attempt()
    frames = inspect(torch.compile(block, backend="eager"), torch.ones(4, 8), fresh=True)
    found = {}
    for frame in frames.breaks:
        assert frame.breaks
        number = frame.breaks.place.partition(":")[2].partition(" ")[0]
        line = linecache.getline(python.getsourcefile(block) or "", int(number)).strip()
        found[line] = frame.breaks.reason
    lines = linecache.getlines(python.getsourcefile(block) or "")
    return {"named": named, "breaks": found, "lines": lines}


def _tight(text: str) -> str:
    return "".join(text.split("  #")[0].split())


# --- reading.one ---


def _one(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The same numbers and the same collective, in one graph without a break on every rank."""
    seen = list(on_ranks(ranks, _look_at_one, attempt, hint="it is called as my_tangled(x) with one tensor"))
    if any(found["none"] for found in seen):
        raise Mistake("it returns None", "return the tensor: the caller goes on with what you return")
    worst = max(found["error"] for found in seen)
    if worst > CLOSE:
        raise Mistake(
            f"largest error {worst:.1e}", "the numbers are not those of `tangled`, on one of three inputs"
        )
    if any(found["collectives"] != 1 for found in seen):
        said = f"{seen[0]['collectives']} collectives a call"
        raise Mistake(said, "the ranks have to add up once: without that it is another program")
    say(f"same numbers (largest error {worst:.1e}), 1 collective a call")
    for rank, found in enumerate(seen):
        graphs, reasons = found["graphs"], found["reasons"]
        said = f"compiled, rank {rank}: {graphs} graph{'s' * (graphs != 1)}, {len(reasons)} breaks"
        if reasons:
            raise Mistake(f"{said}; the first: {reasons[0]}", _hint(reasons))
        if graphs != 1:
            raise Mistake(
                said, "it was compiled more than once: does it depend on a Python value that changes?"
            )
    say("compiled: 1 graph, 0 breaks on every rank")


def _hint(reasons: list[str]) -> str:
    text = " ".join(reasons).lower()
    hints = {
        "print": "a print breaks: take it out, or print what the function returns",
        "disable": "the collective is hidden from the compiler: call it without `disable`, or its functional form",
        "branch": "a Python `if` on a tensor's values breaks: choose between two tensors with torch.where",
        "dynamic shape": "how many values `y[y > 0]` has depends on them: keep the shape, and count with a mask",
        "graph_break": "somebody asked for that one: take torch._dynamo.graph_break() out",
    }
    return next(
        (hint for word, hint in hints.items() if word in text), "read frames.breaks: each has its own hint"
    )


def _look_at_one(attempt: Attempt) -> dict[str, Any]:
    me = here()
    mine = own_reduce(attempt)
    inputs = [torch.arange(1.0, 9.0, device=me.device) * scale + me.rank for scale in (1.0, -1.0, 0.25)]
    found: dict[str, Any] = {"none": False, "error": 0.0}
    for x in inputs:
        expected = tangled(x.clone(), quiet=True)
        with record() as rec:
            y = mine(x.clone())
        if y is None:
            return {**found, "none": True}
        found["error"] = max(found["error"], float((y - expected).abs().max()))
        found["collectives"] = int(rec.counts().iloc[0]["collectives"])
    frames = inspect(torch.compile(mine, backend="eager"), inputs[0].clone(), fresh=True)
    found["graphs"] = len(frames.graphs)
    found["reasons"] = [frame.breaks.reason for frame in frames.breaks if frame.breaks]
    return found


# --- reading.count ---


def _count(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The numbers given are the numbers of graphs that this torch compiles."""
    hint = f"my_counts() returns a dict with a number for each of {listed(list(COUNTED))}"
    seen = on_ranks(ranks, _look_at_counts, attempt, only=0, hint=hint)[0]
    named, counted = seen["named"], seen["graphs"]
    if not isinstance(named, dict) or set(named) != set(COUNTED):
        raise Mistake(f"it returns {named!r}", hint)
    for name, (graphs, hint) in counted.items():
        if named[name] != graphs:
            raise Mistake(f"{name}: you say {named[name]}, and it is another number", hint)
        say(f"{name}: {graphs} graph{'s' * (graphs != 1)}")


def _look_at_counts(attempt: Attempt) -> dict[str, Any]:
    named = attempt()
    graphs = {}
    for name, snippet in SNIPPETS.items():
        dynamo_reset()
        run = torch.compile(snippet.function, backend="eager")
        with record() as rec:
            for arguments in snippet.calls:
                run(torch.ones(4), *arguments)
        graphs[name] = (int(rec.counts().iloc[0]["graphs"]), snippet.hint)
    return {"named": named, "graphs": graphs}


FIND = Exercise(
    "reading.find",
    "the breaks of an unfamiliar block",
    "easy",
    8,
    ("every line that breaks, as you would find it in the source", "no line that does not"),
    _find,
)
ONE = Exercise(
    "reading.one",
    "five graphs made one",
    "medium",
    12,
    ("the same numbers as `tangled`", "1 collective a call", "compiled, 1 graph and 0 breaks on every rank"),
    _one,
)
COUNT = Exercise(
    "reading.count",
    "graphs, counted before compiling",
    "hard",
    8,
    ("the number of graphs of each of the three snippets, after all of their calls",),
    _count,
)
