"""Lesson 19: a judge whose every part can fail, and the release that changed a fact."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["judge", "release"]

Seen = dict[str, Any]
PASSES, EQUAL = "the gradient passes", "is one process's"
NOT_IMPLEMENTED = "Function _AllReduceBackward returned an error: not implemented for max"

ONE_FAILS = "read `error` and `gradient` apart: where there is a gradient it passed, whatever its numbers are"
EVERY = (
    "compare every rank's gradient, element by element, with `one_process`: no sum, no average, no first rank"
)
NO_DATA = "where no rank answered nothing was measured: raise CannotTell with what is missing; all() of nothing is True"


def _seen(
    *gradient: list[float] | None, error: str = "", right: tuple[list[float], ...] | None = None
) -> Seen:
    """What a probe of the claim sees: each rank's gradient, and what one process has for its part."""
    return {
        "error": error,
        "gradient": list(gradient),
        "one_process": list(RIGHT if right is None else right),
    }


RIGHT = ([2.0, 0.0], [0.0, 2.0])
# what is so, the record, the parts that do not hold (None: nothing can be told), and the hint for another answer
CASES: tuple[tuple[str, Seen, set[str] | None, str], ...] = (
    ("two ranks, right gradients", _seen(*RIGHT), set(), "in this record both parts hold"),
    ("three ranks, right gradients", _seen([1.0], [0.0], [0.0], right=([1.0], [0.0], [0.0])), set(),
     "in this record both parts hold, on three ranks: take as many as the record has"),
    ("the backward is refused", _seen(error=NOT_IMPLEMENTED), {PASSES, EQUAL},
     "a check that cannot fail is none: this torch refuses the backward, and no part holds"),
    ("the gradients are those of a sum", _seen([2.0, 2.0], [2.0, 2.0]), {EQUAL}, ONE_FAILS),
    ("rank 1's gradient is twice what it should be", _seen([2.0, 0.0], [0.0, 4.0]), {EQUAL}, EVERY),
    ("the ranks' gradients are exchanged", _seen([0.0, 2.0], [2.0, 0.0]), {EQUAL}, EVERY),
    ("all gradients are zero", _seen([0.0, 0.0], [0.0, 0.0]), {EQUAL}, EVERY),
    ("one rank has no gradient", _seen([2.0, 0.0], None), {PASSES, EQUAL},
     "a rank whose gradient is None got none: the gradient passes where every rank has one"),
    ("no rank answered", _seen(right=()), None, NO_DATA),
)  # fmt: skip


def judge_judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The judge names for each record the parts that do not hold, and what was measured."""
    hint = (
        "it is called as my_judge(seen) and yields part(words, holds, measured); words stand in the sentence"
    )
    told = on_ranks(ranks, _judged, attempt, [seen for _, seen, *_ in CASES], only=0, hint=hint)[0]
    passed: dict[str, list[str]] = {}
    for (what, _, wanted, wrong), found in zip(CASES, told, strict=True):
        right = "nothing can be told" if wanted is None else f"parts that do not hold: {_names(wanted)}"
        if isinstance(found, str) and not (found.startswith("CannotTell") and wanted is None):
            raise Mistake(
                f"{what}: {found} ({right})", wrong if "rais" in found or "CannotTell" in found else hint
            )
        if isinstance(found, str):
            passed.setdefault("nothing can be told", []).append(what)
            continue
        unknown = {words for words, *_ in found} - {PASSES, EQUAL}
        if unknown:
            raise Mistake(f"{what}: the parts are {_names({words for words, *_ in found})}",
                          f"a part is called by words of the sentence: {PASSES!r} and {EQUAL!r}")  # fmt: skip
        if len(found) != 2:
            raise Mistake(f"{what}: the parts are {_names({words for words, *_ in found})}",
                          f"the sentence says two things: one part for {PASSES!r}, one for {EQUAL!r}")  # fmt: skip
        failed = {words for words, holds, _ in found if not holds}
        if wanted is None or failed != wanted:
            raise Mistake(f"{what}: parts that your judge fails: {_names(failed)}; {right}", wrong)
        if not all(measured.strip() for *_, measured in found):
            silent = _names({words for words, _, measured in found if not measured.strip()})
            raise Mistake(f"{what}: nothing is said of what was measured for {silent}",
                          "yes and no alone convince nobody: give each part its numbers or its error")  # fmt: skip
        passed.setdefault("yes" if not failed else "no", []).append(what)
    for answer, cases in passed.items():
        say(f"{answer}: {len(cases)} records, such as {cases[0]}")


def _names(parts: set[str]) -> str:
    return ", ".join(sorted(map(repr, parts))) or "nothing"


def _judged(attempt: Attempt, records: list[Seen]) -> list[Any]:
    found: list[Any] = []
    for seen in records:
        try:
            parts = list(attempt(deepcopy(seen)))
            found.append([(str(one.words), bool(one.holds), str(one.measured)) for one in parts])
        except NotImplementedError:
            raise
        except Exception as error:
            cannot = type(error).__name__ == "CannotTell"
            found.append(f"CannotTell: {error}" if cannot else f"raised {type(error).__name__}: {error}")
    return found


GAP = "an error or a cannot tell is no answer: the change lies between the two versions that did answer"
# what each version answered, the oldest first; between which two it changed; and the hint for another answer
TOLD: tuple[tuple[str, list[tuple[str, str]], str], ...] = (
    ("no no yes yes yes", [("2.12", "2.13")], "a pair: the last version of the old answer, the first of the new"),
    ("yes yes yes no no", [("2.13", "2.14")], "a fact can end as well as begin"),
    ("yes yes yes yes yes", [], "where nothing changed the list is empty"),
    ("no error yes yes yes", [("2.11", "2.13")], GAP),
    ("error no no error yes", [("2.13", "2.15")], GAP),
    ("error error yes yes yes", [], "what came before the first answer is not known: no change was seen"),
    ("yes yes yes no yes", [("2.13", "2.14"), ("2.14", "2.15")], "it changed twice: each change is a pair"),
    ("yes cannot-tell yes no no", [("2.13", "2.14")], GAP),
    ("error error error error error", [], "no version answered: no change was seen"),
)  # fmt: skip
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")


def judge_release(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """The function names the versions between which each fact changed, and none where it cannot know."""
    hint = (
        "it is called as my_release(answers) with a dict of version and answer, and returns a list of pairs"
    )
    records = [_answers(said) for said, *_ in TOLD]
    told = on_ranks(ranks, _released, attempt, records, only=0, hint=hint)[0]
    for (said, wanted, wrong), found in zip(TOLD, told, strict=True):
        if isinstance(found, str):
            raise Mistake(f"{said}: {found}", hint)
        if found != wanted:
            raise Mistake(f"{_answers(said)}: you return {found}; {wanted} is right", wrong)
    say(
        f"{len(TOLD)} facts, {sum(len(wanted) for _, wanted, _ in TOLD)} changes, each between the right versions"
    )


def _answers(said: str) -> dict[str, str]:
    return dict(zip(VERSIONS, (word.replace("-", " ") for word in said.split()), strict=True))


def _released(attempt: Attempt, records: list[dict[str, str]]) -> list[Any]:
    found: list[Any] = []
    for answers in records:
        try:
            found.append([tuple(map(str, pair)) for pair in attempt(dict(answers))])
        except NotImplementedError:
            raise
        except Exception as error:
            found.append(f"raised {type(error).__name__}: {error}")
    return found


judge = Exercise(
    "new_torch.judge",
    "a judge whose every part can fail",
    "medium",
    12,
    (
        "of each record the parts that do not hold are named",
        "where nothing was measured it says so",
        "each part has what was measured",
    ),
    judge_judge,
)
release = Exercise(
    "new_torch.release",
    "the release that changed it",
    "medium",
    8,
    ("each change is named by the two versions between which it lies", "an error is no answer"),
    judge_release,
)
