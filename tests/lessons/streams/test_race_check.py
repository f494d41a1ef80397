"""The race check of the lesson's solution, of its judge, and of the simulation: each against another."""

from __future__ import annotations

import random

import lesson_cells

from course.shared.streams import Program, simulate
from course.streams.exercises import KNOWN, _drawn
from course.streams.plain import plain, races_of

solution = lesson_cells.run("06_streams_and_events", "streams-sol-races")["my_races_solution"]


def test_the_solution_agrees_with_the_judge_in_other_programs():
    """One keeps clocks, the other follows edges."""
    programs = [known for known, _ in KNOWN.values()] + [_drawn(seed) for seed in range(3000)]
    racing = 0
    for program in programs:
        assert solution(program) == races_of(program), program
        racing += bool(races_of(program))
    assert len(programs) / 4 < racing < len(programs)


def without_memory(seed):
    """A program of 12 drawn ops that allocates nothing."""
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
    return program


def test_without_memory_a_program_races_by_it_where_the_simulation_says_so():
    """The simulation compares with the last accesses only, so it may name fewer pairs, but not none of some."""
    for program in map(without_memory, range(60)):
        pairs = {(race.first, race.second) for race in simulate(program).races}
        told = solution(plain(program))
        assert bool(pairs) == bool(told) and len(pairs) <= len(told), program
