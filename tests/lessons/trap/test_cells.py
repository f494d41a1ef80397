"""Lesson 05's forms outside of the lesson: gradients of other models, three ranks, other calls, its guard, a GPU."""

from __future__ import annotations

import lesson_cells
import pytest
import torch
import torch.distributed as dist

import labkit
from course.trap.logs import LOGS
from labkit import hardware, lessons

LESSON = "05_eager_trap"
trap = lessons.program("trap")

# --- gradients: another model and another loss than the lesson's, on three ranks ---


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
def test_each_class_has_one_processs_gradient_for_its_loss_and_for_no_other(three, compiled):
    for reduce, loss, right in (
        (trap.g, "replicated", True),
        (trap.summed, "summed", True),
        (trap.g, "summed", False),
        (trap.summed, "replicated", False),
    ):
        for error in three.run(against_one_process, reduce, loss, compiled, timeout=200).values():
            assert (error < 1e-9) == right, (reduce.__name__, loss, error)


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


def test_a_guard_lets_other_collectives_pass_and_stops_functional_ones(ranks):
    space = lesson_cells.definitions(LESSON, "cell-45-l05")
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


def test_a_gate_changes_the_result_where_its_argument_is_read_again_and_a_copying_gate_does_not(three):
    space = lesson_cells.definitions(LESSON)
    exec(lesson_cells._sources(LESSON)["cell-27b-l05"].partition("\n\n\nmodes")[0], space)
    in_place, left = "12, and x = 6", "7, and x = 1"  # 1 + 2 + 3, and the argument is this sum or 1
    for form, eager, compiled in (
        ("inplace", in_place, in_place),
        ("functional", left, left),
        ("gated", in_place, left),
        ("total", left, left),
    ):
        found = [three.run(space["read_again"], space[form], mode)[0] for mode in (False, True)]
        assert found == [eager, compiled], form
