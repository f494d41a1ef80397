"""Lesson 05, `trap.rungs`: three functional all-reduces, each with one layer more than the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course.shared.capture import operations
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import around_operators

__all__ = ["rungs"]

NAMES = ("copied", "operators", "lazy")
FORM = 'it returns a dict of three functions of one tensor: "copied", "operators" and "lazy"'
MARK = 1024.0  # exact in a float
START, WAIT = "_c10d_functional::all_reduce", "_c10d_functional::wait_tensor"
HINTS = {
    "changes": "its argument has changed: a functional form leaves it as it was",
    "sum": "every rank returns the sum over all ranks",
    "copied": "this rung is dist.all_reduce on a copy: no functional operator yet",
    "another": "one dist.all_reduce of the copy does it: no other collective",
    "returned": "wait_tensor's result is the tensor that may be read: return that one, not what went in",
    "plain": "torch.ops._c10d_functional returns plain tensors; funcol.all_reduce puts a wrapper around them",
    "waits": "one torch.ops._c10d_functional.all_reduce, and one wait_tensor for its result",
    "gradient": "both operators have a derivative: call them with autograd as it is, and return the waited tensor",
    "own": "a class of your own with a `__torch_dispatch__`; torch.Tensor._make_wrapper_subclass makes its tensors",
    "early": "the call has waited already: start the collective, wrap its result, and wait in `__torch_dispatch__`",
    "never": "the numbers are read without a wait: call wait_tensor before the operation runs",
    "again": "the second use waits again: keep a note in the wrapper that it has waited",
    "type": "after the wait nothing has to be watched: return the operation's own result",
    "shape": "shape, dtype and device are those of the tensor inside: hand them to _make_wrapper_subclass",
    "nested": "torch.cat takes a list: a wrapper can be inside an argument. torch.utils._pytree.tree_map_only finds it",
    "out": "a wrapper can be a keyword, as out= here: look for it in kwargs as well",
    "keyword": "a dtype comes in kwargs, which may be None: hand them on",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Each rung's numbers, argument, operators and gradient; the last one's waits, too."""
    seen = list(on_ranks(ranks, _look, attempt, hint=FORM))
    for rank, found in enumerate(seen):
        if found["form"]:
            raise Mistake(f"it returns {found['form']}", FORM)
        for what, wrong, said in found["checks"]:
            if wrong:
                raise Mistake(f"rank {rank}: {what}: {said}", HINTS[wrong])
    for what, _, said in seen[0]["checks"]:
        say(f"{what}: {said}")


def _look(attempt: Attempt) -> dict[str, Any]:
    """On a rank: (what, the key of the hint or '', what was seen), up to the first one that is wrong."""
    made = attempt()
    if not isinstance(made, dict) or set(made) != set(NAMES) or not all(map(callable, made.values())):
        form = f"a dict with {sorted(map(str, made))}" if isinstance(made, dict) else type(made).__name__
        return {"form": form, "checks": []}
    checks: list[tuple[str, str, str]] = []

    def stops(what: str, wrong: str, said: Any) -> bool:
        checks.append((what, wrong, str(said)))
        return bool(wrong)

    for name in NAMES:
        if _rung(name, made[name], stops):
            break
    return {"form": "", "checks": checks}


def _rung(name: str, rung: Callable[[Any], Any], stops: Callable[[str, str, Any], bool]) -> bool:
    me = here()
    n = me.world_size
    start = torch.arange(6.0, device=me.device).view(2, 3)
    right = n * start + n * (n - 1) / 2
    with torch.no_grad():
        x = start + me.rank
        y = rung(x)
        if name != "lazy" and type(y) is not torch.Tensor:
            return stops(name, "plain", f"returns a {type(y).__name__}")
        if name == "lazy" and (bad := _class_of(y)):
            return stops(name, "own", bad)
        if name == "lazy" and (tuple(y.shape), y.dtype, y.device) != ((2, 3), x.dtype, x.device):
            return stops(
                name,
                "shape",
                f"{tuple(y.shape)} {y.dtype} {y.device}, and (2, 3) {x.dtype} {x.device} is right",
            )
        got = y * 1
        if type(got) is not torch.Tensor:
            return stops(name, "type", f"y * 1 is a {type(got).__name__}")
        if not torch.equal(x, start + me.rank):
            return stops(name, "changes", f"x was {(start + me.rank).tolist()}, and is {x.tolist()}")
        if not torch.equal(got, right):
            return stops(name, "sum", f"{got.tolist()}, and {right.tolist()} is right")
        found = operations(lambda: rung(x))
    started, waited = found[START], found[WAIT]
    said = f"{started} functional all_reduce, {waited} waits in the call"
    if name == "copied":
        if any(key.startswith("_c10d_f") for key in found):
            return stops(name, "copied", said)
        plain = sum("allreduce" in key or "all_reduce" in key for key in found)
        return stops(
            name, "" if plain else "another", f"{said}; all_reduce in place: {'yes' if plain else 'no'}"
        )
    if name == "operators":
        if (started, waited) != (1, 1):
            return stops(name, "waits", said)
        with torch.no_grad(), around_operators(_marked):
            marked = rung(start + me.rank)
        if not torch.equal(marked, right + MARK):
            return stops(name, "returned", "its result is not what wait_tensor returned")
        grad = _gradient(rung)
        good = n * (n + 1) / 2
        wrong = "" if grad == [good] * 3 else "gradient"
        return stops(name, wrong, f"{said}; gradient {grad}, one process {[good] * 3}")
    if started != 1 or waited:
        return stops(name, "early" if waited else "waits", said)
    return _uses(rung, right, stops)


def _marked(func: Any, args: Any, kwargs: Any) -> Any:
    """wait_tensor returns another tensor than the one that goes in, with another number in it."""
    result = func(*args, **kwargs)
    return result + MARK if func.name() == WAIT else result


def _class_of(y: Any) -> str:
    """Why a result is no wrapper of the reader's own; '' if it is one."""
    if not isinstance(y, torch.Tensor) or type(y) is torch.Tensor:
        return f"returns a {type(y).__name__}"
    dispatching = next(kind for kind in type(y).__mro__ if "__torch_dispatch__" in vars(kind))
    if dispatching.__module__.partition(".")[0] == "torch":
        return f"returns a {type(y).__name__}, whose __torch_dispatch__ is torch's"
    return ""


def _gradient(rung: Callable[[Any], Any]) -> list[float] | None:
    """Of a loss that differs by rank: the job's loss is the sum over the ranks of (rank + 1) * sum(y)."""
    me = here()
    x = torch.ones(3, device=me.device, requires_grad=True)
    y = rung(x)
    if y.requires_grad:
        (y.sum() * (me.rank + 1)).backward()
    return None if x.grad is None else x.grad.tolist()


def _uses(rung: Callable[[Any], Any], right: Any, stops: Callable[[str, str, Any], bool]) -> bool:
    """The uses of a wrapper: the first waits, the second does not, and a wrapper is found wherever it is."""
    me = here()
    x = torch.arange(6.0, device=me.device).view(2, 3) + me.rank
    with torch.no_grad():
        y = rung(x)
        results: list[Any] = []
        waits = [
            operations(lambda: results.append(y + 1))[WAIT],
            operations(lambda: results.append(y * 2))[WAIT],
        ]
        said = f"waits at the first use: {waits[0]}, at the second: {waits[1]}"
        if waits[0] == 0:
            return stops("lazy", "never", said)
        if waits[1] or waits[0] > 1:
            return stops("lazy", "again", said)
        if any(type(result) is not torch.Tensor for result in results):
            return stops("lazy", "type", f"y + 1 is a {type(results[0]).__name__}")
        if results[0].tolist() != (right + 1).tolist():
            return stops("lazy", "sum", f"y + 1 is {results[0].tolist()}")
        whole = torch.zeros(2, 3, dtype=torch.int64)
        for what, wrong, use, of in (
            ("torch.cat([y, y])", "nested", lambda y: torch.cat([y, y]), torch.cat([right, right])),
            (
                "zeros_like(y, dtype=int64)",
                "keyword",
                lambda y: torch.zeros_like(y, dtype=whole.dtype),
                whole,
            ),
            (
                "torch.add(1, x, out=y)",
                "out",
                lambda y: torch.add(torch.ones_like(right), right, out=y) * 1,
                right + 1,
            ),
            ("y.t()", "sum", lambda y: y.t() * 1, right.t()),
        ):
            try:
                result: Any = use(rung(x))
                given: Any = result.tolist() if result.dtype == of.dtype else result.dtype
            except Exception as error:
                given = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"
            if given != of.tolist():
                return stops("lazy", wrong, f"{what} gives {given}")
    return stops("lazy", "", f"no wait in the call; {said}; found in a list and in keywords")


rungs = Exercise(
    "trap.rungs",
    "three rungs of the ladder",
    "medium",
    20,
    (
        "each returns the sum over the ranks and leaves x alone",
        "copied and operators return a plain tensor; operators has a gradient",
        "lazy waits once, at the first operation that receives its tensor, also inside a list or as a keyword",
    ),
    judge,
)
