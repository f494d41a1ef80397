"""A run of the ledger: what the installed torch answers, fact by fact."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from labkit import hardware
from ledger.bench import Bench
from ledger.facts import Fact
from ledger.trial import TRIALS, CannotTell, NotThere, Part, Probe, Seen, Trial

__all__ = ["ANSWERS", "CANNOT_TELL", "ERROR", "NO", "YES", "Answer", "answer", "ask", "run"]

YES, NO, ERROR, CANNOT_TELL = ANSWERS = ("yes", "no", "error", "cannot tell")
# what a probe's record holds in place of its data, where it ended with an exception
ENDED = ("not there", "cannot tell", "error")


@dataclass(frozen=True)
class Answer:
    """What one torch answers to one fact.

    Args:
        fact: the fact.
        answer: one of ANSWERS.
        measured: what was seen.
        failed: of a no: the parts of the sentence that are not true.
        missing: of 'cannot tell': what is missing; of an error: what went wrong.
        seen: what the probe saw, or {'error': ...}.
        counter: what was seen of the counterexample; {} where there is none.
        seconds: what both took.
    """

    fact: Fact
    answer: str
    measured: str = ""
    failed: str = ""
    missing: str = ""
    seen: Seen | None = None
    counter: Seen | None = None
    seconds: float = 0.0

    def said(self) -> str:
        """What it has to say beside yes or no: the parts that are not true, what was measured, what is missing."""
        failed = f"not true: {self.failed}" if self.failed and self.failed != self.measured else ""
        return "; ".join(filter(None, [failed, self.measured, self.missing]))

    def __str__(self) -> str:
        return f"{self.answer}: {self.said()}"


def answer(fact: Fact, trial: Trial, seen: Seen, counter: Seen | None) -> Answer:
    """Judge what was seen.

    Args:
        fact: the fact.
        trial: its trial.
        seen: what the probe saw.
        counter: what was seen of the counterexample; None where it did not run.

    Returns:
        The answer. It is an error where the judge says yes to the counterexample, or where either cannot be judged.

    >>> from ledger.trial import part
    >>> fact = Fact("a.b", "The sum is 4.", "04", "Add.")
    >>> trial = Trial("a.b", lambda bench: {}, lambda seen: [part("is 4", seen["sum"] == 4)], lambda bench: {})
    >>> [answer(fact, trial, {"sum": 4}, {"sum": n}).answer for n in (4, 5)]
    ['error', 'yes']
    """

    def made(answer: str, failed: str = "", missing: str = "") -> Answer:
        return Answer(fact, answer, measured, failed, missing, seen, counter)

    measured = ""
    parts, ended = _judged(trial, seen)
    if "not there" in ended:
        measured = ended["not there"]
        return made(NO, failed=measured)
    if "cannot tell" in ended:
        return made(CANNOT_TELL, missing=ended["cannot tell"])
    if ended:
        return made(ERROR, missing=ended["error"])
    measured = "; ".join(dict.fromkeys(part.measured for part in parts if part.measured))
    if counter is not None:
        against, wrong = _judged(trial, counter)
        if "error" in wrong:
            return made(ERROR, missing=f"the counterexample: {wrong['error']}")
        if against and all(part.holds for part in against):
            said = "; ".join(part.measured for part in against)
            return made(ERROR, missing=f"the trial says yes to its counterexample: {said}")
        if "cannot tell" in wrong:
            return made(CANNOT_TELL, missing=f"the counterexample: {wrong['cannot tell']}")
    failed = "; ".join(part.words for part in parts if not part.holds)
    return made(NO if failed else YES, failed=failed)


def _judged(trial: Trial, seen: Seen) -> tuple[tuple[Part, ...], dict[str, str]]:
    """The parts, or how the probe or the judge ended without them."""
    for name in ENDED:
        if set(seen) == {name}:
            return (), seen
    try:
        return trial.parts(seen), {}
    except CannotTell as why:
        return (), {"cannot tell": str(why)}
    except Exception as error:  # a record that lacks what the judge reads tells nothing
        return (), {"error": f"the judge: {_reason(error)}"}


def run(
    facts: Iterable[Fact],
    *,
    trials: Mapping[str, Trial] = TRIALS,
    gpus: int | None = None,
    talk: Callable[[str], None] | None = None,
    each: Callable[[Answer], object] | None = None,
) -> tuple[Answer, ...]:
    """Run the trials of facts, each probe once.

    Args:
        facts: the facts.
        trials: trials by name.
        gpus: number of GPUs to go by; by default those that are visible.
        talk: called with the id of each fact before its trial runs.
        each: called with each answer as soon as it is there.

    Returns:
        An answer for each fact.
    """
    count = len(hardware.gpus()) if gpus is None else gpus
    seen: dict[Probe, tuple[Seen, float]] = {}
    answers = []
    with Bench() as bench:
        for fact in facts:
            if missing := fact.missing(count):
                found = Answer(fact, CANNOT_TELL, missing=f"needs {missing}")
            else:
                if talk:
                    talk(fact.id)
                found = _told(fact, trials[fact.id], bench, seen)
            answers.append(found)
            if each:
                each(found)
    return tuple(answers)


def ask(name: str, says: str) -> Answer:
    """Run a trial of your own, in a file that python runs.

    Args:
        name: of the trial: 'mine.' and the name of the judge.
        says: the claim in one sentence, which has the words of each part.

    Returns:
        The answer.

    Raises:
        ValueError: there is no such trial, or a part's words do not stand in the sentence.
    """
    if name not in TRIALS:
        raise ValueError(f"there is no trial {name!r}: there are {', '.join(TRIALS) or 'none'}")
    (found,) = run([Fact(name, says, "", "")])
    for part in _judged(TRIALS[name], found.seen or {})[0]:
        if part.words not in says:
            raise ValueError(f"{name}: the words {part.words!r} of a part do not stand in {says!r}")
    return found


def _told(fact: Fact, trial: Trial, bench: Bench, known: dict[Probe, tuple[Seen, float]]) -> Answer:
    seconds = 0.0

    def saw(probe: Probe) -> Seen:
        nonlocal seconds
        if probe not in known:
            known[probe] = _measure(probe, bench)
            seconds += known[probe][1]
        return known[probe][0]

    seen = saw(trial.probe)
    counter = None
    if trial.counter is not None and not set(seen) & {"not there", "cannot tell"}:
        counter = saw(trial.counter)
    found = answer(fact, trial, seen, counter)
    return replace(found, seconds=round(seconds, 2))


def _measure(probe: Probe, bench: Bench) -> tuple[Seen, float]:
    """What a probe saw, as plain data, or how it ended; and its seconds."""
    started = time.perf_counter()
    try:
        seen = json.loads(json.dumps(probe(bench), allow_nan=False))
    except Exception as error:  # whatever a torch may do to a probe: one answer less, and nothing is made up
        seen = _ending(error)
    return seen, time.perf_counter() - started


def _ending(error: Exception) -> Seen:
    for outcome in getattr(error, "outcomes", ()):  # a RankError: what a rank says counts
        for kind, name in ((NotThere, "not there"), (CannotTell, "cannot tell")):
            if (outcome.type or "").endswith(kind.__name__):
                return {name: outcome.message}
    if isinstance(error, NotThere):
        return {"not there": str(error)}
    if isinstance(error, CannotTell):
        return {"cannot tell": str(error)}
    return {"error": _reason(error)}


def _reason(error: Exception) -> str:
    outcomes = getattr(error, "outcomes", None)  # a RankError's first line is only that a rank failed
    said = outcomes[0].describe() if outcomes else f"{type(error).__name__}: {error}"
    return next(iter(said.splitlines()), type(error).__name__)[:300]
