"""DTensor at work: which collectives an operation costs, forward and backward, and what compiling leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed.tensor as dt
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from labkit.lessons.shared.capture import Capture, calls, first_line
from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol


def _communicates(action: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """An action's result, and the collectives that it called by short name."""
    with CommDebugMode() as mode:
        result = action()
    counts = {str(op).rpartition(".")[2]: int(n) for op, n in mode.get_comm_counts().items() if n}
    return result, counts


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "no collective"


def _gathers(counts: dict[str, int]) -> int:
    return sum(n for name, n in counts.items() if name.startswith("all_gather"))


def _reduces(counts: dict[str, int]) -> int:
    return sum(n for name, n in counts.items() if name.startswith("all_reduce"))


# of a 4 by 4 tensor that is split by columns: two that go across the columns, and one that keeps them apart
VIEWS = ((-1,), (8, 2), (2, 2, 4))


@probe
def operations(bench: Bench) -> Seen:
    """Products and sums of DTensors on two ranks (and on four as a grid): resulting placements, collectives called."""
    return bench.run(_operations)[0] | bench.run(_grid_product, ranks=4)[0]


def _operations() -> Seen:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    found: Seen = {}

    def place(tensor, placement):
        return distribute_tensor(tensor.clone(), mesh, [placement])

    def note(name, action, expected):
        result, counts = _communicates(action)
        found[name] = {"placement": str(result.placements[0]), "collectives": counts}
        found[name]["type"] = type(result).__name__
        found[name]["right"] = bool(torch.allclose(result.full_tensor(), expected, atol=1e-5))
        return result

    x, columns = place(a, Replicate()), place(b, Shard(1))
    product = note("column", lambda: x @ columns, a @ b)
    note("sum", lambda: product.sum(), (a @ b).sum())
    for shape in VIEWS:
        try:
            note(f"view{shape}", lambda shape=shape: product.view(shape), (a @ b).view(shape))
        except RuntimeError as error:  # torch 2.11 and 2.12 refuse some
            found[f"view{shape}"] = {
                "placement": f"refused ({first_line(error)[:60]})",
                "collectives": {},
                "right": False,
            }
    inner = place(a, Shard(1)), place(b, Shard(0))
    partial = note("inner", lambda: inner[0] @ inner[1], a @ b)
    note("partial_used", lambda: partial.relu(), (a @ b).relu())
    rows, needs_whole = place(a, Shard(0)), place(b, Shard(0))
    note("mismatched", lambda: rows @ needs_whole, a @ b)
    note("gather", lambda: rows.redistribute(placements=[Replicate()]), a)

    leaf = place(a, Shard(0)).requires_grad_()
    for name, loss in (
        ("backward_replicate", lambda r: r.sum()),
        ("backward_partial", lambda r: r.to_local(grad_placements=[Partial()]).sum()),
    ):
        leaf.grad = None
        out = loss(leaf.redistribute(placements=[Replicate()]))
        _, counts = _communicates(out.backward)
        assert leaf.grad is not None
        found[name] = {"collectives": counts, "gradient_type": type(leaf.grad).__name__}
        found[name]["gradient"] = leaf.grad.full_tensor()[0, 0].item()
    plain = [b.clone().requires_grad_(), a.clone().requires_grad_()]
    leaves = [place(b, Shard(1)).requires_grad_(), place(a, Shard(0)).requires_grad_()]
    for up, down, start in ((*plain, a), (*leaves, x)):
        y = (start @ up).relu() @ down
        y.sum().backward()
    pairs = [(cast(DTensor, leaf.grad), one.grad) for leaf, one in zip(leaves, plain, strict=True)]
    found["backward_layers"] = {
        "gradient_types": [type(mine).__name__ for mine, _ in pairs],
        "right": all(bool(torch.allclose(m.full_tensor(), cast(Any, one), atol=1e-5)) for m, one in pairs),
    }
    return found


def _grid_product() -> Seen:
    mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    a = DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0), Shard(1)], run_check=False)
    weight = dt.zeros((4, 4), device_mesh=mesh, placements=[Replicate(), Replicate()])
    product, counts = _communicates(lambda: torch.matmul(a, weight))
    _, after = _communicates(lambda: product.redistribute(mesh, [Replicate(), Replicate()]))
    placed = [str(p) for p in product.placements]
    return {"grid": {"placement": placed, "collectives": counts, "to_replicate": after}}


@judging(operations)
def column_product_needs_nothing(seen: Seen) -> Result:
    """A replicated matrix times one split by columns is split by columns, without a collective."""
    row = seen["column"]
    return verdict(
        row["placement"].startswith("S(1") and not row["collectives"] and row["right"],
        f"{row['placement']}, {_said(row['collectives'])}",
    )


@judging(operations)
def sum_gathers(seen: Seen) -> Result:
    """Summing a tensor that is split by columns gathers it first."""
    row = seen["sum"]
    return verdict(
        _gathers(row["collectives"]) > 0, f"the sum is {row['placement']} with {_said(row['collectives'])}"
    )


@judging(operations)
def views_gather(seen: Seen) -> Result:
    """Taking a view of a tensor that is split by columns gathers it first, where the view goes across the columns."""
    rows = [(f"view{shape}".replace(",)", ")"), seen[f"view{shape}"]) for shape in VIEWS]
    said = "; ".join(f"{name} is {row['placement']} with {_said(row['collectives'])}" for name, row in rows)
    return verdict(all(_gathers(row["collectives"]) == 1 and row["right"] for _, row in rows[:2]), said)


@judging(operations)
def inner_split_gives_partial(seen: Seen) -> Result:
    """A product over a dimension that both factors are split on is Partial."""
    row = seen["inner"]
    return verdict(
        row["placement"].startswith("P") and row["right"], f"{row['placement']}, {_said(row['collectives'])}"
    )


@judging(operations)
def using_a_partial_reduces(seen: Seen) -> Result:
    """An operation that needs the value of a Partial triggers an all-reduce."""
    row = seen["partial_used"]
    return verdict(
        _reduces(row["collectives"]) > 0 and row["right"],
        f"relu of it: {_said(row['collectives'])}, then {row['placement']}",
    )


@judging(operations)
def mismatch_communicates(seen: Seen) -> Result:
    """Where placements fit no rule of an operation, DTensor inserts a collective by itself."""
    row = seen["mismatched"]
    return verdict(
        bool(row["collectives"]) and row["right"], f"{_said(row['collectives'])}, result {row['placement']}"
    )


@judging(operations)
def mismatch_gathers(seen: Seen) -> Result:
    """An operand in Shard(0) that is needed whole is gathered silently."""
    counts = seen["mismatched"]["collectives"]
    return verdict(_gathers(counts) == 1 == sum(counts.values()), _said(counts))


PRODUCTS = ("column", "sum", "inner", "partial_used", "mismatched")


@judging(operations)
def results_are_right(seen: Seen) -> Result:
    """Operations on DTensors give what the same operations on the whole tensors give."""
    right = [name for name in PRODUCTS if seen[name]["right"]]
    return verdict(len(right) == len(PRODUCTS), f"{len(right)} of {len(PRODUCTS)} operations agree")


@judging(operations)
def shard_to_replicate_gathers(seen: Seen) -> Result:
    """Redistributing from Shard(0) to Replicate() is an all-gather."""
    row = seen["gather"]
    return verdict(
        _gathers(row["collectives"]) == 1 == sum(row["collectives"].values()), _said(row["collectives"])
    )


@judging(operations)
def backward_of_gather_is_reduce_scatter(seen: Seen) -> Result:
    """The backward of Shard to Replicate is a reduce-scatter."""
    usual, partial = (seen[k]["collectives"] for k in ("backward_replicate", "backward_partial"))
    scatters = [any(name.startswith("reduce_scatter") for name in counts) for counts in (usual, partial)]
    return verdict(
        all(scatters), f"{_said(usual)} for a Replicate gradient, {_said(partial)} for a Partial one"
    )


@judging(operations)
def gradients_flow(seen: Seen) -> Result:
    """Redistribution and two layers of DTensors pass the right gradients back, as DTensors."""
    rows = [seen["backward_replicate"], seen["backward_partial"]]
    right = [row["gradient"] for row in rows] == [1, 2]  # every rank adds its part of a Partial gradient
    layers = seen["backward_layers"]
    kinds = {*(row["gradient_type"] for row in rows), *layers["gradient_types"]}
    return verdict(
        right and layers["right"] and kinds == {"DTensor"},
        f"gradients of type {', '.join(sorted(kinds))}, of a redistribution {'as' if right else 'not as'} expected, of "
        f"two layers {'those' if layers['right'] else 'not those'} of plain tensors",
    )


@judging(operations)
def communication_math_and_gradients(seen: Seen) -> Result:
    """Operations on DTensors communicate where they have to, give the right numbers, and pass gradients back."""
    found = [judge(seen) for judge in (mismatch_gathers, results_are_right, gradients_flow)]
    return verdict(all(one.status == HOLDS for one in found), "; ".join(one.measured for one in found))


@judging(operations)
def grid_product_gathers(seen: Seen) -> Result:
    """[Shard(0), Shard(1)] times replicated gathers the second dimension."""
    counts = seen["grid"]["collectives"]
    return verdict(_gathers(counts) > 0, _said(counts))


@judging(operations)
def grid_product_placement(seen: Seen) -> Result:
    """That product is placed [Shard(0), Replicate]."""
    placed = seen["grid"]["placement"]
    return verdict(placed[0].startswith("S") and placed[1].startswith("R"), f"[{', '.join(placed)}]")


@judging(operations)
def grid_result_to_replicate_gathers(seen: Seen) -> Result:
    """Making that product replicated everywhere is an all-gather."""
    counts = seen["grid"]["to_replicate"]
    return verdict(_gathers(counts) == sum(counts.values()) > 0, _said(counts))


@probe
def compiled(bench: Bench) -> Seen:
    """A two-layer DTensor program compiled as one graph: what the graph holds after AOTAutograd."""
    return bench.run(_compiled)[0]


def _compiled() -> Seen:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    x, up, down = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8, 8)
    x, up, down = (
        distribute_tensor(t, mesh, [p])
        for t, p in ((x, Replicate()), (up, Shard(1)), (down, Shard(0)))
    )  # fmt: skip

    def program(x, up, down):
        return ((x @ up).relu() @ down).redistribute(placements=[Replicate()]).to_local()

    def explicit(x, up, down):  # the same on what a rank has, with the sum written out
        return funcol.all_reduce((x @ up).relu() @ down, "sum", dist.group.WORLD)

    dynamo_reset()
    graphs = Capture(aot=True)
    with torch.no_grad():
        y = torch.compile(program, backend=graphs, fullgraph=True)(x, up, down)
        expected = program(x, up, down)
        dynamo_reset()
        written, whole = Capture(aot=True), [t.to_local() for t in (x, up, down)]
        z = torch.compile(explicit, backend=written, fullgraph=True)(*whole)
    values = [n.meta.get("val") for graph in graphs.forward for n in graph.graph.nodes]
    return {
        "calls": [call for graph in graphs.forward for call in calls(graph)],
        "dtensors_left": sum(isinstance(v, DTensor) for v in values),
        "same": bool(torch.allclose(y + 0, expected + 0, atol=1e-5)),
        "explicit": [call for graph in written.forward for call in calls(graph)],
        "explicit_same": bool(torch.allclose(z + 0, expected + 0, atol=1e-5)),
    }


@judging(compiled)
def compiling_leaves_collectives(seen: Seen) -> Result:
    """Compiled, a DTensor program becomes local operators and functional collectives; no DTensor is left."""
    ok = any("_c10d_functional.all_reduce" in call for call in seen["calls"])
    return verdict(
        ok and not seen["dtensors_left"] and seen["same"],
        f"{seen['dtensors_left']} DTensors left: {', '.join(seen['calls'])}",
    )


@judging(compiled)
def both_roads_compile(seen: Seen) -> Result:
    """As DTensors without a collective in it, and with its sum written out, a program is one graph with that sum."""
    high, sums = compiling_leaves_collectives(seen), [c for c in seen["explicit"] if "all_reduce" in c]
    return verdict(
        high.status == HOLDS and len(sums) == 1 and seen["explicit_same"],
        f"as DTensors: {high.measured}; written out: {', '.join(seen['explicit'])}, numbers "
        f"{'the same' if seen['explicit_same'] else 'not the same'}",
    )
