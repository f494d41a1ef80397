"""shm gives what gloo gives: random programs of collectives run on both, in two to four ranks."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import labkit

pytestmark = pytest.mark.slow  # seconds of collectives: `make check` leaves them to `make test`

EXACT = ["uint8", "int8", "int32", "int64"]
CLOSE = {"float64": 1e-12, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
REDUCING = ["all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single"]
MOVING = [
    "broadcast",
    "all_gather",
    "all_gather_single",
    "gather",
    "scatter",
    "all_to_all_single",
    "all_to_all_ragged",
    "barrier",
]


@pytest.fixture(scope="module", params=[2, 3, 4])
def world(request):
    with labkit.Ranks(request.param, device="cpu", backend="shm", timeout=60, quiet=True) as ranks:
        yield ranks


@st.composite
def steps(draw):
    op = draw(st.sampled_from(REDUCING * 2 + MOVING))
    dtype = draw(st.sampled_from([*EXACT, *CLOSE] + (["bool"] if op in MOVING else [])))
    reductions = ["SUM", "MAX", "MIN", "PRODUCT"] + (["AVG"] if dtype in CLOSE else ["BAND", "BOR"])
    return {
        "op": op,
        "dtype": dtype,
        # gloo gathers no tensors of no dimension into one
        "shape": draw(st.lists(st.integers(0, 5), min_size="single" in op or "ragged" in op, max_size=3)),
        "reduction": draw(st.sampled_from(reductions)) if op in REDUCING else "",
        "root": draw(st.integers(0, 7)),
        "dense": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


def run_program(program, tolerances):
    """Run on both backends; give what differs, and this rank's bits of the results that all ranks should share."""
    import sys
    import types
    import warnings

    import torch
    import torch.distributed as dist

    warnings.simplefilter("ignore", FutureWarning)
    here = sys.modules.setdefault("gloo_beside_shm", types.ModuleType("gloo_beside_shm"))
    if not hasattr(here, "group"):
        here.group = dist.new_group(backend="gloo")
    rank, n = dist.get_rank(), dist.get_world_size()

    def numbers(step, times=1, of=rank):
        source = torch.Generator().manual_seed(step["seed"] * 8 + of)
        shape = [*(length * times for length in step["shape"][:1]), *step["shape"][1:]]
        dtype = getattr(torch, step["dtype"])
        if step["dtype"] == "bool":
            values = torch.rand(shape, generator=source) < 0.5
        elif dtype.is_floating_point:
            values = (torch.rand(shape, generator=source) + 0.5).to(dtype)
        else:
            values = torch.randint(0, 100, shape, generator=source).to(dtype)
        if step["dense"] or values.dim() < 2:
            return values
        return (
            values.transpose(0, -1).contiguous().transpose(0, -1)
        )  # the same numbers in another order of memory

    def perform(step, group):
        op, root = step["op"], step["root"] % n
        how = {"op": getattr(dist.ReduceOp, step["reduction"])} if step["reduction"] else {}
        x = numbers(step)
        if op == "barrier":
            dist.barrier(group=group)
            return []
        if op == "all_reduce":
            dist.all_reduce(x, group=group, **how)
            return [x]
        if op == "reduce":
            dist.reduce(x, root, group=group, **how)
            return [x] if rank == root else []  # elsewhere its content is undefined
        if op == "broadcast":
            dist.broadcast(x, root, group=group)
            return [x]
        if op == "all_gather":
            outs = [torch.zeros_like(x) for _ in range(n)]
            dist.all_gather(outs, x, group=group)
            return outs
        if op == "gather":
            outs = [torch.zeros_like(x) for _ in range(n)] if rank == root else None
            dist.gather(x, outs, root, group=group)
            return outs or []
        if op == "scatter":
            parts = [numbers(step, of=i) for i in range(n)] if rank == root else None
            dist.scatter(out := torch.zeros_like(x), parts, root, group)
            return [out]
        if op == "reduce_scatter":
            out = torch.zeros_like(x)
            dist.reduce_scatter(out, [numbers(step, of=rank + i) for i in range(n)], group=group, **how)
            return [out]
        single = {
            "all_gather_single": getattr(dist, "all_gather_single", dist.all_gather_into_tensor),
            "reduce_scatter_single": getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor),
        }
        wide = numbers({**step, "dense": True}, times=n)
        if op == "all_gather_single":
            out = torch.zeros_like(wide)
            single[op](out, x.contiguous(), group=group)
        elif op == "reduce_scatter_single":
            out = torch.zeros_like(x.contiguous())
            single[op](out, wide, group=group, **how)
        elif op == "all_to_all_single":
            out = torch.zeros_like(wide)
            dist.all_to_all_single(out, wide, group=group)
        else:  # rank i sends i + 2 j rows to rank j
            row = step["shape"][1:]
            given, taken = [rank + 2 * j for j in range(n)], [i + 2 * rank for i in range(n)]
            source = numbers({**step, "shape": [sum(given), *row], "dense": True})
            out = torch.zeros([sum(taken), *row], dtype=source.dtype)
            dist.all_to_all_single(out, source, taken, given, group=group)
        return [out]

    wrong, shared = [], []
    for number, step in enumerate(program):
        mine, theirs = perform(step, dist.group.WORLD), perform(step, here.group)
        for a, b in zip(mine, theirs, strict=True):
            tolerance = tolerances.get(step["dtype"], 0) if step["reduction"] else 0
            if a.shape != b.shape or a.dtype != b.dtype:
                wrong.append((number, a.shape, b.shape))
            elif not torch.allclose(a.double(), b.double(), rtol=tolerance, atol=0):
                wrong.append((number, step, a.tolist(), b.tolist()))
        if step["op"] in ("all_reduce", "all_gather", "all_gather_single", "broadcast"):
            shared += [t.reshape(-1).view(torch.uint8).tolist() if t.numel() else [] for t in mine]
    return wrong, shared


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(program=st.lists(steps(), min_size=1, max_size=10))
def test_random_programs_give_what_gloo_gives(world, program):
    results = list(world.run(run_program, program, CLOSE).values())
    assert [wrong for wrong, _ in results] == [[]] * len(results)
    assert all(shared == results[0][1] for _, shared in results), (
        "ranks differ in bits that they should share"
    )


def every_reduction(dtype_name):
    """What each reduction gives of (rank % 2, 1, 0), or its error."""
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    dtype, found = getattr(torch, dtype_name), {}
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"):
        x = torch.tensor([rank % 2, 1, 0]).to(dtype)
        try:
            dist.group.WORLD.allreduce([x], _options(dist, name)).wait()
            found[name] = x.to(torch.complex128 if dtype.is_complex else torch.float64).tolist()
        except ValueError as error:
            found[name] = str(error)
    return found


def _options(dist, name):
    options = dist.AllreduceOptions()
    options.reduceOp = getattr(dist.ReduceOp, name)
    return options


@pytest.mark.parametrize("dtype", ["bool", "int16", "float8_e4m3fn", "complex64"])
def test_dtypes_that_gloo_lacks_are_reduced_or_refused_before_anything_is_sent(world, dtype):
    n = len(world)
    odd = n // 2  # how many ranks hold 1 in the first place
    found = world.run(every_reduction, dtype).same()
    if dtype == "bool":
        assert found["SUM"] == found["MAX"] == found["BOR"] == [1, 1, 0]
        assert found["PRODUCT"] == found["MIN"] == found["BAND"] == [0, 1, 0]
        assert "AVG of torch.bool would round" in found["AVG"]
    elif dtype == "int16":
        assert (found["SUM"], found["MIN"], found["MAX"]) == ([odd, n, 0], [0, 1, 0], [1, 1, 0])
        assert found["BXOR"] == [odd % 2, n % 2, 0]
        assert "reduce with SUM and divide" in found["AVG"]
    elif dtype == "complex64":
        assert found["SUM"] == [odd, n, 0] and found["AVG"] == pytest.approx([odd / n, 1, 0])
        assert "cannot reduce torch.complex64 with MIN" in found["MIN"]
    else:
        assert all(f"cannot reduce torch.{dtype}" in text for text in found.values())


def move(dtype_name, numel):
    """Whether all_gather, broadcast, reduce_scatter and all_to_all bring every byte to its place."""
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    dtype = getattr(torch, dtype_name)

    def row(of):
        raw = torch.randint(
            0, 2 if dtype == torch.bool else 120, (numel * dtype.itemsize,), dtype=torch.uint8
        )
        raw = (raw + of) % (2 if dtype == torch.bool else 120)
        return raw.view(dtype)

    torch.manual_seed(1)  # the same on every rank
    rows = [row(i) for i in range(n)]
    gathered = [torch.zeros_like(rows[0]) for _ in range(n)]
    dist.all_gather(gathered, rows[rank])
    copy = rows[rank].clone()
    dist.broadcast(copy, n - 1)
    received = [torch.zeros_like(rows[0]) for _ in range(n)]
    dist.all_to_all(received, [rows[rank]] * n)
    scattered = torch.zeros_like(rows[0])
    dist.scatter(scattered, rows if rank == 1 else None, 1)

    def same(a, b):
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8))

    return (
        all(map(same, gathered, rows))
        and same(copy, rows[-1])
        and all(map(same, received, rows))
        and same(scattered, rows[rank])
    )


@pytest.mark.parametrize(
    "dtype", ["bool", "int16", "uint16", "uint64", "float8_e5m2", "bfloat16", "complex64"]
)
def test_copies_move_any_dtype_and_more_than_a_slot(world, dtype):
    from labkit.shm.segment import SLOT_BYTES

    assert world.run(move, dtype, 100).same()
    assert world.run(move, dtype, SLOT_BYTES + 1001).same()


def reduce_large(numel):
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.arange(numel, dtype=torch.int64) * (rank + 1)
    dist.all_reduce(x)
    whole = torch.arange(numel * n, dtype=torch.int64) * (rank + 1)
    part = torch.zeros(numel, dtype=torch.int64)
    dist.reduce_scatter(part, list(whole.chunk(n)))
    times = n * (n + 1) // 2
    low = rank * numel
    return torch.equal(x, torch.arange(numel) * times) and torch.equal(
        part, torch.arange(low, low + numel) * times
    )


def test_reductions_of_every_length_around_a_slot(world):
    from labkit.shm.segment import SLOT_BYTES

    full = SLOT_BYTES // 8
    assert all(
        world.run(reduce_large, numel).same() for numel in (0, 1, full - 1, full, full + 1, 3 * full + 17)
    )


def refused():
    """The error of each bad call, and whether the group still works afterwards."""
    import torch
    import torch.distributed as dist

    n = dist.get_world_size()
    bad = {
        "too few to send": lambda: dist.all_to_all([torch.ones(1)] * n, [torch.ones(1)]),
        "one size": lambda: dist.all_to_all_single(torch.ones(2 * n), torch.ones(n)),
        "expanded": lambda: dist.all_reduce(torch.ones(1).expand(4)),
        "sparse": lambda: dist.all_reduce(torch.eye(3).to_sparse()),
        "meta": lambda: dist.all_reduce(torch.ones(2, device="meta")),
        "sizes": lambda: dist.all_gather([torch.ones(2)] * n, torch.ones(3)),
        "too few": lambda: dist.all_gather([torch.ones(2)], torch.ones(2)),
        "uneven parts": lambda: dist.reduce_scatter(
            torch.zeros(2), [torch.ones(1 + (i > 0)) for i in range(n)]
        ),
        "monitored": dist.monitored_barrier,
        "splits": lambda: dist.all_to_all_single(torch.ones(8), torch.ones(8), [8] * n, [8] * n),
        "uneven": lambda: dist.all_to_all_single(torch.ones(n + 1), torch.ones(n + 1)),
    }
    found = {}
    for name, call in bad.items():
        try:
            call()
        except ValueError as error:
            found[name] = str(error)
        except RuntimeError as error:
            if name != "monitored":  # torch's own refusal, since 2.15
                raise
            found[name] = str(error)
    x = torch.ones(2)
    dist.all_reduce(x)
    return found, x.tolist()


def test_a_bad_argument_is_refused_on_its_rank_and_spoils_nothing(world):
    found, total = world.run(refused).same()
    n = len(world)
    assert total == [n] * 2
    assert "elements share memory" in found["expanded"] and "sparse_coo" in found["sparse"]
    assert "CPU tensors, got one on meta" in found["meta"]
    assert f"all_gather over shm takes {n} x 3 elements of torch.float32 here, got 2 of" in found["sizes"]
    assert f"reduce_scatter over shm takes {n} x 2 elements of torch.float32 here" in found["uneven parts"]
    assert re.search("only implemented for GLOO|No backend type associated", found["monitored"])
    assert f"all_gather over shm takes {n} x 2 elements" in found["too few"]
    assert f"one input and one output for each of {n} ranks" in found["too few to send"]
    assert f"all_to_all_single over shm takes 1 x {n} elements" in found["one size"]
    assert f"cannot split 8 rows for {n} ranks into {[8] * n}" in found["splits"]
    assert f"cannot split {n + 1} rows for {n} ranks into {[1] * n}" in found["uneven"]


def against_gloo() -> dict[str, object]:
    """What docs/waits.md says of the differences between shm and gloo, on this backend."""
    import datetime

    import torch
    import torch.distributed as dist

    rank, nan = dist.get_rank(), float("nan")

    def smallest(where):
        x = torch.tensor([nan if rank == where else 1.0])
        dist.all_reduce(x, op=dist.ReduceOp.MIN)
        return str(x.item())

    def summed(dtype):
        x = torch.ones(2).to(dtype)
        dist.all_reduce(x)
        return x.tolist()

    def sent(dtype):
        x = torch.full((1,), float(rank)).to(dtype)
        dist.broadcast(x, 1)
        return x.float().tolist()

    def gathered(dtype):
        parts = [torch.zeros(1, dtype=dtype) for _ in range(2)]
        dist.gather(torch.ones(1, dtype=dtype), parts if rank == 0 else None)
        return len(parts)

    def uneven():
        out = torch.zeros(1 + rank)
        dist.reduce_scatter(out, [torch.ones(1), torch.ones(2)])
        return out.sum().item() / (1 + rank)

    def sparse():
        x = torch.sparse_coo_tensor([[0]], [1.0], (2,))
        dist.all_reduce(x)
        return x.to_dense().tolist()

    found: dict[str, object] = {}
    for name, call in {
        "nan on rank 0": lambda: smallest(0),
        "nan on rank 1": lambda: smallest(1),
        "bool": lambda: summed(torch.bool),
        "complex": lambda: summed(torch.complex64),
        "int16": lambda: summed(torch.int16),
        "int16 sent": lambda: sent(torch.int16),
        "float8 sent": lambda: sent(torch.float8_e4m3fn),
        "float8 summed": lambda: summed(torch.float8_e4m3fn),
        "complex gathered": lambda: gathered(torch.complex64),
        "uneven": uneven,
        "sparse": sparse,
        "monitored": lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=30)),
    }.items():
        try:
            found[name] = call()
        except (RuntimeError, ValueError):
            found[name] = "refused"
    return found


def test_the_differences_from_gloo_that_the_documentation_lists(ranks, shm_ranks):
    both = {
        "bool": [True, True],
        "complex": [2, 2],
        "nan on rank 0": "nan",
        "float8 summed": "refused",
    }
    assert shm_ranks.run(against_gloo).same() == {
        **both,
        "nan on rank 1": "nan",
        "int16": [2, 2],
        "int16 sent": [1.0],
        "float8 sent": [1.0],
        "complex gathered": 2,
        "uneven": "refused",
        "sparse": "refused",
        "monitored": "refused",
    }
    assert ranks.run(against_gloo).same() == {
        **both,
        "nan on rank 1": "1.0",
        "int16": "refused",
        "int16 sent": "refused",
        "float8 sent": "refused",
        "complex gathered": "refused",
        "uneven": 2.0,
        "sparse": [2.0, 0.0],
        "monitored": None,
    }
