"""Lesson 15: a compile backend that refuses the wrong group, and a sender that leaves no worker waiting."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from labkit import torch_compat
from labkit.contract.exchange import listed
from labkit.ranks import RankError, Ranks
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks
from labkit.torch_compat import funcol, renamed

__all__ = ["backend", "send"]

Program = Callable[[Any, Any, Any], Any]
_gather_autograd = torch_compat.functional_op("all_gather_into_tensor", "_c10d_functional_autograd")
_wait = torch_compat.functional_op("wait_tensor")
_all_gather = renamed(funcol, "all_gather_single", "all_gather_tensor")
_reduce_scatter = renamed(funcol, "reduce_scatter_single", "reduce_scatter_tensor")


def _in_place(x: Any, group: Any, mine: Any) -> Any:
    y = x.clone()
    dist.all_reduce(y, group=group)
    return y


def _scattered(x: Any, group: Any, mine: Any) -> Any:
    return _reduce_scatter(x.repeat(dist.get_world_size(group)), "sum", 0, group) + 1


def _two(x: Any, group: Any, mine: Any) -> Any:
    return funcol.all_reduce(funcol.all_reduce(x, "sum", mine) + 1, "sum", group)


def _nested(x: Any, group: Any, mine: Any) -> Any:
    return checkpoint(lambda y: funcol.all_reduce(y.sin(), "sum", group), x, use_reentrant=False)


# a program of x, a group, and an allowed group; whether its groups are allowed, None without a collective; the hint
_GRAPHS: dict[str, tuple[Program, bool | None, str]] = {
    "no collective": (lambda x, *_: x.sin() + 1, None, "a graph without a collective compiles as always"),
    "all-reduce of an allowed group": (
        lambda x, g, _: funcol.all_reduce(x, "sum", g) + 1, True,
        "the group is what counts: a collective of an allowed group has to pass",
    ),
    "all-reduce of the world": (
        lambda x, g, _: funcol.all_reduce(x, "sum", g) + 1, False,
        "raise where a node's group is not in allowed; what only warns goes on into the collective",
    ),
    "all-gather of the world": (
        lambda x, g, _: _all_gather(x, 0, g) + 1, False,
        "every operator of _c10d_functional that names a group counts, not only all_reduce",
    ),
    "all-gather of the world, by its operator with a backward": (
        lambda x, g, _: _wait(_gather_autograd(x, dist.get_world_size(g), g.group_name)) + 1, False,
        "the operators with a backward stand in a namespace of their own, _c10d_functional_autograd",
    ),
    "reduce-scatter of the world": (
        _scattered, False,
        "a reduce-scatter counts, and names its group in another place than an all-reduce: as its last argument",
    ),
    "all-reduce of an allowed group, then one of the world": (
        _two, False, "a graph can hold several collectives: look at each of them, and not at the first alone",
    ),
    "in-place all-reduce of the world": (
        _in_place, False, "Dynamo rewrites dist.all_reduce into the functional operator: look at the graph's nodes",
    ),
    "all-reduce of the world in a checkpoint": (
        _nested, False, "a graph can hold graphs: look into graph.modules(), not only at the top",
    ),
}  # fmt: skip


def judge_backend(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Graphs with a collective of another group are refused on every rank, and the others compute as in eager."""
    hint = "it is called as my_backend(graph, inputs, allowed) and returns what runs the graph, such as graph"
    for what, (_, allowed, wrong) in _GRAPHS.items():
        seen = list(on_ranks(ranks, _compile, attempt, what, hint=hint))
        if seen[0][0] == "NotImplementedError":
            raise Mistake("there is nothing to check yet: write the body of the function first")
        refused = [rank for rank, (kind, *_) in enumerate(seen) if kind]
        kind, said, same = seen[0]
        finding = f"{what}: " + (
            f"{kind} on rank {listed(refused)}: {said}"[:120] if refused else "compiled and run"
        )
        if bool(refused) != (allowed is False) or not same:
            raise Mistake(
                finding if same else f"{what}: other numbers than in eager", wrong if same else hint
            )
        if refused and not any(name in said for name in ("all_reduce", "all_gather", "reduce_scatter")):
            raise Mistake(finding, "say in the error which operator it is, and of which group")
        say(finding)


def _compile(attempt: Attempt, what: str) -> tuple[str, str, bool]:
    """The error's type and text, '' for none; and whether the numbers are those of eager."""
    program, allowed, _ = _GRAPHS[what]
    mine = dist.new_group(list(range(dist.get_world_size())))
    group = dist.group.WORLD if allowed is False else mine
    backend = functools.partial(attempt, allowed={mine.group_name})
    x = torch.ones(2)
    torch_compat.dynamo_reset()
    try:
        with torch.no_grad():
            found = torch.compile(lambda x: program(x, group, mine), backend=backend)(x) + 0
    except Exception as error:
        inner = getattr(error, "inner_exception", error)
        return type(inner).__name__, str(inner), True
    finally:
        torch_compat.dynamo_reset()
    return "", "", bool(torch.equal(found, program(x, group, mine) + 0))


# what the sender is asked to send, and whether that can be pickled
_ASKED: tuple[tuple[str, bool], ...] = (
    ("good", True), ("a lock inside", False), ("an object that refuses to be pickled", False), ("good again", True),
)  # fmt: skip
_REFUSAL = "this object is not to be pickled"


class _Refuses:
    def __reduce__(self) -> Any:
        raise RuntimeError(_REFUSAL)


_SHORT = "a size of fewer than eight bytes"
_GOOD: dict[str, Any] = {"steps": 4, "x": torch.arange(4.0)}


def judge_send(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Workers get every message that can be sent, whole, and do not wait for one that cannot."""
    hint = "it is called as my_send(message) on rank 0, once for each message"
    try:
        raised, heard, *_ = on_ranks(ranks, _talk, attempt, hint=hint)
    except Mistake as mistake:
        if not (isinstance(mistake.__cause__, RankError) and mistake.__cause__.ended == "stalled"):
            raise
        strands = "a worker is left waiting: pickle before you broadcast, and send a size of 0 for what cannot be sent"
        raise Mistake(mistake.seen, strands) from mistake
    if raised:
        raise Mistake(
            f"{raised[0]}: my_send raises, and the worker waits",
            "an object's own pickling can raise any exception: catch them all, and send a size of 0",
        )
    for (what, sendable), got in zip(_ASKED, heard, strict=True):
        finding = f"{what}: the worker gets {got}"
        if got != ("all of it" if sendable else "nothing"):
            wrong = (
                "the worker reads the size as int64, which is eight bytes: torch.tensor([n]) is one"
                if got == _SHORT
                else "a message that can be pickled is sent as it is: its size, then its bytes"
                if sendable
                else "what cannot be sent is not sent in part: the worker would compute something else"
            )
            raise Mistake(finding, wrong)
        say(finding)


def _talk(attempt: Attempt) -> list[str]:
    heard = []
    for what, sendable in _ASKED:
        if dist.get_rank() == 0:
            other = threading.Lock() if "lock" in what else _Refuses()
            try:
                attempt(dict(_GOOD) if sendable else {**_GOOD, "lock": other})
            except RuntimeError as error:
                if _REFUSAL not in str(error):
                    raise
                heard.append(what)  # in the attempt's place, so that the others hear of it
                dist.broadcast(torch.tensor([0]), 0)
            continue
        size = torch.full((1,), -1, dtype=torch.int64)  # of which an int32 fills one half
        dist.broadcast(size, 0)
        if size < 0:
            heard.append(_SHORT)
            if size := size % 2**32:
                dist.broadcast(torch.zeros(int(size), dtype=torch.uint8), 0)
            continue
        if not size:
            heard.append("nothing")
            continue
        body = torch.zeros(int(size), dtype=torch.uint8)
        dist.broadcast(body, 0)
        try:
            got = pickle.loads(body.numpy().tobytes())
            whole = got.keys() == _GOOD.keys() and got["steps"] == 4 and torch.equal(got["x"], _GOOD["x"])
            heard.append(("all of it" if sendable else "the rest of it") if whole else f"{listed(got)} only")
        except Exception as error:
            heard.append(f"bytes that are no message ({type(error).__name__})")
    return heard


backend = Exercise(
    "break_it.backend",
    "a backend that refuses the wrong group",
    "medium",
    15,
    (
        "graphs whose collectives name only allowed groups compute as in eager",
        "any other collective, wherever it stands in the graph, is an error on every rank that names it",
    ),
    judge_backend,
)
send = Exercise(
    "break_it.send",
    "a sender that strands nobody",
    "medium",
    10,
    (
        "every message that can be pickled arrives whole",
        "for one that cannot, the worker hears a size of 0 and waits for nothing",
    ),
    judge_send,
)
