"""Ranks that see something else: what a compile decides alone, and how a program that diverges ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit import contract
from labkit.contract import Exchange
from labkit.lessons.shared.capture import Capture, calls
from labkit.lessons.shared.outcomes import drill
from labkit.lessons.symmetry.drills import DRILLS, Site
from labkit.study.checks import ENFORCED, HOLDS, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol


@probe
def drills(bench: Bench) -> Seen:
    """Two ranks that differ by one call, by the order of calls, by a branch, by a break and by what they compile."""
    ranks = bench.ranks()
    drilled = {"one_call_fewer": "count", "swapped": "order", "other_dtype": "dtype", "data_branch": "branch"}
    programs: dict[str, Callable[..., Any]] = {
        "other_kind": _other_kind,
        "shape_branch": _shape_branch,
        "flag_branch": _flag_branch,
        "flag_compared": _flag_compared,
        "flag_alike": _flag_alike,
        "own_break": _own_break,
        "own_graphs": _own_graphs,
    }
    found = {name: drill(ranks, _odd, of) for name, of in drilled.items()}
    found |= {name: drill(ranks, program) for name, program in programs.items()}
    return found | {"alone": drill(bench.ranks(1), _alone)}


def _other_kind() -> float:
    x, out = torch.ones(2), torch.zeros(4)
    if dist.get_rank():
        dist.all_gather_into_tensor(out, x)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(out, x)
    return x[0].item()


def _odd(name: str) -> Any:
    """A drill of the lesson whose last rank is the odd one, without a defence: the first number of each result."""
    dynamo_reset()
    exchange = Exchange.connect("check", timeout=20.0)
    found = DRILLS[name](Site(exchange, (), exchange.rank == dist.get_world_size() - 1))
    return [one[0] for one in found] if isinstance(found[0], list) else found[0]


def _shape_branch(longer: int | None = None) -> list[float]:
    """Alike in the first call; in the second, rank 1 has another shape, recompiles, and calls one collective more."""

    def program(x):
        y = funcol.all_reduce(x.sum(), "sum", dist.group.WORLD)
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD) if x.shape[0] > 4 else y

    return _two_calls(program, torch.ones(4), torch.ones(4 + (dist.get_rank() if longer is None else longer)))


def _flag_branch(everywhere: bool = False) -> list[float]:
    """The same, where the second call of rank 1 has another flag."""

    def program(x, twice=False):
        y = funcol.all_reduce(x.sum(), "sum", dist.group.WORLD)
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD) if twice else y

    return _two_calls(program, torch.ones(4), torch.ones(4), everywhere or dist.get_rank() == 1)


def _flag_compared() -> list[float]:
    """The same again, with the flag compared between the ranks before the call."""
    flag = dist.get_rank() == 1
    contract.assert_parity(contract.Exchange.connect("check-flag"), {"twice": str(flag)})
    return _flag_branch()


def _flag_alike() -> list[float]:
    """The same where parity is kept: both ranks have the flag."""
    contract.assert_parity(contract.Exchange.connect("check-flag-alike"), {"twice": "True"})
    return _flag_branch(True)


def _alone() -> list[list[float]]:
    return [_shape_branch(1), _flag_branch(True)]


def _two_calls(program: Callable[..., Any], first: Any, *second: Any) -> list[float]:
    dynamo_reset()
    run = torch.compile(program, backend=Capture(), fullgraph=True)
    with torch.no_grad():
        return [(run(first) + 0).item(), (run(*second) + 0).item()]


def _own_break() -> Seen:
    found: Seen = {}
    for name in ("alike", "break"):
        dynamo_reset()
        exchange, counts = Exchange.connect("check", timeout=20.0), [None, None]
        odd = name == "break" and exchange.rank == dist.get_world_size() - 1
        with contract.compile_health() as health:
            value = DRILLS["break"](Site(exchange, (), odd))
        dist.all_gather_object(counts, [health.graphs, health.breaks])
        found[name] = {"value": value[0], "counts": counts}
    return found


def _own_graphs() -> list[str]:
    def program(x):
        return x.sin() if dist.get_rank() == 0 else x.cos()

    dynamo_reset()
    graphs = Capture()
    torch.compile(program, backend=graphs)(torch.ones(2))
    return calls(graphs.dynamo[0])


@judging(drills)
def divergence_hangs(seen: Seen) -> Result:
    """A rank that calls a collective its peer does not call waits without end."""
    row = seen["one_call_fewer"]
    return verdict(row["how"] == "hung", f"one call fewer on rank 1: {row['how']}")


@judging(drills)
def other_order_hangs_or_corrupts(seen: Seen) -> Result:
    """Collectives in another order on one rank end in a hang or in wrong numbers."""
    kinds, alike = seen["other_kind"], seen["swapped"]
    wrong = alike["how"] == "finished" and alike["values"][0] != [2, 20]
    bad = kinds["how"] == "hung" and (wrong or alike["how"] == "hung")
    said = f"silently {alike['values'][0]} instead of [2, 20]" if wrong else alike["how"]
    return verdict(bad, f"different kinds: {kinds['how']}; alike: {said}")


@judging(drills)
def another_program_goes_wrong(seen: Seen) -> Result:
    """Collectives in another order on one rank, and tensors of another dtype, end in a hang or in wrong numbers."""
    order, metadata = other_order_hangs_or_corrupts(seen), other_metadata_goes_wrong(seen)
    wrong = order.status == metadata.status == HOLDS
    return verdict(wrong, f"{order.measured}; {metadata.measured}")


@judging(drills)
def divergence_ends_as_another_order_does(seen: Seen) -> Result:
    """Ranks that diverge by a shape, a flag or their data wait without end, as ranks do that call in another order."""
    diverged = {name: seen[f"{name}_branch"]["how"] for name in ("shape", "flag", "data")}
    order = seen["other_kind"]["how"]
    said = ", ".join(f"{name} {how}" for name, how in diverged.items())
    return verdict({order, *diverged.values()} == {"hung"}, f"another order: {order}; divergence by {said}")


@judging(drills)
def shapes_and_data_of_a_rank_deadlock(seen: Seen) -> Result:
    """A shape that only one rank has, and a branch on its own data, each leave the ranks waiting for each other."""
    shape, data = (seen[f"{name}_branch"]["how"] for name in ("shape", "data"))
    return verdict(shape == data == "hung", f"another shape on rank 1: {shape}; a branch on its data: {data}")


@judging(drills)
def other_metadata_goes_wrong(seen: Seen) -> Result:
    """Tensors of another dtype on one rank end in an error, a hang or wrong numbers."""
    row = seen["other_dtype"]
    values = row.get("values", [])
    return verdict(
        row["how"] != "finished" or values != [2, 2],
        f"float32 ones and int32 ones: {values or row['how']} instead of [2, 2]",
    )


@judging(drills)
def data_branches_diverge(seen: Seen) -> Result:
    """A branch on data with a collective in it, taken by one rank only, ends in a hang or in wrong numbers."""
    row = seen["data_branch"]
    values = row.get("values", [])
    return verdict(row["how"] == "hung" or len(set(values)) > 1, f"{row['how']} {values or ''}".strip())


@judging(drills)
def diverging_programs_deadlock(seen: Seen) -> Result:
    """Ranks that compile other programs for another shape or flag wait for each other without end in a collective."""
    shape, flag = seen["shape_branch"], seen["flag_branch"]
    return verdict(
        shape["how"] == flag["how"] == "hung",
        f"rank 1 recompiles into a program with one collective more, for another shape: {shape['how']}; for another "
        f"flag: {flag['how']}; with a branch on its data: {seen['data_branch']['how']}",
    )


@judging(drills)
def one_rank_does_not_tell(seen: Seen) -> Result:
    """Programs that are right on one rank, for every shape and flag, hang on two of which one has another."""
    alone, hung = seen["alone"], diverging_programs_deadlock(seen)
    right = alone.get("values") == [[[4, 10], [4, 8]]]
    said = "right" if right else alone.get("values", alone["how"])
    return verdict(
        right and hung.status == HOLDS, f"on one rank, for each shape and flag: {said}; {hung.measured}"
    )


@judging(drills, word=ENFORCED)
def parity_repairs_it(seen: Seen) -> Result:
    """A flag of one rank hangs the job; compared first it is an error on all ranks, and kept alike the job is right."""
    alone, compared, alike = seen["flag_branch"], seen["flag_compared"], seen["flag_alike"]
    right = alike.get("values") == [[8, 32], [8, 32]]
    return verdict(
        alone["how"] == "hung" and "ParityError" in compared.get("says", "") and right,
        f"a flag on rank 1 alone: {alone['how']}; compared before the call: "
        f"{'ParityError' if 'ParityError' in compared.get('says', '') else compared['how']}; on both ranks: "
        f"{'right' if right else alike.get('values', alike['how'])}",
    )


@judging(drills)
def each_rank_compiles_alone(seen: Seen) -> Result:
    """Each rank traces what it sees, so ranks can have different graphs of one program."""
    row = seen["own_graphs"]
    values = row.get("values", [])
    return verdict(
        len({tuple(v) for v in values}) == 2,
        f"rank 0 has {values[0]}, rank 1 {values[1]}" if values else row["how"],
    )


@judging(drills)
def gathered_counts_differ(seen: Seen) -> Result:
    """Gathered by rank, numbers of graphs and breaks are equal where ranks are alike; a rank that breaks has others."""
    row = seen["own_break"]
    if row["how"] != "finished":
        return verdict(False, row["how"])
    alike, broken = (row["values"][0][name]["counts"] for name in ("alike", "break"))
    differ = [one != other for one, other in zip(*broken, strict=True)]
    return verdict(
        alike[0] == alike[1] and all(differ),
        f"graphs and breaks by rank: {alike} alike, {broken} where rank 1 breaks",
    )


@probe
def recompiling(bench: Bench) -> Seen:
    """One rank compiles again for another shape, and its program calls the same collectives; with and without guards
    that are agreed on."""
    ranks = bench.ranks()
    return {"alone": drill(ranks, _recompile), "guarded": drill(ranks, _recompile, True)}


def _recompile(together: bool = False) -> Seen:
    def program(x):
        return funcol.all_reduce(x.sum(0), "sum", dist.group.WORLD)

    dynamo_reset()
    torch.compiler.set_enable_guard_collectives(together)
    graphs = Capture()
    run = torch.compile(program, backend=graphs)
    try:
        with torch.no_grad():
            run(torch.ones(2, 3)) + 0
            dist.barrier()
            y = run(torch.ones(2 + dist.get_rank(), 3)) + 0
    finally:
        torch.compiler.set_enable_guard_collectives(False)
    return {"value": y[0].item(), "graphs": len(graphs.dynamo)}


@judging(recompiling)
def recompiles_can_differ(seen: Seen) -> Result:
    """One rank can compile again while its peer does not."""
    row = seen["alone"]
    graphs = [value["graphs"] for value in row.get("values", [])]
    return verdict(graphs == [1, 2], f"graphs by rank {graphs}" if graphs else row["how"])


@judging(recompiling)
def collectives_can_agree_on_recompiles(seen: Seen) -> Result:
    """An extra collective on the result of the guards makes all ranks compile again together."""
    row = seen["guarded"]
    values = row.get("values", [])
    graphs = [value["graphs"] for value in values]
    right = all(value["value"] == 5 for value in values)
    return verdict(
        graphs == [2, 2] and right,
        f"with guard collectives: graphs by rank {graphs}" if graphs else row["how"],
    )
