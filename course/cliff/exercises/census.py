"""Lesson 04, `cliff.census`: regions and collectives of one forward, counted from the profiler's events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from course.shared.variants import own
from labkit import lessons
from labkit.ranks import Ranks
from labkit.records import record
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["census"]

cliff = lessons.program("cliff")

KEYS = ("regions", "collectives", "outside")
MARK = "one forward"
CALLS = 3


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Ask the census about an eager call, and whole, broken and Inductor-free ones; labkit's own counts are right."""
    hint = "it is called as my_census(events) with a list of events, and returns a dict of three numbers"
    for case in on_ranks(ranks, _look, attempt, hint=hint)[0]:
        answer, right = case["answer"], case["right"]
        if not isinstance(answer, dict) or set(answer) != set(KEYS):
            raise Mistake(
                f"{case['name']}: it returns {answer!r:.80}",
                f"return a dict with the keys {', '.join(KEYS)}, and nothing else",
            )
        said = f"{case['name']}: {', '.join(f'{key} {answer[key]}' for key in KEYS)}"
        if answer == right:
            say(said)
            continue
        wanted = ", ".join(f"{key} {right[key]}" for key in KEYS)
        raise Mistake(f"{said}; labkit counts {wanted}", _hint(answer, case))


def _hint(answer: dict[str, Any], case: dict[str, Any]) -> str:
    right, found = case["right"], answer["collectives"]
    if answer["regions"] != right["regions"]:
        if answer["regions"] == case["names"]:
            return "a region that runs three times is three events of one name: count events, not names"
        if answer["regions"] == case["graphs"]:
            return "a region can run without a graph of Inductor's, and can hold several: count the regions themselves"
        return "a region is an event whose name begins with `Torch-Compiled Region`, and nothing else is one"
    if found > right["collectives"]:
        if case["unwaited"] == right:
            return "a wait and a wrap in a subclass are no collectives, though their names begin alike"
        return "one call shows up as several events, one inside the other: count those that lie in no other"
    if found < right["collectives"]:
        return "some collectives have another name: look at every beginning that the exercise lists"
    return (
        "a collective is inside a compiled graph where its time lies within a `## Call CompiledFxGraph` event"
    )


def _look(attempt: Attempt) -> list[dict[str, Any]]:
    """On a rank: each case twice, once for the attempt and once for labkit's own count."""

    def whole(x: Any) -> Any:
        return cliff.functional(cliff.functional(x * 0.5) + 1) * 2

    def step(x: Any) -> Any:
        return cliff.disabled(x * 0.5) + 1

    def broken(x: Any) -> Any:
        for _ in range(CALLS):
            x = step(x)
        return x

    step = own(step)
    cases = {
        "eager": (whole, None),
        "compiled, whole": (torch.compile(own(whole)), 0),
        "compiled, broken": (torch.compile(own(broken)), None),
        "compiled, whole, without Inductor": (torch.compile(own(whole), backend="eager"), None),
    }
    return [_case(attempt, name, fn, outside) for name, (fn, outside) in cases.items()]


def _case(attempt: Attempt, name: str, fn: Any, outside: int | None) -> dict[str, Any]:
    x = torch.ones(4)
    with torch.no_grad():
        for _ in range(3):
            fn(x)
        with record() as rec, rec.forward():
            fn(x)
        with profile(activities=[ProfilerActivity.CPU]) as prof, torch.profiler.record_function(MARK):
            fn(x)
    counts = rec.counts.iloc[0]
    regions, collectives = int(counts["regions"]), int(counts["collectives"])
    events = prof.events()
    mine = next(e.thread for e in events if e.name == MARK)
    events = [e for e in events if e.thread == mine and e.name != MARK]
    outside = collectives if outside is None else outside
    answer, right = attempt(list(events)), dict(zip(KEYS, (regions, collectives, outside), strict=True))
    unwaited = [e for e in events if "wait_tensor" not in e.name and "_wrap_tensor" not in e.name]
    return {
        "name": name,
        "answer": answer,
        "right": right,
        "unwaited": None if answer == right else attempt(unwaited),
        "graphs": sum(e.name.startswith("## Call CompiledFxGraph") for e in events),
        "names": len({e.name for e in events if e.name.startswith("Torch-Compiled Region")}),
    }


census = Exercise(
    "cliff.census",
    "a census",
    "medium",
    15,
    (
        "the regions that ran, however many names they have",
        "the collectives, each call once, without waits and wrapping",
        "`outside`: those collectives that no compiled graph contains",
    ),
    judge,
)
