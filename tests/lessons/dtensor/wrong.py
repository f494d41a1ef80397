"""Plausible wrong answers to the exercises of lesson 10, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.nn.functional as F
from torch.distributed.tensor import Replicate, Shard

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
    left_decides: "so the answer is None",
    sums_at_once: "columns of x meet rows of w",
    cuts_nothing: "is cut for nothing",
    rows_for_columns: "rows of x give rows of the product",
    in_full_words: "or None",
}


def _whole(x):
    return x.redistribute(placements=[Replicate()])


def _gated(x, gate, up):
    return F.gelu(x @ gate) * (x @ up)


def gathers_twice(x, gate, up, down, group):
    gated, other = (funcol.all_gather_tensor(x, 0, group) @ w for w in (gate, up))
    return funcol.reduce_scatter_tensor((F.gelu(gated) * other) @ down, "sum", 0, group)


def sums_for_everybody_by_hand(x, gate, up, down, group):
    y = _gated(funcol.all_gather_tensor(x, 0, group), gate, up) @ down
    return funcol.all_reduce(y, "sum", group).chunk(dist.get_world_size(group))[dist.get_rank(group)]


def keeps_all_tokens(x, gate, up, down, group):
    y = _gated(funcol.all_gather_tensor(x, 0, group), gate, up) @ down
    return funcol.all_reduce(y, "sum", group)


def forgets_the_sum(x, gate, up, down, group):
    y = _gated(funcol.all_gather_tensor(x, 0, group), gate, up) @ down
    return y.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def over_the_world(x, gate, up, down, group):
    y = _gated(funcol.all_gather_tensor(x, 0, dist.group.WORLD), gate, up) @ down
    return funcol.reduce_scatter_tensor(y, "sum", 0, dist.group.WORLD)


def in_place(x, gate, up, down, group):
    tokens = x.new_empty(len(x) * dist.get_world_size(group), x.shape[1])
    dist.all_gather_into_tensor(tokens, x, group=group)
    mine = torch.empty_like(x)
    dist.reduce_scatter_tensor(mine, _gated(tokens, gate, up) @ down, group=group)
    return mine


def own_tokens_only(x, gate, up, down, group):
    return funcol.all_reduce(_gated(x, gate, up) @ down, "sum", group)


BY_HAND = {
    gathers_twice: "x is used twice",
    sums_for_everybody_by_hand: "scatter the sum",
    keeps_all_tokens: "as x came",
    forgets_the_sum: "add up the summands",
    own_tokens_only: "gather the tokens before",
    over_the_world: "not always the world",
    in_place: "functional collectives are asked for",
}


def _mlp(x, gate, up, down):
    return (F.gelu(x @ gate) * (x @ up)) @ down


def _cut(y):
    return y.redistribute(placements=[Shard(0)])


def left_to_dtensor(x, gate, up, down):
    return _cut(_mlp(x, gate, up, down))


def gathers_the_weights(x, gate, up, down):
    return _mlp(x, *map(_whole, (gate, up, down)))


def sums_for_everybody(x, gate, up, down):
    return _cut(_whole(_mlp(_whole(x), gate, up, down)))


def stays_whole(x, gate, up, down):
    return _whole(_mlp(_whole(x), gate, up, down))


def scales(x, gate, up, down):
    return _cut(_mlp(_whole(x), gate, up, down)) * 2


def plain(x, gate, up, down):
    return _cut(_mlp(_whole(x), gate, up, down)).to_local()


def moves_the_hidden(x, gate, up, down):
    x = _whole(x)
    return _cut(_whole(F.gelu(x @ gate) * (x @ up)) @ down)


THRIFTY = {
    left_to_dtensor: "something travels twice",
    gathers_the_weights: "the weights travel",
    sums_for_everybody: "a reduce-scatter is half of that",
    stays_whole: "as x came",
    scales: "first right, then cheap",
    plain: "split by tokens as x is",
    moves_the_hidden: "the hidden values travel",
}


WRONG = {"dtensor.placement": PLACEMENTS, "dtensor.explicit": BY_HAND, "dtensor.bytes": THRIFTY}
