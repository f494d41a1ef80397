"""DTensor: what each rank holds, which collectives it inserts and when, and what it costs."""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.tensor
import torch.nn.functional as F
from torch._inductor.fx_passes.micro_pipeline_tp import micro_pipeline_tp_pass
from torch.distributed._symmetric_memory import _test_mode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

from labkit.timing import interleave
from ledger.bench import Bench
from ledger.graphs import Graphs, calls, first_line
from ledger.trial import CannotTell, Seen, judge, part


def mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),))


def whole(rows=8, columns=4) -> torch.Tensor:
    return torch.arange(float(rows * columns)).reshape(rows, columns)


def counted(action) -> tuple[object, list[str]]:
    """What an action returns, and the collectives that it calls."""
    with CommDebugMode() as mode:
        value = action()
    found = [(str(op).rpartition(".")[2], n) for op, n in mode.get_comm_counts().items()]
    return value, sorted(name for name, n in found for _ in range(n))


def gather_is_counted(x: DTensor) -> list[str]:
    """The collectives of one that is split and gathered: a reader that finds none there would find none anywhere."""
    split = distribute_tensor(torch.ones(8, 8), x.device_mesh, [Shard(0)] * x.device_mesh.ndim)
    return counted(split.full_tensor)[1]


def reader_counts(seen: Seen) -> None:
    if not seen["control"]:
        raise ValueError("the reader finds no collective in a gather")


# --- what is made ---


def pieces(make) -> Seen:
    """The local and the whole shape of what is made of a (8, 4) tensor."""
    made = make(whole(), mesh())
    local, full = (made.to_local(), made.full_tensor()) if isinstance(made, DTensor) else (made, made)
    return {"local": list(local.shape), "global": list(made.shape), "same": torch.equal(full, whole())}


def sharded(x, m):
    return distribute_tensor(x, m, [Shard(0)])


def replicated(x, m):
    return distribute_tensor(x, m, [Replicate()])


def from_local(x, m):
    return DTensor.from_local(x, m, [Shard(0)])


def both_placements(bench: Bench) -> Seen:
    a, b = bench.run(pieces, sharded)[0], bench.run(pieces, replicated)[0]
    return {
        "shard": a["local"],
        "replicate": b["local"],
        "global": [a["global"], b["global"]],
        "same": a["same"] and b["same"],
    }


def plain_tensors(bench: Bench) -> Seen:
    a = bench.run(pieces, chunk)[0]
    return {
        "shard": a["local"],
        "replicate": a["local"],
        "global": [a["global"], a["global"]],
        "same": a["same"],
    }


def chunk(x, m):
    return x.chunk(2)[dist.get_rank()]


@judge(both_placements, counter=plain_tensors)
def distribute_tensor_cuts(seen):
    yield part("its part for Shard(0)", seen["shard"] == [4, 4], f"Shard(0) has {seen['shard']} on a rank")
    yield part(
        "the whole tensor for Replicate()",
        seen["replicate"] == [8, 4],
        f"Replicate() has {seen['replicate']}",
    )
    yield part(
        "the whole shape", seen["global"] == [[8, 4]] * 2 and seen["same"], f"the DTensors {seen['global']}"
    )


@judge(lambda bench: bench.run(pieces, from_local)[0], counter=lambda bench: bench.run(pieces, sharded)[0])
def from_local_keeps(seen):
    yield part("cuts nothing", seen["local"] == [8, 4], f"a rank holds {seen['local']}")
    yield part("twice as many rows", seen["global"] == [16, 4], f"the DTensor is {seen['global']}")


def unlike(check) -> Seen:
    """Ranks that hold different numbers call them replicas."""
    mine = torch.full((2,), float(dist.get_rank()))
    made = DTensor.from_local(mine, mesh(), [Replicate()], **check)
    return {"local": made.to_local().tolist()}


def unchecked(bench: Bench) -> Seen:
    return {"ranks": [one["local"] for one in bench.run(unlike, {})]}


def checked(bench: Bench) -> Seen:
    return {"ranks": [one["local"] for one in bench.run(unlike, {"run_check": True})]}


@judge(unchecked, counter=checked)
def from_local_checks_nothing(seen):
    yield part(
        "keeps replicas that differ", seen["ranks"] == [[0, 0], [1, 1]], f"the ranks hold {seen['ranks']}"
    )


def zeros(make) -> Seen:
    said = ""
    try:
        make(8, 4, device_mesh=mesh(), placements=[Shard(0)])
    except TypeError as error:
        said = first_line(error)
    made = torch.distributed.tensor.zeros(8, 4, device_mesh=mesh(), placements=[Shard(0)])
    return {"local": list(made.to_local().shape), "said": said}


@judge(
    lambda bench: bench.run(zeros, torch.zeros)[0],
    counter=lambda bench: bench.run(zeros, torch.distributed.tensor.zeros)[0],
)
def zeros_of_the_shard(seen):
    yield part(
        "torch.distributed.tensor.zeros makes each rank's shard",
        seen["local"] == [4, 4],
        f"{seen['local']} on a rank",
    )
    yield part("torch.zeros takes no device_mesh", "device_mesh" in seen["said"], seen["said"] or "no error")


# --- which collectives are called ---


def product(left, right, then=None) -> Seen:
    """A product of two 8 x 8 DTensors: its placement, and the collectives of it and of what follows."""
    m, x = mesh(), whole(8, 8)
    a, b = distribute_tensor(x, m, [left]), distribute_tensor(x, m, [right])
    y, called = counted(lambda: a @ b)
    z, later = counted(lambda: then(y)) if then else (y, [])
    right_value = then(x @ x) if then else x @ x
    return {
        "placement": str(y.placements[0]).replace("P(sum)", "P"),
        "columns": y.placements == (Shard(1),),
        "called": called,
        "later": later,
        "control": gather_is_counted(b),
        "same": torch.equal(z.full_tensor(), right_value),
    }


def inner_split(bench: Bench) -> Seen:
    return bench.run(product, Shard(1), Shard(0), torch.relu)[0]


def columns(bench: Bench) -> Seen:
    return bench.run(product, Replicate(), Shard(1), torch.relu)[0]


@judge(inner_split, counter=columns)
def inner_split_is_partial(seen):
    partial = seen["placement"].startswith(("P", "Partial"))
    yield part(
        "is Partial", partial and not seen["called"], f"{seen['placement']}, collectives {seen['called']}"
    )
    once = seen["later"] == ["all_reduce"]
    yield part("one all_reduce in an operation that needs its value", once, f"relu calls {seen['later']}")
    yield part("the right result", seen["same"], "equal" if seen["same"] else "not equal")


@judge(columns, counter=inner_split)
def column_product(seen):
    reader_counts(seen)
    yield part("split by columns", seen["columns"], seen["placement"])
    yield part("without a collective", not seen["called"], f"collectives {seen['called']}")
    yield part("the right result", seen["same"], "equal" if seen["same"] else "not equal")


def operation(placement, function) -> Seen:
    x = distribute_tensor(whole(), mesh(), [placement])
    said, called, same, placed = "", [], False, ""
    try:
        y, called = counted(lambda: function(x))
        placed = str(y.placements[0])
        same = torch.equal(y.full_tensor(), function(whole()))
    except RuntimeError as error:
        said = first_line(error)
    return {"called": called, "same": same, "placement": placed, "said": said}


def softmax(x):
    return torch.softmax(x, 0)


def to_one_row(x):
    return x.view(-1)


def to_two_columns(x):
    return x.view(16, 2)


def total(x):
    return x.sum()


def gathered_total(x):
    return x.redistribute(placements=[Replicate()]).sum() if isinstance(x, DTensor) else x.sum()


def on_rank_0(*arguments):
    return lambda bench: bench.run(operation, *arguments)[0]


def once(seen: Seen) -> bool:
    return seen["called"] == ["all_gather_into_tensor"]


@judge(on_rank_0(Shard(0), softmax), counter=on_rank_0(Shard(1), softmax))
def inserts_a_gather(seen):
    yield part("calls one all-gather", once(seen), f"collectives {seen['called']}")
    yield part("the result is one process's", seen["same"], "equal" if seen["same"] else "not equal")


@judge(on_rank_0(Shard(1), total), counter=on_rank_0(Shard(1), gathered_total))
def sum_is_partial(seen):
    yield part("is Partial", seen["placement"].startswith(("P", "Partial")), seen["placement"])
    yield part("gathers nothing", not seen["called"], f"collectives {seen['called']}")


@judge(on_rank_0(Shard(1), to_two_columns), counter=on_rank_0(Shard(0), to_two_columns))
def view_gathers(seen):
    yield part(
        "gathers it once",
        once(seen),
        seen["said"] or f"collectives {seen['called']}, then {seen['placement']}",
    )
    yield part("the result is one process's", seen["same"], "equal" if seen["same"] else "not equal")


def gathered_first(x):
    return (x.redistribute(placements=[Replicate()]) if isinstance(x, DTensor) else x).view(-1)


@judge(on_rank_0(Shard(1), to_one_row), counter=on_rank_0(Shard(1), gathered_first))
def view_stays_split(seen):
    yield part("stays split, without a collective", not seen["said"] and not seen["called"],
               seen["said"] or f"{seen['placement']}, collectives {seen['called']}")  # fmt: skip
    yield part("the result is one process's", seen["same"], "equal" if seen["same"] else "not equal")


def there_and_back(gradient) -> Seen:
    m = mesh()
    x = distribute_tensor(whole(), m, [Shard(0)]).requires_grad_()
    y, forward = counted(lambda: x.redistribute(placements=[Replicate()]))
    given = DTensor.from_local(torch.ones(8, 4), m, [gradient])
    _, backward = counted(lambda: y.backward(given))
    return {"forward": forward, "backward": backward}


def both_gradients(bench: Bench) -> Seen:
    usual, partial = bench.run(there_and_back, Replicate())[0], bench.run(there_and_back, Partial())[0]
    return {"forward": usual["forward"], "replicate": usual["backward"], "partial": partial["backward"]}


def not_gathered(gradient) -> Seen:
    m = mesh()
    x = distribute_tensor(whole(), m, [Replicate()]).requires_grad_()
    y, forward = counted(lambda: x.redistribute(placements=[Shard(0)]))
    _, backward = counted(lambda: y.backward(distribute_tensor(torch.ones(8, 4), m, [gradient])))
    return {"forward": forward, "replicate": backward, "partial": backward}


@judge(both_gradients, counter=lambda bench: bench.run(not_gathered, Shard(0))[0])
def backward_of_a_gather(seen):
    yield part("one all-gather", seen["forward"] == ["all_gather_into_tensor"], f"forward {seen['forward']}")
    yield part(
        "no collective for a Replicate gradient", not seen["replicate"], f"Replicate {seen['replicate']}"
    )
    yield part("one reduce-scatter for a Partial one", seen["partial"] == ["reduce_scatter_tensor"],
               f"Partial {seen['partial']}")  # fmt: skip


def on_a_grid(placements) -> Seen:
    m = init_device_mesh("cpu", (2, 2))
    x = distribute_tensor(whole(8, 8), m, placements)
    w = distribute_tensor(whole(8, 8), m, [Replicate(), Replicate()])
    y, called = counted(lambda: x @ w)
    return {
        "placements": [str(p) for p in y.placements],
        "wanted": y.placements == (Shard(0), Partial()),
        "called": called,
        "control": gather_is_counted(x),
        "same": torch.equal(y.full_tensor(), whole(8, 8) @ whole(8, 8)),
    }


@judge(
    lambda bench: bench.run(on_a_grid, [Shard(0), Shard(1)], ranks=4)[0],
    counter=lambda bench: bench.run(on_a_grid, [Shard(0), Replicate()], ranks=4)[0],
)
def grid_product(seen):
    reader_counts(seen)
    yield part("[Shard(0), Partial()]", seen["wanted"], f"{seen['placements']}")
    yield part("without a collective", not seen["called"], f"collectives {seen['called']}")
    yield part("the right result", seen["same"], "equal" if seen["same"] else "not equal")


# --- dispatched, compiled ---


class Plain(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape)

    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        unwrapped = [one.x if isinstance(one, Plain) else one for one in args]
        return function(*unwrapped, **(kwargs or {}))


def dispatched(kind) -> Seen:
    """How often __torch_dispatch__ of the class is called by one addition."""
    x = distribute_tensor(whole(), mesh(), [Shard(0)]) if kind is DTensor else Plain(whole())
    x + x
    met, real = [], kind.__torch_dispatch__

    def listen(cls, function, types, args=(), kwargs=None):
        met.append(str(function))
        return real(function, types, args, kwargs)

    with mock.patch.object(kind, "__torch_dispatch__", classmethod(listen)):
        x + x
    return {"met": met}


@judge(lambda bench: bench.run(dispatched, DTensor)[0], counter=lambda bench: bench.run(dispatched, Plain)[0])
def not_in_torch_dispatch(seen):
    yield part(
        "does not call DTensor.__torch_dispatch__",
        not seen["met"],
        f"calls: {', '.join(seen['met']) or 'none'}",
    )


def lowered(loss) -> Seen:
    """Two products of DTensors and a gather, compiled as one graph, the sum of its values the other way."""
    m = mesh()
    x = distribute_tensor(whole(8, 8), m, [Replicate()])
    up, down = distribute_tensor(whole(8, 8), m, [Shard(1)]), distribute_tensor(whole(8, 8), m, [Shard(0)])
    backend, why, value = Graphs(aot=True), "", None
    with torch.no_grad():
        try:
            value = torch.compile(loss, backend=backend, fullgraph=True)(x, up, down)
        except Exception as error:
            why = first_line(error)
    right = (whole(8, 8) @ whole(8, 8)) @ whole(8, 8)
    found = [call for graph in backend.forward for call in calls(graph)]
    return {
        "why": why,
        "collectives": [c for c in found if "c10d" in c],
        "dtensors": [c for c in found if "redistribute" in c or "DTensor" in c],
        "same": value is not None and torch.equal(value, right),
    }


def mlp(x, up, down):
    return ((x @ up) @ down).redistribute(placements=[Replicate()]).to_local()


def printed(x, up, down):
    y = (x @ up) @ down
    print(end="")
    return y.redistribute(placements=[Replicate()]).to_local()


@judge(lambda bench: bench.run(lowered, mlp)[0], counter=lambda bench: bench.run(lowered, printed)[0])
def compiled_into_collectives(seen):
    yield part("compile as one graph", not seen["why"], seen["why"] or "one graph")
    named = [call.rpartition(".")[2] for call in seen["collectives"]]
    yield part("functional collectives in the place of DTensors", named == ["all_reduce", "wait_tensor"]
               and not seen["dtensors"], f"collectives {named}, of DTensors {seen['dtensors']}")  # fmt: skip
    yield part("the right result", seen["same"], "equal" if seen["same"] else "not equal")


def small(x):
    for _ in range(4):
        x = (x + x) * 0.5
    return x


def costs(as_dtensors, compiled) -> Seen:
    plain = torch.zeros(16, 128)
    given = distribute_tensor(plain, mesh(), [Replicate()]) if as_dtensors else plain
    torch._dynamo.reset()
    run = torch.compile(small) if compiled else small

    def repeated(x):
        return lambda: [run(x) for _ in range(20)]

    with torch.no_grad():
        taken = interleave({"given": repeated(given), "plain": repeated(plain)}, rounds=30, warmup=5)
    found = taken.compare("given", "plain").to_dict()
    return {key: found[key] for key in ("ratio", "low", "high")}


def more_than(seen: Seen, least: float) -> tuple[bool, str]:
    if seen["low"] <= least <= seen["high"]:
        raise CannotTell("a quieter machine")
    return seen["low"] > least, f"{seen['ratio']:.2f} times ({seen['low']:.2f} to {seen['high']:.2f})"


@judge(
    lambda bench: bench.run(costs, True, False)[0], counter=lambda bench: bench.run(costs, False, False)[0]
)
def eager_overhead(seen):
    yield part("more than twice as long", *more_than(seen, 2))


@judge(lambda bench: bench.run(costs, True, True)[0], counter=lambda bench: bench.run(costs, False, True)[0])
def compiled_overhead(seen):
    yield part("more than 1.2 times as long", *more_than(seen, 1.2))


def by_dtensor(x):
    return (x * 2).redistribute(placements=[Replicate()]).to_local()


def rows_of(many) -> DTensor:
    local = torch.ones(many, 8).chunk(2)[dist.get_rank()]
    return DTensor.from_local(
        local, mesh(), [Shard(0)], run_check=False, shape=torch.Size((many, 8)), stride=(8, 1)
    )


def sizes_in_turn(sizes) -> Seen:
    """The number of rows that a rank gathers of the last size, after the others; a fake group, where nothing hangs."""
    torch._dynamo.reset()
    run = torch.compile(by_dtensor, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        found = [(run(rows_of(many)) + 0).shape[0] for many in sizes]
    return {"rows": found[-1], "right": sizes[-1]}


def changing(bench: Bench) -> Seen:
    found = bench.run(sizes_in_turn, [4, 6, 5], backend="fake")
    return {"rows": [one["rows"] for one in found], "right": 5}


def one_size(bench: Bench) -> Seen:
    found = bench.run(sizes_in_turn, [5], backend="fake")
    return {"rows": [one["rows"] for one in found], "right": 5}


@judge(changing, counter=one_size)
def uneven_rows_that_change(seen):
    yield part(
        "ranks get other numbers of rows",
        seen["rows"] != [seen["right"]] * 2,
        f"ranks get {seen['rows']} of 5 rows",
    )


def without_a_rule(function) -> Seen:
    x = distribute_tensor(torch.randn(8, 4), mesh(), [Shard(0)])
    said = ""
    try:
        function(x)
    except NotImplementedError as error:
        said = first_line(error)
    return {"said": said}


def distances(x):
    return torch.cdist(x, x)


@judge(
    lambda bench: bench.run(without_a_rule, distances)[0],
    counter=lambda bench: bench.run(without_a_rule, softmax)[0],
)
def operators_without_a_rule(seen):
    yield part("raises NotImplementedError", bool(seen["said"]), seen["said"] or "no error")


def pipelined(shards) -> Seen:
    """Inductor's pass alone, over the graph of two products between shards: nothing is run."""
    m = mesh()
    x = distribute_tensor(torch.zeros(32, 32), m, [Shard(0)])
    up, down = (
        distribute_tensor(torch.zeros(32, 128), m, [Shard(1)]),
        distribute_tensor(torch.zeros(128, 32), m, [Shard(0)]),
    )

    def block(x, up, down):
        hidden = F.gelu(x.redistribute(placements=[Replicate()]) @ up)
        return (hidden @ down).redistribute(placements=[Shard(0) if shards else Replicate()]).to_local()

    backend = Graphs(aot=True)
    with torch.no_grad():
        torch.compile(block, backend=backend, fullgraph=True)(x, up, down)
    (graph,) = backend.forward
    before = calls(graph)
    with _test_mode(), mock.patch("torch.distributed.is_nccl_available", lambda: True):
        micro_pipeline_tp_pass(graph.graph)
    after = calls(graph)
    naive = [c for c in before if "all_gather" in c or "reduce_scatter" in c or "all_reduce" in c]
    return {
        "before": [c.rpartition(".")[2] for c in naive],
        "after": [c.rpartition(".")[2] for c in after if "fused" in c],
    }


@judge(
    lambda bench: bench.run(pipelined, True, backend="fake")[0],
    counter=lambda bench: bench.run(pipelined, False, backend="fake")[0],
)
def async_tp_fuses(seen):
    yield part(
        "fused_all_gather_matmul",
        "fused_all_gather_matmul" in seen["after"],
        f"{seen['before']}: {seen['after']}",
    )
    yield part("fused_matmul_reduce_scatter", "fused_matmul_reduce_scatter" in seen["after"])
