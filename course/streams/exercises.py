"""Lesson 06: a race check against programs whose races are known, torch code judged by capture, and traces to read."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from typing import Any

import torch

from course.shared.streams import StreamError, Timeline, ops, simulate
from course.streams.capture import Captured, capture
from course.streams.plain import races_of
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["races", "repair", "traces"]

UNITS = {"mm": 4.0}  # of the simulation; every other kernel takes 1
REPAIRED = 10.0


def judge_repair(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The record comes too early, and the memory of h is given out again while the side stream reads it."""
    x, w = torch.full((4, 4), 0.25), torch.full((4, 4), 0.5)
    found, program, called = _captured(attempt, ranks, "my_repair(x, w)", x, w)
    _kernels(program, {"mm": 3, "relu": 1, "add": 1})
    sides = {op.stream for op in program if isinstance(op, ops.Kernel) and op.stream != "default"}
    if not sides:
        raise Mistake("everything is on one stream", "keep `norm` in the block of the side stream")
    h = x @ w
    _sound(found, program, torch.relu(x) @ w + h @ h)
    kernels = (op for op in program if isinstance(op, ops.Kernel))
    for op, operator in zip(kernels, program.operators, strict=True):
        squares = len(op.reads) == 1  # h @ h
        if operator == "mm" and squares != (op.stream != "default"):
            raise Mistake(
                f"no race, and {op.name!r} runs on {op.stream!r}",
                "`h @ h` belongs on the side stream, and the other two matmuls on the current one",
            )
    if called.races:
        raise Mistake(
            f"no race in the function, but one with its caller, {called.races[0].text}",
            "the caller reads what is returned, and gets the memory that is freed at the return: "
            "what the side stream does has to be ordered before both",
        )
    if found.makespan > REPAIRED:
        raise Mistake(
            f"no race, {found.makespan:g} units",
            "a stream waits that need not: record_stream keeps the memory of h without a wait, and so does a name",
        )
    say(f"no race, {found.makespan:g} units [simulated]")


def judge_races(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The attempt's pairs against those that have no path of edges between them: by name, then in drawn programs."""
    hint = "it is called as my_races(ops) and returns a set of pairs of numbers"
    known = [program for program, _ in KNOWN.values()]
    drawn = [_drawn(seed) for seed in range(DRAWN)]
    answers = on_ranks(ranks, _answers, attempt, [*known, *drawn], only=0, hint=hint, timeout=60)[0]
    for (name, (program, on_mistake)), found in zip(KNOWN.items(), answers, strict=False):
        _compare(name, program, found, on_mistake)
    for program, found in zip(drawn, answers[len(known) :], strict=True):
        _compare("a drawn program", program, found, "print what your clocks hold after each of these ops")
    total = sum(map(len, answers))
    say(f"{len(answers)} programs, {total} races, all found and no other")


def _compare(name: str, program: list[Any], found: Any, hint: str) -> None:
    """Raise Mistake where an answer is not the set of races."""
    if not isinstance(found, set):
        raise Mistake(f"{name}: it returns {found}", "return a set of pairs (i, j), with i < j")
    right = races_of(program)
    if found == right:
        return
    lines = "\n".join(f"  {i}  {op}" for i, op in enumerate(program))
    said = [
        f"{word} {sorted(some)}" for word, some in (("misses", right - found), ("has", found - right)) if some
    ]
    raise Mistake(f"{name}: it {' and '.join(said)} in\n{lines}", hint)


def _answers(attempt: Attempt, programs: list[Any]) -> list[Any]:
    """On a rank: the answer to each program, as a set of pairs; text where it is none."""
    found: list[Any] = []
    for program in programs:
        answer = attempt([tuple(op) for op in program])
        try:
            found.append({(int(min(pair)), int(max(pair))) for pair in answer if len(pair) == 2 or 1 / 0})
        except (TypeError, ValueError, ZeroDivisionError):
            found.append(f"{answer!r:.80}")
    return found


DRAWN = 300


def _drawn(seed: int) -> list[Any]:
    """A program of up to 14 ops on three streams; a buffer is not used after it was freed."""
    draw = random.Random(seed)
    streams, buffers, made = "abc", list("xyz"), []
    for _ in range(draw.randrange(4, 15)):
        word = draw.choices(
            ("launch", "record", "wait", "synchronize", "record_stream", "free"), (8, 3, 3, 1, 2, 2)
        )[0]
        if word == "launch":
            some = [tuple(draw.sample(buffers, min(len(buffers), draw.randrange(2)))) for _ in range(2)]
            made.append((word, draw.choice(streams), *some))
        elif word in ("record", "wait"):
            made.append((word, draw.choice("ef"), draw.choice(streams)))
        elif word == "synchronize":
            made.append((word, draw.choice(streams)))
        elif buffers:
            buffer = draw.choice(buffers)
            made.append((word, buffer, draw.choice(streams)))
            if word == "free":
                buffers.remove(buffer)
    return made


def _makes(stream: str, buffer: str = "x") -> tuple[Any, ...]:
    return ("launch", stream, (), (buffer,))


def _reads(stream: str, buffer: str = "x") -> tuple[Any, ...]:
    return ("launch", stream, (buffer,), ())


# by name: a program, and the hint for an answer that is wrong in it and right in all before
KNOWN: dict[str, tuple[list[Any], str]] = {
    "one stream": ([_makes("a"), _reads("a"), _makes("a")], "a stream is a queue: its own ops are in order"),
    "no wait": (
        [_makes("a"), _reads("b"), _reads("c"), _makes("c", "y")],
        "nothing orders two streams but a wait; two reads of a buffer are no race",
    ),
    "a wait": (
        [_makes("a"), ("record", "e", "a"), ("wait", "e", "b"), _reads("b")],
        "what comes after the wait in its queue is ordered after what came before the record",
    ),
    "a read, then a write": (
        [_makes("a"), ("record", "e", "a"), ("wait", "e", "b"), _reads("b"), _reads("b"), _makes("a")],
        "a write races with every read of the buffer that it is not ordered after, not only with the last one",
    ),
    "record, then wait": (
        [_makes("a"), ("record", "e", "a"), _makes("a"), ("wait", "e", "b"), _reads("b")],
        "an event stands for the clock of its stream at the record, not at the wait: keep a copy",
    ),
    "wait, then record": (
        [_makes("a"), ("wait", "e", "b"), ("record", "e", "a"), _reads("b")],
        "a wait takes the record that is there when it is called; without one it does nothing",
    ),
    "recorded twice": (
        [
            ("record", "e", "a"),
            ("wait", "e", "b"),
            _makes("a"),
            ("record", "e", "a"),
            _reads("b"),
            ("wait", "e", "c"),
            _reads("c"),
        ],
        "a later record of the same event does not change a wait that has been called",
    ),
    "over a third stream": (
        [
            _makes("a"),
            ("record", "e", "a"),
            ("wait", "e", "b"),
            ("record", "f", "b"),
            ("wait", "f", "c"),
            _reads("c"),
        ],
        "order is passed on: whoever waits for b also knows what b had waited for",
    ),
    "one step back": (
        [
            _makes("c"),
            ("record", "e", "c"),
            _makes("a"),
            ("wait", "e", "b"),
            ("record", "f", "a"),
            ("wait", "f", "b"),
            _reads("b"),
        ],
        "a wait adds to what a stream knows: take the larger number for each stream",
    ),
    "the host": (
        [_makes("a"), _reads("c"), ("synchronize", "a"), _reads("b"), _makes("a", "y"), _reads("b", "y")],
        "what the host has seen end is known to every launch that comes later, on any stream",
    ),
    "a free": (
        [_makes("a"), ("record", "e", "a"), ("wait", "e", "b"), _reads("b"), ("free", "x", "a")],
        "a free counts as a write by the owner's stream",
    ),
    "the owner waits": (
        [
            _makes("a"),
            ("record", "e", "a"),
            ("wait", "e", "b"),
            _reads("b"),
            ("record", "f", "b"),
            ("wait", "f", "a"),
            ("free", "x", "a"),
        ],
        "the owner's stream had waited for the reader before the free",
    ),
    "record_stream": (
        [
            _makes("a"),
            ("record", "e", "a"),
            ("wait", "e", "b"),
            ("record_stream", "x", "b"),
            _reads("b"),
            ("free", "x", "a"),
        ],
        "after record_stream(x, b) the allocator waits for what b holds when x is freed",
    ),
    "record_stream of one of two": (
        [
            _makes("a"),
            ("record", "e", "a"),
            ("wait", "e", "b"),
            ("wait", "e", "c"),
            _reads("b"),
            _reads("c"),
            ("record_stream", "x", "b"),
            ("free", "x", "a"),
        ],
        "record_stream speaks for the stream that it names, and for no other",
    ),
    "a newer event, then an older one": (
        [
            _makes("a"),
            ("record", "e", "a"),
            _makes("a", "y"),
            ("record", "f", "a"),
            ("wait", "f", "b"),
            ("wait", "e", "b"),
            _reads("b", "y"),
        ],
        "a wait for an older event takes nothing away from what the stream knew",
    ),
    "the host, after a wait": (
        [_makes("a"), ("record", "e", "a"), ("wait", "e", "b"), ("synchronize", "b"), _reads("c")],
        "with a stream's end the host also learns what that stream had waited for",
    ),
    "record_stream for two streams": (
        [
            _makes("a"),
            ("record", "e", "a"),
            ("wait", "e", "b"),
            ("wait", "e", "c"),
            _reads("b"),
            _reads("c"),
            ("record_stream", "x", "b"),
            ("record_stream", "x", "c"),
            ("free", "x", "a"),
        ],
        "a buffer may have several record_streams, and the allocator waits for each of them",
    ),
    "record_stream for a stream that has waited": (
        [
            _makes("a"),
            ("record", "e", "a"),
            ("wait", "e", "b"),
            _reads("b"),
            ("record", "f", "b"),
            ("wait", "f", "c"),
            ("record_stream", "x", "c"),
            ("free", "x", "a"),
        ],
        "the queue that record_stream names includes the waits in it",
    ),
    "record_stream, then another buffer": (
        [_reads("b", "y"), _reads("b"), ("record_stream", "x", "b"), ("free", "x", "a"), _makes("a", "y")],
        "what the allocator waits for guards the freed memory only: the owner's stream itself has not waited",
    ),
}


CAUSES = {
    "room": "the kernels of both parts fill the GPU",
    "launches": "the host launches for as long as the step takes, and the GPU waits for it",
    "call": "one call blocks the host for as long as the step takes",
    "kernels": "the kernels of part 1 take as long as the step, and part 2 is hidden",
}
CHANGES = ("graph", "pin", "nothing")
# by letter: cause, change, and where to look
READINGS = {
    "A": (
        "launches",
        "graph",
        "compare when kernels run on the two streams with when they were launched, and add up their durations",
    ),
    "B": (
        "call",
        "pin",
        "look for the longest call of the host before its last one, and divide the bytes by the time",
    ),
    "C": ("kernels", "nothing", "which of the two streams is busy for about as long as the step takes?"),
}


def judge_traces(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Cause and change of each of the three traces."""
    answer = on_ranks(ranks, attempt, only=0, hint="it is called as my_reading()", timeout=30)[0]
    form = 'return {"A": ("cause", "change"), ...} with the letters A to C'
    if not isinstance(answer, dict) or set(answer) != set(READINGS):
        raise Mistake(f"it returns {answer!r:.80}", form)
    for letter, (cause, change, look) in READINGS.items():
        pair = answer[letter]
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise Mistake(f"{letter}: {pair!r:.60}", form)
        if pair[0] not in CAUSES or pair[1] not in CHANGES:
            words = f"causes are {', '.join(map(repr, CAUSES))}; changes are {', '.join(map(repr, CHANGES))}"
            raise Mistake(f"{letter}: {pair!r:.60} has a word that is not listed", words)
        if pair[0] != cause:
            raise Mistake(f"{letter}: the trace does not show {pair[0]!r}", f"trace {letter}: {look}")
        if pair[1] != change:
            raise Mistake(
                f"{letter}: {pair[0]!r} is right, {pair[1]!r} does not change it",
                f"change for {letter}: which of the three acts on what you found, and on nothing else?",
            )
    say("; ".join(f"{letter}: {CAUSES[cause]}" for letter, (cause, _, _) in READINGS.items()))


# --- on a rank ---


def _captured(
    attempt: Attempt, ranks: Ranks, called: str, *given: Any
) -> tuple[Timeline, Captured, Timeline]:
    """The attempt is captured on a rank: there it may run for ever without harm."""
    hint = f"it is called as {called}"
    found = on_ranks(ranks, _capture, attempt, given, only=0, hint=hint, timeout=30)[0]
    if isinstance(found, str):
        raise Mistake(found, "look at the op that it names")
    alone, in_a_caller = found
    return simulate(alone), alone, simulate(in_a_caller)


def _capture(attempt: Attempt, given: Any) -> tuple[Captured, Captured] | str:
    """The program of the attempt, and of a caller that reads the result and allocates as many blocks as are freed."""

    def caller(*given: Any) -> Any:
        result = attempt(*given)
        return [result + 1 for _ in range(8)]

    caller.__signature__ = inspect.signature(attempt)  # type: ignore[attr-defined]
    caller.func = getattr(attempt, "func", attempt)  # type: ignore[attr-defined]  # its module's names, too
    try:
        alone = capture(_named(attempt), *given, units=UNITS)
        return alone, capture(caller, *given) if isinstance(alone.value, torch.Tensor) else alone
    except StreamError as error:
        return str(error)


def _named(attempt: Attempt) -> Attempt:
    """A function for what has no name: a functools.partial, or an object that can be called."""
    if hasattr(attempt, "__name__"):
        return attempt

    def called(*given: Any) -> Any:
        return attempt(*given)

    called.__signature__ = inspect.signature(attempt)  # type: ignore[attr-defined]
    return called


def _kernels(program: Captured, wanted: dict[str, int]) -> None:
    """Raise Mistake where the work is not as it was given."""
    operators = ["add" if name == "add_" else name for name in program.operators]
    found = {name: operators.count(name) for name in operators}
    if found != wanted:
        said = ", ".join(f"{count} {name}" for name, count in found.items()) or "no kernel"
        given = ", ".join(f"{count} {name}" for name, count in wanted.items())
        raise Mistake(f"it runs {said}", f"the operators stay as they are given: {given}")


def _sound(found: Timeline, program: Captured, right: torch.Tensor) -> None:
    """Raise Mistake for a race, a host that stands still, and another value."""
    if found.races:
        owner = {op.buffer: op.stream for op in program if isinstance(op, ops.Alloc)}
        told = [op for op in program if isinstance(op, ops.RecordStream) and op.stream == owner[op.buffer]]
        hint = (
            f"record_stream of {told[0].stream!r} does nothing: that stream owns {told[0].buffer!r}. "
            "Name the stream that still reads it when it is freed"
            if told and found.races[0].cause == "cross-stream free"
            else found.races[0].remedy
        )
        raise Mistake(f"a race, {found.races[0].text}", hint)
    if any(isinstance(op, ops.Synchronize) for op in program):
        raise Mistake(
            "no race, and the host blocks",
            "a synchronize blocks the host, and with it everything that comes after: let a stream wait, not the host",
        )
    if not isinstance(program.value, torch.Tensor) or not torch.allclose(program.value, right):
        raise Mistake("no race, and another value is returned", "return what the given function returns")


repair = Exercise(
    "streams.repair",
    "two races in ten lines",
    "medium",
    10,
    (
        "the same operators and the same value",
        "`norm` on a side stream, `y` on the current one",
        "no race, nor with a caller that goes on on the current stream",
        "the host never blocks",
        f"at most {REPAIRED:g} units",
    ),
    judge_repair,
)
races = Exercise(
    "streams.races",
    "the race check",
    "hard",
    20,
    (
        "a set with each pair of ops that race, and no other",
        f"in {len(KNOWN)} programs with a name, and in {DRAWN} drawn ones",
    ),
    judge_races,
)
traces = Exercise(
    "streams.traces",
    "what keeps them apart?",
    "medium",
    8,
    ("for each trace what sets the length, and the change",),
    judge_traces,
)
