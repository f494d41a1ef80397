"""Lesson 05's own cells: what they count and time, and the gradients of its forms, outside of the lesson's sizes."""

from __future__ import annotations

import functools
import json
import time
from typing import Any

import lesson_cells
import pandas as pd
import pytest
import torch
import torch.distributed as dist

import labkit
from course.trap.logs import LOGS
from labkit import files, hardware, lessons, timing
from labkit.timing import Times

LESSON = "05_eager_trap"
trap = lessons.program("trap")
# operations of one eager functional collective: itself, its wrapper, its wait; torch 2.14 wraps without one
EACH = 2 + (torch.__version__ < "2.14")


def cell(text: str) -> str:
    """The id of the code cell that contains a text."""
    cells = json.loads((files.ours("notebooks") / f"{LESSON}.ipynb").read_text())["cells"]
    (found,) = [c["id"] for c in cells if c["cell_type"] == "code" and text in "".join(c["source"])]
    return found


def run(*texts: str, **names: Any) -> dict[str, Any]:
    given = {"labkit": labkit, "pd": pd, "timing": timing, "functools": functools, "Times": Times}
    return lesson_cells.run(LESSON, cell("def gated"), *map(cell, texts), **given, **names)


@pytest.fixture(scope="module")
def silent():
    with labkit.Ranks(2, device="cpu", backend="fake", quiet=True) as ranks:
        yield ranks


def test_the_gate_is_in_place_in_eager_and_functional_is_not(silent):
    counted = run("def operations", silent=silent, reveal=lambda *_: "")["counted"]
    assert counted["inplace"] == counted["gated"] == {"c10d::allreduce_": 1}
    functional = [name for name in counted["functional"] if name.startswith("_c10d_functional::")]
    assert len(functional) == EACH and counted["functional"]["aten::clone"] == 1


def test_a_sweep_times_both_forms_at_every_size(shm_ranks):
    sweep = lesson_cells.definitions(LESSON)
    space = {
        **sweep,
        "SIZES": [4, 1 << 17],
        "ROUNDS": 3,
        "timing": timing,
        "labkit": labkit,
        "functools": functools,
    }
    source = lesson_cells._sources(LESSON)[cell("def sweep")].partition("swept = ")[0]
    exec(compile(source, "sweep", "exec"), space)
    for found in shm_ranks.run(space["sweep"]).values():
        assert set(found) == {4, 1 << 17}
        for times in found.values():
            assert times.variants == ["in place", "functional"] and len(times["functional"]) == 3


def test_a_long_kernel_hides_the_host_and_a_short_one_does_not():
    source = lesson_cells._sources(LESSON)[cell("class Device")]
    space: dict[str, Any] = {"time": time}
    exec(source[source.index("class Device") : source.index("KERNELS =")], space)

    def seconds(host_s: float, us: float) -> float:
        device = space["Device"](us)
        began = time.perf_counter()
        for _ in range(5):
            device.launched(time.sleep, host_s)
        device.synchronize()
        return time.perf_counter() - began

    slow = [seconds(host, 60_000) for host in (0.002, 0.02)]
    assert 0.3 <= min(slow) and max(slow) < 1.6 * min(slow)
    assert seconds(0.02, 0) >= 0.1


# --- gradients: other sizes than the lesson's, another loss, two ranks and three ---


def against_one_process(reduce, loss, compiled):
    """On a rank: the largest error of a two-layer model's gradient of its part, relative to one process."""
    rank, n = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(6, 4 * n, generator=generator, dtype=torch.float64)
    w = torch.randn(4 * n, 8, generator=generator, dtype=torch.float64)
    v = torch.randn(8, 8, generator=generator, dtype=torch.float64)
    rows = slice(2 * rank, 2 * rank + 2)
    whole = w.clone().requires_grad_()
    losses = ((x @ whole).t().tanh().t() @ v).exp().log1p()
    if loss == "summed":
        sum(losses[2 * r : 2 * r + 2].sum() * (r + 1) for r in range(n)).backward()
    else:
        losses.sum().backward()
    part, group = w.chunk(n)[rank].clone().requires_grad_(), dist.new_group(list(range(n)))

    def forward(part):
        y = reduce((x.chunk(n, 1)[rank] @ part).t(), group)  # not contiguous
        return (y.tanh().t() @ v).exp().log1p()

    torch.compiler.reset()
    run = torch.compile(forward, backend="aot_eager", fullgraph=True) if compiled else forward
    mine = run(part)
    (mine[rows].sum() * (rank + 1) if loss == "summed" else mine.sum()).backward()
    right = whole.grad.chunk(n)[rank]
    return ((part.grad - right).abs().max() / right.abs().max()).item()


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("size", [2, 3])
def test_each_class_has_one_processs_gradient_for_its_loss_and_for_no_other(size, compiled):
    with labkit.Ranks(size, device="cpu", backend="gloo", quiet=True) as ranks:
        for reduce, loss, right in (
            (trap.g, "replicated", True),
            (trap.summed, "summed", True),
            (trap.g, "summed", False),
            (trap.summed, "replicated", False),
        ):
            for error in ranks.run(against_one_process, reduce, loss, compiled, timeout=200).values():
                assert (error < 1e-9) == right, (reduce.__name__, loss, error)


def test_the_lessons_table(ranks):
    found = ranks.run(trap.gradients, timeout=300).same()
    twice = {
        "replicated, eager": 2.0,
        "replicated, compiled": 2.0,
        "summed, eager": 1.0,
        "summed, compiled": 1.0,
    }
    once = {key: value / 2 for key, value in twice.items()}
    assert found["functional"] == found["summed"] == twice and found["g"] == once
    assert found["inplace"] == found["gated"] == {k: (once if "eager" in k else twice)[k] for k in once}


# --- f and g: another model than the lesson's, with whole weights inside and outside of the blocks ---

CUT = {"up": 1, "up bias": 0, "down": 0}  # dimension of the weight that is split
DIM, HIDDEN, DEPTH = 5, 7, 3


def weights_of(size):
    shapes = {"norm": (DIM,), "inside": (DIM,), "up": (DIM, HIDDEN * size), "up bias": (HIDDEN * size,)}
    shapes |= {"down": (HIDDEN * size, DIM), "down bias": (DIM,)}
    generator = torch.Generator().manual_seed(3)
    made = [
        {name: torch.randn(shape, generator=generator, dtype=torch.double) for name, shape in shapes.items()}
        for _ in range(DEPTH)
    ]
    return made, torch.randn(4, DIM, generator=generator, dtype=torch.double)


def blocks(x, layers, enter, leave):
    for w in layers:
        h = enter(torch.nn.functional.rms_norm(x, (DIM,), w["norm"])) * w["inside"]
        h = leave(torch.sigmoid(h @ w["up"] + w["up bias"]) @ w["down"])
        x = x + h + w["down bias"]
    return x


def wrong_gradients(enter, leave, loss, compiled):
    """On a rank: each gradient that is not one process's, or is so only after a sum over the ranks."""
    rank, n = dist.get_rank(), dist.get_world_size()
    layers, x = weights_of(n)
    factors = [1.0] if loss == "replicated" else [1.0 + r for r in range(n)]
    whole = [{k: w.clone().requires_grad_() for k, w in of.items()} for of in layers]
    y = blocks(x, whole, lambda x: x, lambda x: x)
    sum(factor * y.square().mean() for factor in factors).backward()

    def part(tensor, name):
        return tensor.chunk(n, CUT[name])[rank] if name in CUT else tensor

    mine = [{k: part(w, k).clone().requires_grad_() for k, w in of.items()} for of in layers]
    torch.compiler.reset()
    run = torch.compile(blocks, backend="aot_eager", fullgraph=True) if compiled else blocks
    (factors[rank % len(factors)] * run(x, mine, enter, leave).square().mean()).backward()
    found = {}
    for i, (own, of) in enumerate(zip(mine, whole, strict=True)):
        for name, w in own.items():
            right, total = part(of[name].grad, name), w.grad.clone()
            if name not in CUT:
                dist.all_reduce(total)
            if not torch.allclose(w.grad, right):
                sums = name not in CUT and torch.allclose(total, right)
                found[f"{i}.{name}"] = "sums to right" if sums else "wrong"
    return found


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_three_blocks_need_f_and_g_on_three_ranks(three, compiled):
    found = three.run(wrong_gradients, trap.f, trap.g, "replicated", compiled, timeout=200).same()
    assert found == {f"{i}.inside": "sums to right" for i in range(DEPTH)}
    alone = three.run(wrong_gradients, lambda x: x, trap.g, "replicated", compiled, timeout=200)[0]
    split = [f"{i}.{name}" for i in range(DEPTH - 1) for name in CUT]
    assert {alone.get(name) for name in split} == {"wrong"}
    assert not {f"{DEPTH - 1}.{name}" for name in CUT} & set(alone)
    summed = three.run(wrong_gradients, lambda x: x, trap.summed, "summed", compiled, timeout=200).same()
    assert summed == {
        f"{i}.{w}": "sums to right" for i in range(DEPTH) for w in ("norm", "inside", "down bias")
    }


def test_the_lessons_two_blocks_at_other_sizes(three):
    space = lesson_cells.definitions(LESSON)
    exec(lesson_cells._sources(LESSON)[cell("def errors")].partition("\n\n\npairs")[0], space)
    errors = space["errors"]
    for pair, right in (((trap.f, trap.g), True), ((lambda x: x, trap.g), False)):
        found = three.run(lambda pair=pair: errors(*pair, False, blocks=3, rows=5, dim=4, hidden=9))[0]
        assert [name for name in found if found[name] <= 0.1] == (
            list(found) if right else ["2.up", "2.down"]
        ), found


class InItsOwnPlace(torch.autograd.Function):
    """g as the lesson says it may be, where nobody else reads the partial sum."""

    @staticmethod
    def forward(ctx, x, group=None):
        if torch.compiler.is_compiling():
            return trap.total(x, group)
        ctx.mark_dirty(x)
        return trap.inplace(x, group)

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def overwriting(x):
    return InItsOwnPlace.apply(x)


def test_a_g_that_overwrites_a_matmuls_result_is_right_and_torch_refuses_one_that_backward_needs(three):
    f, inside = trap.f, {f"{i}.inside": "sums to right" for i in range(DEPTH)}
    for compiled in (False, True):
        assert (
            three.run(wrong_gradients, f, overwriting, "replicated", compiled, timeout=200).same() == inside
        )

    def saved():
        overwriting(torch.ones(3, requires_grad=True).tanh()).sum().backward()

    with pytest.raises(labkit.RankError, match="modified by an inplace operation"):
        three.run(saved)


# --- which calls trace, on the torch that runs this ---


def reduce_scatter(x):
    y = x.new_empty(len(x) // dist.get_world_size())
    dist.reduce_scatter(y, list(x.chunk(dist.get_world_size())))
    return y


def all_to_all_single(x):
    y = torch.empty_like(x)
    dist.all_to_all_single(y, x)
    return y


def reduce(x):
    dist.reduce(x, 0)
    return x


def traces(call):
    torch.compiler.reset()
    try:
        with torch.no_grad():
            torch.compile(call, fullgraph=True, backend="eager")(torch.ones(12))
    except torch._dynamo.exc.Unsupported:
        return False
    return True


def test_the_calls_that_the_ledger_does_not_name_trace_as_the_lesson_says(ranks):
    found = [ranks.run(traces, call)[0] for call in (all_to_all_single, reduce_scatter, reduce)]
    assert found == [True, torch.__version__ >= "2.14", False]


def test_a_wrapper_and_a_tensor_compile_twice_where_the_lesson_says(ranks):
    source = lesson_cells._sources(LESSON)[cell("def library")].rpartition("\n\n\n")[0]
    space = lesson_cells.definitions(LESSON)
    exec(source, space)
    kind, found = ranks.run(space["library"], timeout=300)[0]
    assert kind == "AsyncCollectiveTensor"
    assert list(found.values()) == [1 if torch.__version__ >= "2.14" else 2, 2, 1]


def test_a_guard_lets_other_collectives_pass_and_stops_functional_ones(ranks):
    source = lesson_cells._sources(LESSON)[cell("class InPlaceOnly")].partition("def cost")[0]
    space = lesson_cells.definitions(LESSON)
    exec(source, space)
    guard, funcol = space["InPlaceOnly"], space["funcol"]

    def guarded():
        said, world = [], dist.group.WORLD
        made = funcol.all_reduce(torch.ones(4), "sum", world)
        for call in (
            lambda x: dist.broadcast(x, 0),
            lambda x: torch.add(x, 1, out=x).t(),
            lambda x: funcol.broadcast(x, 0, world),
            lambda x: funcol.all_gather_tensor(x, 0, world),
            lambda x: made * x,
        ):
            try:
                with torch.no_grad(), guard():
                    call(torch.ones(4))
                said.append("passes")
            except RuntimeError as error:
                said.append(str(error))
        return said

    first, second, third, fourth, last = ranks.run(guarded)[0]
    assert "aten.mul" in last
    assert (first, second) == ("passes", "passes")
    assert "broadcast" in third and "all_gather" in fourth


def test_the_logs_say_what_the_exercise_asks_for():
    assert "[rank1]" in LOGS["A"] and "[rank0]" not in LOGS["A"]
    _, first, second = LOGS["B"].replace("rank 1, fake", "rank 0, fake").split("rank 0, fake")
    assert "_c10d_functional" in first and "_c10d_functional" not in second
    norms = [line.split("norm ")[1].split("; one process: ") for line in LOGS["C"].splitlines()[1:]]
    ratios = [round(float(mine) / float(one), 2) for mine, one in norms]
    assert ratios == [1, 2, 1, 2]


def captured(call):
    """A CUDA graph of a call, after a warm-up on a stream of its own."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    # NCCL's watchdog asks about its events in another thread, which would break a capture of every thread's calls
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph


@pytest.mark.gpu
def test_a_replay_on_one_rank():
    if not hardware.gpus():
        pytest.skip("needs an NVIDIA GPU")
    # gloo does not capture; one rank of NCCL does, and its sum is no kernel
    space = lesson_cells.definitions(LESSON)

    def replays():
        x, found = torch.ones(16, 128, device="cuda"), {}
        for form in ("inplace", "functional"):
            captured(
                lambda form=form: space["functional"](x).wait() if form == "functional" else space[form](x)
            ).replay()
            found[form] = x[0, 0].item()
        torch.cuda.synchronize()
        return found

    with labkit.Ranks(1, device="cuda", backend="nccl", timeout=120, quiet=True) as ranks, torch.no_grad():
        assert ranks.run(replays)[0] == {"inplace": 1.0, "functional": 1.0}


@pytest.mark.parametrize("size", [2, 3])
def test_a_gate_changes_the_result_where_its_argument_is_read_again_and_a_copying_gate_does_not(size):
    space = lesson_cells.definitions(LESSON)
    exec(lesson_cells._sources(LESSON)[cell("def read_again")].partition("\n\n\nmodes")[0], space)
    with labkit.Ranks(size, device="cpu", backend="gloo", quiet=True) as ranks:
        whole = size * (size + 1) // 2
        in_place, left = (f"{2 * whole}, and x = {whole}", f"{whole + 1}, and x = 1")
        for form, eager, compiled in (
            ("inplace", in_place, in_place),
            ("functional", left, left),
            ("gated", in_place, left),
            ("total", left, left),
        ):
            found = [ranks.run(space["read_again"], space[form], mode)[0] for mode in (False, True)]
            assert found == [eager, compiled], form
