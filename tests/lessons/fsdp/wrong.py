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


def _copies(self, weight, part):
    weight.untyped_storage().resize_(weight.numel() * weight.element_size())
    weight.data.copy_(part.reshape(weight.shape))
    self.copies = [*getattr(self, "copies", []), weight.detach().clone()]


def _keeps_rows(self, rows):
    mine = torch.empty_like(rows[0])
    self.buffers = [*getattr(self, "buffers", []), rows]
    return dist.reduce_scatter(mine, list(rows), async_op=True), mine, rows


def _keeps_received(self):
    work, self.received, _ = self.scattering
    right_unit().finish(self)


def _new_data(self, weight, part):
    weight.data = part.reshape(weight.shape).clone()


def _waits_at_once(self, rows):
    mine = torch.empty_like(rows[0])
    work = dist.reduce_scatter(mine, list(rows), async_op=True)
    work.wait()
    return work, mine, rows


def _no_owner(self):
    if not self.is_whole:
        self.gathering.wait()
        parts = self.rows.split([piece.numel() for piece in self.pieces], dim=1)
        for weight, part in zip(self.wholes, parts, strict=True):
            self.fill(weight, part)
        self.is_whole, self.gathering = True, None


def _no_return(self):
    self.is_whole = False
    right_unit().use(self)


def _on_the_first(self, weight):
    if weight is self.wholes[0]:
        self.missing = 1
        right_unit().ready(self, weight)


def _on_the_last(self, weight):
    if weight is self.wholes[-1]:
        self.missing = 1
        right_unit().ready(self, weight)


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
    spoilt("waits_at_once", send=_waits_at_once): "goes on while a message is under way",
    spoilt("no_owner", use=_no_owner): "setattr(owner, name, weight)",
    spoilt("no_return", use=_no_return): "return at once from `use`",
    spoilt("copies", fill=_copies): "keep no copy of a whole weight",
    spoilt("keeps_rows", send=_keeps_rows): "keep no copy of a whole weight",
    spoilt("keeps_received", finish=_keeps_received): "keep no copy of a whole weight",
    spoilt("new_data", fill=_new_data): "give the storage its size",
    spoilt("on_the_first", ready=_on_the_first): "another weight of the unit may come last",
    spoilt("on_the_last", ready=_on_the_last): "another weight of the unit may come last",
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


MATMULS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


def before_its_input(graph):
    for node in _gathers(graph):
        above = node.prev
        while above.op == "call_function" and above.target not in MATMULS:
            above = above.prev
        if above.op == "call_function":
            above.prepend(node)
    _first_users(graph)


def waits_stay(graph):
    for node in _gathers(graph):
        above = node
        while above is node or above.target not in MATMULS:
            before = above.prev
            starts = any(word in str(before.target) for word in ("all_gather", "reduce_scatter"))
            if before.op != "call_function" or starts or before in node.all_input_nodes:
                break
            above = before
        if above is not node:
            above.prepend(node)


def users_as_made(graph):
    waits_stay(graph)
    for node in [node for node in graph.nodes if "wait_tensor" in str(node.target)]:
        next(iter(node.users)).prepend(node)


def over_reductions(graph):
    """Over one matmul, whatever else stands between."""
    for node in _gathers(graph):
        above = node
        while above is node or above.target not in MATMULS:
            before = above.prev
            starts = "all_gather" in str(before.target)
            if before.op != "call_function" or starts or before in node.all_input_nodes:
                break
            above = before
        if above is not node:
            above.prepend(node)
    _first_users(graph)


def over_all_reduces(graph):
    """It knows two kinds of collectives."""
    waits_stay(graph)
    _first_users(graph)


def over_gathers(graph):
    """Each gather moves over one matmul, and over other gathers."""
    for node in _gathers(graph):
        above = node
        while above is node or above.target not in MATMULS:
            before = above.prev
            if (
                before.op != "call_function"
                or "reduce_scatter" in str(before.target)
                or before in node.all_input_nodes
            ):
                break
            above = before
        if above is not node:
            above.prepend(node)
    _first_users(graph)


def without_biases(graph):
    """It takes addmm for no matmul."""
    for node in _gathers(graph):
        above = node
        while above is node or above.target is not MATMULS[0]:
            before = above.prev
            starts = any(word in str(before.target) for word in ("all_gather", "reduce_scatter"))
            if before.op != "call_function" or starts or before in node.all_input_nodes:
                break
            above = before
        if above is not node:
            above.prepend(node)
    _first_users(graph)


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
    users_as_made: "the order in which users were made",
    over_all_reduces: "no start of another collective",
    over_gathers: "no start of another collective",
    without_biases: "each further one holds another whole weight",
    over_reductions: "no start of another collective",
    twice: "neither add nor erase any",
}


def no_dict():
    return ["A"]


def only_rank_0():
    return _jobs(A=([0], "no units", "block.compile()"))


def swapped_ranks():
    return _jobs(B=([0], "microbatches", "equal microbatches"))


def more_time():
    return _jobs(B=([1], "microbatches", "timeout"))


def not_divided():
    return _jobs(C=([0, 1], "not divided", "set_gradient_divide_factor(1.0)"))


def prefetches():
    return _jobs(A=([0, 1], "no units", "set_modules_to_forward_prefetch"))


def _jobs(**wrong):
    right = {
        "A": ([0, 1], "no units", "block.compile()"),
        "B": ([1], "microbatches", "equal microbatches"),
        "C": ([0, 1], "divided", "set_gradient_divide_factor(1.0)"),
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
