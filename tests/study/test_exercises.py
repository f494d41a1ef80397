"""Exercises: the solutions of the notebooks pass, every mistake gets its own hint, and nothing hangs."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from lessons.start.endless import dies, raises, takes_nothing, waits_alone
from oddrank.live.failure import Outcome, RankError
from oddrank.live.introspect import Collective

import labkit
from labkit import files, registry
from labkit.study import exercises
from labkit.study.exercises import OURS, Answer, Exercise, Mistake, _mistake, on_ranks

COURSE = Path(labkit.__file__).parents[1] / "course"
# a topic's exercises are a module, or the modules of a package
MODULES = [
    ".".join(path.relative_to(COURSE.parent).with_suffix("").parts)
    for topic in registry.TOPICS
    for path in [COURSE / topic / "exercises.py", *sorted((COURSE / topic / "exercises").glob("[!_]*.py"))]
    if path.exists()
]
EXERCISES = {
    value.name: value
    for name in MODULES
    for value in vars(importlib.import_module(name)).values()
    if isinstance(value, Exercise)
}


class Found:
    """An exercise as it stands in a lesson: the cells around its stub, and what they define."""

    def __init__(self, cells: list[Any], index: int):
        self.words, self.stub, self.check, self.solution = cells[index - 1 : index + 3]
        (self.name,) = re.findall(r"\*\*Exercise\*\* `([\w.]+)`", self.words.source)
        call = rf"exercises\.{self.name.partition('.')[2]}\.check\((\w+), \w+\)"
        self.function = re.fullmatch(call, self.check.source.splitlines()[-1])[1]
        self.solved = self.function + ("_solution" if self.function.islower() else "Solution")
        # imports, definitions and numbers that stand above, as a reader who ran the lesson has them
        self.names: dict[str, Any] = {"__name__": "__main__"}
        kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
        for cell in cells[: index + 3]:
            if cell.cell_type == "code" and not cell.source.startswith("%%"):
                source = "\n".join("" if line.startswith("%") else line for line in cell.source.splitlines())
                body = [
                    node
                    for node in ast.parse(source).body
                    if isinstance(node, kept) or isinstance(node, ast.Assign) and is_number(node.value)
                ]
                exec(compile(ast.Module(body, []), "lesson", "exec"), self.names)


def is_number(value: ast.expr) -> bool:
    """Whether it is a number, or some in a row, as in `DIM, TOKENS = 64, 8`."""
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return all(isinstance(part, ast.Constant) and isinstance(part.value, int | float) for part in parts)


def lesson(path) -> list[Found]:
    cells = nbformat.read(path, as_version=4).cells
    return [Found(cells, i) for i, cell in enumerate(cells) if "exercise" in cell.metadata.get("tags", ())]


IN_LESSONS = {
    found.name: (path.stem, found) for path in files.lessons() for found in lesson(path)
}  # fmt: skip
TESTS = Path(__file__).parents[1]
each = pytest.mark.parametrize("name", EXERCISES)


# hints for attempts that leave ranks waiting for each other
FOR_WAITING = ("the ranks wait for each other", "pickle before you broadcast")


@pytest.fixture
def impatient(monkeypatch):
    """Call with what an attempt is told: if that is known to be a hint for waiting, the wait ends after a second."""

    def by(hint: str) -> None:
        if any(words in hint for words in FOR_WAITING):
            monkeypatch.setattr(exercises, "STALL_S", 1.0)

    return by


def reader(name: str) -> dict[str, Any]:
    return IN_LESSONS[name][1].names


# --- in the notebooks ---


def test_every_exercise_stands_in_one_lesson_and_there_are_two_in_lesson_04():
    places = [found.name for path in files.lessons() for found in lesson(path)]
    assert sorted(places) == sorted(EXERCISES)
    assert sum(place == "04_graph_break_cliff" for place, _ in IN_LESSONS.values()) == 2


@each
def test_the_lesson_says_what_the_exercise_says(name):
    found = IN_LESSONS[name][1]
    said = " ".join(found.words.source.split())
    assert found.words.cell_type == "markdown" and EXERCISES[name].header() in said
    assert "raise NotImplementedError" in found.stub.source
    assert found.solution.metadata["tags"] == ["solution"]
    assert found.solution.metadata["jupyter"] == {"source_hidden": True}
    assert re.search(rf"^(def|class) {found.solved}[(:]", found.solution.source, re.MULTILINE)


# --- passing; what is said of a stub is looked at where the lessons run, in notebooks/ ---


def ranks_for(name: str, request) -> labkit.Ranks:
    return request.getfixturevalue("shm_ranks" if name.startswith(("cliff.", "trap.")) else "ranks")


@pytest.mark.slow
@each
def test_the_solution_of_the_notebook_passes(name, request):
    answer = EXERCISES[name].check(reader(name)[IN_LESSONS[name][1].solved], ranks_for(name, request))
    assert answer, repr(answer)
    assert not answer.hint and "passed: " in repr(answer)


def attempts_of(part: str) -> dict[str, Any]:
    """The attempts of all topics by exercise: WRONG of `lessons/<topic>/wrong.py`, or RIGHT of `right.py`."""
    return {
        name: attempts
        for topic in registry.TOPICS
        if (TESTS / "lessons" / topic / f"{part}.py").exists()
        for name, attempts in getattr(
            importlib.import_module(f"lessons.{topic}.{part}"), part.upper()
        ).items()
    }


def first_and_others(attempts: dict[str, Any]) -> list[Any]:
    """Each attempt with its exercise: `make test` has the first of each exercise, `make test-all` all."""
    return [
        pytest.param(
            name,
            attempt,
            marks=[pytest.mark.full] if i else [],
            id=f"{name}-{getattr(attempt, '__name__', i)}",
        )
        for name, of in attempts.items()
        for i, attempt in enumerate(of)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attempt"), first_and_others(attempts_of("right")))
def test_a_right_answer_of_another_approach_passes(name, attempt, request):
    answer = EXERCISES[name].check(attempt, ranks_for(name, request))
    assert answer, repr(answer)


# --- every mistake has its own hint ---

MISTAKES = attempts_of("wrong")


@each
def test_there_are_at_least_two_plausible_wrong_answers_with_hints_of_their_own(name):
    assert len(set(MISTAKES[name].values())) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "attempt"), first_and_others(MISTAKES))
def test_each_mistake_gets_its_own_hint(name, attempt, request, impatient):
    impatient(MISTAKES[name][attempt])
    answer = EXERCISES[name].check(attempt, ranks_for(name, request))
    assert not answer
    assert MISTAKES[name][attempt] in answer.hint, repr(answer)
    others = [words for words in MISTAKES[name].values() if words != MISTAKES[name][attempt]]
    assert not any(words in answer.hint for words in others)


# --- attempts that do not come to an end, and what is no attempt ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "seen", "hint"),
    [
        (raises, " raised ZeroDivisionError: division by zero", "largest(value, device)"),
        (takes_nothing, "takes 0 positional arguments but 2 were given", "largest(value, device)"),
        (dies, "died: exit code 3", "the process ended inside your function"),
        (waits_alone, "stalled: ", "the same collectives, in the same order"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_an_attempt_without_an_end_gets_a_clear_answer(ranks, attempt, seen, hint, impatient):
    impatient("the ranks wait for each other" if attempt is waits_alone else "")
    answer = EXERCISES["start.largest"].check(attempt, ranks)
    assert not answer
    assert seen in repr(answer) and hint in answer.hint
    assert not OURS.search(repr(answer))  # the reader's lines, not ours
    assert "Traceback" not in repr(answer) and "replaced" not in repr(answer)


def test_a_loop_without_an_end_is_ended(ranks):
    def for_ever():
        while True:
            pass

    with pytest.raises(Mistake, match=r"no end within \d") as caught:
        on_ranks(ranks, for_ever, timeout=0.5)
    assert "does not come to an end" in caught.value.hint


@pytest.mark.slow
def test_torchs_own_not_implemented_is_not_taken_for_a_stub(ranks):
    def not_there(value, device):
        raise NotImplementedError("aten::nothing is not implemented for this device")

    assert "is not implemented for this device" in repr(EXERCISES["start.largest"].check(not_there, ranks))


def test_what_is_no_attempt_is_refused(ranks):
    with pytest.raises(ValueError, match="must be a function, got int"):
        EXERCISES["cliff.loop"].check(3, ranks)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must be a function, got the class int"):
        EXERCISES["cliff.loop"].check(int, ranks)


def test_an_exercise_declares_what_it_takes():
    for exercise in EXERCISES.values():
        assert exercise.difficulty in ("easy", "medium", "hard") and exercise.minutes > 0 and exercise.targets


def test_an_answer_escapes_what_it_shows():
    shown = Answer(False, ("first", "it says <b>"), "return <i>")._repr_html_()
    assert "<div>first</div>" in shown and "it says &lt;b&gt;" in shown and "return &lt;i&gt;" in shown


def test_collectives_of_another_exercise_are_left_out_of_a_stall():
    judges = "course/cliff/exercises/loop.py:90 (_look)"
    earlier = Collective("0", 81, "barrier", (), (), judges, True)
    mine = [
        Collective("0", 82, op, ((),), ("int64",), "In [5]:3 (mine)", False)
        for op in ("all_reduce", "barrier")
    ]
    stood = [Outcome(rank, "unfinished", collectives=[earlier, mine[rank]]) for rank in range(2)]
    seen = _mistake(RankError("for 5 s", stood, "All ranks were replaced.", ended="stalled"), "").seen
    assert "First difference, at collective 82:\n    rank 0  all_reduce () int64 at In [5]:3 (mine)" in seen
    assert not OURS.search(seen) and "replaced" not in seen
