"""What a collective does in eager: to its tensor, to memory, and what it hands back."""

from __future__ import annotations

import torch
import torch.distributed as dist

from labkit import lessons
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import default_store, funcol, functional_op, world_name

cliff = lessons.program("cliff")


@probe
def eager(bench: Bench) -> Seen:
    """One in-place and one functional all-reduce of 1 and 2 on two ranks, without the compiler."""
    return bench.run(_eager)[0]


def _eager() -> Seen:
    mine = float(dist.get_rank() + 1)
    x = torch.full((4,), mine)
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
    x = torch.full((4,), mine)
    y = funcol.all_reduce(x, "sum", dist.group.WORLD)
    found["functional_type"] = type(y).__name__
    found["functional_is_tensor"] = isinstance(y, torch.Tensor)
    found["functional_value"] = (y + 0)[0].item()
    found["input_after"] = x[0].item()
    raw = functional_op("all_reduce")(x, "sum", world_name())
    found["functional_same_memory"] = raw.data_ptr() == x.data_ptr()
    waited = functional_op("wait_tensor")(raw)
    found["wait_same_memory"] = waited.data_ptr() == raw.data_ptr()
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
    """An in-place all-reduce writes the sum into the tensor that it was given."""
    return verdict(
        seen["inplace_same_memory"] and seen["inplace_value"] == 3,
        f"the tensor given holds {seen['inplace_value']:g} = 1 + 2 afterwards, in the same memory",
    )


@judging(eager)
def inplace_returns_work(seen: Seen) -> Result:
    """An in-place collective hands back a handle that is no tensor."""
    return verdict(
        "Work" in seen["async_returns"] and not seen["async_is_tensor"],
        f"{seen['async_returns']} with async_op=True, {seen['inplace_returns']} without",
    )


@judging(eager)
def functional_returns_new(seen: Seen) -> Result:
    """A functional all-reduce returns the sum in memory of its own."""
    new = not seen["functional_same_memory"] and seen["functional_is_tensor"]
    return verdict(
        new and seen["functional_value"] == 3,
        f"{'new' if new else 'the same'} memory, holding {seen['functional_value']:g} = 1 + 2",
    )


@judging(eager)
def input_is_left_alone(seen: Seen) -> Result:
    """A functional all-reduce leaves its input as it was."""
    return verdict(
        seen["input_after"] == 1 and seen["functional_value"] == 3,
        f"input still {seen['input_after']:g}, output {seen['functional_value']:g}",
    )


@judging(eager)
def functional_wraps(seen: Seen) -> Result:
    """In eager the result of a functional collective is an AsyncCollectiveTensor, a subclass of Tensor."""
    return verdict(
        seen["functional_type"] == "AsyncCollectiveTensor" and seen["functional_is_tensor"],
        f"type {seen['functional_type']}",
    )


@judging(eager)
def not_ready_before_wait(seen: Seen) -> Result:
    """Memory of a functional result that is read before the wait does not hold the sum yet."""
    return verdict(
        seen["before_wait"] != 3 and seen["after_wait_ignored"] == 3,
        f"read before the wait: {seen['before_wait']:.3g}, after it: {seen['after_wait_ignored']:g} = 1 + 2",
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
    """wait_tensor returns a tensor of its own, not the one that it was given."""
    same = seen["wait_same_memory"]
    return verdict(not same, f"wait_tensor gives back {'the same' if same else 'other'} memory")


@judging(eager)
def waiting_leaves_the_original(seen: Seen) -> Result:
    """Waiting does not make the tensor ready that wait_tensor was given; only what it returns is."""
    value = seen["after_wait_ignored"]
    return verdict(value != 3, f"the tensor that was given reads {value:g} of 1 + 2 after the wait")


@judging(eager, word=ENFORCED)
def gate_is_inplace_in_eager(seen: Seen) -> Result:
    """In eager the gate works in place: it gives back the tensor it was given, and no wrapper."""
    return verdict(
        seen["gate_same_object"] and seen["gate_value"] == 3,
        f"{'the very tensor it was given' if seen['gate_same_object'] else 'another tensor'}, {seen['gate_value']:g}",
    )
