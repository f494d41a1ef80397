"""Plausible wrong answers to the exercises of lesson 08, each with words of the hint that is meant for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from labkit.contract import Plan


def who_it_is(config):
    return {
        "rank": config.rank,
        "compile": config.compile,
        "fullgraph": config.fullgraph,
        "a": config.resolve(),
    }


def as_asked(config):
    return {"compile": config.compile, "fullgraph": config.fullgraph, "attention": config.attention}


def only_compile(config):
    return {"compile": config.compile, "attention": config.resolve()}


def nothing_of_compiling(config):
    return {"attention": config.resolve()}


def as_a_list(config):
    return [config.compile]


def counts_only(x, steps, recompute):
    return Plan.of("infer", {"x": x}, calls=steps + recompute, phases={"recompute": recompute})


def _names(steps, recompute):
    return ["recompute"] * recompute + ["generate"] * steps


def no_shape(x, steps, recompute):
    return Plan.of("infer", calls=_names(steps, recompute), phases={"recompute": recompute})


def no_phase(x, steps, recompute):
    return Plan.of("infer", {"x": x}, calls=_names(steps, recompute))


def no_plan(x, steps, recompute):
    return {"calls": steps}


def breaks(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return total if total.sum() > 0 else torch.zeros_like(total)


def by_its_own_shard(x):
    total = funcol.all_reduce(x, "sum", dist.group.WORLD)
    return torch.where(x.sum() > 0, total, torch.zeros_like(total))


def forgets_the_result(x):
    funcol.all_reduce(x, "sum", dist.group.WORLD)


SETTINGS = {
    who_it_is: "compare what changes graphs and kernels",
    as_asked: "compare what it became, config.resolve()",
    only_compile: "fullgraph changes what a break does",
    nothing_of_compiling: "one rank that does not compile",
    as_a_list: "return a dict",
}
PLANS = {
    counts_only: "name every call in the order",
    no_shape: "tensors={'x': x}",
    no_phase: "what is optional is said",
    no_plan: "returns labkit.contract.Plan.of",
}
BRANCHES = {
    breaks: "torch.where",
    by_its_own_shard: "decide by the sum over all ranks",
    forgets_the_result: "return the tensor",
}


WRONG = {"symmetry.parity": SETTINGS, "symmetry.plan": PLANS, "symmetry.repair": BRANCHES}
