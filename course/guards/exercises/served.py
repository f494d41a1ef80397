"""Lesson 09, `guards.served`: what two ranks of a served model logged: which argument, and which remedy."""

from __future__ import annotations

from collections.abc import Callable

from course.shared.jobs import judge_jobs
from labkit import files
from labkit.ranks import Ranks
from labkit.study.exercises import Attempt, Exercise

__all__ = ["SERVED", "served"]

SERVED = files.ours("data/captured/served_model.log")
ARGUMENTS = ("tokens", "table", "layer", "past", "query", "total", "scale")
REMEDIES = (
    "warm up", "mark_unbacked", "mark_dynamic", "a tensor", "allow_unspec_int_on_nn_module", "isolate_recompiles",
    "a fixed size", "wait first", "fullgraph", "timeout",
)  # fmt: skip
# ranks, argument, and each remedy with which requests of any length from 1 to 64 run compiled code with the fewest
# versions of this function
RIGHT: dict[str, tuple[set[int], str, set[str]]] = {
    "embed": ({0, 1}, "tokens", {"mark_unbacked", "a fixed size"}),
    "forward": ({0, 1}, "layer", {"a tensor"}),
    "attend": ({0, 1}, "past", {"a fixed size"}),
    "head": ({1}, "total", {"wait first"}),
}
FORM = (
    'it returns a dict such as {"embed": ([0, 1], "table", "timeout"), ...} with embed, forward, attend and head: '
    "ranks, argument and remedy"
)
RANKS = "which of the two logs has entries of this function?"
LOOK = {
    "embed": "a reason of an entry begins with what was tested: 'tensor ... size mismatch', 'size()[0]'",
    "forward": "the reason is a test for equality with a number: of which name?",
    "attend": "a test for a length that grows by one with each request: of which list?",
    "head": "a test for a type, and the type is that of a result that nobody has waited for",
}
REMEDY = {
    ("embed", "mark_dynamic"): "the entry of [0/2] remains: a size of 1 does not fit the symbol",
    ("embed", "warm up"): "it works, and takes three versions: one can serve all lengths",
    ("forward", "warm up"): "the limit is hit while the first request runs: a warm-up hits it as well",
    ("forward", "allow_unspec_int_on_nn_module"): "it works; without a Python int there are fewer versions",
    ("forward", "isolate_recompiles"): "it works, but no two blocks share a version",
    ("attend", "warm up"): "the list grows for ever: there is no last length to warm up",
    ("attend", "isolate_recompiles"): "one code object is not the trouble: each request has a new length",
    ("head", "warm up"): "it works, and rank 1 keeps a version that rank 0 does not have",
}
GENERAL = {
    "timeout": "a longer timeout waits for the compile: it still happens",
    "fullgraph": "it says at the limit that something is wrong, and changes nothing before",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each function's ranks, argument and remedy; what is wrong in any is said at once."""
    judge_jobs(attempt, ranks, say, _hint, RIGHT, ARGUMENTS, REMEDIES, FORM)


def _hint(function: str, on: set[int], argument: str, remedy: str) -> str:
    ranks, named, remedies = RIGHT[function]
    if on != ranks:
        return RANKS
    if argument != named:
        return LOOK[function]
    if remedy in remedies:
        return ""
    return REMEDY.get((function, remedy)) or GENERAL.get(
        remedy, "the right argument, and the remedy of another one"
    )


served = Exercise(
    "guards.served",
    "a served model and the logs of two ranks",
    "medium",
    10,
    (
        "for each of the four functions the ranks that compile it again, the argument that varies, "
        "and the remedy with the fewest versions",
    ),
    judge,
)
