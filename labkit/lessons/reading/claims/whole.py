"""What one whole graph is good for: tensors in and out, nothing written in place, fusion, sums in another order."""

from __future__ import annotations

import random
import re
from typing import Any

import torch
import torch.distributed as dist

from labkit import graphs, lessons
from labkit.lessons.shared.capture import Capture, calls
from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset

cliff = lessons.program("cliff")
SEEDS, LAYERS = 20, 3


@probe
def compiled(bench: Bench) -> Seen:
    """A small model in one graph, before and after functionalization and as code, and sums in other orders."""
    return bench.run(_compiled, ranks=1)[0]


def _compiled() -> Seen:
    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sizes = {"hidden": 8}
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, self.sizes["hidden"]) for _ in range(LAYERS))

        def forward(self, x):
            for i in range(LAYERS):
                x = self.step(x, i)
            return x

        def step(self, x, i):
            y = self.layers[i](x)
            y.add_(1)  # in place, and through a view
            y.view(-1).mul_(0.5)
            y = between(y)
            return y.relu() + x if i else y.sigmoid().tanh() * 2

    def between(y):
        return y

    torch.manual_seed(0)
    model, x = Small(), torch.randn(4, 8)
    found: Seen = {}
    dynamo_reset()
    seen, given = Capture(aot=True), []

    def keep(graph, inputs):
        given.extend(inputs)
        return seen(graph, inputs)

    with torch.no_grad():
        expected = model(x)
        same = torch.equal(torch.compile(model, backend=keep)(x), expected)
        for name, module in (("in_place", seen.dynamo[0]), ("functional", seen.forward[0])):
            runs = (_in_another_order(module, seed)(*given)[0] for seed in range(SEEDS))
            found[f"{name}_orders_wrong"] = sum(not torch.equal(y, expected) for y in runs)
    found |= _backward(model, x)
    (graph,) = seen.dynamo
    ends = [n for n in graph.graph.nodes if n.op in ("placeholder", "output")]
    flat = [a for n in ends for a in ([n] if n.op == "placeholder" else n.args[0])]
    found["graphs"], found["same"] = len(seen.dynamo), same
    found["ends"] = sorted({type(a.meta["example_value"]).__name__ for a in flat})
    found["in_place_before"] = sum(name.rpartition(".")[2].endswith("_") for name in calls(graph))
    after = [n.target for n in seen.forward[0].graph.nodes if n.op == "call_function"]
    schemas = [t._schema for t in after if hasattr(t, "_schema")]
    found["in_place_after"] = sum(s.is_mutable for s in schemas)
    found["operations_after"] = len(schemas)
    pointwise = ("add", "mul", "relu", "sigmoid", "tanh")
    found["pointwise"] = sum(s.name.removeprefix("aten::") in pointwise for s in schemas)
    with torch.no_grad():
        found["kernels"] = _launches(model, x)
        between = torch.compiler.disable(between)  # noqa: F811  a break in each chain
        found["kernels_of_pieces"] = _launches(model, x)
    dynamo_reset()

    total = torch.compile(lambda v: (v * 1.0).sum())
    found["seeds"], found["reordered"], found["compiled"], found["whole_numbers"] = SEEDS, 0, 0, 0
    found["exact"] = 0
    for seed in range(SEEDS):
        v = torch.randn(4099, generator=torch.Generator().manual_seed(seed))
        found["reordered"] += bool(v.sum() != v[torch.randperm(4099)].sum())
        found["compiled"] += bool(total(v) != (v * 1.0).sum())
        found["exact"] += bool(total(v) == v.double().sum().float())
        exact = (v * 8).round()  # small whole numbers are added without rounding, in any order
        found["whole_numbers"] += bool(
            exact.sum() != exact[torch.randperm(4099)].sum() or total(exact) != exact.sum()
        )
    return found


def _launches(model: torch.nn.Module, x: torch.Tensor) -> int:
    """How many calls of its own kernels Inductor's code has, and 0 where it does not give eager's numbers."""
    dynamo_reset()
    run = torch.compile(model)
    with graphs.record(stages=True) as rec:
        same = torch.allclose(run(x), model(x), atol=1e-6)
    code = "\n".join(str(text) for text in rec.graphs["inductor_code"])
    return len(re.findall(r"^\s+cpp_fused_\w+\(", code, re.M)) if same else 0


def _in_another_order(module: torch.fx.GraphModule, seed: int) -> torch.fx.GraphModule:
    """The same operations in an order drawn at random, in which each value stands before its users."""
    draw, graph = random.Random(seed), torch.fx.Graph()
    made: dict[Any, Any] = {}
    left = list(module.graph.nodes)
    while left:
        ready = [n for n in left[:-1] if all(a in made for a in n.all_input_nodes)]
        inputs = [n for n in ready if n.op == "placeholder"]  # first, and in their order
        node = inputs[0] if inputs else draw.choice(ready or left)
        made[node] = graph.node_copy(node, made.__getitem__)
        left.remove(node)
    return torch.fx.GraphModule(module, graph)


def _backward(model: torch.nn.Module, x: torch.Tensor) -> Seen:
    """Of the backward graph: how many of its operators write in place, and whether gradients are those of eager."""
    dynamo_reset()
    seen, gradients = Capture(aot=True), []
    for run in (model, torch.compile(model, backend=seen)):
        model.zero_grad()
        run(x).sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    targets = [n.target for graph in seen.backward for n in graph.graph.nodes if hasattr(n.target, "_schema")]
    return {
        "backward_operations": len(targets),
        "backward_in_place": sum(t._schema.is_mutable for t in targets),
        "gradients_same": all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True)),
    }


@judging(compiled)
def tensors_to_tensors(seen: Seen) -> Result:
    """A forward with a loop, a list and a dictionary becomes one graph from tensors to tensors, which is optimized."""
    ends = [name for name in seen["ends"] if name not in ("Tensor", "Parameter", "FakeTensor")]
    ok = seen["graphs"] == 1 and seen["same"] and not ends and fused(seen).status == HOLDS
    return verdict(
        ok, f"{seen['graphs']} graph, from and to {', '.join(seen['ends'])}; {fused(seen).measured}"
    )


@judging(compiled)
def nothing_in_place(seen: Seen) -> Result:
    """Functionalized, nothing is written in place: any order is right, operations fuse, and so is the backward."""
    ok = seen["in_place_before"] > 0 and seen["in_place_after"] == 0 and seen["same"]
    free = seen["functional_orders_wrong"] == 0 < seen["in_place_orders_wrong"]
    clean = seen["backward_operations"] > 0 == seen["backward_in_place"] and seen["gradients_same"]
    return verdict(
        ok and free and clean and fused(seen).status == HOLDS,
        f"{seen['in_place_before']} operations in place before, {seen['in_place_after']} of "
        f"{seen['operations_after']} after; of {seen['seeds']} orders {seen['in_place_orders_wrong']} are wrong "
        f"before, {seen['functional_orders_wrong']} after; {fused(seen).measured}; {seen['backward_in_place']} of "
        f"{seen['backward_operations']} in place in the backward, gradients "
        f"{'the same' if seen['gradients_same'] else 'not the same'}",
    )


@judging(compiled)
def fused(seen: Seen) -> Result:
    """All element-wise operations between two products share one kernel in a whole graph, and not across breaks."""
    whole, pieces = seen["kernels"], seen["kernels_of_pieces"]
    return verdict(
        whole == LAYERS < pieces < seen["pointwise"],
        f"{seen['pointwise']} element-wise operations behind {LAYERS} products in {whole} kernels; with a break "
        f"behind each product {pieces}",
    )


@judging(compiled)
def sums_in_another_order(seen: Seen) -> Result:
    """A sum taken in another order rounds otherwise, and the compiler's, of no higher precision, is another one."""
    rounds = seen["exact"] < seen["seeds"]  # as sums in float32 do
    ok = seen["reordered"] > 0 and seen["compiled"] > 0 and seen["whole_numbers"] == 0 and rounds
    return verdict(
        ok,
        f"of {seen['seeds']} sums, {seen['reordered']} changed with the order and {seen['compiled']} when compiled; "
        f"{seen['whole_numbers']} of whole numbers; {seen['exact']} of the compiled ones are exact up to float32",
    )


@probe
def split_norm(bench: Bench) -> Seen:
    """RMSNorm of features split over two ranks: with its all-reduce, without one, and compiled."""
    return {"ranks": list(bench.run(_split_norm))}


def _split_norm() -> Seen:
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x, weight = torch.randn(4, 16), torch.ones(16)
    mine = x.unflatten(-1, (world, -1))[:, rank]
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6).unflatten(-1, (world, -1))[:, rank]
    errors: dict[str, float] = {}
    dynamo_reset()
    seen = Capture()
    with torch.no_grad():
        for name, reduce in (("reduced", cliff.functional), ("alone", lambda t: t)):
            norm = cliff.RMSNorm(16, world, rank, reduce)
            norm.load(weight)
            errors[name] = float((norm(mine) - expected).abs().max())
            if name == "reduced":
                errors["compiled"] = float((torch.compile(norm, backend=seen)(mine) - expected).abs().max())
    made = [name for graph in seen.dynamo for name in calls(graph)]
    return {
        "errors": errors,
        "graphs": len(seen.dynamo),
        "reductions": sum("all_reduce" in name for name in made),
    }


@judging(split_norm)
def norm_reduces(seen: Seen) -> Result:
    """The split norm is right with a reduction of its own only, and a functional one stays in one graph."""
    ok = all(
        r["errors"]["reduced"] < 1e-5 and r["errors"]["compiled"] < 1e-5 and r["errors"]["alone"] > 1e-2
        and r["graphs"] == 1 and r["reductions"] == 1
        for r in seen["ranks"]
    )  # fmt: skip
    worst = max(r["errors"]["alone"] for r in seen["ranks"])
    one = seen["ranks"][0]
    return verdict(
        ok,
        f"error {worst:.2g} without a reduction, {one['errors']['reduced']:.1g} with it; compiled: {one['graphs']} "
        f"graph with {one['reductions']} all_reduce",
    )
