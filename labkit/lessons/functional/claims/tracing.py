"""Whether the compiler can keep a collective in a graph, and what it makes of it there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from labkit.lessons.shared.capture import Capture, calls, first_line
from labkit.study.checks import Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol


def _programs(ran: list[bool]) -> dict[str, Callable[[Any], Any]]:
    def all_reduce(x):
        x = x * 1.0
        dist.all_reduce(x)
        return x + 1

    def all_gather_into_tensor(x):
        out = x.new_empty(4 * dist.get_world_size())
        dist.all_gather_into_tensor(out, x)
        return out

    def all_gather(x):
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x)
        return out[0] + out[1]

    def reduce_scatter_tensor(x):
        out = x.new_empty(4 // dist.get_world_size())
        dist.reduce_scatter_tensor(out, x)
        return out

    def all_reduce_async(x):
        x = x * 1.0
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        return x + 1

    def broadcast(x):
        x = x * 1.0
        dist.broadcast(x, 0)
        return x

    def barrier(x):
        y = x + 1
        dist.barrier()
        return y * 2

    @torch.compiler.disable
    def hidden(x):
        ran.append(torch.compiler.is_compiling())
        dist.all_reduce(x)

    def disabled(x):
        x = x * 1.0
        hidden(x)
        return x + 1

    def functional(x):
        return funcol.all_reduce(x, "sum", dist.group.WORLD) + 1

    def functional_gather(x):
        return funcol.all_gather_tensor(x, 0, dist.group.WORLD) + 1

    def functional_scatter(x):
        return funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) + 1

    def functional_exchange(x):
        return funcol.all_to_all_single(x, None, None, dist.group.WORLD) + 1

    def functional_broadcast(x):
        return funcol.broadcast(x, 0, dist.group.WORLD) + 1

    classic = [all_reduce, all_gather_into_tensor, all_gather, reduce_scatter_tensor]
    others = [all_reduce_async, broadcast, barrier, disabled]
    pure = [functional, functional_gather, functional_scatter, functional_exchange, functional_broadcast]
    return {program.__name__: program for program in [*classic, *others, *pure]}


@probe
def traced(bench: Bench) -> Seen:
    """Each collective in a function of its own, compiled as one graph: did that work, and is the result the same?"""
    return bench.run(_traced)[0]


def _traced() -> Seen:
    found, ran = Seen(), list[bool]()
    for name, program in _programs(ran).items():
        x = torch.arange(4.0) + 10 * dist.get_rank()
        expected = program(x.clone()) + 0
        dynamo_reset()
        graphs, row = Capture(aot=True), {"one_graph": True, "why": ""}
        with torch.no_grad():
            try:
                torch.compile(program, backend=graphs, fullgraph=True)(x.clone())
            except Exception as error:
                row |= {"one_graph": False, "why": first_line(error)}
            dynamo_reset()
            graphs = Capture(aot=True)
            got = torch.compile(program, backend=graphs)(x.clone())
        row["same"] = bool(torch.equal(got + 0, expected))
        row["graphs"] = len(graphs.dynamo)
        row["calls"] = [call for graph in graphs.forward for call in calls(graph)]
        nodes = [node for graph in (*graphs.dynamo, *graphs.forward) for node in graph.graph.nodes]
        made = [node for node in nodes if _of_collectives(node)]
        inputs = [node.meta.get("example_value", x) for node in nodes if node.op == "placeholder"]
        given = [argument for node in made for argument in (*node.args, *node.kwargs.values())]
        lists = [value for argument in given if isinstance(argument, (list, tuple)) for value in argument]
        types = {type(argument).__name__ for argument in (*given, *lists)}
        row["argument_types"] = sorted(
            types | {type(v).__name__ for v in inputs if not isinstance(v, torch.Tensor)}
        )
        row["waited"] = all(map(_waited, graphs.forward))
        targets = [node.target for graph in graphs.forward for node in graph.graph.nodes]
        row["in_place"] = sum(t._schema.is_mutable for t in targets if hasattr(t, "_schema"))
        found[name] = row
        dist.barrier()
    found["disabled"]["ran_compiled"] = ran
    return found


def _of_collectives(node: Any) -> bool:
    return "c10d" in str(node.target) or "distributed" in str(getattr(node.target, "__module__", ""))


def _waited(graph: Any) -> bool:
    """Whether each collective's result goes to a wait and nowhere else, and each wait takes one."""
    made = [node for node in graph.graph.nodes if "c10d" in str(node.target)]
    waits = {node for node in made if "wait_tensor" in str(node.target)}
    rest = [node for node in made if node not in waits]
    return all(set(node.users) <= waits and node.users for node in rest) and all(
        n.args[0] in rest for n in waits
    )


FUNCTIONAL = (
    "functional",
    *(f"functional_{kind}" for kind in ("gather", "scatter", "exchange", "broadcast")),
)
PLAIN = {"Node", "str", "int", "list", "immutable_list"}
CLASSIC = ("all_reduce", "all_gather_into_tensor", "all_gather", "reduce_scatter_tensor")


@judging(traced)
def inplace_breaks_tracing(seen: Seen) -> Result:
    """A plain in-place collective (no handle asked for) cannot be kept in one graph of functional operators."""
    kept = [n for n in CLASSIC if seen[n]["one_graph"] and seen[n]["same"]]
    kept = [name for name in kept if _pairs(seen[name]) and not seen[name]["in_place"]]
    if not (kept or seen["functional"]["one_graph"]):
        return cannot_tell(
            "a functional collective that is kept in one graph", "no program is kept in one graph"
        )
    broken = [name for name in (*CLASSIC, "broadcast", "barrier") if not seen[name]["one_graph"]]
    return verdict(
        not kept,
        f"kept in one functional graph, same numbers: {', '.join(kept) or 'none of them'}; break: "
        f"{', '.join(broken) or 'none'}",
    )


@judging(traced)
def work_handles_break(seen: Seen) -> Result:
    """A handle (async_op=True) breaks the graph of an all-reduce, which is kept as a functional one without it."""
    row, plain = seen["all_reduce_async"], seen["all_reduce"]
    said = "no break" if row["one_graph"] else f"a break: {row['why']}"
    if not (plain["one_graph"] and plain["same"]):
        return cannot_tell("an all-reduce without a handle that is kept in one graph", said)
    return verdict(
        _names_the_handle(row) and _pairs(plain) and not plain["in_place"],
        f"with a handle {said}; without, in one graph: {', '.join(_collectives(plain))}, {plain['in_place']} in place",
    )


def _names_the_handle(row: Seen) -> bool:
    """Whether the graph breaks, and because of the handle."""
    return not row["one_graph"] and any(word in row["why"] for word in ("async_op", "Work"))


def _collectives(row: Seen) -> list[str]:
    return [call for call in row["calls"] if "c10d" in call]


def _pairs(row: Seen) -> bool:
    """Whether the collectives of a graph are functional ones, each with a wait for its result."""
    made = [call.rpartition(".")[::2] for call in _collectives(row)]
    waits = sum(name == "wait_tensor" for _, name in made)
    return {kind for kind, _ in made} == {"_c10d_functional"} and 2 * waits == len(made) and row["waited"]


@judging(traced)
def functional_is_traced(seen: Seen) -> Result:
    """Functional collectives are kept in one graph without a write in place: operators on tensors, each with a wait."""
    rows = [seen[name] for name in FUNCTIONAL if seen[name]["one_graph"] and seen[name]["same"]]
    kept = [row for row in rows if row["graphs"] == 1 and _pairs(row) and not row["in_place"]]
    return verdict(
        len(kept) == len(FUNCTIONAL),
        f"{len(kept)} of {len(FUNCTIONAL)} in one graph, such as {', '.join(seen['functional']['calls'])}",
    )


@judging(traced)
def only_tensors_and_waits_fit(seen: Seen) -> Result:
    """What stands in a graph are functional collectives and their waits, also for classic calls; a handle breaks it."""
    names = (*CLASSIC, *FUNCTIONAL)
    kept = [name for name in names if seen[name]["one_graph"] and seen[name]["same"]]
    pairs = [name for name in kept if _pairs(seen[name])]
    refused = _names_the_handle(seen["all_reduce_async"])
    return verdict(
        set(FUNCTIONAL) <= set(kept) and pairs == kept and refused,
        f"{len(kept)} of {len(names)} programs are kept in one graph, {len(pairs)} as functional ones with waits; one "
        f"that asks for a handle {'breaks' if refused else 'is kept'}",
    )


@judging(traced)
def disabled_collectives_run_in_eager(seen: Seen) -> Result:
    """A collective under torch.compiler.disable runs outside the compiler, between two graphs that lack it."""
    row, hidden = seen["disabled"], seen["disabled"]["ran_compiled"]
    return verdict(
        len(hidden) == 2 and not any(hidden) and row["same"] and row["graphs"] == 2 and not _collectives(row),
        f"ran {len(hidden)} times, {sum(hidden)} of them compiled; {row['graphs']} graphs around it, with "
        f"{len(_collectives(row))} collectives",
    )


@judging(traced)
def classic_becomes_functional(seen: Seen) -> Result:
    """In the graph for passes classic collectives are rewritten into functional ones with waits, and give the same."""
    rewritten = [n for n in CLASSIC if seen[n]["same"] and _pairs(seen[n])]
    return verdict(
        len(rewritten) == len(CLASSIC),
        f"{len(rewritten)} of {len(CLASSIC)} rewritten: {', '.join(rewritten) or 'none'}",
    )


@judging(traced)
def collectives_compile(seen: Seen) -> Result:
    """Programs with collectives can be compiled, with these in their graphs, and give what they give in eager."""
    names = (*CLASSIC, *FUNCTIONAL)
    same = [n for n in names if seen[n]["same"] and _collectives(seen[n])]
    return verdict(len(same) == len(names), f"{len(same)} of {len(names)} compiled with the same numbers")


@judging(traced)
def groups_leak_into_the_graph(seen: Seen) -> Result:
    """A classic collective brings objects into the graph that are no tensors, such as its process group."""
    types = {kind for name in CLASSIC for kind in seen[name]["argument_types"]}
    strangers = types - PLAIN
    return verdict(
        bool(strangers) or not types,
        f"arguments of collectives in the graph: {', '.join(sorted(types)) or 'none'} (the group goes by its name)",
    )


@judging(traced)
def plain_arguments(seen: Seen) -> Result:
    """In the graph a functional collective takes tensors and plain data only: no group and no handle."""
    types = {kind for name in FUNCTIONAL for kind in seen[name]["argument_types"]}
    return verdict(
        bool(types) and types <= PLAIN,
        f"arguments of functional collectives in the graph: {', '.join(sorted(types))}",
    )


@probe
def handed_over(bench: Bench) -> Seen:
    """A Work handle, a plain object, and two process groups one after the other, as arguments of compiled functions."""
    return bench.run(_handed_over)[0]


def _handed_over() -> Seen:
    def waits(x, work):
        work.wait()
        return x + 1

    def reduces(x, group):
        return funcol.all_reduce(x, "sum", group) + 1

    class Plain:  # with the method of a handle, and no handle
        def wait(self) -> None: ...

    x, own = torch.ones(4), [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    work = dist.all_reduce(x.clone(), async_op=True)
    found: Seen = {}
    for name, program, argument in (
        ("work", waits, work), ("plain", waits, Plain()), ("group", reduces, dist.group.WORLD)
    ):  # fmt: skip
        dynamo_reset()
        try:
            with torch.no_grad():
                torch.compile(program, backend=Capture(), fullgraph=True)(x, argument)
            found[name] = ""
        except Exception as error:
            found[name] = first_line(error)
    if work is not None:
        work.wait()
    dynamo_reset()
    graphs, found["by_group"], found["sums"] = Capture(), [], []
    run = torch.compile(reduces, backend=graphs)
    with torch.no_grad():
        for group in (dist.group.WORLD, dist.group.WORLD, own):
            found["sums"].append((run(x, group) + 0)[0].item())
            found["by_group"].append(len(graphs.dynamo))
    return found


@judging(handed_over)
def groups_do_not_pass(seen: Seen) -> Result:
    """A process group cannot be an argument of a function that is compiled as one graph, or its sum is wrong."""
    said = f"refused ({seen['group']})" if seen["group"] else "taken in one graph"
    if seen["plain"]:
        return cannot_tell("an object that is taken in one graph", said)
    return verdict(
        bool(seen["group"]) or seen["sums"] != [3.0, 3.0, 2.0],
        f"a process group: {said}; after calls with the world, again, and a rank's own group: graphs "
        f"{seen['by_group']}, results {seen['sums']} (2 + 1, 1 + 1)",
    )


@judging(handed_over)
def handles_do_not_pass(seen: Seen) -> Result:
    """A Work handle cannot be an argument of a function that is compiled as one graph; a plain object can."""
    if seen["plain"]:
        return cannot_tell("an object with a wait that is taken in one graph", seen["plain"])
    return verdict(
        bool(seen["work"]),
        f"a Work handle: {seen['work'] or 'taken in one graph'}; a plain object with the same method: taken",
    )
