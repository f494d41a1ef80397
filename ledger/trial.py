"""What a trial is made of: a probe that measures, a counterexample that it is measured against, and a judge.

A probe runs a small program and returns plain data. A judge is a pure function of these data: it yields a `Part` for
each part of the fact's sentence. A counterexample is a probe of a program in which the fact is false. It runs each time
the trial does, on every torch: a trial that says yes to it has told nothing, and is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ledger.bench import Bench

__all__ = ["TRIALS", "CannotTell", "Trial", "NotThere", "Part", "Probe", "Seen", "judge", "part"]

Seen = dict[str, Any]
Probe = Callable[[Bench], Seen]


class NotThere(Exception):
    """This torch lacks what the fact is about, which is a no: the message names it, such as 'torch.x is missing'."""


class CannotTell(Exception):
    """Hardware, a package or quiet is missing: the message names it. Nothing else is a reason not to tell."""


@dataclass(frozen=True)
class Part:
    """One part of a fact.

    Args:
        words: the part, as it stands in the fact's sentence.
        holds: whether it is so.
        measured: what was seen, either way.
    """

    words: str
    holds: bool
    measured: str


def part(words: str, holds: Any, measured: object = "") -> Part:
    """State one part of a fact, and whether it is so.

    Args:
        words: the part, as it stands in the fact's sentence.
        holds: whether it is so.
        measured: what was seen, either way.

    >>> part("one graph", 2 == 1, "2 graphs")
    Part(words='one graph', holds=False, measured='2 graphs')
    """
    return Part(words, bool(holds), str(measured))


@dataclass(frozen=True)
class Trial:
    """The trial of one fact.

    Args:
        name: the id of the fact: the module and the name of the judge, as 'breaks.disabled-collective'.
        probe: measures the fact's program.
        judge: yields the parts of the fact, read from what a probe saw.
        counter: measures a program in which the fact is false; None where no such program can be written.
        why_none: why there is no counterexample.
    """

    name: str
    probe: Probe
    judge: Callable[[Seen], Iterable[Part]]
    counter: Probe | None
    why_none: str = ""

    def parts(self, seen: Seen) -> tuple[Part, ...]:
        """Judge what a probe saw.

        Raises:
            CannotTell: a timing is too noisy, say.
            ValueError: the judge says nothing.
        """
        found = tuple(self.judge(seen))
        if not found:
            raise ValueError(f"the judge of {self.name} yields no part")
        return found


TRIALS: dict[str, Trial] = {}


def judge(
    probe: Probe, counter: Probe | None = None, *, no_counter: str = ""
) -> Callable[[Callable[[Seen], Iterable[Part]]], Callable[[Seen], Iterable[Part]]]:
    """Register a function as the judge of the fact that bears its name.

    Args:
        probe: measures the fact's program; judges may share one, which then runs once.
        counter: measures a program in which the fact is false.
        no_counter: why no such program can be written, where there is none.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ValueError: the name is taken, or there is neither a counterexample nor a reason.

    >>> @judge(lambda bench: {"sum": 2 + 2}, counter=lambda bench: {"sum": 5})
    ... def sums(seen):
    ...     yield part("is 4", seen["sum"] == 4, seen["sum"])
    >>> trial = TRIALS.pop(f"{sums.__module__.rpartition('.')[2]}.sums")
    >>> trial.parts(trial.probe(None))
    (Part(words='is 4', holds=True, measured='4'),)
    """

    def register(function: Callable[[Seen], Iterable[Part]]) -> Callable[[Seen], Iterable[Part]]:
        module = function.__module__.rpartition(".")[2]
        topic = "mine" if module == "__main__" else module
        name = f"{topic}.{function.__name__.replace('_', '-')}"
        if name in TRIALS:
            raise ValueError(f"there are two trials named {name!r}")
        if (counter is None) != bool(no_counter):
            raise ValueError(f"{name}: it needs a counterexample, or the reason why there is none")
        TRIALS[name] = Trial(name, probe, function, counter, no_counter)
        return function

    return register
