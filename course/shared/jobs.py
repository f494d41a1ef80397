"""Exercises about jobs: what their logs say of ranks, cause and change, and a job with one line replaced."""

from __future__ import annotations

import operator
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Mistake, on_ranks

__all__ = ["hint_by_cause", "hint_in_order", "job_with", "judge_jobs", "listed"]


def judge_jobs(
    attempt: Attempt,
    ranks: Ranks,
    say: Callable[[str], None],
    hint_of: Callable[[str, set[int], str, str], str],
    jobs: Collection[str],
    causes: Collection[str],
    changes: Collection[str],
    form: str,
    size: int = 2,
) -> None:
    """Judge each job's ranks, cause and change; what is wrong in any job is said at once.

    Args:
        attempt: returns {job: (ranks, cause, change)}.
        ranks: where it runs, on rank 0 alone.
        say: told each job's answer, and then that these are all, if all are right.
        hint_of: given job, ranks, cause and change, the hint for what is wrong there; empty if nothing is.
        jobs: the names of the jobs.
        causes, changes: the words that may be used.
        form: what the answer looks like.
        size: how many ranks the jobs have.

    Raises:
        Mistake: the answer has another form, a word that is not in the lists, or a job is not right.
    """
    answer = on_ranks(ranks, attempt, only=0, hint=form)[0]
    if not isinstance(answer, dict) or set(answer) != set(jobs):
        given = f"the jobs {sorted(map(str, answer))}" if isinstance(answer, dict) else type(answer).__name__
        raise Mistake(f"it returns {given}", form)
    parts = {job: _parts(job, answer[job], causes, changes, form, size) for job in jobs}
    wrong = {job: hint for job, part in parts.items() if (hint := hint_of(job, *part))}
    if wrong:
        hints = "; ".join(f"job {job}: {hint}" for job, hint in wrong.items())
        raise Mistake(", ".join(f"job {job}" for job in wrong), hints)
    for job, (on, cause, change) in parts.items():
        named = f"rank{'s' * (len(on) > 1)} {_and(on)}" if on else "no rank"
        say(f"job {job}: {named}, {cause}, {change}")
    say("all jobs")


def _parts(
    job: str, given: Any, causes: Collection[str], changes: Collection[str], form: str, size: int
) -> tuple[set[int], str, str]:
    if not isinstance(given, tuple | list) or len(given) != 3:
        raise Mistake(f"job {job}: {given!r}", form)
    on = _ranks(given[0])
    if on is None or not on <= set(range(size)):
        raise Mistake(f"job {job}: the ranks are {given[0]!r}", f"ranks are a list of {_and(range(size))}")
    return on, listed(f"job {job}", given[1], causes), listed(f"job {job}", given[2], changes)


def _and(ranks: Iterable[int]) -> str:
    return " and ".join(", ".join(map(str, sorted(ranks))).rsplit(", ", 1))


def _ranks(given: Any) -> set[int] | None:
    """The numbers in what is given, of Python, numpy or torch, one or some; None if it holds anything else."""
    given = given.tolist() if hasattr(given, "tolist") else given
    if isinstance(given, str | Mapping) or not isinstance(given, int | Iterable):
        return None
    found = list(given) if isinstance(given, Iterable) else [given]
    if any(isinstance(rank, bool) or not hasattr(rank, "__index__") for rank in found):
        return None  # True is no rank, and a row of them is a mask
    return {operator.index(rank) for rank in found}


def listed(where: str, given: Any, words: Collection[str]) -> str:
    """The word of a list that is meant, however its letters and spaces are written.

    Raises:
        Mistake: it is none of them; the message begins with `where`.

    >>> listed("job A", "a  Graph break", ("a graph break", "another shape"))
    'a graph break'
    """
    for word in words:
        if isinstance(given, str) and " ".join(given.split()).casefold() == word.casefold():
            return word
    raise Mistake(f"{where}: {given!r} is not a word of the list", f"one of {', '.join(map(repr, words))}")


def hint_in_order(
    right: Mapping[str, tuple[set[int], str, str]],
    on: Mapping[str, str],
    look: Mapping[str, str],
    changes: Mapping[str, Mapping[str, str]],
) -> Callable[[str, set[int], str, str], str]:
    """Make the `hint_of` of `judge_jobs` that looks at the ranks first, then at the cause, then at the change.

    Args:
        right: the right answer by job.
        on: the hint for wrong ranks by job.
        look: the hint for a wrong cause by job.
        changes: by job, the hints for changes that are known to be wrong.

    >>> hint = hint_in_order({"A": ({0}, "late", "wait")}, {"A": "who?"}, {"A": "when?"}, {"A": {}})
    >>> hint("A", {1}, "late", "wait"), hint("A", {0}, "early", "wait"), hint("A", {0}, "late", "wait")
    ('who?', 'when?', '')
    """

    def hint(job: str, ranks: set[int], cause: str, change: str) -> str:
        ranks_right, cause_right, change_right = right[job]
        if ranks != ranks_right:
            return on[job]
        if cause != cause_right:
            return look[job]
        if change == change_right:
            return ""
        return changes[job].get(change, "right cause, and the remedy of another one")

    return hint


def hint_by_cause(
    right: Mapping[str, tuple[set[int], str, str]],
    look: Mapping[str, str],
    also: Mapping[str, Collection[set[int]]],
) -> Callable[[str, set[int], str, str], str]:
    """Make the `hint_of` of `judge_jobs` that looks at the cause first, then at the ranks, then at the change.

    Args:
        right: the right answer by job.
        look: the hint for a wrong cause by job.
        also: by job, other sets of ranks that are as right.

    >>> hint = hint_by_cause({"A": ({0}, "late", "wait")}, {"A": "when?"}, {"A": [{0, 1}]})
    >>> hint("A", {0}, "early", "wait"), hint("A", {1}, "late", "wait"), hint("A", {0, 1}, "late", "wait")
    ('when?', 'right cause: on which ranks is it so?', '')
    """

    def hint(job: str, ranks: set[int], cause: str, change: str) -> str:
        ranks_right, cause_right, change_right = right[job]
        if cause != cause_right:
            return look[job]
        if ranks not in (ranks_right, *also.get(job, ())):
            return "right cause: on which ranks is it so?"
        return "" if change == change_right else "right cause, and a change that does not touch it"

    return hint


def job_with(path: Path, line: int, fix: str) -> dict[str, Any]:
    """Run a job's definitions, all that stands before its `main`, without its prints.

    Args:
        path: the job, a Python file whose name ends in .txt.
        line: the line that `fix` replaces, in a body that is indented by twelve spaces.
        fix: Python for the line; empty: the job stays as it is.

    Returns:
        What the job defines, by name.
    """
    lines = path.read_text().split("\n\n\ndef main")[0].splitlines()
    lines = ["" if "print(" in text else text for text in lines]  # what it prints is no part of the question
    if fix:
        lines[line - 1] = textwrap.indent(textwrap.dedent(fix), 12 * " ")
    file = path.name.removesuffix(".txt")
    names: dict[str, Any] = {"__name__": file.removesuffix(".py")}
    exec(compile("\n".join(lines), file, "exec"), names)
    return names
