"""Graph breaks: what they split, what runs in between, how they are banned, and what a compiled region is."""

from __future__ import annotations

import io
import logging
import time
from collections import deque
from typing import Any, cast

import torch
from torch import nn

from labkit.graphs import record
from labkit.lessons.shared.capture import Capture, calls, first_line
from labkit.study.checks import Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset

LOGGER = logging.getLogger("labkit.quiet")
# what torch's reason for a break names
CAUSES = {"print": "print", "log": "logging", "callback": "tolist", "disabled": "disable"}


@probe
def splits(bench: Bench) -> Seen:
    """One function with a part that is hidden from the compiler, with a print, and with one in a chain of four."""
    return bench.run(_splits)[0]


def _splits() -> Seen:
    ran: list[bool] = []
    printed, heard = io.StringIO(), deque[Any]()
    callback = heard.append

    def called(x):  # compiled where only the frame of its caller is left out
        return x * 2

    @torch.compiler.disable
    def hidden(x):
        ran.append(torch.compiler.is_compiling())
        return called(x)

    def three_parts(x):
        return hidden(x + 1).sin()

    def logs(x):
        y = x + 1
        print("", end="")
        return y.sin()

    def logs_through_a_logger(x):
        y = x + 1
        LOGGER.debug("a side effect")
        return y.sin()

    def prints(x):
        y = x + 1
        print("a line", file=printed)
        return y.sin()

    def calls_back(x):
        y = x + 1
        callback(y.tolist())
        return y.sin()

    def calls_back_with_a_number(x):
        y = x + 1
        callback(1)
        return y.sin()

    def compiled(function):
        dynamo_reset()
        graphs = Capture()
        return torch.compile(function, backend=graphs), graphs

    x = torch.arange(4.0)
    found: Seen = {}
    run, graphs = compiled(three_parts)
    with torch.no_grad():
        same = all(torch.equal(run(x), three_parts(x)) for _ in range(3))
    found |= {"graphs": len(graphs.dynamo), "same": same, "hidden_ran_compiled": any(ran)}
    found["hidden_runs"] = len(ran) - 3  # without the three eager ones
    found["parts"] = [calls(graph) for graph in graphs.dynamo]
    run, graphs = compiled(prints)
    with torch.no_grad():
        same = all(torch.equal(run(x), (x + 1).sin()) for _ in range(3))
    lines, parts = printed.getvalue().count("a line"), [calls(graph) for graph in graphs.dynamo]
    found["printed"] = {"same": same, "lines": lines, "parts": parts}
    run, graphs = compiled(logs)
    with torch.no_grad():
        alike = [torch.equal(run(y), logs(y)) for y in (x, torch.arange(5.0), x)]
    found |= {"falls_back_same": all(alike), "falls_back_graphs": len(graphs.dynamo)}
    programs = {
        "print": logs,
        "log": logs_through_a_logger,
        "callback": calls_back,
        "callback_of_a_number": calls_back_with_a_number,
        "disabled": three_parts,
        "silent": lambda x: (x + 1).sin(),
        "enabled": lambda x: ((x + 1) * 2).sin(),
    }
    found["reasons"] = {}
    for name, function in programs.items():
        run, graphs = compiled(function)
        with torch.no_grad(), record() as rec:
            run(x.clone())
        found[f"{name}_graphs"], found["reasons"][name] = len(graphs.dynamo), list(rec.breaks["reason"])
    banned = {"fullgraph": three_parts, "fullgraph_print": logs, "fullgraph_silent": programs["silent"]}
    for name, function in banned.items():
        dynamo_reset()
        try:
            torch.compile(function, backend=Capture(), fullgraph=True)(x)
            found[name] = ""
        except Exception as error:
            found[name] = first_line(error)
    return found


@judging(splits)
def a_break_makes_two_graphs(seen: Seen) -> Result:
    """Code that is hidden splits one graph into one before and one after, as a print does; the result is the same."""
    parts, printed, whole = seen["parts"], seen["printed"], seen["enabled_graphs"]
    split = parts == printed["parts"] == [["add"], ["sin"]] and seen["same"] and printed["same"]
    return verdict(
        split and whole == seen["silent_graphs"] == 1,
        f"{len(parts)} graphs around one hidden call: {' and '.join(map(', '.join, parts))}; {len(printed['parts'])} "
        f"around a print; {whole} where nothing is hidden",
    )


@judging(splits)
def python_runs_in_between(seen: Seen) -> Result:
    """What is hidden and what cannot be captured runs as plain Python between two graphs, at every call."""
    printed, runs = seen["printed"], seen["hidden_runs"]
    hidden = runs == 3 and not seen["hidden_ran_compiled"] and seen["graphs"] == 2 and seen["same"]
    between = printed["lines"] == 3 and printed["parts"] == [["add"], ["sin"]] and printed["same"]
    return verdict(
        hidden and between,
        f"in 3 compiled calls the hidden part ran {runs} times, outside the compiler, between {seen['graphs']} graphs; "
        f"a print, between {' and '.join(map(', '.join, printed['parts']))}, {printed['lines']} times",
    )


@judging(splits)
def disable_falls_back_to_eager(seen: Seen) -> Result:
    """A part under torch.compiler.disable, and what it calls, runs eagerly at every call; the rest stays compiled."""
    eager = (
        seen["hidden_runs"] == 3 and not seen["hidden_ran_compiled"] and seen["parts"] == [["add"], ["sin"]]
    )
    return verdict(
        seen["same"] and eager and seen["enabled_graphs"] == 1,
        f"{seen['graphs']} graphs, the part between them {seen['hidden_runs']} times in eager, numbers "
        f"{'the same' if seen['same'] else 'not the same'}; without disable {seen['enabled_graphs']} graph",
    )


@judging(splits)
def breaks_and_recompiles_are_no_failure(seen: Seen) -> Result:
    """A print breaks a function, and another size compiles both parts again; every call gives eager's numbers."""
    once, both, same = seen["print_graphs"], seen["falls_back_graphs"], seen["falls_back_same"]
    return verdict(
        1 < once < both and same,
        f"a print: {once} graphs; with a second size {both}; numbers {'the same' if same else 'not the same'}",
    )


@judging(splits)
def fullgraph_bans_breaks(seen: Seen) -> Result:
    """With fullgraph=True a disabled call and a print are errors, and a function without a break compiles."""
    broken, printed, silent = (seen[f"fullgraph{end}"] for end in ("", "_print", "_silent"))
    said = f"{seen['graphs']} graphs without fullgraph, with it {broken or 'no error'}; a print: "
    said += f"{printed or 'no error'}; a function without a break: "
    # what would break is the reason, and not another error
    banned = CAUSES["disabled"] in broken and "builtin" in printed
    return verdict(
        min(seen["graphs"], seen["print_graphs"]) > 1 and banned and not silent, said + (silent or "compiles")
    )


@judging(splits)
def side_effects_break(seen: Seen) -> Result:
    """A print, a logger's call, a callback with a tensor's values and a part under disable each break one graph."""
    counts = {name: seen[f"{name}_graphs"] for name in CAUSES}
    whole = (seen[f"{name}_graphs"] for name in ("silent", "enabled"))
    number = seen["callback_of_a_number_graphs"]
    return verdict(
        {*whole} == {1} and min(counts.values()) > 1 and all(_named(seen, name) for name in CAUSES),
        f"graphs: 1 without; with a print {counts['print']}, with a logger's call {counts['log']}, with a callback "
        f"given a tensor's values {counts['callback']} (a number {number}), with a disabled call {counts['disabled']}; "
        f"reasons: {'; '.join(sum((seen['reasons'][name] for name in CAUSES), []))}",
    )


def _named(seen: Seen, name: str) -> bool:
    """Whether torch gives this cause as a reason for the break."""
    return any(CAUSES[name] in reason.lower() for reason in seen["reasons"][name])


@judging(splits)
def logging_breaks(seen: Seen) -> Result:
    """A call of a logger inside a compiled function breaks the graph; without the call it is one graph."""
    with_it, without = seen["log_graphs"], seen["silent_graphs"]
    return verdict(
        with_it > without == 1 and _named(seen, "log"),
        f"{with_it} graphs around one call of a logger ({'; '.join(seen['reasons']['log'])}), {without} without it",
    )


@probe
def regions(bench: Bench) -> Seen:
    """A stack of equal layers compiled whole, and compiled parts of an eager model."""
    return bench.run(_regions, ranks=1)[0]


def _regions() -> Seen:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return x + self.helper(x)

        def helper(self, x):
            return self.linear(x).relu()

    def stack(n: int) -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(Layer() for _ in range(n)))

    x = torch.randn(2, 8)
    found: Seen = {"whole": {}, "whole_graphs": 0}
    for n in (2, 8):
        dynamo_reset()
        graphs = Capture()
        torch.compile(stack(n), backend=graphs)(x)
        found["whole"][str(n)] = [call.rpartition(".")[2] for g in graphs.dynamo for call in calls(g)]
        found["whole_graphs"] = len(graphs.dynamo)  # a call that is not inlined has a graph of its own
    dynamo_reset()
    found["parts"] = {}
    for name in ("a method", "a layer", "the model"):
        dynamo_reset()
        plain, mixed, graphs = stack(3), stack(3), Capture(aot=True)
        layer, whole = cast(Any, mixed[1]), name == "the model"
        if name == "a method":
            layer.helper = torch.compile(layer.helper, backend=graphs)
        elif not whole:
            layer.compile(backend=graphs)
        for model in (plain, torch.compile(mixed, backend=graphs) if whole else mixed):
            model(x).sum().backward()
        pairs = list(zip(plain.parameters(), mixed.parameters(), strict=True))
        found["parts"][name] = {
            "graphs": len(graphs.dynamo),
            "operators": sum(len(calls(graph)) for graph in graphs.dynamo),
            "same": all(torch.allclose(cast(Any, a.grad), cast(Any, b.grad)) for a, b in pairs),
        }
    return found


@judging(regions)
def loops_are_unrolled_and_calls_inlined(seen: Seen) -> Result:
    """Compiled whole, a loop over layers is unrolled and calls are inlined, so that the graph grows with depth."""
    layer, found = ["linear", "relu", "add"], seen["whole"]
    two, eight = found["2"], found["8"]
    return verdict(
        all(calls == layer * int(n) for n, calls in found.items()) and seen["whole_graphs"] == 1,
        f"{len(two)} operators for 2 layers, {len(eight)} for 8, in {seen['whole_graphs']} graph: "
        f"{', '.join(dict.fromkeys(eight))}",
    )


@judging(regions)
def a_part_can_be_compiled(seen: Seen) -> Result:
    """One part of an eager model can be compiled, and autograd runs through it."""
    part = seen["parts"]["a layer"]
    return verdict(
        part["graphs"] == 1 and part["same"],
        f"1 of 3 layers compiled, gradients {'the same' if part['same'] else 'not the same'} as in eager",
    )


@judging(regions)
def any_region_can_be_compiled(seen: Seen) -> Result:
    """A method, a layer or the whole of a model is compiled as one graph, with eager's gradients."""
    parts = seen["parts"]
    sizes = [part["operators"] for part in parts.values()]
    good = all(part["graphs"] == 1 and part["same"] for part in parts.values())
    said = ", ".join(f"{name} ({part['operators']} operators)" for name, part in parts.items())
    return verdict(
        good and sizes == sorted({*sizes}),
        f"compiled: {said}; {'one graph each, the gradients of eager' if good else 'not all of them right'}",
    )


@probe
def first_call(bench: Bench) -> Seen:
    """A backend that takes a quarter of a second to compile, and the time of the first call and of later ones."""
    return bench.run(_first_call, ranks=1)[0]


def _first_call() -> Seen:
    graphs: list[Any] = []
    backend_s = 0.25

    def slow(graph, inputs):
        graphs.append(graph)
        time.sleep(backend_s)
        return graph.forward

    run = torch.compile(lambda x: x.sin() + 1, backend=slow)
    before, x, taken = len(graphs), torch.ones(4), []
    for _ in range(3):
        start = time.perf_counter()
        run(x)
        taken.append(time.perf_counter() - start)
    return {
        "backend_s": backend_s,
        "compiled_before": before,
        "compiled_after": len(graphs),
        "first_s": taken[0],
        "later_s": max(taken[1:]),
    }


@judging(first_call)
def the_first_call_blocks(seen: Seen) -> Result:
    """Compilation happens in the first call, which waits for it; later calls do not."""
    jit = seen["compiled_before"] == 0 and seen["compiled_after"] == 1
    return verdict(
        jit and seen["first_s"] >= seen["backend_s"] > seen["later_s"],
        f"compiler busy for {seen['backend_s']:.2f} s: first call {seen['first_s']:.2f} s, later ones under "
        f"{max(seen['later_s'] * 1e3, 0.1):.1f} ms",
    )
