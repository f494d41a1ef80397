"""What torch.compile makes of streams and events: its graphs, on a process that pretends to have an accelerator."""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch._dynamo.variables import streams as dynamo_streams  # noqa: F401  it registers torch.ops.streams
from torch._inductor.fx_passes.control_dependencies import control_deps

from labkit.ranks import Ranks
from labkit.ranks.output import quietly
from labkit.torch_compat import pretend_streams, stream_names
from ledger.bench import Bench
from ledger.graphs import Graphs, calls
from ledger.trial import Seen, judge, part

# --- programs: tensors, then streams ---


def two_streams(x, y, one, two):
    with one:
        a = torch.sin(x) * y
    with two:
        b = torch.cos(x) * y
    return a + b


def no_streams(x, y, one, two):
    a = torch.sin(x) * y
    b = torch.cos(x) * y
    return a + b


def nested(x, one, two):
    with one:
        a = x.sin()
        with two:
            b = x.cos()
        c = x.tan()
    return a, b, c, x.exp()


def not_nested(x, one, two):
    a = x.sin()
    with two:
        b = x.cos()
    return a, b, x.tan(), x.exp()


def without_gradients(x, one, two):
    a = x.sin()
    with torch.no_grad():
        b = x.cos()
    return a, b, x.tan(), x.exp()


def one_waiter(x, one, two):
    a, b = torch.sin(x), torch.cos(x)
    done = torch.Event()
    done.record()
    with one:
        done.wait()
        return a.tanh() * b


def two_waiters(x, one, two):
    a = x.sin() + 1
    done = torch.Event()
    done.record()
    with one:
        done.wait()
        b = a.cos() * 2
    with two:
        done.wait()
        c = a.tanh() - 3
    here = torch.accelerator.current_stream()
    here.wait_stream(one)
    here.wait_stream(two)
    return b + c


def two_waiters_of_products(x, one, two):
    a = x.reshape(2, 2) @ x.reshape(2, 2)
    done = torch.Event()
    done.record()
    with two:
        done.wait()
        c = a.tanh()
    with one:
        done.wait()
        b = a.cos() @ a
    here = torch.accelerator.current_stream()
    here.wait_stream(one)
    here.wait_stream(two)
    return b - c


def one_does_not_wait(x, one, two):
    a = x.sin() + 1
    done = torch.Event()
    done.record()
    with one:
        done.wait()
        b = a.cos() * 2
    with two:
        c = a.tanh() - 3
    here = torch.accelerator.current_stream()
    here.wait_stream(one)
    here.wait_stream(two)
    return b + c


def waiter_forgets(x, one, two):
    a, b = torch.sin(x), torch.cos(x)
    done = torch.Event()
    done.record()
    with one:
        return a.tanh() * b


def prints(x, one, two):
    with one:
        a = x.sin()
    print(end="")
    return a


def changes(x, one, two):
    x.mul_(2)
    with one:
        return x + 1


def changes_and_records(x, one, two):
    x.mul_(2)
    done = torch.Event()
    done.record()
    with one:
        done.wait()
        return x + 1


def records_aside(x, one, two):  # on a stream that has waited for the change
    x.mul_(2)
    one.wait_stream(torch.accelerator.current_stream())
    with one:
        done = torch.Event()
        done.record()
    return x + 1


def records_before(x, one, two):
    one.wait_stream(torch.accelerator.current_stream())
    with one:
        done = torch.Event()
        done.record()
    y = x * 2
    return y + 1


def synchronizes(x, one, two):
    t = x.sin()
    with one:
        y = t.cos()
    one.synchronize()
    del t
    return y, x + 3


def crosses(x, one, two):
    t = x.sin()
    with one:
        y = t.cos()
    del t
    return y, x + 3


def hands_over(x, one, two):
    one.wait_stream(torch.accelerator.current_stream())
    with one:
        y = x.sin()
    torch.accelerator.current_stream().wait_stream(one)
    return y + 1


def used_on_both(x, y, of_x, of_y, one, two):
    here = torch.accelerator.current_stream()
    with of_x:
        p = torch.tanh(x)
    with of_y:
        q = torch.sin(y)
    here.wait_stream(one)
    here.wait_stream(two)
    z = p + q
    with one:
        a = torch.exp(z)
    with two:
        b = torch.cos(z)
    return a, b


def both(x, y, one, two):
    return used_on_both(x, y, one, two, one, two)


def both_the_other_way(x, y, one, two):  # so that the first user of the sum stands on the other stream
    return used_on_both(x, y, two, one, one, two)


def on_one_stream(x, y, one, two):
    return used_on_both(x, y, one, one, one, one)


FORWARD = (nested, not_nested, without_gradients, one_waiter, two_waiters, two_waiters_of_products)
FORWARD += (one_does_not_wait, waiter_forgets, prints, changes, changes_and_records, records_aside)
FORWARD += (records_before, synchronizes, crosses, hands_over)
TRAINED = (two_streams, no_streams, both, both_the_other_way, on_one_stream)


# --- in a child process, which is thrown away: the pretence cannot be taken back ---


def in_a_child(look, *arguments):
    with Ranks(1, "cpu", "gloo", timeout=90, quiet=True) as child:
        return child.run(quietly, look, *arguments)[0]


@functools.cache
def everything() -> dict[str, Seen]:
    return in_a_child(_everything)


def _everything() -> dict[str, Seen]:
    stream = pretend_streams()
    found = {program.__name__: _graphs_of(program, stream, 1) for program in FORWARD}
    found |= {program.__name__: _graphs_of(program, stream, 2) for program in TRAINED}
    for name, size in (("other streams", 4), ("other streams and shape", 8)):
        backend = Graphs(aot=True)
        run = torch.compile(hands_over, backend=backend, fullgraph=True, dynamic=False)
        looked = []
        for first, length in ((11, 4), (13, size)):
            sides = [stream(first), stream(first + 1)]
            run(torch.ones(length), *sides)
            lookups = [node for node in backend.dynamo[-1].graph.nodes if "by_index" in _word(node)]
            looked.append(
                [int(o.stream_id) for n in lookups if isinstance(o := n.target(*n.args), torch.Stream)]
            )
        found[name] = {
            "graphs": len(backend.dynamo),
            "looked_up": [[i for i in ids if i] for ids in looked],
            "by": sorted({_word(n) for n in backend.dynamo[0].graph.nodes if "by_index" in _word(n)}),
            "objects": sum(
                isinstance(a, torch.Stream) for n in backend.dynamo[0].graph.nodes for a in n.args
            ),
        }
    return found


def _graphs_of(program, stream, tensors: int) -> Seen:
    given = [torch.rand(4).requires_grad_(tensors == 2) for _ in range(tensors)]
    sides, backend, ran = [stream(1), stream(2)], Graphs(aot=True), {}
    error, stage = "", "forward"
    try:
        result = torch.compile(program, backend=backend, fullgraph=True)(*given, *sides)
        stage = "backward"
        if tensors == 2:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                sum(y.sum() for y in (result if isinstance(result, tuple) else (result,))).backward()
            ran = {e.key: e.count for e in profile.key_averages() if e.key.startswith("streams::")}
    except Exception as raised:
        lines = [line.strip() for line in str(raised).splitlines() if line.strip()]
        if len(lines) > 1 and lines[0].endswith("raised:"):
            del lines[0]
        error = f"{stage}: {lines[0] if lines else type(raised).__name__}"[:200]
    known = stream_names()
    name = lambda index: f"s{known.get(index, 0)}" if index is not None and known.get(index) else "default"  # noqa: E731
    return {
        "error": error,
        "graphs": len(backend.dynamo),
        "dynamo": calls(backend.dynamo[0]) if backend.dynamo else [],
        "forward": _rows(backend.forward[0], name) if backend.forward else [],
        "backward": _rows(backend.backward[0], name) if backend.backward else [],
        "ran": ran,
        "meta": sorted({k for g in backend.forward for n in g.graph.nodes for k in n.meta if "stream" in k}),
    }


def _word(node: Any) -> str:
    return getattr(node.target, "__name__", str(node.target)).removesuffix(".default").split(".")[0]


def _rows(module, name) -> list[Seen]:
    """Each call: its operator (control_deps by what it holds), stream, arguments, and what it depends on."""
    rows, above, makes = [], {}, {}
    for node in module.graph.nodes:
        needs = [n for n in node.all_input_nodes]
        above[node] = {n.name for n in needs}.union(*(above[n] for n in needs))
        makes[node] = node.name
        if node.op == "output":
            rows.append({"op": "output", "takes": [makes[n] for n in needs], "name": "output", "stream": ""})
        if node.op != "call_function":
            continue
        held, op = node, _word(node)
        if node.target is control_deps:
            inner = list(getattr(module, node.args[1].target).graph.nodes)
            held = next((n for n in inner if n.op == "call_function"), node)
            op = _word(held)
        elif node.target is operator.getitem and node.args[0].target is control_deps:
            of, index = node.args
            inner = list(getattr(module, of.args[1].target).graph.nodes)
            given = dict(zip((n for n in inner if n.op == "placeholder"), of.args[2:], strict=True))
            passed = (
                given.get(inner[-1].args[0][index]) if isinstance(inner[-1].args[0], (tuple, list)) else None
            )
            makes[node] = makes[passed] if passed is not None else node.name
        sync = str(held.target).startswith("streams.")
        numbers = [a for a in held.args if isinstance(a, int)] if sync else []
        events = () if "stream" in op else numbers[:1]
        rows.append(
            {
                "name": node.name,
                "op": op,
                "sync": sync,
                "stream": name((node.meta.get("custom") or {}).get("stream")),
                "event": events[0] if events else None,
                "of": [name(i) for i in numbers[len(events) :]],
                "takes": [makes[n] for n in needs],
                "above": sorted(above[node]),
            }
        )
    waits = {row["name"] for row in rows if row.get("sync")}
    for row in rows:
        row["above"] = [name for name in row.get("above", ()) if name in waits]  # stream operators alone
    return rows


def seen(*names: str):
    """A probe of these programs: their records under 'it', and 'again' for a second one."""

    def probe(bench: Bench) -> Seen:
        return {key: everything()[name] for key, name in zip(("it", "again"), names, strict=False)}

    return probe


def ops(rows) -> list[str]:
    return [row["op"] for row in rows if row["op"] not in ("output", "getitem")]


def on(rows, op: str) -> list[str]:
    return [row["stream"] for row in rows if row["op"] == op]


def find(rows, op: str, *of: str):
    return next((r for r in rows if r["op"] == op and (not of or r["of"][: len(of)] == list(of))), None)


# --- what compiles ---


@judge(seen("two_waiters", "synchronizes"), seen("prints", "prints"))
def one_graph(found):
    it, again = found["it"], found["again"]
    yield part("events and wait_stream", not it["error"], it["error"] or "it compiles")
    yield part("synchronize", not again["error"], again["error"] or "it compiles")
    count = [it["graphs"], again["graphs"]]
    yield part("into one graph", count == [1, 1], f"{count[0]} and {count[1]} graphs")


@judge(seen("other streams"), seen("other streams and shape"))
def other_streams_same_graph(found):
    it = found["it"]
    yield part("runs the graph that it has", it["graphs"] == 1, f"{it['graphs']} graphs after a second call")
    yield part("get_external_object_by_index", it["by"] == ["get_external_object_by_index"], it["by"])
    fresh = it["looked_up"] == [[11], [13]] and not it["objects"]
    yield part("looks the new ones up", fresh, f"streams {it['looked_up']}, {it['objects']} constants")


# --- nodes ---


@judge(seen("one_waiter"), seen("waiter_forgets"))
def event_operators(found):
    record, wait = (find(found["it"]["forward"], op) for op in ("record_event", "wait_event"))
    made = found["it"]["error"] or ops(found["it"]["forward"])
    yield part("record_event", record and record["of"] == ["default"], made)
    ok = record and wait and wait["event"] == record["event"] and wait["of"] == ["s1"]
    yield part("wait_event", ok, made)


@judge(seen("hands_over"), seen("one_waiter"))
def wait_stream_operator(found):
    rows = found["it"]["forward"]
    waits = [row["of"] for row in rows if row["op"] == "wait_stream"]
    yield part(
        "wait_stream", waits == [["s1", "default"], ["default", "s1"]], found["it"]["error"] or ops(rows)
    )


@judge(seen("nested"), seen("not_nested"))
def stream_in_meta(found):
    at = {op: on(found["it"]["forward"], op) for op in ("sin", "cos", "tan", "exp")}
    inner = at["sin"] == at["tan"] == ["s1"] and at["cos"] == ["s2"]
    yield part("the innermost stream context", inner, found["it"]["error"] or at)
    yield part("outside of all", at["exp"] == ["default"], at)


@judge(seen("nested"), seen("without_gradients"))
def context_leaves_no_node(found):
    there = found["it"]["dynamo"]
    extra = [op for op in there if op not in ("sin", "cos", "tan", "exp", "get_external_object_by_index")]
    yield part("leaves no node", there and not extra, found["it"]["error"] or there)


# --- order ---


def depends(found, **streams):
    rows = found["it"]["forward"]
    for op, stream in streams.items():
        kernel, wait = find_on(rows, op, stream), find(rows, "wait_event", stream)
        yield op, bool(kernel and wait and wait["name"] in kernel["above"])


def find_on(rows, op, stream):
    return next((row for row in rows if row["op"] == op and row["stream"] == stream), None)


@judge(seen("one_waiter"), seen("waiter_forgets"))
def work_depends_on_its_wait(found):
    tied = dict(depends(found, tanh="s1"))
    rows = found["it"]["forward"]
    yield part("depends on the wait_event", all(tied.values()), f"{tied} in {ops(rows)}")


def two_programs(bench):
    one, other = (everything()[n] for n in ("two_waiters", "two_waiters_of_products"))
    return {"it": one, "again": other, "waits": [["cos", "s1"], ["tanh", "s2"]]}


def one_forgets(bench):
    return {**two_programs(bench), "it": everything()["one_does_not_wait"]}


@judge(two_programs, one_forgets)
def each_waiter_depends_on_its_own_wait(found):
    tied = [dict(depends({"it": found[key]}, **dict(found["waits"]))) for key in ("it", "again")]
    yield part("depends on its own stream's wait_event", all(v for one in tied for v in one.values()), tied)


# --- backward ---


@judge(seen("two_streams"), seen("no_streams"))
def backward_on_the_forward_stream(found):
    rows, error = found["it"]["backward"], found["it"]["error"]
    forward = {op: on(found["it"]["forward"], op) for op in ("sin", "cos")}
    apart = forward == {"sin": ["s1"], "cos": ["s2"]}
    # the derivative of sin is cos, that of cos is the negated sin; each branch has three products
    back = {"of sin": on(rows, "cos"), "of cos": on(rows, "neg"), "products": sorted(on(rows, "mul"))}
    same = back == {"of sin": ["s1"], "of cos": ["s2"], "products": ["s1"] * 3 + ["s2"] * 3}
    yield part("on the stream of that operator", apart and same, error or f"{forward}, backward {back}")


def sums(rows):
    """Each sum of gradients: its row, its position, and those of the kernels that it takes and that take it."""
    kernels = {r["name"]: (i, r) for i, r in enumerate(rows) if r["op"] != "output" and not r["sync"]}
    for at, row in enumerate(rows):
        if row["op"] == "add":
            takes = [kernels[name] for name in row["takes"] if name in kernels]
            users = [
                (i, r) for i, r in kernels.values() if row["name"] in r["takes"] and r["op"] != "getitem"
            ]
            yield at, row, takes, users


def synchronized(rows, first, last, of, to):
    """Whether between two positions an event is recorded on a stream, and another one waits for it after that."""
    between = rows[first:last]
    return any(
        r["op"] == "record_event" and r["of"] == [of] and w["op"] == "wait_event" and w["of"] == [to]
        for i, r in enumerate(between)
        for w in between[i:]
        if r.get("event") == w.get("event")
    )


@judge(seen("two_streams"), seen("no_streams"))
def sum_waits_for_the_other_gradient(found):
    rows, said = found["it"]["backward"], []
    for at, row, takes, _ in sums(rows):
        for i, other in takes:
            if other["stream"] != row["stream"]:
                ok = synchronized(rows, i, at, other["stream"], row["stream"])
                said.append(f"{row['stream']} {'waits' if ok else 'does not wait'} for {other['stream']}")
    good = len(said) == 2 and not any("not" in one for one in said)
    yield part("waits for an event recorded after the other gradient", good, found["it"]["error"] or said)


@judge(seen("both", "both_the_other_way"), seen("prints", "prints"))
def shared_sum_compiles(found):
    errors = [found[key]["error"] for key in ("it", "again")]
    made = all(found[key]["backward"] for key in ("it", "again"))
    yield part("compiles", made and not any(errors), errors[0] or errors[1] or "it compiles")


@judge(seen("both", "both_the_other_way"), seen("on_one_stream", "on_one_stream"))
def sum_on_its_first_user(found):
    errors = [found[key]["error"] for key in ("it", "again") if found[key]["error"]]
    read = [(row["stream"], [u["stream"] for _, u in users]) for key in ("it", "again")
            for _, row, _, users in sums(found[key]["backward"])]  # fmt: skip
    first = all(users and users[0] == stream for stream, users in read)
    apart = {stream for stream, _ in read} == {"s1", "s2"}
    yield part(
        "on the stream of the first operator that uses it", first and apart and not errors, errors or read
    )


@judge(seen("both", "both_the_other_way"), seen("on_one_stream", "on_one_stream"))
def second_user_waits_for_the_sum(found):
    errors, said = [found[key]["error"] for key in ("it", "again") if found[key]["error"]], []
    for rows in (found[key]["backward"] for key in ("it", "again")):
        for at, row, _, users in sums(rows):
            for use, user in users:
                if user["stream"] != row["stream"]:
                    ok = synchronized(rows, at, use, row["stream"], user["stream"])
                    said.append(f"{user['stream']} {'waits' if ok else 'does not wait'} for {row['stream']}")
    good = len(said) == 2 and not any("not" in one for one in said)
    yield part("waits for an event recorded after the sum", good and not errors, errors or said)


# --- inputs that are changed, and memory ---


@judge(seen("changes_and_records", "changes"), seen("records_before", "changes"))
def record_after_a_change_is_an_error(found):
    error, alone = found["it"]["error"], found["again"]["error"]
    yield part("is a compile error", "event was recorded" in error, error or ops(found["it"]["forward"]))
    yield part("the change alone compiles", not alone, alone or ops(found["again"]["forward"]))


@judge(seen("records_aside"), seen("records_before"))
def written_after_the_record(found):
    rows, error = found["it"]["forward"], found["it"]["error"]
    names = [row["op"] for row in rows]
    recorded = names.index("record_event") if "record_event" in names else -1
    yield part("compiles", not error and recorded >= 0, error or ops(rows))
    changed = find(rows, "mul")
    late = changed and changed["name"] in rows[-1]["takes"] and "copy_" not in names[:recorded]
    yield part("after the event", late, f"returned: {rows[-1]['takes'] if rows else ''}, graph: {ops(rows)}")


@judge(seen("synchronizes"), seen("crosses"))
def synchronize_stays(found):
    rows, error = found["it"]["forward"], found["it"]["error"]
    names = ops(rows)
    ok = "synchronize_stream" in names and names.index("cos") < names.index(
        "synchronize_stream"
    ) < names.index("add")
    yield part("after the work before it and before the work after it", ok, error or names)


@judge(seen("two_streams"), seen("no_streams"))
def freed_after_the_other_stream(found):
    rows, ran, said = found["it"]["backward"], found["it"]["ran"], []
    owners = {row["name"]: row["stream"] for row in rows}
    for at, row in enumerate(rows):
        if row["op"] == "sync_dealloc":
            event = next(
                (r for r in rows[:at] if r["op"] == "record_event" and r["event"] == row["event"]), None
            )
            owner = [owners[name] for name in row["takes"] if name in owners][:1]
            said.append([row["of"], owner, event["of"] if event else []])
    good = all(waits == owner and other and other != owner for waits, owner, other in said)
    yield part("its own stream waits for an event of the other", said and good, found["it"]["error"] or said)
    stops = [name for name in ran if "synchronize" in name]
    waits = ran.get("streams::wait_event", 0) - sum(row["op"] == "wait_event" for row in rows)
    yield part("the host does not", not stops and waits == len(said) > 0, ran)


@judge(seen("crosses"), seen("one_waiter"))
def forward_guards_no_memory(found):
    names, error = ops(found["it"]["forward"]), found["it"]["error"]
    yield part("no event", names and not any("event" in n or "dealloc" in n for n in names), error or names)
