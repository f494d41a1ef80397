"""Plausible wrong answers to the exercises of lesson 10, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from lessons.dtensor.right import as_lists, by_tokens, in_placements, tokens_in_placements
from torch.distributed.tensor import DTensor, Replicate, Shard

RIGHT = {
    ("R", "R"): "R", ("S(0)", "R"): "S(0)", ("R", "S(1)"): "S(1)", ("S(1)", "S(0)"): "P", ("S(1)", "R"): "P",
    ("R", "S(0)"): "P", ("P", "R"): "P", ("R", "P"): "P",
}  # fmt: skip


def right(x, w):
    return RIGHT.get((x, w))


def product_of_partials(x, w):
    return "P" if x == w == "P" else right(x, w)


def forgets_partial(x, w):
    return None if "P" in (x, w) else right(x, w)


def sums_at_once(x, w):
    return "R" if (x, w) == ("S(1)", "S(0)") else right(x, w)


def cuts_nothing(x, w):
    return None if (x, w) in (("S(1)", "R"), ("R", "S(0)")) else right(x, w)


def left_decides(x, w):
    return "S(0)" if x == "S(0)" else right(x, w)


def rows_for_columns(x, w):
    return {"S(0)": "S(1)", "S(1)": "S(0)"}.get(right(x, w), right(x, w))


def in_full_words(x, w):
    return "Replicate()" if x == w == "R" else right(x, w)


PLACEMENTS = {
    product_of_partials: "two Partials have to be summed before",
    forgets_partial: "linear in each factor",
    left_decides: "the answer is None",
    sums_at_once: "columns of x meet rows of w",
    cuts_nothing: "is cut for nothing",
    rows_for_columns: "rows of x give rows of the product",
    in_full_words: "or None",
}


def no_f(mesh):
    return (lambda x: x), in_placements(mesh)[1]


def functional_only(mesh):
    return (lambda x: x), lambda y: funcol.all_reduce(y, "sum", mesh.get_group())


def f_and_functional(mesh):
    return in_placements(mesh)[0], lambda y: funcol.all_reduce(y, "sum", mesh.get_group())


def no_g(mesh):
    return in_placements(mesh)[0], lambda y: y


def over_the_world(mesh):
    f, g = in_placements(mesh)
    if mesh.size() == dist.get_world_size():
        return f, g
    return f, lambda y: y + (funcol.all_reduce(y.detach(), "sum", dist.group.WORLD) - y.detach())


def sends_twice(mesh):
    """Right numbers: the sum's backward adds up, and is divided again."""
    f, _ = in_placements(mesh)
    n, group = mesh.size(), mesh.get_group()

    def g(y):
        y = funcol.all_reduce(y, "sum", group)
        return y / n + (y - y / n).detach()

    return f, g


def one_function(mesh):
    return in_placements(mesh)[0]


PAIRS = {
    no_f: "gradient of f's input is a partial sum",
    functional_only: "do not add it up once more",
    f_and_functional: "do not add it up once more",
    no_g: "forward first",
    over_the_world: "not always all ranks",
    sends_twice: "something is sent for nothing",
    one_function: "returns f and g",
}


def norms_forgotten(model, mesh):
    return by_tokens(model, mesh)


def sums_for_everybody(model, mesh):
    group, n, me = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    model = tokens_in_placements(model, mesh)
    for block in model:
        block.leave = lambda y: funcol.all_reduce(y, "sum", group).chunk(n, 1)[me]
    return model


def no_gather(model, mesh):
    for block in model:
        block.leave = lambda y: funcol.all_reduce(y, "sum", mesh.get_group())
    return model


def no_sum(model, mesh):
    n, me = mesh.size(), mesh.get_local_rank()
    model = tokens_in_placements(model, mesh)
    for block in model:
        block.leave = lambda y: y.chunk(n, 1)[me]
    return model


def keeps_all_tokens(model, mesh):
    model = tokens_in_placements(model, mesh)
    model[-1].leave = lambda y: funcol.all_reduce(y, "sum", mesh.get_group())
    model[-1].forward = lambda x: model[-1].leave(model[-1].enter(x))
    return model


def whole_gradient(model, mesh):
    model = tokens_in_placements(model, mesh)
    for block in model:
        block.enter = lambda x: (
            DTensor.from_local(x, mesh, [Shard(1)]).redistribute(placements=[Replicate()]).to_local()
        )
    return model


def returns_nothing(model, mesh):
    tokens_in_placements(model, mesh)


TOKENS = {
    norms_forgotten: "what is it the sum over the ranks of",
    sums_for_everybody: "an all-reduce gives everybody all tokens",
    no_gather: "gather them before the split layers",
    no_sum: "add up while you scatter",
    keeps_all_tokens: "as the input was",
    whole_gradient: "adds up and scatters",
    returns_nothing: "return the model",
}


def f_at_the_other_pair():
    return as_lists() | {"A": ([0, 1, 2, 3], "0.mlp", "f")}


def g_for_f():
    return as_lists() | {"A": ([0, 1, 2, 3], "1.attention", "g")}


def everything_in_b():
    return as_lists() | {"B": ([0, 1, 2, 3], "all weights", "sum over tp")}


def f_in_b():
    return as_lists() | {"B": ([0, 1, 2, 3], "norms", "f")}


def tp_in_c():
    return as_lists() | {"C": ([1, 3], "all weights", "sum over tp")}


def all_ranks_in_c():
    return as_lists() | {"C": ([0, 1, 2, 3], "all weights", "sum over dp")}


def another_word():
    return as_lists() | {"A": ([0, 1, 2, 3], "1.attn", "f")}


JOBS = {
    f_at_the_other_pair: "find the first gradient that is not right",
    g_for_f: "at the beginning of the pair",
    everything_in_b: "read the `sum` column",
    f_in_b: "one kind of weight only",
    tp_in_c: "over which axis",
    all_ranks_in_c: "which of them are not 1",
    another_word: "one of 0.attention",
}

WRONG = {
    "dtensor.pair": PAIRS,
    "dtensor.placement": PLACEMENTS,
    "dtensor.sequence": TOKENS,
    "dtensor.reports": JOBS,
}
