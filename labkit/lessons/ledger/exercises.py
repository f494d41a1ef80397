"""Lesson 19: a check that can fail, written for a claim of the sources."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from labkit.ranks import Ranks
from labkit.study.checks import Result
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["EXERCISE"]

Seen = dict[str, Any]


def _record(blocks: int, *at_collective: int | None, breaks: int | None = None) -> Seen:
    """What the cliff's probe sees, with other numbers: a row a rank of a forward whose all-reduces are disabled."""
    rows = [
        {
            "rank": rank,
            "regions": None if n is None else 11 * blocks,
            # a break inside a layer breaks its caller as well, so this counter is the larger one
            "breaks": None if n is None else 2 * n if breaks is None else breaks,
            "at_collective": n,
            "graphs": 9,
        }
        for rank, n in enumerate(at_collective)
    ]
    return {"blocks": blocks, "B": rows}


EVERY = "look at every rank, each by itself: neither the first alone, nor an average or a sum"
NOTHING = (
    "where a rank has no number, or there is no rank at all, nothing was measured: that is cannot_tell, and all() of "
    "nothing is True"
)
GIVEN = "every rank of this record has its number: cannot_tell is for one that is missing"
# what is so, the record, the status that is right, and the hint for a judge that says otherwise
CASES: tuple[tuple[str, Seen, str, str], ...] = (
    ("forty blocks, as in the source", _record(40, 160, 160), "holds",
     "`breaks` and `graphs` count other things: the claim is about the breaks `at_collective`"),
    ("two blocks, four breaks each", _record(2, 8, 8), "holds",
     "160 is the figure of forty blocks: four collectives in each block, however many blocks there are"),
    ("three ranks, five blocks", _record(5, 20, 20, 20), "holds", EVERY),
    ("traced through: no break at all", _record(40, 0, 0, breaks=0), "changed",
     "a check that cannot fail is none: here no all-reduce breaks, and the claim has changed"),
    ("no break at the collectives, but others", _record(2, 0, 0, breaks=8), "changed",
     "these breaks are elsewhere: only the number in `at_collective` tells this claim"),
    ("rank 1 breaks nowhere", _record(2, 8, 0), "changed", EVERY),
    ("rank 0 breaks nowhere", _record(2, 0, 8), "changed", EVERY),
    ("one rank breaks more, the other less", _record(2, 6, 10), "changed", EVERY),
    ("twice as many on every rank", _record(2, 16, 16), "changed",
     "twice as many breaks are not one at each all-reduce: the numbers have to be equal"),
    ("ten blocks with 160 breaks", _record(10, 160, 160), "changed",
     "160 breaks are four a block in forty blocks only: this record is of ten"),
    ("rank 1 died before it counted", _record(2, 8, None), "cannot tell", NOTHING),
    ("no rank came to an end", _record(2), "cannot tell", NOTHING),
)  # fmt: skip
WORDS = {"holds": "holds", "changed": "changed", "cannot tell": "cannot tell here"}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The judge says of each record what is right, and says what was measured."""
    hint = "it is called as my_judge(seen) with a record, and returns verdict(...) or cannot_tell(...)"
    answers = on_ranks(ranks, _judged, attempt, [seen for _, seen, *_ in CASES], only=0, hint=hint)[0]
    passed: dict[str, list[str]] = {}
    for (what, seen, wanted, wrong), (status, measured) in zip(CASES, answers, strict=True):
        if status not in WORDS:
            asks = wrong if status.startswith("raised") else hint
            raise Mistake(f"{what}: {status} ({WORDS[wanted]} is right)", asks)
        if status != wanted:
            wrong = GIVEN if status == "cannot tell" else wrong
            raise Mistake(f"{what}: your judge says {WORDS[status]!r}; it is {WORDS[wanted]!r}", wrong)
        numbers = {str(row["at_collective"]) for row in seen["B"]}
        if wanted != "cannot tell" and not any(number in measured for number in numbers):
            raise Mistake(
                f"{what}: {WORDS[status]}, with {measured!r} for what was measured",
                "a status alone convinces nobody: say the measured number, which is read beside the claim",
            )
        passed.setdefault(WORDS[wanted], []).append(what)
    for status, cases in passed.items():
        say(f"{status}: {len(cases)} records, such as {cases[0]}")


def _judged(attempt: Attempt, records: list[Seen]) -> list[tuple[str, str]]:
    found = []
    for seen in records:
        try:
            result = attempt(deepcopy(seen))
        except NotImplementedError:
            raise
        except Exception as error:
            found.append((f"raised {type(error).__name__}: {error}", ""))
            continue
        if isinstance(result, Result):
            found.append((result.status, str(result.measured)))
        else:
            found.append((f"returned {result!r}", ""))
    return found


EXERCISE = Exercise(
    "ledger.judge",
    "a check that can fail",
    "medium",
    10,
    (
        "every record in which the claim holds is told from those in which it does not",
        "where nothing was measured it says so",
        "the measured number is named",
    ),
    judge,
)
