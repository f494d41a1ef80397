"""Plausible wrong answers to the exercises of lesson 10, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from lessons.dtensor.right import as_lists, by_tokens, in_placements, tokens_in_placements
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from labkit import lessons

program = lessons.program("dtensor")

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


def asks_dtensor(x, w):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    made = [program.place(torch.ones(12, 12), mesh, name) for name in (x, w)]
    y, names = program.counted(lambda: made[0] @ made[1])
    return None if names else program.short(y.placements)


PLACEMENTS = {
    product_of_partials: "is not a @ c + b @ d",
    asks_dtensor: "and no tensor",
    forgets_partial: "linear in each factor",
    left_decides: "make the product",
    sums_at_once: "columns of x meet rows of w",
    cuts_nothing: "and can cut it",
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


def f_averages(mesh):
    f, g = in_placements(mesh)

    class Mean(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad):
            return grad / mesh.size()

    return (lambda x: f(Mean.apply(x))), g


def one_function(mesh):
    return in_placements(mesh)[0]


PAIRS = {
    no_f: "gradient of f's input is a partial sum",
    functional_only: "do not add it up once more",
    f_and_functional: "do not add it up once more",
    no_g: "forward first",
    over_the_world: "not always all ranks",
    sends_twice: "something is sent for nothing",
    f_averages: "and you divided",
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


def every_backward_again(model, mesh):
    """The sum over the ranks of what has been accumulated: right after one backward only."""
    by_tokens(model, mesh)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=mesh.get_group()))
    return model


def every_weight(model, mesh):
    by_tokens(model, mesh)
    for p in model.parameters():
        p.register_hook(lambda grad: funcol.all_reduce(grad, "sum", mesh.get_group()))
    return model


def mean_of_norms(model, mesh):
    by_tokens(model, mesh)
    for name, p in model.named_parameters():
        if "norm" in name:
            p.register_hook(lambda grad: funcol.all_reduce(grad, "sum", mesh.get_group()) / mesh.size())
    return model


def gathers_at_both_ends(model, mesh):
    group, n, me = mesh.get_group(), mesh.size(), mesh.get_local_rank()
    model = tokens_in_placements(model, mesh)
    for block in model:
        block.leave = lambda y: funcol.all_gather_tensor(y.chunk(n, 1)[me].contiguous(), 1, group).chunk(
            n, 1
        )[me]
    return model


TOKENS = {
    every_backward_again: "before it is accumulated",
    every_weight: "only split weights are wrong",
    mean_of_norms: "no mean",
    gathers_at_both_ends: "there is nothing to gather",
    norms_forgotten: "comes from its own tokens only",
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
    g_for_f: "become a partial sum",
    everything_in_b: "read the `sum` column",
    f_in_b: "would make split weights wrong",
    tp_in_c: "not share",
    all_ranks_in_c: "which of them are not 1",
    another_word: "one of '0.attention'",
}

WRONG = {
    "dtensor.pair": PAIRS,
    "dtensor.placement": PLACEMENTS,
    "dtensor.sequence": TOKENS,
    "dtensor.reports": JOBS,
}
