"""Ranks that see something else: what a compile decides alone, and how a program that diverges ends."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit import contract
from labkit.contract import Exchange
from labkit.lessons.shared.capture import Capture, calls
from labkit.lessons.shared.outcomes import all_of, drill
from labkit.lessons.symmetry.drills import DRILLS, Site
from labkit.ranks import RankError, Ranks
from labkit.study.checks import ENFORCED, Bench, Result, Seen, judging, probe, quietly, verdict
from labkit.torch_compat import dynamo_reset, funcol


@probe
def drills(bench: Bench) -> Seen:
    """Two ranks that differ by one call, by the order of calls, by a branch, by a break and by what they compile; the
    same programs on ranks alike."""
    ranks = bench.ranks()
    programs = (
        *(_shape_alike, _shape_compared, _flag_compared, _flag_alike),
        *(_nobody_odd, _own_break, _own_graphs),
    )
    found: Seen = {name: drill(ranks, program) for name, program in ODD.items()}
    found |= {program.__name__.removeprefix("_"): drill(ranks, program) for program in programs}
    return found | {"alone": drill(bench.ranks(1), _alone), "timeout": _with_a_timeout()}


def _nobody_odd() -> Seen:
    return {name: program(alike=True) for name, program in ODD.items()}


def _with_a_timeout() -> dict[str, str]:
    """How the branch on a shape ends, on ranks alike and not, where collectives give up after two seconds."""
    ends = {}
    with Ranks(2, "cpu", "gloo", collective_timeout=2.0, timeout=60, quiet=True, stall=None) as ranks:
        for name, alike in (("alike", True), ("odd", False)):
            try:
                ends[name] = f"finished: {list(ranks.run(quietly, _shape_branch, alike))}"
            except RankError as error:
                said = " ".join(f"{outcome.type} {outcome.message}" for outcome in error.outcomes)
                ends[name] = said.strip()[:300]
    return ends


def _is_odd(alike: bool) -> bool:
    return not alike and dist.get_rank() == 1


def _meta_device(alike: bool = False) -> float:
    x = torch.ones(4, device="meta" if _is_odd(alike) else "cpu")
    dist.all_reduce(x)
    return 0.0 if x.is_meta else x.sum().item()


def _functional_order(alike: bool = False) -> float:
    """The same two functional collectives in one graph, on rank 1 the other way round."""

    def program(x, odd):
        first = funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum() if odd else 0
        y = first + funcol.all_reduce(x, "sum", dist.group.WORLD).sum()
        return y if odd else y + funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum()

    return _run(program)[0](torch.ones(4), _is_odd(alike)).item()


def _rank_branch(alike: bool = False) -> float:
    taken_from = dist.get_world_size() if alike else 1

    def program(x):
        y = funcol.all_reduce(x, "sum", dist.group.WORLD)
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD) if dist.get_rank() >= taken_from else y

    return _run(program)[0](torch.ones(4)).sum().item()


def _run(program: Callable[..., Any]) -> tuple[Callable[..., Any], Capture]:
    """The program compiled whole, without gradients, and its result waited for; and the graphs that it makes."""
    dynamo_reset()
    graphs = Capture()
    run = torch.compile(program, backend=graphs, fullgraph=True)
    return torch.no_grad()(lambda *arguments: run(*arguments) + 0), graphs


def _other_kind(alike: bool = False) -> float:
    x, out = torch.ones(2), torch.zeros(4)
    if _is_odd(alike):
        dist.all_gather_into_tensor(out, x)
        dist.all_reduce(x)
    else:
        dist.all_reduce(x)
        dist.all_gather_into_tensor(out, x)
    return x[0].item()


def _of_the_lesson(name: str, alike: bool = False) -> Any:
    """A drill of the lesson without a defence: the last number of a vector, or the first ones of rows."""
    dynamo_reset()
    found = DRILLS[name](Site(Exchange.connect("check", timeout=20.0), (), _is_odd(alike)))
    return [one[0] for one in found] if isinstance(found[0], list) else found[-1]


def _shape_branch(alike: bool = False, longer: int = 0) -> list[Any]:
    """Alike in the first call; in the second, rank 1 has another shape, recompiles, and calls one collective more."""

    def program(x):
        y = funcol.all_reduce(x.sum(), "sum", dist.group.WORLD)
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD) if x.shape[0] > 4 else y

    return _two_calls(program, torch.ones(4), torch.ones(4 + (longer or _is_odd(alike))))


def _flag_branch(alike: bool = False, everywhere: bool = False) -> list[Any]:
    """The same, where the second call of rank 1 has another flag."""

    def program(x, twice=False):
        y = funcol.all_reduce(x.sum(), "sum", dist.group.WORLD)
        return funcol.all_reduce(y * 2, "sum", dist.group.WORLD) if twice else y

    return _two_calls(program, torch.ones(4), torch.ones(4), everywhere or _is_odd(alike))


def _flag_compared(everywhere: bool = False) -> list[Any]:
    """The same again, with the flag compared between the ranks, and then taken from a plan that rank 0 announces."""
    exchange = contract.Exchange.connect("check-flag")
    flag = everywhere or exchange.rank == 1
    contract.assert_parity(exchange, {"twice": str(flag)})
    mine = None if exchange.rank else contract.Plan.of("infer", phases={"twice": flag})
    return _flag_branch(everywhere=contract.announce(exchange, mine).phases["twice"])


def _flag_alike() -> list[Any]:
    return _flag_compared(everywhere=True)


def _shape_alike() -> list[Any]:
    return _shape_branch(longer=1)


def _shape_compared() -> list[Any]:
    """The branch on a shape, with the shapes compared between the ranks before the call."""
    exchange = contract.Exchange.connect("check-shape")
    contract.agree(exchange, contract.Plan.of("infer", {"x": torch.ones(4 + exchange.rank)}))
    return _shape_branch()


def _alone() -> list[list[Any]]:
    return [_shape_alike(), _flag_branch(everywhere=True)]


def _two_calls(program: Callable[..., Any], first: Any, *second: Any) -> list[Any]:
    """The results of two calls, and how many collectives each graph has that they compile."""
    run, graphs = _run(program)
    return [run(first).item(), run(*second).item(), [_reduces(graph) for graph in graphs.dynamo]]


def _reduces(graph: Any) -> int:
    return sum("all_reduce" in call for call in calls(graph))


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


def _own_graphs() -> Seen:
    """What the graph of each rank holds of a branch, a number and a size that only this rank has."""
    rank, graphs = dist.get_rank(), Capture()

    def program(x, number, flag):
        return (x.sin() if flag else x.cos()) * number

    dynamo_reset()
    torch.compile(program, backend=graphs)(torch.ones(4 + rank), 2 + rank, rank == 0)
    nodes = list(graphs.dynamo[0].graph.nodes)
    return {
        "branch": calls(graphs.dynamo[0])[0],
        "number": [a for node in nodes for a in node.args if isinstance(a, int)],
        "shape": [list(node.meta["example_value"].shape) for node in nodes if node.op == "placeholder"],
    }


# programs in which rank 1 is the odd one, unless they are called with alike=True
ODD: dict[str, Callable[..., Any]] = {
    **{
        name: functools.partial(_of_the_lesson, drilled)
        for name, drilled in {
            "one_call_fewer": "count", "swapped": "order", "other_dtype": "dtype", "other_shape": "shape",
            "other_size": "size", "data_branch": "branch", "other_operation": "backend",
        }.items()
    },
    "other_kind": _other_kind, "meta_device": _meta_device, "functional_order": _functional_order,
    "shape_branch": _shape_branch, "flag_branch": _flag_branch, "rank_branch": _rank_branch,
}  # fmt: skip
# what each of two ranks returns where none goes its own way; of two calls also the collectives in each of their graphs
RIGHT: dict[str, Any] = {
    "one_call_fewer": 8, "other_kind": 2, "swapped": [2, 20], "functional_order": 16, "other_dtype": 2,
    "other_shape": [0, 6], "other_size": 2, "meta_device": 8, "shape_branch": [8, 8, [1]],
    "flag_branch": [8, 8, [1]], "data_branch": 6, "rank_branch": 8, "other_operation": 8,
    "shape_alike": [8, 40, [1, 2]], "flag_alike": [8, 32, [1, 2]],
}  # fmt: skip
SEQUENCE = ("one_call_fewer", "other_operation", "other_kind", "swapped")
METADATA = ("other_dtype", "other_shape", "other_size", "meta_device")
BRANCHES = ("shape_branch", "flag_branch", "data_branch")


def _ends(seen: Seen, *names: str) -> dict[str, str]:
    """How each drill ended: 'hung' where a rank was left in a collective, 'stuck' elsewhere, 'failed', 'right', or
    'wrong' where it finished with other numbers; 'never right' for one that is not right on ranks alike."""
    alike = seen["nobody_odd"].get("values") or [{}]
    ends = {}
    for name in names:
        row = seen[name]
        if name in ODD and any(one.get(name) != RIGHT[name] for one in alike):
            ends[name] = "never right"
        elif row["how"] == "finished":
            ends[name] = "right" if row.get("values") == [RIGHT[name]] * 2 else "wrong"
        elif row["how"] == "hung":
            ends[name] = "hung" if {"all_reduce", "all_gather"} & set(row["waits"]) else "stuck"
        else:
            ends[name] = row["how"]
    return ends


def _each(seen: Seen, allowed: str, *names: str) -> Result:
    """Whether each of the drills ended in one of the allowed ways, and is right on ranks alike."""
    ends = _ends(seen, *names)
    said = ", ".join(f"{name.replace('_', ' ')} {how}" for name, how in ends.items())
    return verdict(set(ends.values()) <= set(allowed.split()), said)


def _alike(seen: Seen) -> Result:
    """Whether the branches on shape and flag are right where both ranks have the shape and flag of rank 1, by a second
    graph with one collective more."""
    return _each(seen, "right", "shape_alike", "flag_alike")


def _timed(seen: Seen) -> Result:
    """Whether the ranks that differ run into the timeout in which ranks alike finish."""
    ends = seen["timeout"]
    timed, alike = "timed out" in ends["odd"].lower(), ends["alike"] == f"finished: {[[8.0, 8.0, [1]]] * 2}"
    said = f"with a timeout of 2 s (gloo): {'timed out' if timed else ends['odd']}"
    return verdict(timed and alike, f"{said}; alike {'finished' if alike else ends['alike']}")


@judging(drills)
def a_hang_is_the_common_end(seen: Seen) -> Result:
    """Of the ways in which ranks diverge in their collectives most hang, or run into a timeout; some mix numbers; none
    ends right."""
    ends = _ends(seen, *SEQUENCE, *METADATA, *BRANCHES, "rank_branch")
    counts, mixed = Counter(ends.values()), seen["swapped"].get("values")
    common = counts["hung"] > len(ends) / 2 and set(counts) <= {"hung", "wrong", "failed"}
    said = ", ".join(f"{n} {how}" for how, n in counts.most_common())
    said = f"of {len(ends)} ways {said}, such as {mixed} instead of {RIGHT['swapped']} on each rank"
    return all_of(
        verdict(common and mixed == [[11, 11]] * 2, said), _timed(seen)
    )  # q of one rank and k of the other


@judging(drills)
def another_sequence_goes_wrong(seen: Seen) -> Result:
    """A rank that makes one call fewer, another one, or calls in another order, ends in a hang or in wrong numbers."""
    return _each(seen, "hung wrong", *SEQUENCE)


@judging(drills)
def other_metadata_goes_wrong(seen: Seen) -> Result:
    """Tensors of another dtype, shape, size or device on one rank end in an error, a hang or wrong numbers."""
    return _each(seen, "hung wrong failed", *METADATA)


@judging(drills)
def another_program_goes_wrong(seen: Seen) -> Result:
    """One call fewer, another operation, another order, and tensors of another dtype, shape or device on one rank never
    end right; on ranks alike each does."""
    return all_of(another_sequence_goes_wrong(seen), other_metadata_goes_wrong(seen))


@judging(drills)
def divergence_ends_as_another_order_does(seen: Seen) -> Result:
    """Ranks that diverge by a shape, a flag or their data wait without end in a collective that the peer is not in, as
    ranks do that call two kinds of collectives in another order, in eager mode or in a graph."""
    names = ("other_kind", "functional_order", *BRANCHES)
    apart = [name for name in names if len(set(seen[name].get("waits", []))) == 2]
    said = f"{len(apart)} of {len(names)} times the peer is not in that collective"
    return all_of(_each(seen, "hung", *names), verdict(len(apart) == len(names), said))


@judging(drills)
def branches_of_a_rank_hang(seen: Seen) -> Result:
    """A branch with a collective in it hangs where one rank takes it, by its number or by its data."""
    return _each(seen, "hung", "rank_branch", "data_branch")


@judging(drills)
def functional_collectives_need_symmetry(seen: Seen) -> Result:
    """Functional collectives hang by a shape, a branch and an order of one rank, and are right on ranks alike."""
    return all_of(_each(seen, "hung", "shape_branch", "data_branch", "functional_order"), _alike(seen))


@judging(drills)
def inputs_branches_and_collectives_are_the_same(seen: Seen) -> Result:
    """Compiled programs whose inputs, branch or order of collectives differ on one rank each hang."""
    return _each(seen, "hung", *BRANCHES, "rank_branch", "functional_order")


@judging(drills)
def diverging_programs_deadlock(seen: Seen) -> Result:
    """Programs that are right on ranks alike wait without end where one rank has another shape, flag or data."""
    return all_of(_each(seen, "hung", *BRANCHES), _alike(seen))


@judging(drills)
def divergence_times_out(seen: Seen) -> Result:
    """What one rank compiles otherwise hangs the job, and where the group has a timeout it ends in it."""
    return all_of(diverging_programs_deadlock(seen), _timed(seen))


@judging(drills)
def one_rank_does_not_tell(seen: Seen) -> Result:
    """Programs that are right on one rank, for every shape and flag, hang on two of which one has another."""
    alone = seen["alone"]
    right = alone.get("values") == [[[4, 10, [1, 2]], [4, 8, [1, 2]]]]
    said = f"on one rank, for each shape and flag: {'right' if right else alone.get('values', alone['how'])}"
    return all_of(verdict(right, said), diverging_programs_deadlock(seen))


@judging(drills, word=ENFORCED)
def parity_repairs_it(seen: Seen) -> Result:
    """A flag or a shape of one rank hangs; compared it is an error on all ranks, and kept alike the job is right."""
    errors = {"flag_compared": "ParityError", "shape_compared": "PlanError"}
    raised = {error: seen[name].get("says", "").count(error) for name, error in errors.items()}
    said = "compared: " + ", ".join(f"{error} on {n} ranks" for error, n in raised.items())
    compared = verdict(set(raised.values()) == {2}, said)
    return all_of(_each(seen, "hung", "flag_branch", "shape_branch"), compared, _alike(seen))


@judging(drills)
def each_rank_compiles_alone(seen: Seen) -> Result:
    """Each rank compiles what it sees, so ranks can have different graphs of one program."""
    row = seen["own_graphs"]
    values = row.get("values", [])
    return verdict(
        len({v["branch"] for v in values}) == 2,
        f"rank 0 has {values[0]['branch']}, rank 1 {values[1]['branch']}" if values else row["how"],
    )


@judging(drills)
def a_rank_traces_what_it_sees(seen: Seen) -> Result:
    """The graph of each rank has its own branch, its own number as a constant and its own size."""
    row, ops = seen["own_graphs"], ("sin", "cos")
    expected = [{"branch": op, "number": [2 + r], "shape": [[4 + r]]} for r, op in enumerate(ops)]
    values = row.get("values", [])
    said = "; ".join(f"rank {r}: {', '.join(f'{k} {x}' for k, x in v.items())}" for r, v in enumerate(values))
    return verdict(values == expected, said or row["how"])


@judging(drills)
def compiled_alone_correct_together(seen: Seen) -> Result:
    """Each rank has a graph of its own, and programs that are right on a rank by itself hang where two differ."""
    return all_of(each_rank_compiles_alone(seen), one_rank_does_not_tell(seen))


@judging(drills)
def gathered_counts_differ(seen: Seen) -> Result:
    """Numbers of graphs and breaks are equal where ranks are alike; a rank that breaks has others, legitimately."""
    row = seen["own_break"]
    if row["how"] != "finished":
        return verdict(False, row["how"])
    alike, broken = (row["values"][0][name]["counts"] for name in ("alike", "break"))
    differ = [one != other for one, other in zip(*broken, strict=True)]
    right = {one[name]["value"] for one in row["values"] for name in ("alike", "break")} == {8}
    return verdict(
        alike[0] == alike[1] and all(differ) and right,
        f"graphs and breaks by rank: {alike} alike, {broken} where rank 1 breaks; numbers "
        f"{'right' if right else 'not right'}",
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
    """Only one rank compiles again, unless an extra collective on the result of the guards makes all of them do so."""
    row, alone = seen["guarded"], [value["graphs"] for value in seen["alone"].get("values", [])]
    values = row.get("values", [])
    graphs = [value["graphs"] for value in values]
    right = all(value["value"] == 5 for value in values)
    return verdict(
        alone == [1, 2] and graphs == [2, 2] and right,
        f"graphs by rank {alone or seen['alone']['how']}; with guard collectives {graphs or row['how']}",
    )
