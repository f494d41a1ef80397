"""What graphs, logs and numbers show: the stages of torch.compile, and where its results part from eager's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
import torch._inductor.metrics
from torch._inductor.compile_fx import compile_fx

from ledger.bench import Bench
from ledger.graphs import Graphs
from ledger.trial import Seen, judge, part


def alone(bench: Bench, function: Callable[..., Seen], *arguments: Any) -> Seen:
    return bench.run(function, *arguments, ranks=1)[0]


# in place


def into_the_input(x):
    x.mul_(2)
    y = x + 1
    y.view(-1).add_(1)
    return y.sin()


def into_a_copy(x):
    x = x * 2
    y = x + 1
    y.view(-1).add_(1)
    return y.sin()


def mutated(program) -> Seen:
    """The graph that Inductor gets, and the caller's tensor after the call."""
    kept: list[torch.fx.GraphModule] = []

    def inner(graph, inputs, **options):
        kept.append(graph)
        return graph

    torch._dynamo.reset()
    x, expected = torch.ones(4), torch.ones(4)
    with torch.no_grad():
        compiled = torch.compile(program, backend=lambda graph, inputs: compile_fx(graph, inputs, inner))
        same = torch.equal(compiled(x), program(expected))
        torch._dynamo.reset()
        x = torch.ones(4)  # the graph above ran as it is; this is the code that Inductor makes of it
        same = same and torch.equal(torch.compile(program)(x), program(torch.ones(4)))
    (graph,) = kept
    made = [node for node in graph.graph.nodes if node.op == "call_function"]
    (first,) = [node for node in graph.graph.nodes if node.op == "placeholder"]
    in_place = [str(node.target) for node in made if node.target._schema.is_mutable]
    return {
        "calls": [str(node.target).removesuffix(".default") for node in made],
        "in_place": in_place,
        "copy_last": made[-1].target is torch.ops.aten.copy_.default and made[-1].args[0] is first,
        "caller": x[0].item(),
        "caller_in_eager": expected[0].item(),
        "same": same,
    }


def changes_its_input(bench: Bench) -> Seen:
    return alone(bench, mutated, into_the_input)


def changes_a_copy(bench: Bench) -> Seen:
    return alone(bench, mutated, into_a_copy)


@judge(changes_its_input, counter=changes_a_copy)
def functional_graph(seen):
    yield part("only functional operations", len(seen["in_place"]) <= 1, ", ".join(seen["calls"]))
    yield part("one copy_ to the input as the last", seen["copy_last"], f"in place: {seen['in_place']}")


@judge(changes_its_input, counter=changes_a_copy)
def caller_sees_the_change(seen):
    changed = seen["caller"] == seen["caller_in_eager"] == 2
    yield part("changed in the caller", changed, f"1 has become {seen['caller']:g}")
    yield part("result is eager's", seen["same"], "equal" if seen["same"] else "not equal")


def works_in_place(x):
    y = x * 3
    y.add_(1)
    z = y.sin()
    y.view(-1).mul_(0.5)
    z.add_(y)
    y.neg_()
    return z * y


def orders(functional: bool, seeds: int = 20) -> Seen:
    """Results of a graph whose operations run in other orders, in which each value stands before its users."""
    backend, x = Graphs(aot=True), torch.randn(16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = works_in_place(x)
        torch.compile(works_in_place, backend=backend)(x)
        (graph,) = backend.forward if functional else backend.dynamo
        shuffled = [in_another_order(graph, seed) for seed in range(seeds)]
        wrong = sum(not torch.equal(one(x)[0], expected) for one in shuffled)
    return {"orders": len({one.code for one in shuffled}), "wrong": wrong}


def in_another_order(module: torch.fx.GraphModule, seed: int) -> torch.fx.GraphModule:
    draw, graph, made = random.Random(seed), torch.fx.Graph(), {}
    left = list(module.graph.nodes)
    while left:
        ready = [node for node in left[:-1] if all(value in made for value in node.all_input_nodes)]
        inputs = [node for node in ready if node.op == "placeholder"]  # first, and in their order
        node = inputs[0] if inputs else draw.choice(ready or left)
        made[node] = graph.node_copy(node, made.__getitem__)
        left.remove(node)
    return torch.fx.GraphModule(module, graph)


def functional_orders(bench: Bench) -> Seen:
    return alone(bench, orders, True)


def orders_in_place(bench: Bench) -> Seen:
    return alone(bench, orders, False)


@judge(functional_orders, counter=orders_in_place)
def any_order(seen):
    said = f"{seen['wrong']} of 20 orders wrong, {seen['orders']} of them different"
    yield part("gives eager's result", seen["wrong"] == 0 and seen["orders"] > 1, said)


# fusion


def steps(x):
    for _ in range(4):
        x = (x.sin() + 1) * 0.5
    return x


@torch.compiler.disable
def not_traced(x):
    return x


def kernels(breaks: bool) -> Seen:
    """Kernels that Inductor generates for twelve pointwise operations, and for a known number of kernels."""

    def fused(x):
        return steps(steps(x))

    def broken(x):
        return steps(not_traced(steps(x)))

    def three(x):  # a product is no kernel of Inductor's own on a CPU, and stands between three that are
        return torch.relu(torch.relu(torch.relu(x + 1) @ x) @ x)

    found = {}
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=False):
        for name, program in (("program", broken if breaks else fused), ("three", three)):
            torch._dynamo.reset()
            torch._inductor.metrics.reset()
            torch.compile(program)(torch.ones(8, 8))
            found[name] = torch._inductor.metrics.generated_kernel_count
    return found


def kernels_of_one_graph(bench: Bench) -> Seen:
    return alone(bench, kernels, False)


def kernels_around_a_break(bench: Bench) -> Seen:
    return alone(bench, kernels, True)


@judge(kernels_of_one_graph, counter=kernels_around_a_break)
def fusion(seen):
    if seen["three"] != 3:
        raise ValueError(
            f"generated_kernel_count is {seen['three']} for three kernels: it does not count them"
        )
    yield part("one kernel", seen["program"] == 1, f"{seen['program']} kernel(s)")


# logs

PROGRAM = """
import torch

@torch.compiler.disable
def hidden(x):
    return x

def program(x):
    y = x.sin()
    print(end="")
    y = hidden(y.cos())
    return y.tan()

def whole(x):
    return x.sin().cos().tan()

torch.compile(program if BREAKS else whole, backend="eager")(torch.ones(4))
"""


def logged(breaks: bool) -> Seen:
    text = PROGRAM.replace("BREAKS", str(breaks))
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"TORCH_LOGS": "graph_breaks"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = [line for line in done.stderr.splitlines() if "[__graph_breaks]" in line]
    lines = {
        name: 1 + text[: text.index(at)].count("\n")
        for name, at in (("print", "print("), ("disable", "y = hid"))
    }
    # what is said of a break stands between its place and that of the next
    blocks = "\n".join(found).split("Graph break in user code at ")[1:]
    named = {name: any(f":{line}\n" in b and name in b for b in blocks) for name, line in lines.items()}
    return {"lines": len(found), "named": named, "first": blocks[0][:200] if blocks else ""}


def log_of_breaks(bench: Bench) -> Seen:
    return logged(True)


def log_of_none(bench: Bench) -> Seen:
    return logged(False)


@judge(log_of_breaks, counter=log_of_none)
def graph_breaks_log(seen):
    both = all(seen["named"].values())
    yield part("the line and the reason of each", both, f"{seen['lines']} lines; named: {seen['named']}")


# numbers


def low(seed: int, count: int = 3, size: tuple[int, ...] = (32, 256)) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *size, generator=generator).bfloat16().unbind(0)


EXPRESSIONS = {
    "a * b + c": lambda a, b, c: a * b + c,
    "(a * b) * c + a": lambda a, b, c: a * b * c + a,
    "sin(a) * b": lambda a, b, c: a.sin() * b,
    "silu(a) * b": lambda a, b, c: torch.nn.functional.silu(a) * b,
}
TIMES_A_NUMBER = {
    "a * 0.3": lambda a, b, c: a * 0.3,
    "a * 0.3 + a": lambda a, b, c: a * 0.3 + a,
    "a * 0.7 + c": lambda a, b, c: a * 0.7 + c,
    "sin(a * 0.3)": lambda a, b, c: (a * 0.3).sin(),
}
PLUS_A_NUMBER = {
    "a + 0.3": lambda a, b, c: a + 0.3,
    "b + 0.7": lambda a, b, c: b + 0.7,
    "c - 0.3": lambda a, b, c: c - 0.3,
}


def differ(group: str, backend: str = "inductor", emulate: bool = False) -> Seen:
    """By expression: elements of 8,192 that differ from eager, and from float32 that is rounded at the end."""
    expressions = {"tensors": EXPRESSIONS, "times": TIMES_A_NUMBER, "plus": PLUS_A_NUMBER}[group]
    options = {"options": {"emulate_precision_casts": True}} if emulate else {}
    # each expression has inputs of its own, so that nothing is shared in the one function that is compiled
    inputs = [low(seed) for seed in range(len(expressions))]

    def program(inputs):
        return [f(*given) for f, given in zip(expressions.values(), inputs, strict=True)]

    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(program, backend=backend, **options)(inputs)
        eager, once = program(inputs), program([[t.float() for t in given] for given in inputs])
    count = lambda values: {  # noqa: E731
        name: int((a != b.bfloat16()).sum()) for name, a, b in zip(expressions, found, values, strict=True)
    }
    again = [torch.equal(a, b) for a, b in zip(eager, program(inputs), strict=True)]
    return {"eager": count(eager), "once": count(once), "eager_again": all(again)}


def counted(seen: dict[str, int]) -> str:
    return "elements that differ: " + ", ".join(f"{count} of {name}" for name, count in seen.items())


def inductor_tensors(bench: Bench) -> Seen:
    return alone(bench, differ, "tensors")


def aot_tensors(bench: Bench) -> Seen:
    return alone(bench, differ, "tensors", "aot_eager")


def emulated_tensors(bench: Bench) -> Seen:
    return alone(bench, differ, "tensors", "inductor", True)


def emulated_times(bench: Bench) -> Seen:
    return alone(bench, differ, "times", "inductor", True)


def inductor_times(bench: Bench) -> Seen:
    return alone(bench, differ, "times")


def inductor_plus(bench: Bench) -> Seen:
    return alone(bench, differ, "plus")


@judge(inductor_tensors, counter=aot_tensors)
def not_bitwise(seen):
    every = all(seen["eager"].values()) and seen["eager_again"]
    yield part("not bit for bit eager's", every, counted(seen["eager"]))


@judge(inductor_tensors, counter=aot_tensors)
def rounded_once(seen):
    none = not any(seen["once"].values())
    yield part(
        "float32 rounded once, at the end", none, "from float32 rounded once: " + counted(seen["once"])
    )


@judge(emulated_tensors, counter=inductor_tensors)
def emulate_precision_casts(seen):
    yield part("bit for bit eager's", not any(seen["eager"].values()), counted(seen["eager"]))


@judge(emulated_times, counter=inductor_times)
def emulate_times_a_number(seen):
    yield part("bit for bit eager's", not any(seen["eager"].values()), counted(seen["eager"]))


@judge(inductor_plus, counter=inductor_times)
def add_a_number(seen):
    yield part("bit for bit eager's", not any(seen["eager"].values()), counted(seen["eager"]))


def sums(backend: str, seeds: int = 20) -> Seen:
    """Sums of 4,099 numbers that differ from eager's: of normal ones in float32, and of small whole ones."""
    total = lambda x: (x * 1.0).sum()  # noqa: E731
    torch._dynamo.reset()
    run, found = torch.compile(total, backend=backend), {"normal": 0, "whole": 0, "seeds": seeds}
    with torch.no_grad():
        for seed in range(seeds):
            x = torch.randn(4099, generator=torch.Generator().manual_seed(seed))
            found["normal"] += bool(run(x) != total(x))
            whole = (x * 8).round()  # such numbers add up exactly, in any order
            found["whole"] += bool(run(whole) != total(whole))
    return found


def inductor_sums(bench: Bench) -> Seen:
    return alone(bench, sums, "inductor")


def aot_sums(bench: Bench) -> Seen:
    return alone(bench, sums, "aot_eager")


@judge(inductor_sums, counter=aot_sums)
def order_of_a_sum(seen):
    said = (
        f"{seen['normal']} of {seen['seeds']} sums of normal numbers differ, {seen['whole']} of whole numbers"
    )
    yield part("adds in another order than eager", seen["normal"] > seen["seeds"] / 2, said)
    yield part("sums of whole numbers are equal", seen["whole"] == 0, said)


# stages

BACKENDS = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")


def takes_a_branch(a, b, c):
    return a * 2 if torch.compiler.is_compiling() else a


def is_decomposed(a, b, c):
    return torch.lerp(a, b, 0.3)


def rounds(a, b, c):
    return a * b + c


def stages(low_precision: bool) -> Seen:
    """By program and backend: elements that differ from eager."""
    given = low(0) if low_precision else tuple(t.float().round() for t in low(0))
    found = {}
    for program in (takes_a_branch, is_decomposed, rounds):
        found[program.__name__] = {}
        for backend in BACKENDS:
            torch._dynamo.reset()
            with torch.no_grad():
                different = torch.compile(program, backend=backend)(*given) != program(*given)
            found[program.__name__][backend] = int(different.sum())
    return found


def low_precision_stages(bench: Bench) -> Seen:
    return alone(bench, stages, True)


def whole_number_stages(bench: Bench) -> Seen:
    return alone(bench, stages, False)


@judge(low_precision_stages, counter=whole_number_stages)
def stage_by_stage(seen):
    expected = {
        "takes_a_branch": ("a branch that tracing takes with eager", "eager"),
        "is_decomposed": ("a decomposed lerp with aot_eager_decomp_partition", "aot_eager_decomp_partition"),
        "rounds": ("the rounding of a fused a * b + c with inductor", "inductor"),
    }
    for name, (words, backend) in expected.items():
        first = next((one for one, count in seen[name].items() if count), "none")
        yield part(words, first == backend, f"{name}: {list(seen[name].values())}")
