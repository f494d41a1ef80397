"""Exercises: what is asked for, the answer to an attempt, and mistakes with their hints."""

from __future__ import annotations

import html
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from oddrank.live.failure import Outcome, waiting

from labkit.pace import patience
from labkit.ranks import RankError, Ranks
from labkit.torch_compat import settings_kept

__all__ = ["Answer", "Exercise", "Mistake", "judge_on_three", "on_ranks", "on_three_too"]

TIMEOUT_S, STALL_S = 120.0, 8.0  # an attempt that compiles takes seconds, one that waits waits for ever
OURS = re.compile(r"(labkit/study|course/\w+)/exercises\b")  # the files of the judges

Attempt = Callable[..., Any]
Judge = Callable[[Attempt, Ranks, Callable[[str], None]], None]


class Mistake(Exception):
    """An attempt that does not pass: what was seen, and a hint for this very mistake."""

    def __init__(self, seen: str, hint: str = "") -> None:
        super().__init__(seen)
        self.seen, self.hint = seen, hint


@dataclass(frozen=True)
class Answer:
    """The answer to an attempt; shows itself as one line for each finding.

    Args:
        passed: whether the attempt passed.
        findings: what was seen, in order.
        hint: for a mistake.
    """

    passed: bool
    findings: tuple[str, ...]
    hint: str = ""

    def __repr__(self) -> str:
        lines = [*self.findings[:-1], f"{self._head}: {self.findings[-1]}"]
        return "\n".join([*lines, *([f"hint: {self.hint}"] if self.hint else [])])

    def __bool__(self) -> bool:
        return self.passed

    @property
    def _head(self) -> str:
        return "passed" if self.passed else "not yet"

    def _repr_html_(self) -> str:
        *before, last = map(html.escape, "\n".join(self.findings).splitlines())
        if self.passed and before:  # all of them passed, not the last one only
            parts = [*before, last, f"<b>{self._head}</b>"]
        else:
            parts = [*before, f"<b>{self._head}</b>: {last}"]
        if self.hint:
            parts.append(f"<b>hint</b>: {html.escape(self.hint)}")
        return "".join(f"<div>{part}</div>" for part in parts)


@dataclass(frozen=True)
class Exercise:
    """An exercise.

    Args:
        name: such as 'cliff.gate'.
        title: what it asks for.
        difficulty: 'easy', 'medium' or 'hard'.
        minutes: that it takes.
        targets: what an attempt has to reach, in words.
        judge: `judge(attempt, ranks, say)` raises Mistake for an attempt that fails; `say` takes each finding.

    >>> demo = Exercise("demo.sum", "the sum", "easy", 5, ("right sums",), lambda attempt, ranks, say: say("right"))
    >>> demo.header()
    '**Exercise** `demo.sum` · easy · 5 minutes. **Target:** right sums.'
    >>> demo.check(sum, None)
    passed: right
    """

    name: str
    title: str
    difficulty: str
    minutes: int
    targets: tuple[str, ...]
    judge: Judge
    takes: str = "function"  # or "class", of a module

    def header(self) -> str:
        """The line above the stub in the notebook."""
        targets = "; ".join(self.targets)
        return (
            f"**Exercise** `{self.name}` · {self.difficulty} · {self.minutes} minutes. **Target:** {targets}."
        )

    def check(self, attempt: Attempt, ranks: Ranks) -> Answer:
        """Check an attempt; a wrong one gets the hint for its mistake.

        Raises:
            ValueError: the attempt is not what is asked for.
        """
        if not callable(attempt) or isinstance(attempt, type) != (self.takes == "class"):
            raise ValueError(f"the attempt at {self.name!r} must be a {self.takes}, got {_kind(attempt)}")
        findings: list[str] = []
        try:
            self.judge(attempt, ranks, findings.append)
        except Mistake as mistake:
            return Answer(False, (*findings, mistake.seen), mistake.hint)
        return Answer(True, tuple(findings))


def on_ranks(
    ranks: Ranks,
    look: Callable[..., Any],
    *args: Any,
    only: int | None = None,
    hint: str = "",
    timeout: float = TIMEOUT_S,
) -> list[Any]:
    """Run a function that calls the attempt. Settings of the compiler that the attempt changes do not outlive it.

    Args:
        ranks: the ranks.
        look: the function.
        args: its arguments.
        only: the one rank to run it on; None for all.
        hint: for an error inside: what is asked for instead.
        timeout: in seconds on a quiet machine; more on a slow or busy one.

    Returns:
        The value of each rank, in rank order.

    Raises:
        Mistake: nothing is written yet, an error, a process that dies, ranks that wait for each other, or no end within
            the timeout.
    """
    limits = {"timeout": patience(timeout), "stall": STALL_S}
    try:
        return list(ranks.run(_run, look, *args, ranks=only, **limits).values())
    except RankError as error:
        raise _mistake(error, hint) from error


def _run(look: Callable[..., Any], *args: Any) -> Any:
    with settings_kept():
        return look(*args)


def on_three_too(judge: Judge) -> Judge:
    """Make a judge of attempts that have to be right on any number of ranks, without a 2 in the place of that number.

    Three ranks of our own follow the reader's.
    """

    def judged(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
        judge(attempt, ranks, say)
        if len(ranks) != 3:
            hint = (
                f"on {len(ranks)} ranks it is right, on three it is wrong: look for a number that is "
                "dist.get_world_size(), and for sizes that three does not divide"
            )
            judge_on_three(judge, attempt, hint)

    return judged


def judge_on_three(judge: Judge, attempt: Attempt, hint: str = "") -> None:
    """Judge an attempt on three ranks of our own, and keep what the judge says of them to ourselves.

    Args:
        judge: a judge for ranks of any number.
        attempt: what the reader wrote.
        hint: of a mistake on three ranks; '' for the judge's own.

    Raises:
        Mistake: the judge finds one; what it saw begins with 'on three ranks'.
    """
    with Ranks(3, device="cpu", backend="gloo", quiet=True) as three:
        try:
            judge(attempt, three, lambda finding: None)
        except Mistake as mistake:
            raise Mistake(f"on three ranks: {mistake.seen}", hint or mistake.hint) from mistake


def _mistake(error: RankError, hint: str) -> Mistake:
    # the reader's lines, not those of the exercise around them
    outcomes = [_own(outcome) for outcome in error.outcomes]
    first = outcomes[0]
    if first.type == "NotImplementedError" and not first.message:
        return Mistake("there is nothing to check yet: write the body of the function first")
    if error.ended == "stalled":
        return Mistake(
            str(waiting(error.headline, "stalled", outcomes)),
            "the ranks wait for each other: every rank has to call the same collectives, in the same order",
        )
    if error.ended == "timed out":
        return Mistake(error.headline, "your function does not come to an end: look at its loops and waits")
    said = first.describe()
    if first.kind == "dead" and first.code == -signal.SIGABRT:
        return Mistake(
            said,
            "gloo ends a process whose peer sends more than it expects: every rank has to call the same collectives, "
            "in the same order, with as many bytes, also one that returns early",
        )
    if first.kind == "dead":
        return Mistake(said, "the process ended inside your function: it has to return")
    if first.type == "Unsupported":
        said = "\n".join([said.splitlines()[0], *said.splitlines()[-2:]])
        return Mistake(
            said,
            "fullgraph=True turns the first break into this error: take away what breaks, not the tolerance for it",
        )
    return Mistake(said, hint)


def _own(outcome: Outcome) -> Outcome:
    """The outcome with the reader's lines and collectives only; the record may hold those of an earlier exercise."""
    called = outcome.collectives and [c for c in outcome.collectives if not OURS.match(c.place)]
    frames = [frame for frame in outcome.frames if not OURS.match(frame[0])]
    return replace(outcome, frames=frames, collectives=called)


def _kind(attempt: Any) -> str:
    return f"the class {attempt.__name__}" if isinstance(attempt, type) else type(attempt).__name__
