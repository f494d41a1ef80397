"""Lesson 02, `semantics.traceable`: an operator around dist.broadcast, which the compiler keeps in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, on_ranks

__all__ = ["traceable"]

OPERATORS = (type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor))  # a name, and one overload of it
# operators of these namespaces are torch's own
TORCHS = {"aten", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}
# the calls: shape, dtype; the roots take turns
INPUTS = (((2, 3), torch.float32), ((4,), torch.int64))
USE = "it is called once on each rank, and returns a function of x, src and group"
# what an error says, and the hint for it
REFUSED = {
    "no fake impl": "the tracer has no numbers: tell it what comes out, by a function for register_fake",
    "may not alias": "an operator returns memory of its own: clone, and broadcast the clone",
    "unsupported type": "the schema is read from the annotations: tensors and plain data, such as the group's name",
    "marked as skipped": "the call of c10d is still in the traced Python: it belongs inside the operator",
    "OpaqueObject": "the call of c10d is still in the traced Python: it belongs inside the operator",
    "torch.compiler.disable": "a function that is hidden from Dynamo breaks the graph: make it an operator",
}
# what came out of a call, and the hint for it
WRONG = {
    "no tensor": "the function returns the tensor with the root's numbers",
    "x changed": "the caller keeps x: clone it, and broadcast the clone",
    "shares memory": "the schema promises memory of its own: return a clone, and not x",
    "own numbers": "nothing has come from the root: return what the broadcast wrote to",
    "another rank's": "`src` is the number of the root in `group`, for each call anew: see group_src of dist.broadcast",
    "another shape": "it has the root's numbers in another shape: like x",
}


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Right numbers in eager and compiled, from each root, and in a group of some ranks."""
    _judge(attempt, ranks, say)
    if len(ranks) == 3:
        return
    with Ranks(3, device="cpu", backend="gloo", quiet=True) as three:
        try:
            _judge(attempt, three, lambda finding: None)
        except Mistake as mistake:
            raise Mistake(f"on three ranks: {mistake.seen}", mistake.hint) from mistake
    say("on three ranks, in a group of all and in a group of ranks 1 and 2: right")


def _judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    seen = on_ranks(ranks, _look, attempt, hint=USE)
    kinds = {kind for kind, _ in seen}
    if errors := [kind for kind in kinds if "infer_schema" in kind]:
        raise Mistake(errors[0][:200], REFUSED["unsupported type"])
    if kinds != {"function"}:
        raise Mistake(f"it returns a {min(kinds - {'function'})}", USE)
    for number, rows in enumerate(zip(*(rank for _, rank in seen), strict=True)):
        taken = [row for row in rows if row]  # a rank that is not in the group has none
        for row in sorted(
            taken, key=lambda row: row.get("eager") != "another rank's"
        ):  # says more than the others
            _judge_row(row)
        if number == 0:
            say(f"eager: {taken[0]['eager']}, and x is unchanged")
            say(f"compiled: one graph with {', '.join(taken[0]['operators'])}")
    say(f"right from each root, compiled with the fake kernel's shapes, on {len(ranks)} ranks")


def _judge_row(row: dict[str, Any]) -> None:
    case = row["case"]
    if row.get("eager", "right") != "right":
        raise Mistake(f"{case}, eager: {row['eager']}", WRONG[row["eager"]])
    if error := row.get("error"):
        hints = [hint for words, hint in REFUSED.items() if words in error]
        raise Mistake(f"{case}: {error.splitlines()[0][:200]}", (hints or [USE])[0])
    if row["compiled"] != "right":
        raise Mistake(f"{case}, compiled: {row['compiled']}", WRONG[row["compiled"]])
    if row["promised"] != row["given"]:
        raise Mistake(
            f"{case}: the graph was made for {row['promised']}, and the operator gives {row['given']}",
            "the fake kernel says shape and dtype of what the real one returns, for any x",
        )
    if not row["operators"]:
        raise Mistake(
            f"{case}: no operator of yours in the graph",
            "make an operator with a schema, by torch.library, and call it in the function that you return",
        )


def _look(attempt: Attempt) -> tuple[str, list[dict[str, Any] | None]]:
    """On a rank: the function that the attempt returns, in eager and compiled; the groups are made by all ranks."""
    me = here()
    try:
        broadcast = attempt()
    except ValueError as error:  # of torch.library, about the schema
        if "infer_schema" in str(error):
            return str(error), []
        raise
    if not callable(broadcast):
        return type(broadcast).__name__, []
    groups = {"all ranks": (dist.group.WORLD, list(range(me.world_size)))}
    if me.world_size > 2:
        groups["ranks 1 and 2"] = (dist.new_group([1, 2]), [1, 2])
    rows: list[dict[str, Any] | None] = []
    for name, (group, members) in groups.items():
        for src, root in enumerate(members):
            case = f"{name}, src={src}"
            rows.append(_call(broadcast, case, group, src, root) if me.rank in members else None)
    return "function", rows


def _call(broadcast: Any, case: str, group: Any, src: int, root: int) -> dict[str, Any]:
    me = here()
    shape, dtype = INPUTS[src % len(INPUTS)]
    by_rank = [
        torch.arange(1, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape) * 10**rank
        for rank in range(me.world_size)
    ]
    row: dict[str, Any] = {"case": case, "operators": []}

    def program(x: Any) -> Any:
        y = broadcast(x, src, group)
        return y, x + 0, tuple(y.shape), str(y.dtype)

    def note(graph: Any, inputs: Any) -> Any:
        called = [node.target for node in graph.graph.nodes if isinstance(node.target, OPERATORS)]
        row["operators"] = [str(name) for name in called if str(name).partition(".")[0] not in TORCHS]
        return graph.forward

    try:
        x = by_rank[me.rank].clone()
        row["eager"] = _described(broadcast(x, src, group), x, by_rank, root)
        for backend in (note, "aot_eager"):  # the second one trusts the schema: it makes the graph functional
            torch.compiler.reset()
            x = by_rank[me.rank].clone()
            y, after, *promised = torch.compile(program, backend=backend, fullgraph=True, dynamic=False)(x)
            row["compiled"] = _described(y, x, by_rank, root)
            if row["compiled"] == "right" and not torch.equal(after, by_rank[me.rank]):
                row["compiled"] = "x changed"
            row["promised"], row["given"] = promised, [tuple(y.shape), str(y.dtype)]
    except NotImplementedError as error:
        if not str(error):  # a stub
            raise
        row["error"] = str(error)
    except Exception as error:
        row["error"] = str(error)
    return row


def _described(y: Any, x: Any, by_rank: list[Any], root: int) -> str:
    """A word for what came out: of WRONG, or 'right'."""
    own = by_rank[here().rank]
    if not isinstance(y, torch.Tensor):
        return "no tensor"
    if not torch.equal(x, own):
        return "x changed"
    if y.data_ptr() == x.data_ptr():
        return "shares memory"
    if y.shape != own.shape:
        return "another shape"
    if torch.equal(y, by_rank[root]):
        return "right"
    return "own numbers" if torch.equal(y, own) else "another rank's"


traceable = Exercise(
    "semantics.traceable",
    "a broadcast that the compiler keeps in its graph",
    "medium",
    20,
    (
        "one graph with an operator of your own",
        "the root's numbers on each rank of the group, in eager and compiled, for any shape, root and group",
        "the argument unchanged",
    ),
    judge,
)
