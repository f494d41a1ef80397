"""DTensor at work: which collectives an operation costs, forward and backward, and what compiling leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.tensor as dt
from torch.distributed import device_mesh
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from labkit import lessons
from labkit.lessons.shared.capture import Capture, calls, first_line
from labkit.study.checks import HOLDS, Bench, Result, Seen, cannot_tell, judging, probe, verdict
from labkit.torch_compat import dynamo_reset, funcol

program = lessons.program("dtensor")


def _communicates(action: Callable[[], Any]) -> tuple[Any, dict[str, int]]:
    """An action's result, and the collectives that it called by short name."""
    with CommDebugMode() as mode:
        result = action()
    counts = {str(op).rpartition(".")[2]: int(n) for op, n in mode.get_comm_counts().items() if n}
    return result, counts


def _said(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "no collective"


def _listed(called: list[str]) -> str:
    return _said({name: called.count(name) for name in called})


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
    note("partial_forced", lambda: partial.redistribute(placements=[Replicate()]), a @ b)
    note("partial_added", lambda: partial + partial, 2 * (a @ b))
    rows, needs_whole = place(a, Shard(0)), place(b, Shard(0))
    note("mismatched", lambda: rows @ needs_whole, a @ b)
    ends = ("R", "S(0)", "S(1)")  # what a program may ask for; Partial is for torch's own use
    moves = [program.move(a, mesh, start, end) for start in (*ends, "P") for end in ends if start != end]
    found["moves"] = {f"{one['start']} to {one['end']}": one for one in moves}
    steps = {name: _trained(mesh, place, *placed) for name, placed in TRAINED.items()}
    for name, (weights, collectives, kinds) in steps.items():
        pairs = zip(weights, steps["plain"][0], strict=True)
        same = all(torch.allclose(one, two, atol=1e-5) for one, two in pairs)
        found[f"trained {name}"] = {"right": same, "collectives": collectives, "gradients": kinds}
    return found


# placements of a batch, and of two weights; where there are none, plain tensors
TRAINED: dict[str, tuple[Any, ...]] = {
    "plain": (None, None, None),
    "with the batch split": (Shard(0), Replicate(), Replicate()),
    "with the weights split": (Replicate(), Shard(1), Shard(0)),
}


def _trained(mesh: Any, place: Any, *placements: Any) -> tuple[list[Any], dict[str, int], list[str]]:
    """Three steps of SGD on two weights: them, the collectives that were called, and what the gradients are."""
    made = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(1)).unbind(0)
    pairs = zip(made, placements, strict=True)
    x, *weights = [tensor.clone() if how is None else place(tensor, how) for tensor, how in pairs]
    up, down = (weight.requires_grad_() for weight in weights)
    optimizer = torch.optim.SGD((up, down), lr=0.1)

    def steps() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            ((x @ up).relu() @ down).square().mean().backward()
            optimizer.step()

    _, counts = _communicates(steps)
    whole = [w.full_tensor() if isinstance(w, DTensor) else w for w in (up, down)]
    return [w.detach() for w in whole], counts, sorted({type(w.grad).__name__ for w in (up, down)})


def _grid_product() -> Seen:
    with mock.patch.object(device_mesh, "new_group", wraps=device_mesh.new_group) as new_group:
        mesh = DeviceMesh("cpu", torch.arange(4).reshape(2, 2))
    groups = sorted([*call.kwargs["ranks"]] for call in new_group.call_args_list)
    whole = torch.arange(16.0).reshape(4, 4)
    a = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    weight = dt.ones((4, 4), device_mesh=mesh, placements=[Replicate(), Replicate()])
    product, counts = _communicates(lambda: torch.matmul(a, weight))
    result, after = _communicates(lambda: product.redistribute(mesh, [Replicate(), Replicate()]))
    right = torch.equal(result.to_local(), whole @ torch.ones(4, 4))
    placed = [str(p) for p in product.placements]
    found = {
        "placement": placed,
        "collectives": counts,
        "to_replicate": after,
        "right": right,
        "groups": groups,
    }
    return {"grid": found}


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
    """A view of a tensor split by columns gathers it first where it requires the full tensor: where it is not split."""
    rows = [(f"view{shape}".replace(",)", ")"), seen[f"view{shape}"]) for shape in VIEWS]
    said = "; ".join(f"{name} is {row['placement']} with {_said(row['collectives'])}" for name, row in rows)
    # what stays split needs only the parts
    whole = [row for _, row in rows if not row["placement"].startswith(("S(", "_S"))]
    if not whole:
        return cannot_tell("a view that requires the full tensor", said)
    return verdict(all(_gathers(row["collectives"]) == 1 and row["right"] for row in whole), said)


@judging(operations)
def inner_split_gives_partial(seen: Seen) -> Result:
    """A product over a dimension that both factors are split on is Partial."""
    row = seen["inner"]
    return verdict(
        row["placement"].startswith("P") and not row["collectives"] and row["right"],
        f"{row['placement']}, {_said(row['collectives'])}",
    )


@judging(operations)
def using_a_partial_reduces(seen: Seen) -> Result:
    """An operation that needs the value of a Partial triggers one all-reduce, and so does asking for the whole."""
    used, forced, added = (seen[f"partial_{name}"] for name in ("used", "forced", "added"))
    right = all(_reduces(one["collectives"]) == 1 and one["right"] for one in (used, forced))
    return verdict(
        right,
        f"relu of it: {_said(used['collectives'])}, then {used['placement']}; asked for as Replicate: "
        f"{_said(forced['collectives'])}; added to itself: {_said(added['collectives'])}, still {added['placement']}",
    )


@judging(operations)
def collectives_come_where_needed(seen: Seen) -> Result:
    """Operations on DTensors call collectives where the values of other ranks are needed, and none elsewhere."""
    names = {"partial_used": 1, "mismatched": 1, "column": 0, "inner": 0, "partial_added": 0}
    found = {name: sum(seen[name]["collectives"].values()) for name in names}
    said = ", ".join(f"{name.replace('_', ' ')} {_said(seen[name]['collectives'])}" for name in names)
    return verdict(found == names and all(seen[name]["right"] for name in names), said)


@judging(operations)
def mismatch_gathers(seen: Seen) -> Result:
    """An operand in Shard(0) that is needed whole is gathered silently."""
    counts, right = (seen["mismatched"][name] for name in ("collectives", "right"))
    return verdict(_gathers(counts) == 1 == sum(counts.values()) and right, _said(counts))


PRODUCTS = ("column", "sum", "inner", "partial_used", "mismatched")


@judging(operations)
def results_are_right(seen: Seen) -> Result:
    """Operations on DTensors give what the same operations on the whole tensors give."""
    right = [name for name in PRODUCTS if seen[name]["right"]]
    return verdict(len(right) == len(PRODUCTS), f"{len(right)} of {len(PRODUCTS)} operations agree")


@judging(operations)
def shard_to_replicate_gathers(seen: Seen) -> Result:
    """Redistributing from Shard(0) to Replicate() is an all-gather."""
    called = seen["moves"]["S(0) to R"]["forward"]
    return verdict(len(called) == 1 and called[0].startswith("all_gather"), _listed(called))


@judging(operations)
def backward_of_gather_is_reduce_scatter(seen: Seen) -> Result:
    """The backward of Shard to Replicate is a reduce-scatter."""
    usual, partial = (seen["moves"]["S(0) to R"][name] for name in ("backward", "backward_partial"))
    scatters = [any(name.startswith("reduce_scatter") for name in called) for called in (usual, partial)]
    said = f"{_listed(usual)} for a Replicate gradient, {_listed(partial)} for a Partial one"
    return verdict(all(scatters), said)


@judging(operations)
def gradients_flow(seen: Seen) -> Result:
    """Each redistribution, and two layers trained as DTensors, pass the right gradients back, as DTensors."""
    moves, wrong = seen["moves"], [name for name, one in seen["moves"].items() if not one["right"]]
    runs = [seen[f"trained {name}"] for name in TRAINED if name != "plain"]
    kinds = {kind for one in runs for kind in one["gradients"]}
    layers = all(one["right"] for one in runs)
    return verdict(
        not wrong and bool(moves) and layers and kinds == {"DTensor"},
        f"gradients of {len(moves) - len(wrong)} of {len(moves)} redistributions right; two layers trained as "
        f"DTensors: weights {'those' if layers else 'not those'} of plain tensors, gradients of type "
        f"{', '.join(sorted(kinds))}",
    )


@judging(operations)
def training_needs_no_synchronization(seen: Seen) -> Result:
    """Steps of an optimizer give the weights of one process without a collective in the program: DTensor calls them."""
    runs = {name: seen[f"trained {name}"] for name in TRAINED if name != "plain"}
    said = "; ".join(
        f"{name}: weights {'as' if one['right'] else 'not as'} in one process, {_said(one['collectives'])}"
        for name, one in runs.items()
    )
    return verdict(
        all(one["right"] and one["collectives"] for one in runs.values()), f"three steps of SGD {said}"
    )


@judging(operations)
def communication_math_and_gradients(seen: Seen) -> Result:
    """Operations on DTensors communicate where they have to, give the right numbers, and pass gradients back."""
    found = [judge(seen) for judge in (mismatch_gathers, results_are_right, gradients_flow)]
    return verdict(all(one.status == HOLDS for one in found), "; ".join(one.measured for one in found))


@judging(operations)
def grid_product_gathers(seen: Seen) -> Result:
    """[Shard(0), Shard(1)] times replicated gathers the second dimension, and leaves the first one split."""
    counts, (first, _) = seen["grid"]["collectives"], seen["grid"]["placement"]
    return verdict(_gathers(counts) > 0 and first.startswith("S(0"), _said(counts))


@judging(operations)
def grid_product_placement(seen: Seen) -> Result:
    """That product is placed [Shard(0), Replicate]."""
    placed = seen["grid"]["placement"]
    return verdict(placed[0].startswith("S(0") and placed[1].startswith("R"), f"[{', '.join(placed)}]")


@judging(operations)
def grid_result_to_replicate_gathers(seen: Seen) -> Result:
    """Making that product replicated everywhere gathers it once, along its sharded axis; a Partial one is summed."""
    counts, right = (seen["grid"][name] for name in ("to_replicate", "right"))
    return verdict(
        _gathers(counts) == 1 and right,
        f"{_said(counts)}, numbers {'right' if right else 'wrong'}; the product was "
        f"[{', '.join(seen['grid']['placement'])}]",
    )


@judging(operations)
def the_grid_is_made_of_new_groups(seen: Seen) -> Result:
    """Making a two by two mesh calls new_group once for each of its two rows and two columns."""
    made = seen["grid"]["groups"]
    return verdict(
        made == [[0, 1], [0, 2], [1, 3], [2, 3]], f"{len(made)} calls of new_group, on {made or 'no ranks'}"
    )


@probe
def compiled(bench: Bench) -> Seen:
    """A two-layer program compiled as one graph, as DTensors and written out: the graphs of Dynamo and AOTAutograd."""
    return bench.run(_compiled)[0]


def _compiled() -> Seen:
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    x, up, down = torch.randn(4, 8), torch.randn(8, 8), torch.randn(8, 8)
    x, up, down = (
        distribute_tensor(t, mesh, [p])
        for t, p in ((x, Replicate()), (up, Shard(1)), (down, Shard(0)))
    )  # fmt: skip

    def asked(x, up, down):
        return ((x @ up).relu() @ down).redistribute(placements=[Replicate()]).relu().to_local()

    def whole(x, up, down):  # nothing but arithmetic
        return ((x @ up).relu() @ down).relu()

    def explicit(x, up, down):  # the same on what a rank has, with the sum written out
        return funcol.all_reduce((x @ up).relu() @ down, "sum", dist.group.WORLD).relu()

    dtensors, local = (x, up, down), tuple(t.to_local() for t in (x, up, down))
    found: Seen = {}
    with torch.no_grad():
        expected = ((x.full_tensor() @ up.full_tensor()).relu() @ down.full_tensor()).relu()
        for function, given in ((asked, dtensors), (whole, dtensors), (explicit, local)):
            found[function.__name__] = lowered(function, given, expected)
    return found


def lowered(function: Any, given: tuple[Any, ...], expected: Any) -> Seen:
    """Compile as one graph: the calls that Dynamo captured and those of the graph, what they take, and the numbers."""
    dynamo_reset()
    graphs = Capture(aot=True)
    y = torch.compile(function, backend=graphs, fullgraph=True)(*given)
    y = (y.full_tensor() if isinstance(y, DTensor) else y) + 0
    collectives = [n for g in graphs.forward for n in g.graph.nodes if "c10d" in str(n.target)]
    values = [n.meta.get("val") for g in graphs.forward for n in g.graph.nodes]
    return {
        "written": sum("all_reduce" in call for g in graphs.dynamo for call in calls(g)),
        "calls": [call for g in graphs.forward for call in calls(g)],
        "dtensors_left": sum(isinstance(v, DTensor) for v in values),
        "takes": sorted({type(a).__name__ for n in collectives for a in n.args}),
        "mutates": any(n.target._schema.is_mutable for n in collectives),
        "same": bool(torch.allclose(y, expected, atol=1e-5)),
    }


def sums(row: Seen, count: int = 1) -> bool:
    """Whether one graph has so many sums and their waits in it, and gives the right numbers."""
    called = [call.rpartition(".")[2] for call in row["calls"] if "c10d" in call]
    return called == ["all_reduce", "wait_tensor"] * count and not row["dtensors_left"] and row["same"]


def held(row: Seen) -> str:
    """What a compiled program called, in words."""
    return (
        f"all-reduces that Dynamo captured: {row['written']}; compiled, {row['dtensors_left']} DTensors left: "
        f"{', '.join(row['calls'])}, numbers {'the same' if row['same'] else 'not the same'}"
    )


@judging(compiled)
def compiling_leaves_collectives(seen: Seen) -> Result:
    """Compiled, a DTensor program without a collective becomes local operators and functional collectives."""
    rows = [seen["asked"], seen["whole"]]
    return verdict(all(sums(row) and not row["written"] for row in rows), held(seen["whole"]))


@judging(compiled)
def both_roads_compile(seen: Seen) -> Result:
    """As DTensors without a collective in it, and with its sum written out, a program is one graph with that sum.

    The sum is an operator of tensors and plain data that changes none of them.
    """
    high, low = compiling_leaves_collectives(seen), seen["explicit"]
    pure = set(low["takes"]) <= {"Node", "str"} and not low["mutates"]
    return verdict(
        high.status == HOLDS and sums(low) and low["written"] == 1 and pure,
        f"as DTensors: {high.measured}; written out: {held(low)}; collectives take {' and '.join(low['takes'])}, and "
        f"change {'an' if low['mutates'] else 'no'} argument",
    )
