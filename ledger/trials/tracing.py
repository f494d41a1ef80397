"""What Dynamo makes of collectives: which it traces, as what, and what it does with groups and handles."""

from __future__ import annotations

import re

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch._dynamo.backends.registry import lookup_backend
from torch.fx.experimental.proxy_tensor import make_fx

from ledger.bench import Bench
from ledger.graphs import Graphs, calls, code, first_line
from ledger.trial import Seen, judge, part


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


def broadcast(x):
    x = x * 1.0
    dist.broadcast(x, 0)
    return x


def barrier(x):
    y = x + 1
    dist.barrier()
    return y * 2


def with_a_handle(x):
    x = x * 1.0
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    return x + 1


def reduced(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD) + 1


def gathered(x):
    return funcol.all_gather_tensor(x, 0, dist.group.WORLD) + 1


def scattered(x):
    return funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD) + 1


def exchanged(x):
    return funcol.all_to_all_single(x, None, None, dist.group.WORLD) + 1


def sent(x):
    return funcol.broadcast(x, 0, dist.group.WORLD) + 1


IN_PLACE = (all_reduce, all_gather_into_tensor, all_gather, reduce_scatter_tensor)
FUNCTIONAL = (reduced, gathered, scattered, exchanged, sent)


def traced(program) -> Seen:
    """One function, compiled: its graphs after AOTAutograd, and its result against eager's."""
    x = torch.arange(4.0) + 10 * dist.get_rank()
    with torch.no_grad():
        right = program(x.clone()) + 0
        backend, why = Graphs(aot=True), ""
        got = torch.compile(program, backend=backend)(x.clone()) + 0
        torch._dynamo.reset()
        try:
            torch.compile(program, backend="eager", fullgraph=True)(x.clone())
        except Exception as error:
            why = first_line(error)
    torch._dynamo.reset()
    nodes = [
        (graph, node) for graph in backend.forward for node in graph.graph.nodes if node.op == "call_function"
    ]
    ours = [node for _, node in nodes if "c10d" in str(node.target)]
    given = [one for node in ours for one in (*node.args, *node.kwargs.values())]
    return {
        "graphs": len(backend.dynamo),
        "why": why,
        "same": torch.equal(got, right),
        "calls": [call for graph in backend.forward for call in calls(graph)],
        "mutable": sum(node.target._schema.is_mutable for node in ours),
        "types": sorted({kind for graph, node in nodes if node in ours for kind in kinds_of(graph, node)}),
        "names": [one for one in given if isinstance(one, str) and one != "sum"],
        "group": dist.group.WORLD.group_name,
    }


def each(bench: Bench, *programs) -> Seen:
    found = {program.__name__: bench.run(traced, program)[0] for program in programs}
    waits = [name for name, seen in found.items() if "_c10d_functional.wait_tensor" in seen["calls"]]
    ours = [name for name, seen in found.items() if any("_c10d_functional" in call for call in seen["calls"])]
    return {
        "of": list(found),
        "one_graph": [name for name, seen in found.items() if seen["graphs"] == 1 and not seen["why"]],
        "functional": [name for name in ours if found[name]["mutable"] == 0],
        "waits": waits,
        "same": [name for name, seen in found.items() if seen["same"]],
        "why": sorted({seen["why"] for seen in found.values()} - {""}),
        "types": sorted({kind for seen in found.values() for kind in seen["types"]}),
        "by_name": [name for name, seen in found.items() if seen["group"] in seen["names"]],
    }


def in_place(bench: Bench) -> Seen:
    return each(bench, *IN_PLACE)


def functional(bench: Bench) -> Seen:
    return each(bench, *FUNCTIONAL)


def without_a_functional_form(bench: Bench) -> Seen:
    return each(bench, broadcast, barrier)


def a_handle(bench: Bench) -> Seen:
    return each(bench, with_a_handle)


def no_handle(bench: Bench) -> Seen:
    return each(bench, all_reduce)


def said(seen: Seen) -> str:
    return f"one graph: {', '.join(seen['one_graph']) or 'none'}" + "".join(f"; {why}" for why in seen["why"])


@judge(in_place, counter=a_handle)
def in_place_in_one_graph(seen):
    yield part("into one graph", seen["one_graph"] == seen["of"], said(seen))
    yield part(
        "as their functional forms", seen["functional"] == seen["of"], f"functional: {seen['functional']}"
    )
    yield part("eager's results", seen["same"] == seen["of"], f"equal: {', '.join(seen['same'])}")


@judge(functional, counter=without_a_functional_form)
def functional_in_one_graph(seen):
    yield part("into one graph", seen["one_graph"] == seen["of"], said(seen))
    yield part("an operator of torch.ops._c10d_functional", seen["functional"] == seen["of"],
               f"functional: {', '.join(seen['functional'])}")  # fmt: skip
    yield part("its wait_tensor", seen["waits"] == seen["of"], f"with a wait: {', '.join(seen['waits'])}")
    yield part("eager's results", seen["same"] == seen["of"], f"equal: {', '.join(seen['same'])}")


@judge(without_a_functional_form, counter=in_place)
def broadcast_and_barrier_break(seen):
    yield part("break its graph", not seen["one_graph"], said(seen))
    yield part("the result is eager's", seen["same"] == seen["of"], f"equal: {', '.join(seen['same'])}")


@judge(a_handle, counter=no_handle)
def handle_breaks(seen):
    yield part("breaks the graph", not seen["one_graph"], said(seen))


def kinds_of(graph: torch.fx.GraphModule, node: torch.fx.Node) -> list[str]:
    """The types of what a node is given: of an attribute of the graph, the type of its value."""
    given = [one for argument in (*node.args, *node.kwargs.values()) for one in flat(argument)]
    kept = [getattr(graph, one.target) if isinstance(one, torch.fx.Node) and one.op == "get_attr" else one
            for one in given]  # fmt: skip
    return [type(one).__name__ for one in kept]


def flat(argument):
    return (
        [one for part in argument for one in flat(part)]
        if isinstance(argument, (list, tuple))
        else [argument]
    )


def as_it_runs() -> Seen:
    """The same reading of what make_fx records of dist.all_reduce: the operator that eager runs, in c10d."""
    graph = make_fx(all_reduce)(torch.ones(4))
    ours = [node for node in graph.graph.nodes if "c10d" in str(node.target)]
    kinds = sorted({kind for node in ours for kind in kinds_of(graph, node)})
    names = [one for node in ours for one in node.args if one == dist.group.WORLD.group_name]
    return {"of": ["all_reduce"], "by_name": ["all_reduce"] * bool(names), "types": kinds}


def in_the_operator_of_eager(bench: Bench) -> Seen:
    return bench.run(as_it_runs)[0]


@judge(functional, counter=in_the_operator_of_eager)
def group_by_name(seen):
    yield part(
        "by its name, a string", seen["by_name"] == seen["of"], f"by name: {', '.join(seen['by_name'])}"
    )
    plain = {"Node", "str", "int", "NoneType"}
    yield part("no other object", set(seen["types"]) <= plain, f"arguments: {', '.join(seen['types'])}")


class Plain:
    def wait(self):
        pass


def waits_for(make) -> Seen:
    """A compiled function that is given an object and calls its wait()."""

    def program(x, handle):
        handle.wait()
        return x + 1

    x, why = torch.ones(2), ""
    handle = make(x)
    torch._dynamo.reset()
    try:
        torch.compile(program, backend="eager", fullgraph=True)(x, handle)
    except torch._dynamo.exc.Unsupported as error:
        why = first_line(error)
    handle.wait()
    return {"why": why}


def a_work(x):
    return dist.all_reduce(x, async_op=True)


def an_object(x):
    return Plain()


@judge(
    lambda bench: bench.run(waits_for, a_work)[0], counter=lambda bench: bench.run(waits_for, an_object)[0]
)
def handle_as_argument(seen):
    yield part("raises torch._dynamo.exc.Unsupported", seen["why"], seen["why"] or "no error")


def nobody(x):
    return torch.ops._c10d_functional.wait_tensor(torch.ops._c10d_functional.all_reduce(x, "sum", "nobody's"))


def nobody_gathers(x):
    gather = torch.ops._c10d_functional.all_gather_into_tensor(x, 8, "nobody's")
    return torch.ops._c10d_functional.wait_tensor(gather)


def without_group(mode: str) -> Seen:
    """Traces collectives of a group that no process has, and compiles one, in this process."""
    shapes, said = {}, []
    for program in (nobody, nobody_gathers):
        try:
            graph = make_fx(program, tracing_mode=mode)(torch.ones(8))
        except RuntimeError as error:
            said.append(first_line(error))
            continue
        last = [node for node in graph.graph.nodes if node.op == "call_function"][-1]
        shapes[program.__name__] = list(last.meta["val"].shape)
    ended, by = [], lookup_backend("aot_eager")

    def backend(graph, inputs):
        run = by(graph, inputs)
        ended.append(True)
        return run

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(nobody, backend=backend, fullgraph=True)(torch.ones(8))
    except RuntimeError as error:  # running needs the group
        said.append(first_line(error))
    torch._dynamo.reset()
    return {"shapes": shapes, "compiled": bool(ended), "why": said}  # the last of why is the run's


# with real tensors tracing runs the collectives, which need their group
@judge(lambda bench: without_group("fake"), counter=lambda bench: without_group("real"))
def traced_without_a_group(seen):
    right = seen["shapes"] == {"nobody": [8], "nobody_gathers": [64]}
    yield part("make_fx traces", right, f"shapes {seen['shapes']}")
    yield part(
        "AOTAutograd compiles", seen["compiled"], f"compiled: {seen['compiled']}; when run {seen['why'][-1:]}"
    )
    yield part("the run raises an error", any("process group" in said for said in seen["why"][-1:]))


def with_group(x, group):
    return funcol.all_reduce(x, "sum", group) + 1


def two_groups(fix) -> Seen:
    """Calls with the world, again, and with a rank's own group; with `fix` the first group is used in all of them."""
    world = dist.group.WORLD
    own = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    backend, graphs, sums = Graphs(), [], []
    run = torch.compile(with_group, backend=backend)
    with torch.no_grad():
        for group in (world, world, own):
            sums.append((run(torch.ones(4), world if fix else group) + 0)[0].item())
            graphs.append(len(backend.dynamo))
    return {"graphs": graphs, "sums": sums}


@judge(lambda bench: bench.run(two_groups, False)[0], counter=lambda bench: bench.run(two_groups, True)[0])
def another_group_recompiles(seen):
    yield part(
        "compiles another graph", seen["graphs"] == [1, 1, 2], f"graphs after each call {seen['graphs']}"
    )
    yield part(
        "the right sum", seen["sums"] == [3, 3, 2], f"{seen['sums']}, 2 + 1 with two ranks and 1 + 1 with one"
    )


def inductor(program) -> str:
    with torch.no_grad():
        text = code(program, torch.ones(8, 8))
    if "_c10d_functional" not in text:
        raise ValueError("the reader finds no collective in Inductor's code")
    body = text[text.index("def call(") :]
    body = body[: body.index("\ndef benchmark")] if "\ndef benchmark" in body else body
    lines = [re.sub(r"#.*", "", line).rstrip() for line in body.splitlines()]
    return "\n".join(line for line in lines if line.strip())


def summed_in_place(x):
    y = x @ x
    dist.all_reduce(y)
    return y + 1


def summed(x):
    return funcol.all_reduce(x @ x, "sum", dist.group.WORLD) + 1


def maximum(x):
    return funcol.all_reduce(x @ x, "max", dist.group.WORLD) + 1


def codes(a, b) -> Seen:
    first, second = inductor(a), inductor(b)
    differ = [
        f"{x.strip()} / {y.strip()}"
        for x, y in zip(first.splitlines(), second.splitlines(), strict=False)
        if x != y
    ]
    return {"same": first == second, "lines": len(first.splitlines()), "differ": differ[:1]}


@judge(
    lambda bench: bench.run(codes, summed_in_place, summed)[0],
    counter=lambda bench: bench.run(codes, summed_in_place, maximum)[0],
)
def same_code(seen):
    yield part(
        "the same code", seen["same"], f"{seen['lines']} lines, equal" if seen["same"] else seen["differ"]
    )
