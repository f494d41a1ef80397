"""What Inductor does by default: memory of collectives, precision, scheduling, caching."""

from __future__ import annotations

import os
import tempfile

from labkit.study.checks.base import Bench, Result, Seen, judging, probe, verdict


@probe
def inductor(bench: Bench) -> Seen:
    """A functional all-reduce and a chain of bfloat16 operations, compiled with the default backend, twice."""
    with tempfile.TemporaryDirectory(prefix="labkit-ledger-") as cache:
        return bench.run(_inductor, cache)[0]


def _inductor(cache: str) -> Seen:
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    try:
        return _compile_twice()
    finally:
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
        if before is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def _compile_twice() -> Seen:
    import torch
    import torch.distributed as dist

    from labkit.graphs import record
    from labkit.torch_compat import dynamo_reset, funcol, setting

    def program(x):
        y = funcol.all_reduce(x * 2, "sum", dist.group.WORLD)
        return y + 1

    x = torch.ones(64) * (dist.get_rank() + 1)
    found: Seen = {}
    cached = []
    for _ in range(2):
        dynamo_reset()
        dist.barrier()
        with torch.no_grad(), record(stages=True) as rec:
            y = torch.compile(program)(x) + 0
        cached.append([bool(value) for value in rec.compiles["cached"]])
        if not found:
            code = "\n".join(str(text) for text in rec.graphs["inductor_code"])
            lines = [line.strip() for line in code.splitlines() if "_c10d_functional.all_reduce" in line]
            found = {
                "code_calls": [line[:120] for line in lines if not line.startswith("#")],
                "right": y[0].item() == 7,
            }
    found["cached"] = cached

    def rounding(a, b):
        return ((a * b) * 1.1 + b).sum(-1)

    torch.manual_seed(0)
    a, b = torch.randn(2, 32, 256, dtype=torch.bfloat16).unbind(0)
    eager, compiled = rounding(a, b), torch.compile(rounding)(a, b)
    found["without_inductor_differ"] = {
        name: int((torch.compile(rounding, backend=name)(a, b) != eager).sum())
        for name in ("eager", "aot_eager")
    }
    with torch.no_grad():
        found["emulated_differ"] = int(
            (torch.compile(rounding, options={"emulate_precision_casts": True})(a, b) != eager).sum()
        )
    found["largest_difference"] = float((eager - compiled).abs().max())
    found["elements_that_differ"] = int((eager != compiled).sum())
    found["elements"] = eager.numel()
    found["close"] = bool(torch.allclose(eager, compiled, rtol=0.1, atol=1.0))
    found["overlap_by_default"] = {
        name: bool(setting(f"inductor.config.{name}")) for name in ("reorder_for_compute_comm_overlap",)
    }
    found["overlap_by_default"]["aten_distributed_optimizations.enable_overlap_scheduling"] = bool(
        setting("inductor.config.aten_distributed_optimizations.enable_overlap_scheduling")
    )
    return found


@judging(inductor)
def reinplaces_collectives(seen: Seen) -> Result:
    """Compiled, a functional all-reduce is turned back into one that works in place, without an allocation."""
    calls = seen["code_calls"]
    return verdict(
        bool(calls) and all("all_reduce_" in call for call in calls) and seen["right"],
        calls[0] if calls else "no collective in the code",
    )


@judging(inductor)
def a_second_compile_hits_the_cache(seen: Seen) -> Result:
    """Compiling the same program again takes it from the cache."""
    first, second = seen["cached"]
    return verdict(
        not any(first) and bool(second) and all(second),
        f"from the cache: first time {first}, second time {second}",
    )


@judging(inductor)
def is_not_bitwise_equal(seen: Seen) -> Result:
    """Compiled numbers are not bit for bit those of eager."""
    return verdict(
        seen["elements_that_differ"] > 0 and seen["close"],
        f"{seen['elements_that_differ']} of {seen['elements']} bfloat16 sums differ, by at most "
        f"{seen['largest_difference']:.3g}",
    )


@judging(inductor)
def collectives_are_not_optimized_by_default(seen: Seen) -> Result:
    """By default no pass moves or overlaps collectives."""
    on = [name for name, value in seen["overlap_by_default"].items() if value]
    return verdict(not on, f"on by default: {', '.join(on) or 'none of the overlap passes'}")


@judging(inductor)
def stages_can_be_told_apart(seen: Seen) -> Result:
    """A difference can be put down to a stage: tracing alone leaves the numbers, the backend changes them."""
    row = seen["without_inductor_differ"]
    return verdict(
        not any(row.values()) and seen["elements_that_differ"] > 0,
        f"elements that differ: {row['eager']} after tracing, {row['aot_eager']} after AOTAutograd, "
        f"{seen['elements_that_differ']} after Inductor",
    )


@judging(inductor)
def precision_casts_can_be_emulated(seen: Seen) -> Result:
    """A setting makes compiled code round where eager does."""
    return verdict(
        seen["emulated_differ"] < seen["elements_that_differ"],
        f"{seen['emulated_differ']} elements differ with emulate_precision_casts, "
        f"{seen['elements_that_differ']} without",
    )
