"""DTensor beside explicit collectives: how predictable, which operators have rules, caches, dynamic shapes."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from labkit import lessons, torch_compat
from labkit.graphs import record
from labkit.lessons.dtensor.claims.redistribute import held, lowered, sums
from labkit.lessons.dtensor.on_ranks import whole_of
from labkit.lessons.shared.capture import Capture, calls, first_line
from labkit.lessons.shared.timed import timed, timing_result
from labkit.study.checks import HOLDS, Bench, Result, Seen, judging, probe, verdict
from labkit.timing import interleave
from labkit.torch_compat import (
    dtensor_cache,
    dynamo_reset,
    forget_dtensor_rules,
    funcol,
    pipeline_tensor_parallel,
)

program = lessons.program("dtensor")
DIM = 64
SUMS = 2  # of a block: after its attention and after its MLP
ROUNDS = 40
ROWS = (4, 6, 5)  # the last one leaves 3 rows on rank 0 and 2 on rank 1
# operators by trying: what a program may call on a tensor of 4 by 8 that is split by rows
TRIED = (
    "x + x", "x @ x.t()", "x.relu()", "F.gelu(x)", "x.softmax(-1)", "x.softmax(0)", "F.layer_norm(x, (8,))",
    "x.sum(0)", "x.mean(-1)", "x.cumsum(0)", "x.sort(0)[0]", "x.topk(2, 0)[0]", "x.argmax(1)", "x[1:3]",
    "x.t()", "x.reshape(8, 4)", "x.view(2, 2, 8)", "torch.cat([x, x])", "torch.stack([x, x])",
    "x.chunk(2, 1)[0]", "x.chunk(2, 0)[0]", "x.roll(1, 0)", "x.flip(0)", "x.tril()", "x.masked_fill(x > 0, 0)",
    "torch.where(x > 0, x, x)", "x.repeat(2, 1)", "x.norm()", "x.var(1)", "F.pad(x, (1, 1))",
    "x.unfold(0, 2, 1)", "x.nonzero()", "x.unique()", "torch.linalg.qr(x)[0]", "x.diagonal()",
    "torch.fft.fft(x).real", "torch.einsum('ij,kj->ik', x, x)", "F.embedding(x.argmax(1) % 4, x)",
    "x.median(0)[0]", "torch.histc(x, 4)",
)  # fmt: skip


@probe
def predictable(bench: Bench) -> Seen:
    """One block with its two sums written out, and as DTensors that are told where to sum, or are not."""
    found = bench.run(_predictable, ranks=2, backend="fake")[0]
    found["lowered"] = bench.run(_lowered)[0]
    return found | {"times": timed("host only", found["times"], "told", "explicit")}


def _predictable() -> Seen:
    mesh, whole, x = init_device_mesh("cpu", (2,)), whole_of(program, "block", DIM), program.sample(DIM, 4)
    found: Seen = {"written": SUMS}
    with torch.no_grad():
        ways = {
            "explicit": program.ROUTES["b"](whole, mesh),
            "told": program.ROUTES["c"](whole, mesh),
            "left_alone": program.ROUTES["c"](whole, mesh, settle=False),
        }
        for name, model in ways.items():
            _, names, nbytes = program.counted(lambda model=model: model(x))
            found[name] = {"collectives": len(names), "bytes": nbytes}
        taken = interleave(
            {name: functools.partial(ways[name], x) for name in ("told", "explicit")}, ROUNDS, 3
        )
    return found | {"times": {name: one.samples for name, one in taken.items()}}


def _lowered() -> Seen:
    """On ranks that communicate: a fake group says nothing about numbers."""
    mesh, whole, x = init_device_mesh("cpu", (2,)), whole_of(program, "block", DIM), program.sample(DIM, 4)
    with torch.no_grad():
        model = program.ROUTES["c"](whole, mesh)
        return lowered(model, (x,), model(x))


@judging(predictable)
def the_example_is_lowered(seen: Seen) -> Result:
    """Compiled, a block as DTensors is one graph of tensors with the block's sums in it, which Dynamo did not see."""
    row = seen["lowered"]
    collectives = ", ".join(call for call in row["calls"] if "c10d" in call)
    said = held(row | {"calls": [f"{len(row['calls'])} calls, of which {collectives}"]})
    return verdict(sums(row, seen["written"]) and not row["written"], said)


@judging(predictable)
def explicit_is_more_predictable(seen: Seen) -> Result:
    """Explicit collectives run as often as written; left to itself, DTensor runs others than the program has sums."""
    explicit, alone = seen["explicit"], seen["left_alone"]
    return verdict(
        explicit["collectives"] == seen["written"] != alone["collectives"],
        f"{seen['written']} sums a block: explicit runs {explicit['collectives']} collectives ({explicit['bytes']} B), "
        f"DTensor alone {alone['collectives']} ({alone['bytes']} B), told where to sum {seen['told']['collectives']} "
        "[host only; a block of ours]",
    )


@judging(predictable)
def the_example_has_overhead_in_eager(seen: Seen) -> Result:
    """In eager a block as DTensors, redistributed where it sums, takes longer than with its sums written out."""
    return timing_result(seen["times"], "slower", "any machine")


def _core_operators() -> set[str]:
    """Core ATen, what an exported program is made of (tagged `core`): the operators from tensors to tensors."""
    packets = [getattr(torch.ops.aten, name) for name in dir(torch.ops.aten)]
    found = [getattr(packet, name) for packet in packets for name in getattr(packet, "overloads", list)()]
    ends = [(op, op._schema.arguments, op._schema.returns) for op in found if torch.Tag.core in op.tags]
    return {str(op) for op, *both in ends if all(any("Tensor" in str(x.type) for x in end) for end in both)}


@probe
def rulebook(bench: Bench) -> Seen:
    """Core ATen against the operators with a rule of DTensor's, and forty programs tried on a tensor split by rows."""
    return bench.run(_rulebook, TRIED)[0]


def _rulebook(tried: tuple[str, ...]) -> Seen:
    core, rules, apart = _core_operators(), torch_compat.dtensor_rules(), torch_compat.decomposable()
    found: Seen = {
        "core": len(core), "with_rule": len(core & rules), "by_decomposition": len((core - rules) & apart),
        "without": sorted(core - rules - apart), "programs": {},
    }  # fmt: skip
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    split = distribute_tensor(whole, mesh, [Shard(0)])
    names: dict[str, Any] = {"torch": torch, "F": F}
    for program in tried:
        expected = eval(program, names | {"x": whole})  # our own list above
        try:
            y = eval(program, names | {"x": split})
            y = y.full_tensor() if isinstance(y, DTensor) else y
        except Exception as error:
            found["programs"][program] = f"refused: {type(error).__name__}"
            continue
        alike = y.shape == expected.shape and torch.allclose(y.float(), expected.float(), atol=1e-4)
        found["programs"][program] = "right" if alike else "other numbers"
    return found


@judging(rulebook)
def every_operator_has_rules(seen: Seen) -> Result:
    """Each operator of core ATen has a rule of placements of its own."""
    missing = seen["without"]
    return verdict(
        seen["with_rule"] == seen["core"],
        f"of {seen['core']} core operators {seen['with_rule']} have a rule, {seen['by_decomposition']} are taken "
        f"apart, {len(missing)} have neither{': ' + ', '.join(missing[:4]) if missing else ''}",
    )


@judging(rulebook)
def coverage_matters(seen: Seen) -> Result:
    """Some operators that a plain tensor has are refused on a DTensor that is split; others may give other numbers."""
    programs = seen["programs"]
    not_right = {name: how for name, how in programs.items() if how != "right"}
    said = "; ".join(f"{name}: {how}" for name, how in list(not_right.items())[:5])
    return verdict(
        any(how.startswith("refused") for how in not_right.values()),
        f"{len(programs) - len(not_right)} of {len(programs)} programs right on a split tensor; {said or 'none fails'}",
    )


@probe
def caching(bench: Bench) -> Seen:
    """One addition of DTensors again, on another shape, with the cache emptied: rules found, worked out, and times."""
    found = bench.run(_caching, ranks=2, backend="fake")[0]
    times = timed("host only", found.pop("times"), "found", "worked out")
    return found | {"times": times}


def _caching() -> Seen:
    mesh = init_device_mesh("cpu", (2,))
    small, large = (DTensor.from_local(torch.ones(n), mesh, [Replicate()], run_check=False) for n in (4, 5))

    def counted(x: Any) -> list[int]:
        before = dtensor_cache()
        x + x
        return [now - then for now, then in zip(dtensor_cache(), before, strict=True)]

    forget_dtensor_rules()
    found: Seen = {"first": counted(small), "second": counted(small), "third": counted(small)}
    found["other_shape"] = counted(large)
    forget_dtensor_rules()
    found["emptied"] = counted(small)
    taken: dict[str, list[float]] = {"found": [], "worked out": []}
    for i in range(2 * ROUNDS):
        name = list(taken)[(i + i // 2) % 2]  # each comes first in every other round
        if name == "worked out":
            forget_dtensor_rules()
        began = time.perf_counter()
        small + small
        taken[name].append(time.perf_counter() - began)
    return found | {"times": {name: tuple(each) for name, each in taken.items()}}


@judging(caching)
def caching_saves_time(seen: Seen) -> Result:
    """Placements are worked out at an operation's first call, and found in a cache afterwards, which is faster."""
    names = ("first", "second", "third", "other_shape", "emptied")
    found_again = all(seen[name] == [1, 0] for name in ("second", "third"))
    worked_out = all(seen[name] == [0, 1] for name in ("first", "other_shape", "emptied"))
    counts = ", ".join(f"{name.replace('_', ' ')} {seen[name][0]}/{seen[name][1]}" for name in names)
    saves = timing_result(seen["times"], "faster", "any machine")
    said = f"rules found/worked out: {counts}; found rather than worked out: {saves.measured}"
    return Result(saves.status, said, saves.missing) if found_again and worked_out else verdict(False, said)


@probe
def dynamic(bench: Bench) -> Seen:
    """Rows that change and are not shared evenly, as DTensors and with the gather written out; and nonzero."""
    found = bench.run(_dynamic, ranks=2, backend="fake")
    return {name: [one[name] for one in found] for name in found[0]}


def _dynamic() -> Seen:
    mesh = init_device_mesh("cpu", (2,))
    found: Seen = {}
    with torch.no_grad():

        def gathered(x: Any) -> Any:
            return (x * 2).redistribute(placements=[Replicate()]).to_local()

        def rows(many: int) -> Any:
            local = torch.ones(many, 8).chunk(2)[dist.get_rank()]
            return DTensor.from_local(
                local, mesh, [Shard(0)], run_check=False, shape=torch.Size((many, 8)), stride=(8, 1)
            )

        dynamo_reset()

        def padded(x: Any, many: int) -> Any:  # the same with its gather written out
            most = -(-many // dist.get_world_size())
            x = F.pad(x * 2, (0, 0, 0, most - x.shape[0]))
            return funcol.all_gather_tensor(x, 0, dist.group.WORLD)[:many]

        for kind, function in (("uneven", gathered), ("written_out", padded)):
            dynamo_reset()
            found[kind] = {"eager": {}, "compiled": {}}
            compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
            for name, way in (("eager", function), ("compiled", compiled)):
                for many in ROWS:
                    given = (rows(many),) if kind == "uneven" else (rows(many).to_local(), many)
                    way(*given)
                    with record(shapes=True) as rec:
                        y = way(*given) + 0
                    called = rec.events[rec.events["kind"] == "collective"]["shapes"]
                    found[kind][name][str(many)] = {"into": list(called), "rows": y.shape[0]}
        dynamo_reset()  # the uneven number alone, so that nothing changes
        alone = torch.compile(gathered, backend="aot_eager", fullgraph=True)(rows(ROWS[-1])) + 0
        found["alone"] = alone.shape[0]
        found["nonzero"] = {"DTensor": _refused(rows(4)), "local": _refused(rows(4).to_local())}
    return found


def _refused(x: Any) -> str:
    try:
        x.nonzero()
    except RuntimeError as error:
        return first_line(error)
    return ""


@judging(dynamic)
def dynamic_shapes_are_a_weak_point(seen: Seen) -> Result:
    """With numbers of rows that change, ranks of a compiled DTensor program disagree; in eager, or with one, not."""
    alone = set(seen["alone"]) == {ROWS[-1]}
    return verdict(
        _apart(seen, "compiled") and not _apart(seen, "eager") and alone,
        f"{_said(seen)}; compiled for {ROWS[-1]} rows alone, ranks get {' and '.join(map(str, seen['alone']))}",
    )


@judging(dynamic)
def dtensor_varies_more(seen: Seen) -> Result:
    """With other sizes a compiled DTensor program differs from eager, and nonzero is refused; written out, neither."""
    dynamism = dynamic_shapes_are_a_weak_point(seen).status == HOLDS
    explicit = any(_apart(seen, way, "written_out") for way in ("eager", "compiled"))
    refused = seen["nonzero"][0]
    return verdict(
        dynamism and not explicit and bool(refused["DTensor"]) and not refused["local"],
        f"{_said(seen)}; with the gather written out all ranks agree: {not explicit}; nonzero of a DTensor: "
        f"{refused['DTensor'] or 'works'}, of a local tensor: {refused['local'] or 'works'}",
    )


def _apart(seen: Seen, way: str, kind: str = "uneven") -> bool:
    """Whether two ranks bring other shapes to one collective, or a rank gets other rows than there are."""
    ranks = [one[way] for one in seen[kind]]
    other_shapes = any(len({tuple(one[n]["into"]) for one in ranks}) > 1 for n in ranks[0])
    return other_shapes or any(one[n]["rows"] != int(n) for one in ranks for n in one)


def _said(seen: Seen) -> str:
    parts = []
    for way in ("eager", "compiled"):
        each = [one[way][str(ROWS[-1])] for one in seen["uneven"]]
        ranks = ", ".join(f"rank {i} {' '.join(e['into'])} and gets {e['rows']}" for i, e in enumerate(each))
        parts.append(f"{way}, {ROWS[-1]} rows are gathered from {ranks}")
    return "; ".join(parts)


@probe
def pipelined(bench: Bench) -> Seen:
    """What DTensor makes of two products and what is between shards of rows and columns, before and after Inductor's
    pass for asynchronous TP."""
    return bench.run(_pipelined, ranks=2, backend="fake")[0]


def _pipelined() -> Seen:
    mesh = init_device_mesh("cpu", (2,))
    shapes = ((32, 32), (32, 128), (128, 32))
    x, up, down = (
        distribute_tensor(torch.zeros(shape), mesh, [Shard(dim)])
        for shape, dim in zip(shapes, (0, 1, 0), strict=True)
    )

    def mlp(x, up, down):
        hidden = F.gelu(x.redistribute(placements=[Replicate()]) @ up)
        return (hidden @ down).redistribute(placements=[Shard(0)])

    dynamo_reset()
    seen = Capture(aot=True)
    with torch.no_grad():
        torch.compile(mlp, backend=seen, fullgraph=True)(x, up, down)
    (graph,) = seen.forward
    found = {"before": calls(graph)}
    pipeline_tensor_parallel(graph.graph)
    return found | {"after": calls(graph)}


@judging(pipelined)
def async_tp_rewrites_naive_collectives(seen: Seen) -> Result:
    """A pass makes one operator of each gather and scatter that DTensor has inserted and the product beside it."""
    before, after = (
        [c for c in seen[when] if any(w in c for w in ("c10d", "mm", "fused"))]
        for when in ("before", "after")
    )
    naive = [
        sum("all_gather" in c or "reduce_scatter" in c for c in cs if "c10d" in c) for cs in (before, after)
    ]
    fused = sum("fused" in call for call in after)
    return verdict(
        naive[0] > naive[1] == 0 and fused == naive[0],
        f"{', '.join(before)} becomes {', '.join(after)} (by the pass alone: nothing was run)",
    )
