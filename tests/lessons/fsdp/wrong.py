"""Plausible wrong answers to the exercises of lesson 14, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from lessons.fsdp.units import right_unit, spoilt


def _in_place(self, weight, part):
    weight.untyped_storage().resize_(weight.numel() * weight.element_size())
    with torch.no_grad():
        weight.copy_(part.reshape(weight.shape))


def _no_storage(self, weight, part):
    weight.data.copy_(part.reshape(weight.shape))


def _all_reduce(self, rows):
    work = dist.all_reduce(rows, async_op=True)
    return work, rows[dist.get_rank()], rows


def _blocking(self, rows):
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, list(rows))

    class Done:
        def wait(self):
            pass

    return Done(), mine, rows


def _keeps_gradients(self):
    self.free()
    for weight in self.wholes:
        weight.grad = weight.grad.clone()


def _only_clears(self):
    for weight in self.wholes:
        weight.grad = None


def _columns(self, gradient):
    return gradient.reshape(-1, self.ranks).t()


def _late(self):
    rows, _, _ = self.scattering
    mine = torch.empty_like(rows[0])
    dist.reduce_scatter(mine, list(rows))
    parts = (mine / self.ranks).split([piece.numel() for piece in self.pieces])
    for piece, part in zip(self.pieces, parts, strict=True):
        piece.grad = part.view_as(piece)


def _finish_and_free(self):
    right_unit().finish(self)
    self.free()


def _no_gradients(self):
    self.scattering[0].wait()


def _never_waits(self):
    _, mine, _ = self.scattering
    parts = (mine / self.ranks).split([piece.numel() for piece in self.pieces])
    for piece, part in zip(self.pieces, parts, strict=True):
        piece.grad = part.view_as(piece)


def _never(self):
    pass


UNIT = {
    spoilt("sums", divided=lambda self, mine: mine): "divide once",
    spoilt("divides_twice", divided=lambda self, mine: mine / self.ranks**2): "divided twice",
    spoilt("for_two", divided=lambda self, mine: mine / 2): "look for a number that is dist.get_world_size()",
    spoilt("in_place", fill=_in_place): "write into weight.data",
    spoilt("no_storage", fill=_no_storage): "give the storage its size",
    spoilt("all_reduces", send=_all_reduce): "one reduce-scatter for each of the",
    spoilt("blocks", send=_blocking): "async_op=True in `ready`",
    spoilt("keeps_gradients", clear=_keeps_gradients): "set weight.grad to None",
    spoilt("stays_whole", clear=_only_clears): "nobody needs its weights",
    spoilt("frees_in_finish", clear=_only_clears, finish=_finish_and_free): "free them in `ready`",
    spoilt("columns", lines=_columns): "line r for rank r",
    spoilt("reads_early", receive=_never): "line r for rank r",
    spoilt("never_waits", finish=_never_waits): "line r for rank r",
    spoilt("in_finish", send=lambda self, rows: (rows, None, None), finish=_late): "start it in `ready`",
    spoilt("no_gradients", finish=_no_gradients): "`finish` sets piece.grad",
    spoilt("never_reset", reset=_never): "set back what you counted",
}


def _first_users(graph):
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in [node for node in graph.nodes if "wait_tensor" in str(node.target)]:
        min(node.users, key=place.get).prepend(node)


def _gathers(graph):
    return [node for node in graph.nodes if "all_gather" in str(node.target)]


def only_sinks(graph):
    _first_users(graph)


def to_the_top(graph):
    for node in _gathers(graph):
        first = next(n for n in graph.nodes if n.op == "call_function" and "all_gather" not in str(n.target))
        if all(i.op == "placeholder" for i in node.all_input_nodes):
            first.prepend(node)
    _first_users(graph)


def over_other_collectives(graph):
    for node in _gathers(graph):
        above = node
        while above.prev.op == "call_function" and above.prev not in node.all_input_nodes:
            above = above.prev
        if above is not node:
            above.prepend(node)
    _first_users(graph)


def before_its_input(graph):
    mm = torch.ops.aten.mm.default
    for node in _gathers(graph):
        above = node.prev
        while above.op == "call_function" and above.target is not mm:
            above = above.prev
        if above.op == "call_function":
            above.prepend(node)
    _first_users(graph)


def waits_stay(graph):
    for node in _gathers(graph):
        above, mm = node, torch.ops.aten.mm.default
        while above is node or above.target is not mm:
            before = above.prev
            starts = any(word in str(before.target) for word in ("all_gather", "reduce_scatter"))
            if before.op != "call_function" or starts or before in node.all_input_nodes:
                break
            above = before
        if above is not node:
            above.prepend(node)


def twice(graph):
    _first_users(graph)
    node = next(node for node in graph.nodes if "wait_tensor" in str(node.target))
    with graph.inserting_after(node):
        graph.node_copy(node, lambda n: n)


SINK = {
    only_sinks: "may stand before the matmul that precedes it",
    to_the_top: "each further one holds another whole weight",
    over_other_collectives: "no start of another collective",
    before_its_input: "before one of its inputs",
    waits_stay: "directly before the first of its users",
    twice: "neither add nor erase any",
}


def no_dict():
    return ["A"]


def only_rank_0():
    return _jobs(A=([0], "no units", "block.compile()"))


def swapped_ranks():
    return _jobs(B=([0], "micro-batches", "equal micro-batches"))


def more_time():
    return _jobs(B=([1], "micro-batches", "timeout"))


def not_divided():
    return _jobs(C=([0, 1], "not divided", "set_gradient_divide_factor"))


def prefetches():
    return _jobs(A=([0, 1], "no units", "set_modules_to_forward_prefetch"))


def _jobs(**wrong):
    right = {
        "A": ([0, 1], "no units", "block.compile()"),
        "B": ([1], "micro-batches", "equal micro-batches"),
        "C": ([0, 1], "divided", "set_gradient_divide_factor"),
    }
    return right | wrong


JOBS = {
    no_dict: "it returns a dict such as",
    only_rank_0: "what is wrong is wrong on both",
    swapped_ranks: "count the gathers of the root",
    more_time: "nobody is late",
    not_divided: "who should not have",
    prefetches: "it moves gathers",
}

WRONG = {"fsdp.jobs": JOBS, "fsdp.sink": SINK, "fsdp.unit": UNIT}
