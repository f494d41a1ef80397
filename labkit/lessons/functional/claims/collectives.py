"""What a collective does in eager: to its tensor, to memory, and what it hands back."""

from __future__ import annotations

import time
from typing import Any, cast

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.study.checks import ENFORCED, HOLDS, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import default_store, funcol, functional_op, world_name

cliff = lessons.program("cliff")


@probe
def eager(bench: Bench) -> Seen:
    """In-place and functional collectives of two ranks' tensors, without the compiler; some while a peer is late."""
    found, peer = bench.run(_eager)
    # the rank that sends has the result from the start: what a broadcast does to its input, the other one shows
    return found | {"family": found["family"] | {"broadcast to this rank": peer["family"]["broadcast"]}}


def _gathered(mine: float) -> Seen:
    """A classic all-gather into two tensors that were there before: values, memory, and what it hands back."""
    into = [torch.zeros(4), torch.zeros(4)]
    before = [one.data_ptr() for one in into]
    dist.all_gather(into, torch.full((4,), mine))
    work = dist.all_gather([torch.zeros(4), torch.zeros(4)], torch.ones(4), async_op=True)
    work.wait()
    same = [one.data_ptr() for one in into] == before
    return {
        "values": [one[0].item() for one in into],
        "same_memory": same,
        "async_returns": type(work).__name__,
    }


def _family() -> Seen:
    """Each functional collective: whether its result is right, a tensor, of which type and in whose memory."""
    me, world = dist.get_rank(), dist.group.WORLD
    first, second = torch.arange(4.0), torch.arange(4.0) + 10
    both, mine = first + second, slice(2 * me, 2 * me + 2)
    calls = {
        "all_reduce": (lambda x: funcol.all_reduce(x, "sum", world), both),
        "all_gather": (lambda x: funcol.all_gather_tensor(x, 0, world), torch.cat([first, second])),
        "reduce_scatter": (lambda x: funcol.reduce_scatter_tensor(x, "sum", 0, world), both[mine]),
        "all_to_all": (
            lambda x: funcol.all_to_all_single(x, None, None, world),
            torch.cat([first[mine], second[mine]]),
        ),
        "broadcast": (lambda x: funcol.broadcast(x, 0, world), first),
    }
    found: Seen = {}
    for name, (call, right) in calls.items():
        x = (first, second)[me].clone()
        y = call(x)
        found[name] = {
            "type": type(y).__name__,
            "is_tensor": isinstance(y, torch.Tensor),
            "right": bool(torch.equal(y + 0, right)),
            "new": getattr(y, "elem", y).data_ptr() != x.data_ptr(),
            "input_left": bool(torch.equal(x, (first, second)[me])),
        }
    return found


def _eager() -> Seen:
    mine = float(dist.get_rank() + 1)
    x = torch.full((4,), mine)
    dist.barrier()
    time.sleep(0.1 * dist.get_rank())  # the peer comes late: who does not wait reads its own value
    before, plain = x.data_ptr(), dist.all_reduce(x)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    found: Seen = {
        "inplace_value": x[0].item(),
        "inplace_same_memory": x.data_ptr() == before,
        "inplace_returns": type(plain).__name__,
        "async_returns": type(work).__name__,
        "async_is_tensor": isinstance(work, torch.Tensor),
    }
    work.wait()
    work = cast(Any, dist.group.WORLD).allreduce([torch.ones(4)])
    work.wait()
    found |= {"group_returns": type(work).__name__, "gather": _gathered(mine), "family": _family()}
    found["functional_type"] = found["family"]["all_reduce"]["type"]
    x = torch.full((4,), mine)
    raw = functional_op("all_reduce")(x, "sum", world_name())
    found["functional_same_memory"] = raw.data_ptr() == x.data_ptr()
    waited = functional_op("wait_tensor")(raw)
    found |= {"wait_same_memory": waited.data_ptr() == raw.data_ptr(), "wait_same_object": waited is raw}
    found["raw_is_tensor"] = isinstance(raw, torch.Tensor)
    z = torch.full((4,), mine)
    found |= {"gate_same_object": cliff.gated(z) is z, "gate_value": z[0].item()}
    # the peer joins only after rank 0 has read, so what rank 0 reads cannot be the sum
    store = dist.PrefixStore("early", default_store())
    if dist.get_rank() == 1:
        store.get("read")
    raw = functional_op("all_reduce")(x, "sum", world_name())
    found["before_wait"] = raw.clone()[0].item()
    if dist.get_rank() == 0:
        store.set("read", "yes")
    functional_op("wait_tensor")(raw)
    found["after_wait_ignored"] = raw.clone()[0].item()
    dist.barrier()
    if dist.get_rank() == 1:
        store.get("looked")
    early = funcol.all_reduce(x, "sum", dist.group.WORLD)
    found["early"] = [type(early).__name__, tuple(early.shape) == (4,), early.elem.clone()[0].item()]
    if dist.get_rank() == 0:
        store.set("looked", "yes")
    found["early_then"] = (early + 0)[0].item()
    return found


@judging(eager)
def inplace_mutates(seen: Seen) -> Result:
    """An in-place all-reduce and an all-gather write into the tensors that they were given."""
    gather = seen["gather"]
    return verdict(
        seen["inplace_same_memory"] and seen["inplace_value"] == 3
        and gather["same_memory"] and gather["values"] == [1.0, 2.0],
        f"in the same memory afterwards: {seen['inplace_value']:g} = 1 + 2 behind an all-reduce, {gather['values']} "
        "behind an all-gather",
    )  # fmt: skip


@judging(eager)
def inplace_returns_work(seen: Seen) -> Result:
    """The group's collective hands back a handle that is no tensor; dist's hand it on with async_op=True, or wait."""
    handles = {
        "the group's allreduce": seen["group_returns"],
        "all_reduce(async_op=True)": seen["async_returns"],
        "all_gather(async_op=True)": seen["gather"]["async_returns"],
    }
    return verdict(
        all("Work" in kind for kind in handles.values()) and not seen["async_is_tensor"]
        and seen["inplace_returns"] == "NoneType" and seen["inplace_value"] == 3,
        f"{'; '.join(f'{name}: {kind}' for name, kind in handles.items())}; without async_op, late peer included: "
        f"{seen['inplace_returns']}",
    )  # fmt: skip


@judging(eager)
def functional_returns_new(seen: Seen) -> Result:
    """Every functional collective returns its result as a tensor in memory of its own, and leaves its input alone."""
    family = seen["family"]
    pure = [
        name
        for name, row in family.items()
        if all(row[key] for key in ("is_tensor", "new", "right", "input_left"))
    ]
    return verdict(
        len(pure) == len(family) > 0,
        f"the input as before and the result in a tensor with memory of its own: {', '.join(pure) or 'none'}, "
        f"{len(pure)} of {len(family)}",
    )


@judging(eager)
def functional_wraps(seen: Seen) -> Result:
    """In eager functional collectives return an AsyncCollectiveTensor, a Tensor that waits only when it is used."""
    types = sorted({row["type"] if row["is_tensor"] else "no tensor" for row in seen["family"].values()})
    later = a_value_that_is_still_to_come(seen)
    return verdict(
        types == ["AsyncCollectiveTensor"] and later.status == HOLDS, f"{', '.join(types)}; {later.measured}"
    )


@judging(eager)
def not_ready_before_wait(seen: Seen) -> Result:
    """What a functional operator returns is a tensor; read before the wait, its memory does not hold the sum yet."""
    return verdict(
        seen["raw_is_tensor"] and seen["before_wait"] != 3 and seen["after_wait_ignored"] == 3,
        f"{'a' if seen['raw_is_tensor'] else 'no'} tensor; read before the wait: {seen['before_wait']:.3g}, after it: "
        f"{seen['after_wait_ignored']:g} = 1 + 2",
    )


@judging(eager)
def a_value_that_is_still_to_come(seen: Seen) -> Result:
    """While a peer is still to come the async subclass is there, with its shape and not its value; using it waits."""
    (kind, shaped, held), value = seen["early"], seen["early_then"]
    return verdict(
        kind == "AsyncCollectiveTensor" and shaped and held != 3 and value == 3,
        f"before the peer has come there is a {kind}, whose memory holds {held:.3g}; used, it is {value:g} = 1 + 2",
    )


@judging(eager)
def wait_returns_new(seen: Seen) -> Result:
    """wait_tensor returns a tensor of its own, in memory of its own, not the one that it was given."""
    same, memory = seen["wait_same_object"], "the same" if seen["wait_same_memory"] else "other"
    return verdict(
        not same and not seen["wait_same_memory"],
        f"wait_tensor gives back {'the very tensor' if same else 'a tensor'}, in {memory} memory",
    )


@judging(eager)
def waiting_leaves_the_original(seen: Seen) -> Result:
    """Waiting does not make the tensor ready that wait_tensor was given; only what it returns is."""
    value = seen["after_wait_ignored"]
    return verdict(value != 3, f"the tensor that was given reads {value:g} of 1 + 2 after the wait")


@judging(eager, word=ENFORCED)
def gate_is_inplace_in_eager(seen: Seen) -> Result:
    """In eager and without gradients the gate works in place: it gives back the tensor it was given, and no wrapper."""
    return verdict(
        seen["gate_same_object"] and seen["gate_value"] == 3,
        f"{'the very tensor it was given' if seen['gate_same_object'] else 'another tensor'}, {seen['gate_value']:g}",
    )
