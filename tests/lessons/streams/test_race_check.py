"""The race check of the lesson's solution and of its judge: against every order that a GPU may run a program in."""

from __future__ import annotations

import random

import lesson_cells
import pytest

from course.shared.streams import Program, simulate
from course.streams.capture import capture
from course.streams.exercises import DRAWN, KNOWN, _drawn
from course.streams.plain import plain, races_of
from labkit import lessons

solution = lesson_cells.run("06_streams_and_events", "streams-sol-races")["my_races_solution"]


def orders(program) -> set[tuple[int, int]]:
    """The pairs i < j of which some run has j begin before i has ended: all runs are walked through.

    The host issues the ops in their order, and waits where it has to; a queue runs its ops in their order.
    """
    needs: dict[int, set[int]] = {}  # op: the ops that must have run before it
    blocks: dict[int, set[int]] = {}  # a synchronize: what must have run before the host goes on
    tail: dict[str, int] = {}
    event: dict[str, int] = {}
    told: dict[str, list[str]] = {}
    for i, (word, *rest) in enumerate(program):
        if word == "launch":
            needs[i] = {tail[rest[0]]} if rest[0] in tail else set()
            tail[rest[0]] = i
        elif word == "record":
            needs[i] = {tail[rest[1]]} if rest[1] in tail else set()
            event[rest[0]] = tail[rest[1]] = i
        elif word == "wait":
            needs[i] = {tail[rest[1]]} if rest[1] in tail else set()
            needs[i] |= {event[rest[0]]} if rest[0] in event else set()
            tail[rest[1]] = i
        elif word == "synchronize":
            blocks[i] = {tail[rest[0]]} if rest[0] in tail else set()
        elif word == "record_stream":
            told.setdefault(rest[0], []).append(rest[1])
        else:
            streams = (rest[1], *told.pop(rest[0], ()))
            needs[i] = {tail[s] for s in streams if s in tail}
    found, seen, todo = set(), set(), [(0, frozenset())]
    while todo:
        issued, run = state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        if issued < len(program) and blocks.get(issued, set()) <= run:
            todo.append((issued + 1, run))
        for i in needs:
            if i < issued and i not in run and needs[i] <= run:
                found |= {(j, i) for j in needs if j < i and j not in run}
                todo.append((issued, run | {i}))
    return found


def clashing(program) -> set[tuple[int, int]]:
    uses = {}
    for i, op in enumerate(program):
        if op[0] in ("launch", "free"):
            uses[i] = (set(op[2]), set(op[3])) if op[0] == "launch" else (set(), {op[1]})
    return {
        (i, j)
        for j, (reads, writes) in uses.items()
        for i, (others, written) in uses.items()
        if i < j and (writes & (others | written) or reads & written)
    }


@pytest.mark.parametrize("name", KNOWN)
def test_a_race_is_a_pair_that_some_run_turns_around(name):
    program = KNOWN[name][0]
    assert solution(program) == races_of(program) == orders(program) & clashing(program)


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_the_same_in_drawn_programs(first):
    racing = 0
    for seed in range(first, first + 100):
        program = _drawn(seed)[:9]  # the runs of a longer one are too many
        right = orders(program) & clashing(program)
        assert solution(program) == races_of(program) == right, program
        racing += bool(right)
    assert 20 < racing < 95


def test_the_solution_agrees_in_longer_programs():
    programs = [_drawn(seed) for seed in range(DRAWN, 3000)]
    assert all(solution(program) == races_of(program) for program in programs)


@pytest.mark.parametrize("seed", range(60))
def test_without_memory_a_program_races_by_it_where_the_simulation_says_so(seed):
    """The simulation compares with the last accesses only, so it may name fewer pairs, but not none of some."""
    draw, program = random.Random(seed), Program(streams="a b")
    streams = program.streams
    for i in range(12):
        word = draw.choice(("kernel", "kernel", "record", "wait", "wait_stream", "synchronize"))
        if word == "kernel":
            reads, writes = (draw.sample("xyz", draw.randrange(2)) for _ in range(2))
            program.kernel(f"k{i}", 1, draw.choice(streams), reads=reads, writes=writes)
        elif word == "wait_stream":
            program.wait_stream(*draw.sample(streams, 2))
        elif word == "synchronize":
            program.synchronize(draw.choice([*streams, None]), event=draw.choice([None, "e"]))
        else:
            getattr(program, word)(draw.choice("ef"), draw.choice(streams))
    found, told = simulate(program).races, solution(plain(program))
    pairs = {(race.first, race.second) for race in found}
    assert bool(pairs) == bool(told) and len(pairs) <= len(told)


def test_the_lessons_functions_as_tuples():
    import torch

    program = lessons.program("streams")
    x = torch.full((4, 4), 0.25)
    races = {fn.__name__: len(solution(plain(capture(fn, x)))) for fn in program.SIX}
    assert races == {
        "record_then_wait": 0,
        "record_first": 1,
        "wait_first": 1,
        "record_twice": 1,
        "delete_y": 1,
        "tell_the_owner": 1,
    }
