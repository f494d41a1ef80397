"""The graphs that Dynamo and AOTAutograd make of streams and events, on a process that pretends to have streams.

Nothing about timing or memory can be told that way; which node stands on which stream, and what waits for what, can.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.lessons.shared.capture import Capture, first_line
from labkit.ranks import Ranks
from labkit.study.checks import Bench, Result, Seen, judging, probe, quietly, verdict
from labkit.torch_compat import control_deps, dynamo_reset, pretend_streams


def two_streams(x, y, one, two):
    """A sine and a cosine on two streams, and their sum behind both."""
    with one:
        a = torch.sin(x) * y
    with two:
        b = torch.cos(x) * y
    return a + b


def mutates_and_records(x, one):
    """An input that is changed in place before an event is recorded for another stream."""
    x.mul_(2)
    done = torch.Event()
    done.record()
    with one:
        done.wait()
        return x + 1


@probe
def graphs(bench: Bench) -> Seen:
    """Two streams with a sine and a cosine, forward and backward; an event; a mutated input; a del."""
    with Ranks(1, "cpu", "gloo", quiet=True) as ranks:  # of its own: the pretence cannot be taken back
        return ranks.run(quietly, _graphs)[0]


def _graphs() -> Seen:
    stream = pretend_streams()

    def event(x, one):
        a, b = torch.sin(x), torch.cos(x)
        done = torch.Event()
        done.record()
        with one:
            done.wait()
            return a * b

    def mutates(x, one):
        x.mul_(2)
        with one:
            return x + 1

    def frees(x, one):
        t = x.sin()
        with one:
            y = t.cos()
        one.synchronize()
        del t
        return y, x + 3

    def attempt(program: Any) -> Seen:
        dynamo_reset()
        seen = Capture(aot=True)
        try:
            torch.compile(program, backend=seen, fullgraph=True)(torch.ones(4), stream(1))
        except Exception as error:
            return {"error": first_line(error), "nodes": [], "origins": []}
        product = next((n for n in seen.forward[0].graph.nodes if _operation(n) == "mul"), None)
        origins = [_origin(n, seen.forward[0]) for n in product.all_input_nodes] if product else []
        return {"error": "", "nodes": _nodes(seen.forward[0]), "origins": origins}

    x, y = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    seen = Capture(aot=True)
    run = torch.compile(two_streams, backend=seen, fullgraph=True)
    run(x, y, stream(1), stream(2)).sum().backward()
    found = {
        "dynamo": _nodes(seen.dynamo[0]),
        "forward": _nodes(seen.forward[0]),
        "backward": _nodes(seen.backward[0]),
    }
    run(x, y, stream(3), stream(4))
    every = [node for graph in seen.dynamo + seen.forward for node in graph.graph.nodes]
    return {
        **found,
        "torch": torch.__version__,
        "graphs_after_other_streams": len(seen.dynamo),
        "meta_keys": sorted({key for node in every for key in node.meta if "stream" in key}),
        "stream_constants": sum(isinstance(a, torch.Stream) for node in every for a in node.args),
        "event": attempt(event),
        "mutates_and_records": attempt(mutates_and_records),
        "mutates": attempt(mutates),
        "frees": attempt(frees),
    }


def _nodes(graph: Any) -> list[Seen]:
    """Every node's operation, its stream, and the operations it takes; control_deps by what it controls."""
    found = []
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        custom = node.meta.get("custom") or {}
        takes = [_operation(argument) for argument in node.all_input_nodes]
        found.append({"op": _operation(node), "stream": custom.get("stream"), "takes": takes})
    return found


def _operation(node: Any) -> str:
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if name == "control_deps":
        # the controlled operator is a subgraph, whose name holds the operator's
        inner = next((str(a.target) for a in node.args if getattr(a, "op", "") == "get_attr"), "")
        return f"{name}({inner.removeprefix('subgraph_').partition('_default')[0].rstrip('_0123456789')})"
    return name


def _origin(node: Any, module: Any) -> str:
    """The operation that made a value which control_deps operators hand through; '' where one of them changes it."""
    while _operation(node) == "getitem" and node.args[0].target is control_deps():
        held, index = node.args
        inner = list(getattr(module, held.args[1].target).graph.nodes)
        given = [n for n in inner if n.op == "placeholder"]
        returned = inner[-1].args[0][index]
        if returned not in given:
            return ""
        node = held.args[2 + given.index(returned)]
    return _operation(node)


def _on(nodes: list[Seen], op: str) -> list[Any]:
    return [node["stream"] for node in nodes if node["op"] == op]


@judging(graphs)
def contexts_mark_their_nodes(seen: Seen) -> Result:
    """Each operator of a graph carries the stream of the context it was written in."""
    sin, cos, mul = (_on(seen["forward"], op) for op in ("sin", "cos", "mul"))
    apart = len(sin) == len(cos) == 1 and None not in (sin[0], cos[0]) and sin != cos
    return verdict(apart and mul == [*sin, *cos], f"sin on {sin}, cos on {cos}, their products on {mul}")


@judging(graphs)
def outside_is_default(seen: Seen) -> Result:
    """Work after the contexts is on the default stream again."""
    add = _on(seen["forward"], "add")
    return verdict(add == [None] and _on(seen["forward"], "sin") != [None], f"the sum after both is on {add}")


@judging(graphs)
def no_stream_is_a_constant(seen: Seen) -> Result:
    """No stream object stands in a graph."""
    return verdict(
        seen["stream_constants"] == 0, f"{seen['stream_constants']} stream objects among arguments"
    )


@judging(graphs)
def lookup_by_get_user_obj(seen: Seen) -> Result:
    """Dynamo's graph fetches streams with get_user_obj_by_index."""
    names = sorted({node["op"] for node in seen["dynamo"] if "by_index" in node["op"]})
    return verdict("get_user_obj_by_index" in names, f"it calls {', '.join(names) or 'no lookup'}")


@judging(graphs)
def set_current_stream_is_in_the_graph(seen: Seen) -> Result:
    """The graph switches streams with nodes of its own."""
    names = {node["op"] for node in seen["dynamo"] + seen["forward"]}
    switches = sorted(name for name in names if "set" in name and "stream" in name)
    return verdict(
        bool(switches), ", ".join(switches) or "no such node: operators carry their stream instead"
    )


@judging(graphs)
def no_current_stream_operators(seen: Seen) -> Result:
    """No operator of the graph sets or gets the current stream, and operators carry one all the same."""
    names = {node["op"] for node in seen["forward"]}
    found = sorted(name for name in names if "current_stream" in name)
    marked = any(node["stream"] is not None for node in seen["forward"])
    return verdict(
        marked and not found, f"{', '.join(found) or 'no such operator'} among {', '.join(sorted(names))}"
    )


@judging(graphs)
def other_streams_run_the_same_graph(seen: Seen) -> Result:
    """Called with other streams, the compiled function runs the graph that it has."""
    count = seen["graphs_after_other_streams"]
    return verdict(count == 1, f"{count} graph after a second pair of streams")


@judging(graphs)
def meta_is_stream_idx(seen: Seen) -> Result:
    """The number of a node's stream stands in node.meta under "stream_idx"."""
    custom = any(node["stream"] is not None for node in seen["forward"])
    where = 'node.meta["custom"]["stream"]' if custom else "nowhere"
    keys = seen["meta_keys"]
    return verdict(
        "stream_idx" in keys, ", ".join(keys) or f"it stands in {where}, and is absent for the default stream"
    )


@judging(graphs)
def backward_keeps_the_stream(seen: Seen) -> Result:
    """The backward of an operator is on the operator's stream: cos for sin, and the negated sin for cos."""
    forward = {op: _on(seen["forward"], op) for op in ("sin", "cos")}
    of_sin, of_cos = _on(seen["backward"], "cos"), _on(seen["backward"], "neg")
    return verdict(
        of_sin == forward["sin"] != [None] and of_cos == forward["cos"] != [None],
        f"sin on {forward['sin']}, its backward on {of_sin}; cos on {forward['cos']}, its backward on {of_cos}",
    )


@judging(graphs)
def accumulation_waits(seen: Seen) -> Result:
    """Before gradients of two streams are added, an event recorded on one is waited for."""
    names = [node["op"] for node in seen["backward"]]
    before = names[: names.index("add")] if "add" in names else []
    record, wait = "control_deps(record_event)", "control_deps(wait_event)"
    ok = record in before and wait in before and before.index(record) < before.index(wait)
    return verdict(
        ok, "record_event, wait_event, then the sum" if ok else f"before the sum: {', '.join(before)}"
    )


@judging(graphs)
def dependencies_pass_through(seen: Seen) -> Result:
    """What follows an event takes its values from the operators that stand for it, which return them unchanged."""
    product = [node["takes"] for node in seen["event"]["nodes"] if node["op"] == "mul"]
    names = [node["op"] for node in seen["event"]["nodes"]]
    through = [n for n in names if n.startswith("control_deps")]
    origins = seen["event"]["origins"]
    takes = product[0] if product else []
    ok = bool(through) and set(takes) == {"getitem"} and origins == ["sin", "cos"]
    said = f"{', '.join(through) or 'no control_deps'}; the product takes {', '.join(takes) or 'nothing'}"
    return verdict(ok, f"{said}, which is {', '.join(o or 'something else' for o in origins) or 'nothing'}")


@judging(graphs)
def early_record_is_an_error(seen: Seen) -> Result:
    """Recording an event after an input was changed in place is an error when compiling."""
    said = seen["mutates_and_records"]["error"]
    return verdict("event was recorded" in said, said or "no error")


@judging(graphs)
def mutation_alone_is_allowed(seen: Seen) -> Result:
    """Changing an input in place without an event compiles, with the write-back at the end."""
    row = seen["mutates"]
    last = row["nodes"][-1]["op"] if row["nodes"] else ""
    return verdict(
        not row["error"] and last == "copy_", row["error"] or f"it compiles; the last operator is {last}"
    )


@judging(graphs)
def synchronize_is_kept(seen: Seen) -> Result:
    """A synchronize before a del stays in the graph, before what is allocated after it."""
    names = [node["op"] for node in seen["frees"]["nodes"]]
    kept = "control_deps(synchronize_stream)"
    ok = kept in names and "add" in names and names.index(kept) < names.index("add")
    return verdict(ok, ", ".join(names) or seen["frees"]["error"])


@judging(graphs)
def crossing_records_an_event(seen: Seen) -> Result:
    """A tensor that another stream has used is freed behind an event recorded there."""
    names = [node["op"] for node in seen["backward"]]
    ok = "sync_dealloc" in names and "control_deps(record_event)" in names[: names.index("sync_dealloc")]
    return verdict(
        ok,
        "record_event, then sync_dealloc" if ok else f"no sync_dealloc behind an event: {', '.join(names)}",
    )


@judging(graphs)
def stream_code_compiles_as_it_is(seen: Seen) -> Result:
    """Functions with streams and events compile in one graph, in a released torch as in the nightly builds."""
    failed = [
        f"{name}: {seen[name]['error']}" for name in ("event", "mutates", "frees") if seen[name]["error"]
    ]
    marked = any(node["stream"] is not None for node in seen["forward"])
    return verdict(
        marked and not failed,
        "; ".join(failed)
        or f"torch {seen['torch']}: 4 functions in one graph each, {'' if marked else 'not '}marked",
    )
