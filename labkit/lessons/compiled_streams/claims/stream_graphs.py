"""The graphs that Dynamo and AOTAutograd make of streams and events, on a process that pretends to have streams.

Nothing about timing or memory can be told that way; which node stands on which stream, and what waits for what, can.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch.fx.node import map_aggregate

from labkit.lessons.shared.capture import Capture, first_line
from labkit.lessons.shared.outcomes import all_of
from labkit.ranks import Ranks
from labkit.study.checks import HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, quietly, verdict
from labkit.torch_compat import (
    control_deps,
    dynamo_reset,
    pretend_streams,
    stream_operators,
)

SYNC = ("record_event", "wait_event", "wait_stream", "sync_dealloc", "synchronize_stream")


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

    def records_aside(x, one):  # on a stream that has waited for the change
        x.mul_(2)
        one.wait_stream(torch.accelerator.current_stream())
        with one:
            done = torch.Event()
            done.record()
        return x + 1

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

    def crosses(x, one):  # the slides' program without its synchronize
        t = x.sin()
        with one:
            y = t.cos()
        del t
        return y, x + 3

    def waits(x, one):
        one.wait_stream(torch.accelerator.current_stream())
        with one:
            y = x.sin()
        torch.accelerator.current_stream().wait_stream(one)
        return y + 1

    def nested(x, one, two):
        with one:
            a = x.sin()
            with two:
                b = x.cos()
            c = x.tan()
        return a, b, c, x.exp()

    def attempt(program: Any) -> Seen:
        dynamo_reset()
        seen, count = Capture(aot=True), program.__code__.co_argcount
        try:
            sides = [stream(number) for number in range(1, count)]
            found = torch.compile(program, backend=seen, fullgraph=True)(torch.ones(4), *sides)
        except Exception as error:
            # what a backend raised stands below its name
            inner = str(error).partition("raised:")[2].strip().partition("\n")[0]
            said = inner or first_line(error)
            return {
                "error": said,
                "made": len(seen.dynamo),
                "nodes": [],
                "same": False,
            }
        # in eager, with what a stream and an event do left out
        with mock.patch.object(torch, "Event"), mock.patch.object(torch.accelerator, "current_stream"):
            expected = program(torch.ones(4), *(mock.MagicMock() for _ in range(1, count)))
        values: tuple[list[Any], list[Any]] = ([], [])
        for leaves, results in zip(values, (found, expected), strict=True):
            map_aggregate(results, leaves.append)
        same = all(torch.allclose(one, other) for one, other in zip(*values, strict=True))
        graph = seen.forward[0]
        told: Seen = {"error": "", "made": len(seen.dynamo), "nodes": _nodes(graph), "same": same}
        told["returned"] = [_operation(_maker(n, graph)) for n in graph.graph.output_node().all_input_nodes]
        return told

    x, y = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    seen = Capture(aot=True)
    run = torch.compile(two_streams, backend=seen, fullgraph=True)
    one, two, *others = map(stream, sides := range(11, 15))  # no number is an index
    loss = run(x, y, one, two).sum()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss.backward()
    found: Seen = {
        "dynamo": _nodes(seen.dynamo[0]),
        "forward": _nodes(seen.forward[0]),
        "backward": _nodes(seen.backward[0]),
        "ran": {e.key: e.count for e in profile.key_averages() if e.key.startswith("streams::")},
    }
    found["streams_looked_up"] = [_looked_up(seen.dynamo[0])]
    run(x, y, *others)
    found["streams_looked_up"].append(_looked_up(seen.dynamo[0]))
    graphs = seen.dynamo + seen.forward
    every = [node for graph in graphs for node in graph.graph.nodes]
    held = [value for graph in graphs for module in graph.modules() for value in vars(module).values()]
    given: list[Any] = []
    map_aggregate([(node.args, node.kwargs) for node in every], given.append)
    return {
        **found,
        "torch": torch.__version__,
        "schemas": stream_operators(),
        "graphs_after_other_streams": len(seen.dynamo),
        "meta_keys": sorted({key for node in every for key in node.meta if "stream" in key}),
        "without_stream_idx": sum("stream_idx" not in node.meta for node in every),
        "stream_constants": sum(
            a in sides if type(a) is int else isinstance(a, torch.Stream) for a in given + held
        ),
        **{
            f.__name__: attempt(f)
            for f in (event, mutates_and_records, records_aside, mutates, frees, crosses, waits, nested)
        },
    }


def _looked_up(graph: Any) -> list[int]:
    """The numbers of the streams that a graph's own lookups by an index give now."""
    lookups = [node for node in graph.graph.nodes if "by_index" in _operation(node)]
    return [value.stream_id for n in lookups if isinstance(value := n.target(*n.args), torch.Stream)]


def _nodes(graph: Any) -> list[Seen]:
    """Every node: its operation, its stream, what it takes and from where, and a stream operator's numbers.

    control_deps stands there by what it controls. `made` are the positions of what is taken.
    """
    found: list[Seen] = []
    at: dict[Any, int] = {}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        given = node.all_input_nodes
        row: Seen = {"op": _operation(node), "stream": _stream(node), "takes": [_operation(a) for a in given]}
        row["from"] = [_stream(a) for a in given if a.op == "call_function"]
        row["made"] = [at.get(_maker(a, graph), -1) for a in given if a.op == "call_function"]
        at[node] = len(found)
        found.append(row | {"args": _numbers(node, graph)})
    return found


def _stream(node: Any) -> int | None:
    return (node.meta.get("custom") or {}).get("stream")


def _numbers(node: Any, graph: Any) -> list[int]:
    """The indices that a stream operator is given, of an event or a stream."""
    if node.target is control_deps():
        inner = getattr(graph, node.args[1].target).graph.nodes
        node = next((n for n in inner if n.op == "call_function"), node)
    return [a for a in node.args if isinstance(a, int)] if _word(node) in SYNC else []


def _word(node: Any) -> str:
    return _operation(node).removeprefix("control_deps(").removesuffix(")")


def _operation(node: Any) -> str:
    if node is None:
        return ""
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    if name == "control_deps":
        # the controlled operator is a subgraph, whose name holds the operator's
        inner = next((str(a.target) for a in node.args if getattr(a, "op", "") == "get_attr"), "")
        return f"{name}({inner.removeprefix('subgraph_').partition('_default')[0].rstrip('_0123456789')})"
    return name


def _handed(held: Any, module: Any) -> dict[int, Any]:
    """The values that a control_deps operator returns as they are, by their place in what it returns."""
    inner = list(getattr(module, held.args[1].target).graph.nodes)
    given = dict(zip((n for n in inner if n.op == "placeholder"), held.args[2:], strict=True))
    return {i: given[n] for i, n in enumerate(inner[-1].args[0]) if n in given} if given else {}


def _maker(node: Any, module: Any) -> Any:
    """The node that made a value which control_deps operators hand through; None where one of them changes it."""
    while _operation(node) == "getitem" and node.args[0].target is control_deps():
        node = _handed(node.args[0], module).get(node.args[1])
    return node


def _on(nodes: list[Seen], op: str) -> list[Any]:
    return [node["stream"] for node in nodes if node["op"] == op]


@judging(graphs)
def contexts_mark_their_nodes(seen: Seen) -> Result:
    """Each operator carries the stream of its context; behind a context inside another it is the outer one again."""
    sin, cos, mul = (_on(seen["forward"], op) for op in ("sin", "cos", "mul"))
    apart = len(sin) == len(cos) == 1 and None not in (sin[0], cos[0]) and sin != cos
    outer, inner, behind, outside = (_on(seen["nested"]["nodes"], op) for op in ("sin", "cos", "tan", "exp"))
    stacked = outer == behind != inner and outside == [None] and None not in outer + inner
    said = (
        f"sin on {sin}, cos on {cos}, their products on {mul}; nested: {outer}, {inner}, {behind}, {outside}"
    )
    return verdict(apart and mul == [*sin, *cos] and stacked, said)


@judging(graphs)
def outside_is_default(seen: Seen) -> Result:
    """Work after the contexts is on the default stream again."""
    add = _on(seen["forward"], "add")
    return verdict(add == [None] and _on(seen["forward"], "sin") != [None], f"the sum after both is on {add}")


@judging(graphs)
def no_stream_is_a_constant(seen: Seen) -> Result:
    """Graphs that fetch two streams by an index hold no stream, as an object or a number: others run the same graph."""
    fetched = sum("by_index" in node["op"] for node in seen["dynamo"])
    said = f"{seen['stream_constants']} stream objects in the graphs, {fetched} fetched by an index"
    held = verdict(fetched >= 2, said)
    return all_of(held, other_streams_run_the_same_graph(seen))


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
    """Operators carry a stream in Dynamo's own graph, which has beside them nothing but lookups by an index."""
    names = {node["op"] for node in seen["dynamo"] + seen["forward"]}
    found = sorted(name for name in names - {"sin", "cos", "mul", "add"} if "by_index" not in name)
    marked = sum(node["stream"] is not None for node in seen["dynamo"])
    said = f"{', '.join(found) or 'nothing else'} among {', '.join(sorted(names))}"
    return verdict(marked > 0 and not found, f"{said}; Dynamo's graph marks {marked} of them")


@judging(graphs)
def other_streams_run_the_same_graph(seen: Seen) -> Result:
    """Called with other streams, the function runs the graph that it has, whose lookups give the other streams."""
    count, (first, second) = seen["graphs_after_other_streams"], seen["streams_looked_up"]
    said = f"{count} graph after a second pair of streams; it looks up streams {first}, then {second}"
    others = len(first) == len(second) == 2 and not {*first} & {*second}
    return verdict(count == 1 and others and not seen["stream_constants"], said)


@judging(graphs)
def meta_is_stream_idx(seen: Seen) -> Result:
    """The number of every node's stream stands in node.meta under "stream_idx"."""
    custom = any(node["stream"] is not None for node in seen["forward"])
    where = 'node.meta["custom"]["stream"]' if custom else "nowhere"
    said = ", ".join(seen["meta_keys"]) or f"it stands in {where}, and is absent for the default stream"
    return verdict("stream_idx" in seen["meta_keys"] and not seen["without_stream_idx"], said)


@judging(graphs)
def backward_keeps_the_stream(seen: Seen) -> Result:
    """The backward of an operator is on its stream: cos for sin, the negated sin for cos, and three products each."""
    forward = {op: _on(seen["forward"], op) for op in ("sin", "cos")}
    of_sin, of_cos = _on(seen["backward"], "cos"), _on(seen["backward"], "neg")
    products = _on(seen["backward"], "mul")
    return verdict(
        of_sin == forward["sin"] != [None]
        and of_cos == forward["cos"] != [None]
        and all(products.count(stream) == len(products) / 2 > 0 for stream in of_sin + of_cos),
        f"sin on {forward['sin']}, its backward on {of_sin}; cos on {forward['cos']}, its backward on {of_cos}; "
        f"products on {products}",
    )


def _calls(nodes: list[Seen], word: str) -> list[tuple[int, list[int]]]:
    """(position, numbers) of each stream operator of a name, with control_deps around it and without."""
    return [(i, n["args"]) for i, n in enumerate(nodes) if n["op"] in (word, f"control_deps({word})")]


@judging(graphs)
def accumulation_waits(seen: Seen) -> Result:
    """Before each sum its stream waits for an event, recorded behind the other gradient, on that one's stream."""
    nodes, said, good = seen["backward"], [], True
    records, waits = _calls(nodes, "record_event"), _calls(nodes, "wait_event")
    for at, node in ((i, node) for i, node in enumerate(nodes) if node["op"] == "add"):
        gradients = zip(node["from"], node["made"], strict=True)
        for other, made in ((stream, made) for stream, made in gradients if stream != node["stream"]):
            pairs = [(r, w) for r, on in records for w, to in waits if on[1:] == [other] and to[0] == on[0]]
            ok = any(made < r < w < at for r, w in pairs if nodes[w]["args"][1] == node["stream"])
            said.append(
                f"{'an event' if ok else 'no event'} of stream {other} before the sum on {node['stream']}"
            )
            good = good and ok
    return verdict(bool(said) and good, "; ".join(said) or "no sum of gradients of two streams")


@judging(graphs)
def early_record_is_an_error(seen: Seen) -> Result:
    """An event behind an input's change is an error before a graph is made of it; without the change, none."""
    said, plain = seen["mutates_and_records"]["error"], seen["event"]["error"]
    late = plain or seen["mutates_and_records"]["made"]
    return verdict("event was recorded" in said and not late, said or plain or "no error")


@judging(graphs)
def a_dependent_record_is_an_error(seen: Seen) -> Result:
    """Recording an event on another stream, which has waited for the change of an input, is an error as well."""
    row, same = seen["records_aside"], early_record_is_an_error(seen)
    names = ", ".join(node["op"] for node in row["nodes"])
    said = f"on another stream: {row['error'] or f'no error, {names}'}; on the stream of the change: {same.measured}"
    return verdict("event was recorded" in row["error"] and same.status == HOLDS, said)


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
    """A synchronize stays between the work before it and what is allocated next; what is deleted lives until then."""
    nodes, error = seen["frees"]["nodes"], seen["frees"]["error"]
    names = [node["op"] for node in nodes]
    if "synchroniz" in error:
        return cannot_tell("torch 2.12, the first that compiles a synchronize", error)
    kept = next((i for i, name in enumerate(names) if "synchronize_stream" in name), -1)
    last = max((i for i, node in enumerate(nodes) if "sin" in node["takes"]), default=-1)
    ok = {"cos", "add"} <= {*names} and names.index("cos") < kept < names.index("add") and last == kept
    gone = "sin" not in seen["frees"]["returned"]
    said = f"the deleted tensor's last use: {names[last] if last >= 0 else 'none'}"
    said += "" if gone else ", and it is returned"
    return verdict(ok and gone, f"{', '.join(names)}; {said}" if names else error)


def _deallocations(seen: Seen) -> list[tuple[int, int | None]]:
    """(the stream that waits, the stream on which its event was recorded before) of each sync_dealloc."""
    nodes = seen["backward"]
    records = _calls(nodes, "record_event")
    return [
        (owner, next((on[1] for i, on in records if i < at and on[0] == event), None))
        for at, (event, owner) in _calls(nodes, "sync_dealloc")
    ]


def _in_forward_and_backward(seen: Seen, word: str, pairs: list[str], good: bool) -> Result:
    there, error = _calls(seen["crosses"]["nodes"], word), seen["crosses"]["error"]
    names = ", ".join(node["op"] for node in seen["crosses"]["nodes"])
    said = f"the slides' function: {word if there else f'no {word}'} in {names or error}; "
    return verdict(bool(there) and good, f"{said}a backward pass: {'; '.join(pairs) or 'no sync_dealloc'}")


@judging(graphs)
def crossing_records_an_event(seen: Seen) -> Result:
    """Where a tensor is used on another stream an event is recorded there, in the forward and in the backward."""
    found = _deallocations(seen)
    pairs = [f"recorded on {on} for a tensor of {owner}" for owner, on in found]
    good = bool(found) and all(on not in (None, owner) for owner, on in found)
    return _in_forward_and_backward(seen, "record_event", pairs, good)


@judging(graphs)
def the_host_goes_on(seen: Seen) -> Result:
    """What a sync_dealloc runs is a wait of a stream, by torch's profiler; nothing that runs stops the host."""
    ran, waits = seen["ran"], len(_calls(seen["backward"], "wait_event"))
    stops = sorted(name for name in ran if "synchronize" in name)
    freed, waited = (ran.get(f"streams::{word}", 0) for word in ("sync_dealloc", "wait_event"))
    said = f"{freed} sync_dealloc and {waits} wait_event in the graph ran {waited} wait_event"
    return verdict(
        freed > 0 and waited == freed + waits and not stops, f"{said}, {', '.join(stops) or 'no synchronize'}"
    )


FUNCTIONS = ("event", "mutates", "frees", "crosses", "waits", "nested")


def _compiles(seen: Seen) -> tuple[bool, str]:
    failed = [f"{name}: {seen[name]['error']}" for name in FUNCTIONS if seen[name]["error"]]
    marked = any(node["stream"] is not None for node in seen["forward"])
    said = f"{len(FUNCTIONS) + 1} functions in one graph each, {'' if marked else 'not '}marked"
    return marked and not failed, f"torch {seen['torch']}: {'; '.join(failed) or said}"


@judging(graphs)
def beta_since(seen: Seen) -> Result:
    """Stream code compiles exactly if this torch is the claimed release or a later one."""
    claimed, here = (
        tuple(int(part) for part in text.split("+")[0].split(".")[:2])
        for text in (seen["claimed"], seen["torch"])
    )
    ok, said = _compiles(seen)
    return verdict(ok == (here >= claimed), said)


def _in_a_graph(seen: Seen, name: str, *arguments: str) -> Result:
    """The operator takes these indices, in this order, and stands in a graph with so many numbers."""
    schema, known = seen["schemas"].get(name, ""), ", ".join(sorted(seen["schemas"])) or "no stream operator"
    given = [part.split() for part in schema.partition("(")[2].partition(")")[0].split(",") if part.strip()]
    fits = len(given) == len(arguments) and all(
        kind in ("int", "SymInt") and a in word for a, (kind, word) in zip(arguments, given, strict=True)
    )
    graphs = (*(seen[f]["nodes"] for f in FUNCTIONS), seen["backward"])
    found = [numbers for nodes in graphs for _, numbers in _calls(nodes, name)]
    fits = fits and all(len(numbers) == len(arguments) for numbers in found)
    said = f"{schema or f'no {name}; there are {known}'}; {len(found)} in the graphs"
    return verdict(fits and bool(found), said)


@judging(graphs)
def record_event(seen: Seen) -> Result:
    """Graphs have an operator record_event of an event's and a stream's index."""
    return _in_a_graph(seen, "record_event", "event", "stream")


@judging(graphs)
def wait_event(seen: Seen) -> Result:
    """Graphs have an operator wait_event of an event's and a stream's index."""
    return _in_a_graph(seen, "wait_event", "event", "stream")


@judging(graphs)
def wait_stream(seen: Seen) -> Result:
    """Graphs have an operator wait_stream of the indices of a stream that waits and of one that is waited for."""
    return _in_a_graph(seen, "wait_stream", "wait", "stream")


@judging(graphs)
def get_user_obj_by_index(seen: Seen) -> Result:
    """Graphs have an operator get_user_obj_by_index."""
    return _in_a_graph(seen, "get_user_obj_by_index", "")
