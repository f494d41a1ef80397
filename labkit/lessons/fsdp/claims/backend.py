"""What Inductor does by default: memory of collectives, precision, scheduling, caching."""

from __future__ import annotations

import random
import time

import torch
import torch.distributed as dist

from labkit.graphs import record
from labkit.lessons.shared import comm_passes
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol, functional_op, world_name


@probe
def inductor(bench: Bench) -> Seen:
    """Two programs with a functional all-reduce, compiled with the default backend."""
    salt = random.randrange(2**20)  # a constant never compiled before: no cache has the program yet
    return bench.run(_reduce_a_product, salt)[0] | bench.run(_ignore_a_wait)[0]


def _reduce_a_product(salt: int) -> Seen:
    def program(x):
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + salt

    x = torch.ones(64) * (dist.get_rank() + 1)
    dynamo_reset()
    with torch.no_grad(), record(stages=True) as rec:
        y = torch.compile(program)(x) + 0
    code = "\n".join(str(text) for text in rec.graphs["inductor_code"])
    lines = [line.strip() for line in code.splitlines() if "_c10d_functional.all_reduce" in line]
    before = code.partition("def call(")[2].partition("_c10d_functional.all_reduce")[0]
    return {
        "buffers_before": before.count("= empty_strided"),
        "code_calls": [line[:120] for line in lines if not line.startswith("#")],
        "right": y[0].item() == 6 + salt,
    }


def _ignore_a_wait() -> Seen:
    reduce, wait, world = functional_op("all_reduce"), functional_op("wait_tensor"), world_name()

    def ignores_the_wait(x):
        y = reduce(x * 2, "sum", world)
        wait(y)
        return y + 1

    def has_no_wait(x):
        return reduce(x * 2, "sum", world) + 1

    dynamo_reset()
    x, right = torch.ones(64) * (dist.get_rank() + 1), {}
    programs = {
        "eager": ignores_the_wait,
        "compiled": torch.compile(ignores_the_wait),
        "without": has_no_wait,
    }
    for name, run in programs.items():
        with torch.no_grad():
            run(x)
            dist.barrier()
            if dist.get_rank():
                time.sleep(0.1)  # the peer comes late, so a value that is not waited for cannot be the sum
            right[name] = run(x)[0].item() == 7
    return {"ignored_wait_right": right}


@probe
def rounding(bench: Bench) -> Seen:
    """Chains of bfloat16 operations, by stage of the compiler: how many of their elements differ from eager."""
    return bench.run(_rounding, ranks=1)[0]


def _rounding() -> Seen:
    def chain(a, b):
        return ((a * b) * 1.1 + b).sum(-1)

    def no_sum(a):
        return a * 0.3 + a

    def replaced(a):
        return torch.lerp(a, a.flip(0), 0.3)  # Inductor's decomposition of it computes otherwise

    def traced(a):
        return a * 2 if torch.compiler.is_compiling() else a  # Dynamo takes another branch than eager

    torch.manual_seed(0)
    dynamo_reset()
    a, b = torch.randn(2, 32, 256, dtype=torch.bfloat16).unbind(0)
    eager, compiled = chain(a, b), torch.compile(chain)(a, b)
    differ = {
        name: {
            way.__name__: int((torch.compile(way, backend=name)(*given) != way(*given)).sum())
            for way, given in ((chain, (a, b)), (replaced, (a,)), (traced, (a,)))
        }
        for name in ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
    }
    pointwise = torch.compile(no_sum)(a)
    rounded_once = no_sum(a.float()).bfloat16()
    return {
        "stages_differ": differ,
        "eager_again_differ": int((chain(a, b) != eager).sum()),
        "pointwise": {
            "eager": int((pointwise != no_sum(a)).sum()),
            "rounded once": int((pointwise != rounded_once).sum()),
        },
        "largest_difference": float((eager - compiled).abs().max()),
        "elements_that_differ": int((eager != compiled).sum()),
        "elements": eager.numel(),
        "close": bool(torch.allclose(eager, compiled, rtol=0.1, atol=1.0)),
    }


@judging(inductor)
def reinplaces_collectives(seen: Seen) -> Result:
    """Compiled, a functional all-reduce of a product works in place, in the only buffer, which the product has."""
    calls, buffers = seen["code_calls"], seen["buffers_before"]
    return verdict(
        bool(calls) and all("all_reduce_" in call for call in calls) and buffers == 1 and seen["right"],
        f"{calls[0] if calls else 'no collective in the code'}; buffers so far, the product's included: {buffers}",
    )


@judging(inductor)
def ignored_wait_goes_wrong(seen: Seen) -> Result:
    """A program that drops what wait_tensor returns goes on with a value that is not ready."""
    right = dict(seen["ignored_wait_right"])
    if right.pop("without"):
        return cannot_tell("a peer so late that a value without any wait is wrong", "right without any wait")
    wrong = [name for name, is_right in right.items() if not is_right]
    return verdict(
        bool(wrong),
        (f"wrong in {wrong}" if wrong else f"the value is right all the same: {right}")
        + "; with no wait it is wrong",
    )


@judging(rounding)
def is_not_bitwise_equal(seen: Seen) -> Result:
    """Compiled numbers are not bit for bit those of eager, which are those of eager again."""
    again = seen["eager_again_differ"]
    return verdict(
        seen["elements_that_differ"] > 0 == again and seen["close"],
        f"{seen['elements_that_differ']} of {seen['elements']} bfloat16 sums differ, by at most "
        f"{seen['largest_difference']:.3g}; {again} where eager runs again",
    )


@judging(rounding)
def stages_can_be_told_apart(seen: Seen) -> Result:
    """Three differences are put down to their stages: tracing, a decomposition, Inductor."""
    stages = seen["stages_differ"]
    first = {
        way: next((stage for stage, differ in stages.items() if differ[way]), "none")
        for way in ("chain", "replaced", "traced")
    }
    return verdict(
        first == {"chain": "inductor", "replaced": "aot_eager_decomp_partition", "traced": "eager"},
        "elements that differ, of a chain of operations, of one that is decomposed and of a branch that tracing takes: "
        + "; ".join(
            f"{differ['chain']}, {differ['replaced']} and {differ['traced']} with {stage}"
            for stage, differ in stages.items()
        ),
    )


@judging(rounding)
def fusion_leaves_out_casts(seen: Seen) -> Result:
    """A fused kernel rounds once, at its end; eager rounds to bfloat16 after each operation."""
    differ = seen["pointwise"]
    return verdict(
        differ["eager"] > 0 and differ["rounded once"] == 0,
        f"a * 0.3 + a, compiled: {differ['eager']} elements differ from eager, {differ['rounded once']} from "
        "float32 that is rounded once",
    )


@probe
def scheduling(bench: Bench) -> Seen:
    """The order of gathers, waits and products in Inductor's code under each setting of its passes, on two ranks."""
    report = comm_passes.run(bench.ranks(2), width=64, layers=3, rounds=2)
    order = report.tables["order"].set_index("way")
    inserted = bench.run(comm_passes.measure, 64, 3, 2, False, True)[0]
    return {
        "ways": {
            way: [row["calls"], int(row["products between"]), bool(row["right"])]
            for way, row in order.iterrows()
        },
        "inserted": {
            way: [" ".join(calls), comm_passes.between(calls)] for way, calls in inserted["order"].items()
        },
        "inserted_right": all(inserted["right"].values()),
    }


@judging(scheduling)
def inserted_collectives_are_scheduled(seen: Seen) -> Result:
    """Compiling inserts a gather at each sharded weight, and a pass moves products between it and its wait."""
    (calls, before), *_, (_, after) = seen["inserted"].values()
    gathers = calls.split().count("all_gather")
    return verdict(
        seen["inserted_right"] and gathers == 3 and after > before,
        f"{gathers} gathers inserted ({calls}), products between a gather and its wait: {before} by default, {after} "
        "with overlap scheduling",
    )


@judging(scheduling)
def passes_move_collectives(seen: Seen) -> Result:
    """With a pass switched on, products stand between a collective and its wait where none stood before."""
    (_, before, right), *others = seen["ways"].values()
    moved = {way: count for way, (_, count, ok) in seen["ways"].items() if count > before and ok}
    said = "; ".join(f"{way}: {count}" for way, (_, count, _) in seen["ways"].items())
    return verdict(bool(moved) and right and bool(others), f"products between a gather and its wait: {said}")


@judging(scheduling)
def collectives_are_not_optimized_by_default(seen: Seen) -> Result:
    """As Inductor is set by default, each gather stays a call of its own, and is waited for at once."""
    calls, between, right = seen["ways"]["default"]
    each = calls.split().count("all_gather") == calls.split().count("mm") > 0
    moved = {way: count for way, (_, count, ok) in seen["ways"].items() if count > between and ok}
    most = max(moved, key=lambda way: moved[way], default="")
    return verdict(
        right and each and not between and bool(moved),
        f"products between a gather and its wait by default: {between} ({calls})"
        + (f"; with {most} {moved[most]}" if most else ""),
    )


@judging(scheduling)
def overlap_takes_streams(seen: Seen) -> Result:
    """No setting of Inductor's moves work between a gather and its wait; that takes streams and events of one's own."""
    moved = [f"{way}: {count}" for way, (_, count, right) in seen["ways"].items() if count and right]
    return verdict(
        not moved,
        f"products between a gather and its wait, in a function without a stream: {'; '.join(moved) or 'none'}",
    )
