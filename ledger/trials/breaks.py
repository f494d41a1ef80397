"""Graph breaks: what cuts a graph, what Dynamo gives up, what can be compiled by itself, and what a break costs."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._dynamo.utils import clear_compilation_metrics, get_compilation_metrics

from labkit.ranks.output import quiet_stderr
from labkit.timing import Times, interleave
from ledger.bench import Bench
from ledger.graphs import Graphs, calls, first_line
from ledger.trial import CannotTell, Seen, judge, part

LOGGER = logging.getLogger("ledger.quiet")


def alone(bench: Bench, function: Callable[..., Seen], *arguments: Any) -> Seen:
    return bench.run(function, *arguments, ranks=1)[0]


def compiled(program: Callable[..., Any], x: torch.Tensor, times: int = 1, **options: Any) -> Seen:
    """What Dynamo makes of a program: its graphs, how many run in the last call, and whether each result is eager's."""
    backend = Graphs()
    run, same = torch.compile(program, backend=backend, **options), True
    with torch.no_grad():
        expected = program(x.clone())
        run(x.clone())
        for _ in range(times):
            backend.ran = 0
            same = same and torch.allclose(run(x.clone()), expected)
    graphs = [calls(graph) for graph in backend.dynamo]
    return {"graphs": len(graphs), "ran": backend.ran, "same": same, "calls": graphs}


def same(seen: Seen) -> str:
    return "equal to eager's" if seen["same"] else "not equal to eager's"


# a collective that is hidden from Dynamo


@torch.compiler.disable
def hidden(x):
    dist.all_reduce(x)
    return x


def in_graph(x):
    return funcol.all_reduce(x, "sum", dist.group.WORLD)


def around(collective) -> Seen:
    # the calls stand in a row: with a break in a loop Dynamo would give the function up
    def one(x):
        return collective(x * 0.5) + 1

    def four(x):
        x = collective(x * 0.5)
        x = collective(x * 0.5)
        x = collective(x * 0.5)
        return collective(x * 0.5) + 1

    found = {"1": compiled(one, torch.ones(8)), "4": compiled(four, torch.ones(8))}
    return {
        "ran": {n: seen["ran"] for n, seen in found.items()},
        "same": all(seen["same"] for seen in found.values()),
    }


def disabled(bench: Bench) -> Seen:
    return bench.run(around, hidden)[0]


def functional(bench: Bench) -> Seen:
    return bench.run(around, in_graph)[0]


@judge(disabled, counter=functional)
def disabled_collective(seen):
    said = ", ".join(f"{ran} graphs for {n}" for n, ran in seen["ran"].items())
    yield part("n + 1 graphs", all(ran == int(n) + 1 for n, ran in seen["ran"].items()), said)
    yield part("result is eager's", seen["same"], same(seen))


# blocks whose features are split over the ranks


class Split(nn.Module):
    """RMSNorm and a product, both over features that are split over the ranks; `reduce` adds up the norm's squares."""

    def __init__(self, width: int, reduce: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.width, self.reduce = width, reduce
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        mine = self.weight.chunk(dist.get_world_size())[dist.get_rank()]
        squares = self.reduce((x * x).sum(-1, keepdim=True))
        x = x * torch.rsqrt(squares / self.width + 1e-6)
        return funcol.reduce_scatter_tensor(x @ mine, "sum", 1, dist.group.WORLD)

    def whole(self, x):
        return nn.functional.rms_norm(x, (self.width,), eps=1e-6) @ self.weight


def split_blocks(reduce, count: int = 3, width: int = 8) -> Seen:
    torch.manual_seed(0)
    blocks, full = nn.ModuleList(Split(width, reduce) for _ in range(count)), torch.randn(4, width)

    def forward(x):
        for block in blocks:
            x = block(x)
        return funcol.all_gather_tensor(x.t().contiguous(), 0, dist.group.WORLD).t()

    mine = full.chunk(dist.get_world_size(), 1)[dist.get_rank()].contiguous()
    backend = Graphs()
    with torch.no_grad():
        found = torch.compile(forward, backend=backend)(mine)
        for block in blocks:
            full = block.whole(full)
    made = sum((calls(graph) for graph in backend.dynamo), [])
    names = ("all_reduce", "reduce_scatter", "all_gather")
    return {
        "graphs": len(backend.dynamo),
        "collectives": {name: sum(name in call for call in made) for name in names},
        "expected": {"all_reduce": count, "reduce_scatter": count, "all_gather": 1},
        "right": torch.allclose(found, full, atol=1e-5),
    }


def split_functional(bench: Bench) -> Seen:
    return bench.run(split_blocks, in_graph)[0]


def split_hidden(bench: Bench) -> Seen:
    return bench.run(split_blocks, hidden)[0]


@judge(split_functional, counter=split_hidden)
def functional_collectives(seen):
    said = ", ".join(f"{count} {name}" for name, count in seen["collectives"].items())
    yield part("is one graph", seen["graphs"] == 1, f"{seen['graphs']} graph(s)")
    yield part("all its collectives", seen["collectives"] == seen["expected"], said)
    yield part("what one process computes", seen["right"], "right" if seen["right"] else "wrong")


@torch.compiler.disable
def hidden_gather(x, dimension, group):
    return funcol.all_gather_tensor(x, dimension, group)


def gathers(gather) -> Seen:
    group, found = dist.group.WORLD, {}
    for dimension in (1, 2):
        seen = compiled(lambda x: gather(x * 2, dimension, group) + 1, torch.rand(2, 3, 4))  # noqa: B023
        found[str(dimension)] = [
            seen["graphs"],
            sum("all_gather" in call for g in seen["calls"] for call in g),
        ]
    return {"found": found}


def gathers_in_graph(bench: Bench) -> Seen:
    return bench.run(gathers, funcol.all_gather_tensor)[0]


def gathers_outside(bench: Bench) -> Seen:
    return bench.run(gathers, hidden_gather)[0]


@judge(gathers_in_graph, counter=gathers_outside)
def gather_along_another_dimension(seen):
    said = ", ".join(
        f"dimension {n}: {g} graph(s) with {a} all_gather" for n, (g, a) in seen["found"].items()
    )
    yield part("stays in the graph", all(one == [1, 1] for one in seen["found"].values()), said)


# a break below the compiled function


def innermost(x):
    return hidden(in_graph(x).sin()).cos()


def one_above(x):
    return innermost(in_graph(x) + 1) * 0.5


def two_above(x):
    return one_above(in_graph(x) * 3).tan()


def deep(nested: bool | None) -> Seen:
    change = {} if nested is None else {"nested_graph_breaks": nested}
    with torch._dynamo.config.patch(**change) if change else contextlib.nullcontext():
        found = [compiled(program, torch.ones(4)) for program in (innermost, one_above, two_above)]
    return {"ran": [one["ran"] for one in found], "same": all(one["same"] for one in found)}


def deep_by_default(bench: Bench) -> Seen:
    return bench.run(deep, None)[0]


def deep_with_nested(bench: Bench) -> Seen:
    return bench.run(deep, True)[0]


def deep_without_nested(bench: Bench) -> Seen:
    return bench.run(deep, False)[0]


@judge(deep_by_default, counter=deep_with_nested)
def break_in_a_callee(seen):
    said = ", ".join(f"{ran} graphs {depth} calls below" for depth, ran in enumerate(seen["ran"]))
    yield part("2(d + 1) graphs", seen["ran"] == [2, 4, 6], said)


@judge(deep_with_nested, counter=deep_without_nested)
def nested_graph_breaks(seen):
    said = ", ".join(f"{ran} graphs {depth} calls below" for depth, ran in enumerate(seen["ran"]))
    yield part("two graphs", seen["ran"] == [2, 2, 2], said)
    yield part("result is eager's", seen["same"], same(seen))


# loops


def nothing(x):
    return x


@torch.compiler.disable
def not_traced(x):
    return x


def for_loop(step):
    def program(x):
        y = x + 1
        for _ in range(3):
            y = step(y.sin())
        return y.cos()

    return program


def while_loop(step):
    def program(x):
        y, i = x + 1, 0
        while i < 3:
            y = step(y.sin())
            i += 1
        return y.cos()

    return program


def loops(step) -> Seen:
    found = {
        "for": compiled(for_loop(step), torch.ones(4)),
        "while": compiled(while_loop(step), torch.ones(4)),
    }
    return {name: seen["graphs"] for name, seen in found.items()} | {
        "same": all(seen["same"] for seen in found.values())
    }


def broken_loops(bench: Bench) -> Seen:
    return alone(bench, loops, not_traced)


def whole_loops(bench: Bench) -> Seen:
    return alone(bench, loops, nothing)


@judge(broken_loops, counter=whole_loops)
def break_in_a_loop(seen):
    none = seen["for"] == seen["while"] == 0
    yield part("no graph", none, f"graphs with for: {seen['for']}, with while: {seen['while']}")
    yield part("runs it in eager", none and seen["same"], same(seen))


class Block(nn.Module):
    def __init__(self, collective) -> None:
        super().__init__()
        self.linear, self.collective = nn.Linear(8, 8), collective

    def forward(self, x):
        return self.collective(self.linear(x)).relu() + x


class Stack(nn.Module):
    def __init__(self, count: int, collective) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(collective) for _ in range(count))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def stacks(collective) -> Seen:
    found = {str(n): compiled(Stack(n, collective), torch.ones(2, 8)) for n in (2, 5)}
    return {
        "ran": {n: seen["ran"] for n, seen in found.items()},
        "largest": max(len(graph) for seen in found.values() for graph in seen["calls"]),
    }


def broken_stacks(bench: Bench) -> Seen:
    return bench.run(stacks, hidden)[0]


def whole_stacks(bench: Bench) -> Seen:
    return bench.run(stacks, in_graph)[0]


@judge(broken_stacks, counter=whole_stacks)
def loop_over_blocks(seen):
    said = ", ".join(f"{ran} graphs for {n} blocks" for n, ran in seen["ran"].items())
    said += f", of at most {seen['largest']} operations"
    yield part("2n graphs", all(ran == 2 * int(n) for n, ran in seen["ran"].items()), said)


class OddBlock(Block):
    """Another class with the same code: a guard on the type tells it apart."""


class Flagged(Block):
    """An attribute decides, and is no function: a guard on it tells this module apart, where this frame is compiled."""

    def __init__(self, hides: bool) -> None:
        super().__init__(in_graph)
        self.hides = hides

    def forward(self, x):
        y = self.linear(x)
        return (hidden(y) if self.hides else self.collective(y)).relu() + x


class Above(nn.Module):
    """Calls a module of which an attribute decides: that guard stands in the callee's frame alone."""

    def __init__(self, hides: bool) -> None:
        super().__init__()
        self.inner = Flagged(hides)

    def forward(self, x):
        return self.inner(x.sin()).relu() + x


def ran(blocks: list[nn.Module]) -> int:
    """Graphs of the third forward of these blocks, one after the other."""
    stack = Stack(0, in_graph)
    stack.blocks.extend(blocks)
    return compiled(stack, torch.ones(2, 8), times=2)["ran"]


def one_hides(odd: type[Block], flagged: type[nn.Module]) -> Seen:
    found = {"none": (), "first": (0,), "middle": (2,), "last": (4,), "all": (0, 1, 2, 3, 4)}
    seen = {
        n: ran([odd(hidden) if i in at else Block(in_graph) for i in range(5)]) for n, at in found.items()
    }
    return seen | {"last, by a flag": ran([flagged(i == 4) for i in range(5)])}


def one_of_a_class(bench: Bench) -> Seen:
    return bench.run(one_hides, Block, Above)[0]


def one_of_its_own_class(bench: Bench) -> Seen:
    return bench.run(one_hides, OddBlock, Flagged)[0]


@judge(one_of_a_class, counter=one_of_its_own_class)
def one_breaks_all(seen):
    one = [seen[name] for name in ("first", "middle", "last")]
    said = ", ".join(f"{ran} graphs with {name} hidden" for name, ran in seen.items())
    yield part("3n - 1 graphs", set(one) == {14}, said)
    yield part("more than where all n hide it (2n)", min(one) > seen["all"] == 10, said)
    yield part("one graph where none does", seen["none"] == 1, said)
    yield part("in a submodule", seen["last, by a flag"] == 16, said)


# what runs between two graphs


def splits(breaks: bool) -> Seen:
    printed = io.StringIO()

    def prints(x):
        y = x.sin()
        print("a line", file=printed)
        return y.cos()

    def silent(x):
        return x.sin().cos()

    seen = compiled(prints if breaks else silent, torch.ones(4), times=3)
    # eager once, the call that compiles, and three more
    return {**seen, "lines": printed.getvalue().count("a line"), "times": 5}


def splits_at_a_print(bench: Bench) -> Seen:
    return alone(bench, splits, True)


def does_not_split(bench: Bench) -> Seen:
    return alone(bench, splits, False)


@judge(splits_at_a_print, counter=does_not_split)
def print_in_between(seen):
    parts = ", then ".join("+".join(graph) for graph in seen["calls"])
    yield part("two graphs", seen["graphs"] == seen["ran"] == 2, f"{seen['graphs']} graph(s)")
    yield part("one before it and one after it", seen["calls"] == [["sin"], ["cos"]], parts)
    yield part(
        "in each call", seen["lines"] == seen["times"], f"{seen['lines']} lines in {seen['times']} calls"
    )
    yield part("result is eager's", seen["same"], same(seen))


def below(x):
    return x * 2


def left_out(recursive: bool) -> Seen:
    ran: list[bool] = []

    @torch.compiler.disable(recursive=recursive)
    def outside(x):
        ran.append(torch.compiler.is_compiling())
        return below(x)

    seen = compiled(lambda x: outside(x + 1).sin(), torch.ones(4), times=3)
    return {
        **seen,
        "eager_runs": ran.count(False),
        "runs": 5,
        "below": any("mul" in g for g in seen["calls"]),
    }


def disabled_with_callees(bench: Bench) -> Seen:
    return alone(bench, left_out, True)


def disabled_without_callees(bench: Bench) -> Seen:
    return alone(bench, left_out, False)


@judge(disabled_with_callees, counter=disabled_without_callees)
def disable(seen):
    eager, times = seen["eager_runs"], seen["runs"]
    yield part("runs in eager in each call", eager == times, f"{eager} of {times} runs in eager")
    yield part("and so does what it calls", not seen["below"], f"graphs: {seen['calls']}")
    yield part("result is eager's", seen["same"], same(seen))


def logs_itself(x):
    y = x.sin()
    LOGGER.debug("a line")
    return y.cos()


def logs_by_module(x):
    y = x.sin()
    logging.debug("a line")
    return y.cos()


def logged(ignored: bool) -> Seen:
    change = {"ignore_logging_functions": {logging.Logger.debug, logging.debug}} if ignored else {}
    with torch._dynamo.config.patch(**change) if change else contextlib.nullcontext():
        return {
            "enabled": LOGGER.isEnabledFor(logging.DEBUG) or logging.getLogger().isEnabledFor(logging.DEBUG),
            "method": compiled(logs_itself, torch.ones(4))["graphs"],
            "function": compiled(logs_by_module, torch.ones(4))["graphs"],
        }


def logs(bench: Bench) -> Seen:
    return alone(bench, logged, False)


def ignored_logs(bench: Bench) -> Seen:
    return alone(bench, logged, True)


@judge(logs, counter=ignored_logs)
def logger(seen):
    said = f"{seen['method']} graphs around Logger.debug, {seen['function']} around logging.debug"
    yield part("breaks its graph", seen["method"] == seen["function"] == 2, said)
    yield part("nothing is logged at this level", not seen["enabled"], f"isEnabledFor: {seen['enabled']}")


KEPT: dict[str, Any] = {}
LATEST = torch.zeros(4)
OUTER: list[Any] = []
COUNT = 0


class Holder:
    value = None


def in_each_call(program, times: int = 5) -> list[list[int]]:
    """Of some calls: how many graphs there are by then, and how many ran."""
    backend = Graphs()
    run, found = torch.compile(program, backend=backend), []
    with torch.no_grad():
        for _ in range(times):
            backend.ran = 0
            run(torch.ones(4))
            found.append([len(backend.dynamo), backend.ran])
    return found


def side_effects(prints: bool) -> Seen:
    holder = Holder()

    def program(x):
        global LATEST
        y = x.sin()
        LATEST = y
        holder.value = y
        KEPT["latest"] = y
        if prints:
            print(end="")
        return y.cos()

    found = in_each_call(program)
    values = [KEPT["latest"], holder.value, LATEST]
    done = all(torch.allclose(value, torch.ones(4).sin()) for value in values)
    return {"ran": [ran for _, ran in found], "done": done}


def quiet_side_effects(bench: Bench) -> Seen:
    return alone(bench, side_effects, False)


def loud_side_effects(bench: Bench) -> Seen:
    return alone(bench, side_effects, True)


@judge(quiet_side_effects, counter=loud_side_effects)
def side_effects_of_python(seen):
    yield part("does not break its graph", set(seen["ran"]) == {1}, f"graphs run in each call: {seen['ran']}")
    yield part("happens all the same", seen["done"], "done" if seen["done"] else "not done")


def appends(to_a_list: bool) -> Seen:
    """Graphs after each of ten calls that append to a list of this function, and to one of the module; the reason."""
    kept, holder = [], Holder()

    def to_kept(x):
        y = x.sin()
        kept.append(y)
        return y.cos()

    def to_outer(x):
        y = x.sin()
        OUTER.append(y)
        return y.cos()

    def to_holder(x):
        y = x.sin()
        holder.value = y
        return y.cos()

    OUTER.clear()
    programs = (to_kept, to_outer) if to_a_list else (to_holder, to_holder)
    found, reasons = [], []
    for program in programs:
        clear_compilation_metrics()
        with quiet_stderr():  # the warning at the limit
            found.append([graphs for graphs, _ in in_each_call(program, 10)])
        said = [metrics.recompile_reason for metrics in get_compilation_metrics() if metrics.recompile_reason]
        reasons.append(said[-1].partition("#")[0].strip() if said else "")
    return {"local": found[0], "global": found[1], "reasons": reasons}


def appends_to_a_list(bench: Bench) -> Seen:
    return alone(bench, appends, True)


def sets_an_attribute(bench: Bench) -> Seen:
    return alone(bench, appends, False)


@judge(appends_to_a_list, counter=sets_an_attribute)
def append_to_a_list(seen):
    again = seen["local"] == seen["global"] == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8]
    said = f"graphs after each call: {seen['local']}, {seen['global']}"
    yield part("compiled again in each call up to recompile_limit", again, said)
    named = all("len(" in reason for reason in seen["reasons"])
    yield part("guards the length of the list", named, f"torch's reasons: {', '.join(seen['reasons'])}")


def counts(an_attribute: bool) -> Seen:
    """Graphs after each of five calls that count themselves: in a global variable, or in an attribute of a module."""
    global COUNT
    COUNT, module = 0, nn.Module()
    module.count = 0

    def in_a_global(x):
        global COUNT
        COUNT += 1
        return x.sin()

    def in_an_attribute(x):
        module.count += 1
        return x.sin()

    found = in_each_call(in_an_attribute if an_attribute else in_a_global)
    return {"graphs": [graphs for graphs, _ in found], "count": COUNT + module.count}


def counts_in_a_global(bench: Bench) -> Seen:
    return alone(bench, counts, False)


def counts_in_an_attribute(bench: Bench) -> Seen:
    return alone(bench, counts, True)


@judge(counts_in_a_global, counter=counts_in_an_attribute)
def count_in_a_global(seen):
    yield part("is compiled once", set(seen["graphs"]) == {1}, f"graphs after each call: {seen['graphs']}")
    yield part("counts right", seen["count"] == 5, f"{seen['count']} after 5 calls")


# a break as an error


def breaks_twice(x):
    y = x.sin()
    print(end="")  # the first
    y = not_traced(y)
    return y.cos()


def breaks_never(x):
    return x.sin().cos()


def banned(program) -> Seen:
    """What fullgraph=True says, and the line of the first break in the program."""
    first = program.__code__.co_firstlineno + 2
    torch._dynamo.reset()
    try:
        torch.compile(program, backend="eager", fullgraph=True)(torch.ones(4))
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        said = [number for number in range(first - 2, first + 4) if f'breaks.py", line {number}' in text]
        return {"error": first_line(error), "kind": type(error).__name__, "lines": said, "first": first}
    return {"error": "", "kind": "", "lines": [], "first": first}


def banned_break(bench: Bench) -> Seen:
    return alone(bench, banned, breaks_twice)


def banned_nothing(bench: Bench) -> Seen:
    return alone(bench, banned, breaks_never)


@judge(banned_break, counter=banned_nothing)
def fullgraph(seen):
    yield part("an error", seen["kind"] == "Unsupported", seen["error"] or "no error")
    named = seen["lines"] == [seen["first"]]
    yield part("the line of the first", named, f"lines named: {seen['lines']}, the first: {seen['first']}")


def strict(x):
    return x.sin()


def strict_and_breaks(x):
    y = x.sin()
    print(end="")
    return y.cos()


def toggled(error: bool) -> Seen:
    """A break in the caller of a strict function, and one in the strict function."""
    toggle = torch._dynamo.error_on_graph_break(error)
    inner, breaking = toggle(strict), toggle(strict_and_breaks)

    def outer(x):
        y = inner(x + 1)
        print(end="")
        return y.cos()

    found: Seen = {"caller": compiled(outer, torch.ones(4))["graphs"]}
    try:
        found |= {"inside": compiled(lambda x: breaking(x + 1) * 2, torch.ones(4))["graphs"], "error": ""}
    except torch._dynamo.exc.Unsupported as error:
        found |= {"inside": 0, "error": first_line(error)}
    return found


def toggled_on(bench: Bench) -> Seen:
    return alone(bench, toggled, True)


def toggled_off(bench: Bench) -> Seen:
    return alone(bench, toggled, False)


@judge(toggled_on, counter=toggled_off)
def error_on_graph_break(seen):
    yield part(
        "a graph break in it is an error", bool(seen["error"]), seen["error"] or f"{seen['inside']} graphs"
    )
    yield part("one in its caller is not", seen["caller"] == 2, f"caller: {seen['caller']} graphs")


# how much is compiled


class Layer(nn.Module):
    def __init__(self, middle: Callable[[torch.Tensor], torch.Tensor] = nothing) -> None:
        super().__init__()
        self.linear, self.middle = nn.Linear(8, 8), middle

    def forward(self, x):
        return x + self.helper(x)

    def helper(self, x):
        return self.middle(self.linear(x)).relu()


class Region(Layer):
    @torch.compiler.nested_compile_region
    def forward(self, x):
        return x + self.helper(x)


class Model(nn.Module):
    def __init__(self, layers) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def depths(kind) -> Seen:
    found = {}
    for depth in (1, 2, 8):
        backend = Graphs()
        with torch.no_grad():
            torch.compile(Model(kind() for _ in range(depth)), backend=backend)(torch.ones(2, 8))
        # with the graphs inside it that a region has
        graphs = [
            len(calls(module))
            for graph in backend.dynamo
            for module in graph.modules()
            if isinstance(module, torch.fx.GraphModule)
        ]
        found[str(depth)] = [len(backend.dynamo), sum(graphs)]
    return {"found": found}


def unrolled_layers(bench: Bench) -> Seen:
    return alone(bench, depths, Layer)


def region_layers(bench: Bench) -> Seen:
    return alone(bench, depths, Region)


@judge(unrolled_layers, counter=region_layers)
def unrolled(seen):
    found, one = seen["found"], seen["found"]["1"][1]
    said = ", ".join(f"{operations} operations for {n}" for n, (_, operations) in found.items())
    yield part("one graph", all(graphs == 1 for graphs, _ in found.values()), f"{found['8'][0]} graph")
    times = all(operations == int(n) * one for n, (_, operations) in found.items())
    yield part("n times the operations of one layer", times, said)


def first_calls(by_layer: bool, small: int = 1, large: int = 16) -> Seen:
    """The time of the first call of a small and of a large stack, in rounds, each compiled from nothing by Dynamo."""

    def call(depth):
        model = Model(Layer() for _ in range(depth))
        x, backend = torch.ones(2, 8), Graphs()
        if by_layer:
            for layer in model.layers:
                layer.compile(backend=backend)
            return lambda: model(x)
        run = torch.compile(model, backend=backend)
        return lambda: run(x)

    with torch.no_grad():
        taken = interleave(
            {"large": call(large), "small": call(small)}, rounds=14, warmup=1, barrier=torch._dynamo.reset
        )
    return against(taken, "large", "small")


def against(taken: Times, a: str, b: str) -> Seen:
    found = taken.compare(a, b).to_dict()
    # an interval without an end is no number that JSON has
    ends = {key: found[key] if abs(found[key]) < 1e300 else None for key in ("low", "high")}
    return {"ratio": found["ratio"], **ends}


def more_than(seen: Seen, least: float) -> tuple[bool, str]:
    """Whether the whole interval of a ratio of times lies above a number; neither where the number is within it."""
    low, high = seen["low"], seen["high"]
    if low is None or high is None or low <= least <= high:
        raise CannotTell("a quieter machine")
    return low > least, f"{seen['ratio']:.1f} times ({low:.1f} to {high:.1f})"


def whole_first(bench: Bench) -> Seen:
    return alone(bench, first_calls, False)


def layers_first(bench: Bench) -> Seen:
    return alone(bench, first_calls, True)


@judge(whole_first, counter=layers_first)
def compile_time(seen):
    yield part("more than twice", *more_than(seen, 2))


def of_torch_nn(middle) -> Seen:
    """Graphs that run in a call after Module.compile(), by class."""
    modules = {
        "Sequential": nn.Sequential(Layer(middle), Layer(middle), Layer(middle)),
        "TransformerEncoderLayer": nn.TransformerEncoderLayer(8, 2),
        "Linear": nn.Linear(8, 8),
    }
    found = {}
    for name, module in modules.items():
        ways = {}
        for way in ("Module.compile()", "torch.compile()"):
            backend, run = Graphs(), module
            if way == "torch.compile()":
                run = torch.compile(module, backend=backend)
            else:
                module.compile(backend=backend)
            with torch.no_grad():
                run(torch.ones(2, 8))
                backend.ran = 0
                run(torch.ones(2, 8))
            module._compiled_call_impl = None
            ways[way] = backend.ran
        found[name] = ways
    return found


def built_in(bench: Bench) -> Seen:
    return alone(bench, of_torch_nn, nothing)


def built_in_broken(bench: Bench) -> Seen:
    return alone(bench, of_torch_nn, not_traced)


@judge(built_in, counter=built_in_broken)
def module_compile(seen):
    for name in ("Sequential", "TransformerEncoderLayer", "Linear"):
        ran = seen[name]["Module.compile()"]
        yield part(
            name, ran == 1, f"{name}: {ran} graphs run (torch.compile(): {seen[name]['torch.compile()']})"
        )


def regions(middle) -> Seen:
    """One method, one layer and all of a model compiled: graphs, and whether the gradients are eager's."""

    def stack():
        torch.manual_seed(0)
        return Model(Layer(middle) for _ in range(3))

    found, x = {}, torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    for name in ("method", "layer", "model"):
        backend, plain, mixed = Graphs(aot=True), stack(), stack()
        run, layer = mixed, mixed.layers[1]
        if name == "method":
            layer.helper = torch.compile(layer.helper, backend=backend)
        elif name == "layer":
            layer.compile(backend=backend)
        else:
            run = torch.compile(mixed, backend=backend)
        for model in (plain, run):
            model(x).square().sum().backward()
        pairs = zip(plain.parameters(), mixed.parameters(), strict=True)
        gradients = all(b.grad is not None and torch.allclose(a.grad, b.grad) for a, b in pairs)
        found[name] = {
            "graphs": len(backend.dynamo),
            "operations": sum(len(calls(graph)) for graph in backend.dynamo),
            "gradients": gradients,
        }
    return found


def parts_of_a_model(bench: Bench) -> Seen:
    return alone(bench, regions, nothing)


def broken_parts(bench: Bench) -> Seen:
    return alone(bench, regions, not_traced)


@judge(parts_of_a_model, counter=broken_parts)
def part_of_a_model(seen):
    said = ", ".join(
        f"{name}: {one['graphs']} graph of {one['operations']} operations" for name, one in seen.items()
    )
    yield part("one graph each", all(one["graphs"] == 1 for one in seen.values()), said)
    right = all(one["gradients"] for one in seen.values())
    yield part("gradients are eager's", right, "gradients equal" if right else "gradients not equal")


# what a break costs

STEPS = 16


def repeated(step: Callable[[Any], Any], x: torch.Tensor) -> torch.Tensor:
    for _ in range(STEPS):
        x = step(x)
    return x


def chain(break_at: Callable[[Any], Any], eager: Callable[[Any], Any]) -> Seen:
    """The time of a compiled chain of small steps, against one graph of them without the break, and against eager."""

    def step(x):
        return torch.relu(x @ x) + x

    def tested_step(x):
        return break_at(torch.relu(x @ x)) + x

    def eager_step(x):
        return eager(torch.relu(x @ x)) + x

    torch._dynamo.reset()
    x = torch.zeros(4, 4)
    tested, whole = (
        torch.compile(lambda x: repeated(tested_step, x)),
        torch.compile(lambda x: repeated(step, x)),
    )
    ways = {
        "tested": lambda: [tested(x) for _ in range(10)],
        "whole": lambda: [whole(x) for _ in range(10)],
        "eager": lambda: [repeated(eager_step, x) for _ in range(10)],
    }
    with torch.no_grad():
        taken = interleave(ways, rounds=30, warmup=3)
    return {"whole": against(taken, "tested", "whole"), "eager": against(taken, "tested", "eager")}


def all_reduce(x):
    dist.all_reduce(x)
    return x


def broken_chain(bench: Bench) -> Seen:
    return alone(bench, chain, not_traced, nothing)


def whole_chain(bench: Bench) -> Seen:
    return alone(bench, chain, nothing, nothing)


def chain_of_collectives(bench: Bench) -> Seen:
    return bench.run(chain, hidden, all_reduce, backend="fake")[0]


@judge(broken_chain, counter=whole_chain)
def cost(seen):
    yield part("more than three times", *more_than(seen["whole"], 3))


@judge(chain_of_collectives, counter=whole_chain)
def slower_than_eager(seen):
    yield part("longer than in eager", *more_than(seen["eager"], 1))
