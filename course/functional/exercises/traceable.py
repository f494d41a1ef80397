"""Lesson 02, `semantics.traceable`: an operator around dist.broadcast, which the compiler keeps in one graph."""

from __future__ import annotations

import functools
import gc
import re
import time
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist

from labkit import torch_compat
from labkit.ranks import Ranks, here
from labkit.study.exercises import Attempt, Exercise, Mistake, judge_on_three, on_ranks

__all__ = ["traceable"]

OPERATORS = (type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor))  # a name, and one overload of it
# operators of these namespaces are torch's own
TORCHS = {"aten", "prims", "c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}
# the calls; the roots take turns. The numbers of wide dtypes fit into no narrower one, nor integers into float64. The
# root or all others have other strides
INPUTS = (((2, 3), torch.float64), ((3, 2), torch.int64), ((3, 4), torch.float32))
# in eager only
MORE = (
    ((), torch.bool),
    ((0, 3), torch.float16),
    ((40, 30), torch.bfloat16),
    ((3, 2), torch.complex64),
    ((5,), torch.float64),
    ((2, 3, 4), torch.float64),
)
LATE_S = 0.05  # the root comes late: what is read without a wait is read too early
USE = "it is called once on each rank, and returns a function of x, src and group"
ANY = "x has any shape, none or many elements, and any dtype that the backend sends: broadcast all of it as it is"
# on a rank: the function that the attempt has returned; a Library can be made once only
_made: list[Any] = []
# what an error says, and the hint for it
REFUSED = {
    "is not part of group": "`src` is the root's number in `group`; the argument src of dist.broadcast is a global "
    "rank, and group_src is the number in the group",
    "no fake impl": "the tracer has no numbers: tell it what comes out, by a function for register_fake",
    "may not alias": "an operator returns memory of its own: clone, and broadcast the clone",
    "unsupported type": "the schema is read from the annotations: tensors and plain data, such as the group's name",
    "marked as skipped": "the call of c10d is still in the traced Python: it belongs inside the operator",
    "OpaqueObject": "the call of c10d is still in the traced Python: it belongs inside the operator",
    "has no attribute": "an operator of torch.library.Library lives as long as the Library: keep it in what you return",
    "torch.compiler.disable": "a function that is hidden from Dynamo breaks the graph: make it an operator",
}
# what came out of a call, and the hint for it
WRONG = {
    "no tensor": "the function returns the tensor with the root's numbers",
    "x changed": "the caller keeps x: clone it, and broadcast the clone",
    "shares memory": "the schema promises memory of its own: return a clone, and not x",
    "own numbers": "nothing has come from the root: return what the broadcast wrote to",
    "own numbers, and the root's a moment later": "it does not wait: with async_op=True, wait for the Work inside",
    "the root's numbers in another order": "broadcast copies memory as it lies, and strides may differ by rank: what "
    "you send and receive has to lie alike on all ranks, and the fake kernel has to say how it lies",
    "not a number": "inf * 0 is no number: copy the root's numbers, do not calculate with those of the others",
    "rounded": "the root's numbers, but not all digits: keep the dtype of x inside",
    "another rank's": "`src` is the number of the root in `group`, for each call anew: see group_src of dist.broadcast",
    "another shape": "it has the root's numbers in another shape: like x",
}
STALLED = "all ranks of `group` call the broadcast, the root too, and no other rank: is it the group that was given?"


def judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None]) -> None:
    """Right numbers in eager, from each root and in each group; then compiled, with other strides and dtypes."""
    for alike in (True, False):  # the group and the root matter before the strides do
        _judge(attempt, ranks, say, alike)
        if len(ranks) != 3:
            judge_on_three(functools.partial(_judge, alike=alike), attempt)
    say("on three ranks, in a group of all and in a group of ranks 1 and 2: right")


def _judge(attempt: Attempt, ranks: Ranks, say: Callable[[str], None], alike: bool) -> None:
    """One stage; `alike`: in eager only, where all ranks have contiguous float64."""
    try:
        seen = on_ranks(ranks, _look, attempt, alike, hint=USE)
    except Mistake as mistake:
        if "wait for each other" not in mistake.hint:
            raise
        raise Mistake(mistake.seen, STALLED) from mistake
    kinds = {kind for kind, _ in seen}
    if errors := [kind for kind in kinds if "infer_schema" in kind]:
        raise Mistake(errors[0][:200], REFUSED["unsupported type"])
    if kinds != {"function"}:
        raise Mistake(f"it returns a {min(kinds - {'function'})}", USE)
    for number, rows in enumerate(zip(*(rank for _, rank in seen), strict=True)):
        taken = [row for row in rows if row]  # a rank that is not in the group has none
        for row in sorted(taken, key=_says_less):
            _judge_row(row)
        if len(graphs := {", ".join(row["operators"]) for row in taken}) > 1:
            raise Mistake(
                f"{taken[0]['case']}: the ranks have different graphs: {' and '.join(sorted(graphs))}",
                "what a rank does as the root, or as another one, is decided inside the operator, as it runs",
            )
        if number == 0 and not alike:
            say(f"eager: {taken[0]['eager']}, and x is unchanged")
            say(f"compiled: one graph with {', '.join(taken[0]['operators'])}")
    if not alike:
        say(f"right from each root, compiled with the fake kernel's shapes, on {len(ranks)} ranks")


def _says_less(row: dict[str, Any]) -> tuple[bool, bool]:
    """Order of a call's rows: wrong in eager first, and of these first the ones with the numbers of another rank."""
    eager = row.get("eager", "right")
    return eager == "right", eager != "another rank's"


def _judge_row(row: dict[str, Any]) -> None:
    case = row["case"]
    if row.get("eager", "right") != "right":
        raise Mistake(f"{case}, eager: {row['eager']}", WRONG[row["eager"]])
    if error := row.get("error"):
        hints = [hint for words, hint in REFUSED.items() if words in error]
        # torch puts the path of its own file between the operator and what is wrong with it
        said = re.sub(r" \(with implementation in <module .*?>\)", "", error.splitlines()[0])
        raise Mistake(f"{case}: {said[:200]}", (hints or [ANY if "of shape" in case else USE])[0])
    if row["alike"]:
        return
    if row["compiled"] != "right":
        raise Mistake(f"{case}, compiled: {row['compiled']}", WRONG[row["compiled"]])
    if not row["operators"]:
        raise Mistake(
            f"{case}: no operator of yours in the graph",
            "make an operator with a schema, by torch.library, and call it in the function that you return",
        )
    if row["promised"] != row["given"]:
        raise Mistake(
            f"{case}: the graph was made for {row['promised']}, and the operator gives {row['given']}",
            "the fake kernel says shape, strides and dtype of what the real one returns, for any x",
        )
    if row["writes x"]:
        raise Mistake(
            f"{case}: x is unchanged, and the schema says that the operator writes it",
            "mutates_args names what the operator writes: here, nothing of the caller's",
        )
    if row["fake device"] != "cuda":
        raise Mistake(
            f"{case}: for an x on a GPU the fake kernel promises {row['fake device']}",
            "the fake kernel says the device, too: that of x",
        )


def _look(attempt: Attempt, alike: bool) -> tuple[str, list[dict[str, Any] | None]]:
    """On a rank: the function that the attempt returns, in eager and compiled; the groups are made by all ranks."""
    me = here()
    try:
        if alike or not _made:
            _made.clear()
            gc.collect()  # a Library of an attempt before this one gives its names back
            _made.append(attempt())
        (broadcast,) = _made
    except ValueError as error:  # of torch.library, about the schema
        if "infer_schema" in str(error):
            return str(error), []
        raise
    if not callable(broadcast):
        return type(broadcast).__name__, []
    everyone = list(range(me.world_size))
    # of each two groups of the same ranks the second is for the check itself
    groups = {"all ranks": (dist.group.WORLD, dist.new_group(everyone), everyone)}
    if me.world_size > 2:
        groups["ranks 1 and 2"] = (dist.new_group([1, 2]), dist.new_group([1, 2]), [1, 2])
    rows: list[dict[str, Any] | None] = []
    for name, (group, checks, members) in groups.items():
        for src, root in enumerate(members):
            case = f"{name}, src={src}"
            if me.rank not in members:
                rows.append(None)
                continue
            rows.append(_call(broadcast, case, group, checks, src, root, alike))
    return "function", rows


def _call(
    broadcast: Any, case: str, group: Any, checks: Any, src: int, root: int, alike: bool
) -> dict[str, Any]:
    me = here()
    by_rank = _numbers(*INPUTS[0 if alike else src % len(INPUTS)], root)
    other = not alike and (me.rank == root) == (src % 2 == 0)  # strides
    row: dict[str, Any] = {"case": case, "alike": alike, "operators": [], "writes x": False}

    def program(x: Any) -> Any:
        y = broadcast(x, src, group)
        return y, x + 0, tuple(y.shape), tuple(y.stride()), str(y.dtype)

    def note(graph: Any, inputs: Any) -> Any:
        called = [node for node in graph.graph.nodes if isinstance(node.target, OPERATORS)]
        own = [node for node in called if str(node.target).partition(".")[0] not in TORCHS]
        row["operators"] = [str(node.target) for node in own]
        row["writes x"] = any(_writes_an_input(node) for node in own)
        return graph.forward

    def eager() -> None:
        if me.rank == root:
            time.sleep(LATE_S)
        x = _laid_out(by_rank[me.rank], other)
        y = broadcast(x, src, group)
        row["eager"] = _described(y, x, by_rank, root)
        if row["eager"] == "own numbers":
            time.sleep(4 * LATE_S)
            if _described(y, x, by_rank, root) == "right":
                row["eager"] = "own numbers, and the root's a moment later"

    def compiled(backend: Any) -> None:
        torch.compiler.reset()
        x = _laid_out(by_rank[me.rank], other)
        y, after, *promised = torch.compile(program, backend=backend, fullgraph=True, dynamic=False)(x)
        row["compiled"] = _described(y, x, by_rank, root)
        if row["compiled"] == "right" and not torch.equal(after, by_rank[me.rank]):
            row["compiled"] = "x changed"
        row["promised"], row["given"] = promised, _layout(y)

    def more() -> None:
        for shape, dtype in MORE if src == 0 else ():
            row["case"] = f"{case}, {dtype} of shape {shape}"
            given = _numbers(shape, dtype, root)
            x = given[me.rank].clone()
            y = broadcast(x, src, group)
            row["eager"] = _described(y, x, given, root)
            if row["eager"] != "right":
                return
            row["promised"], row["given"] = _promised(broadcast, x, src, group), _layout(y)
            if row["promised"] != row["given"]:
                return
        row["case"] = case

    # a fake kernel that is missing matters more than strides do. The second backend trusts the schema: it makes the
    # graph functional
    steps = (eager,) if alike else (lambda: compiled(note), eager, lambda: compiled("aot_eager"), more)
    for step in steps:
        errors = [""] * len(by_rank)
        dist.all_gather_object(errors, _error_of(step), group=checks)
        if found := [error for error in errors if error]:  # of any rank: none goes on without the others
            row["error"] = found[0]
            return row
    if not alike:
        row["fake device"] = _fake_device(broadcast, src, group)
    return row


def _error_of(step: Callable[[], None]) -> str:
    try:
        step()
    except NotImplementedError as error:
        if not str(error):  # a stub
            raise
        return str(error)
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


def _numbers(shape: tuple[int, ...], dtype: Any, root: int) -> list[Any]:
    """The numbers of each rank; where x is not the root's, one is infinite."""
    whole = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape)
    found = []
    for rank in range(here().world_size):
        if not (dtype.is_floating_point or dtype.is_complex):
            found.append(
                whole + (1 + rank) * 2**53 if dtype == torch.int64 else whole.bool() & (rank == root)
            )
            continue
        found.append((whole.to(torch.float64) / 3 * 10**rank).to(dtype) * (1 + 1j if dtype.is_complex else 1))
        if rank != root:
            found[-1].view(-1)[:1] = float("inf")
    return found


def _laid_out(numbers: Any, other: bool) -> Any:
    """A tensor with these numbers: contiguous, or with other strides."""
    if not other:
        return numbers.clone()
    wide = numbers.new_zeros(*reversed(numbers.shape), 2)[..., 0]
    return wide.permute(*reversed(range(wide.dim()))).copy_(numbers)


def _writes_an_input(node: Any) -> bool:
    operator = getattr(node.target, "default", node.target)
    return any(
        argument.alias_info is not None
        and argument.alias_info.is_write
        and getattr(node.kwargs.get(argument.name, given), "op", "") == "placeholder"
        for argument, given in zip_longest(operator._schema.arguments, node.args)
        if argument is not None
    )


def _layout(y: Any) -> list[Any]:
    return [tuple(y.shape), tuple(y.stride()), str(y.dtype)]


def _promised(broadcast: Any, x: Any, src: int, group: Any) -> Any:
    """What the fake kernel says of the result, or why it says nothing."""
    try:
        with torch_compat.fake_tensors():
            return _layout(broadcast(torch.empty(x.shape, dtype=x.dtype), src, group))
    except Exception as error:
        return f"an error of the fake kernel, {str(error).splitlines()[0][:120]}"


def _fake_device(broadcast: Any, src: int, group: Any) -> str:
    """Where the result is for an x on a GPU; without numbers, so no GPU is needed."""
    try:
        with torch_compat.fake_tensors():
            return broadcast(torch.empty(2, 3, device="cuda"), src, group).device.type
    except Exception as error:
        return f"an error: {str(error)[:200]}"


def _described(y: Any, x: Any, by_rank: list[Any], root: int) -> str:
    """A word for what came out: of WRONG, or 'right'."""
    own, right = by_rank[here().rank], by_rank[root]
    if not isinstance(y, torch.Tensor):
        return "no tensor"
    if not torch.equal(x, own):
        return "x changed"
    if y.numel() and y.data_ptr() == x.data_ptr():
        return "shares memory"
    if y.shape != own.shape:
        return "another shape"
    if torch.equal(y, right):
        return "right"
    if torch.equal(y, own):
        return "own numbers"
    if y.isnan().any():
        return "not a number"
    if not y.is_complex() and torch.equal(y.flatten().sort().values, right.flatten().sort().values):
        return "the root's numbers in another order"
    return "rounded" if torch.equal(y.float(), right.float()) else "another rank's"


traceable = Exercise(
    "semantics.traceable",
    "a broadcast that the compiler keeps in its graph",
    "medium",
    25,
    (
        "one graph with an operator of your own",
        "the root's numbers on each rank of the group, in eager and compiled, for any shape, root and group, any dtype "
        "of the backend, and whatever the strides are on each rank",
        "the same graph on all ranks",
        "the argument unchanged",
    ),
    judge,
)
