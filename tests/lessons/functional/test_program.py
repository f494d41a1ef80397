"""Lesson 02's rules outside of its examples: other sizes, models and three ranks; the key of its exercise."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings

import lesson_cells
import pytest
import torch
import torch.distributed as dist
from lessons.functional import wrong

from course.functional import exercises, inside
from course.functional.exercises.jobs import wrong_ranks
from course.functional.logs import LOGS
from labkit import lessons, torch_compat

LESSON = "02_inplace_vs_functional"
functional = lessons.program("functional")


@pytest.mark.slow
def test_a_write_that_no_edge_shows_is_lost_under_a_pass_on_three_ranks(three):
    lesson = lesson_cells.definitions(LESSON, "cell-05-l02", "cell-07-l02")
    right, own = [61 + 6 * i for i in range(6)], [21 + 2 * i for i in range(6)]
    returns = {
        name: [
            three.run(lesson["after"], program, a_pass)[1]["returns"] for a_pass in lesson["PASSES"].values()
        ]
        for name, program in lesson["PROGRAMS"].items()
    }
    assert returns == {
        "in place, hidden": [right, own, own],
        "in place, declared": [right, right, own],
        "functional": [right, right, right],
    }


@pytest.mark.slow
def test_the_wait_keeps_a_collective_and_only_what_it_returns_is_behind_it(ranks):
    """The reader's changes to `functional`."""
    lesson = lesson_cells.definitions(LESSON, "cell-05-l02", "cell-07-l02")
    op = torch.ops._c10d_functional

    def ignored(x):
        y = op.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)
        op.wait_tensor(y)
        return y + 1

    def unread(x):
        op.wait_tensor(op.all_reduce(x * 2, "sum", dist.group.WORLD.group_name))
        return x + 1

    def unwaited(x):
        op.all_reduce(x * 2, "sum", dist.group.WORLD.group_name)
        return x + 1

    def seen(program, a_pass):
        return ranks.run(lesson["after"], program, lesson["PASSES"][a_pass])[0]

    names = [name for name, _ in seen(ignored, "latest first")["edges"]]
    assert names.index("add") < names.index("wait_tensor")
    names = [name for name, _ in seen(lesson["functional"], "latest first")["edges"]]
    assert names.index("add") > names.index("wait_tensor")
    assert seen(ignored, "none")["returns"] == seen(ignored, "drop dead code")["returns"] == [21, 25, 29, 33]
    assert seen(unread, "drop dead code")["dropped"] == []
    assert seen(unwaited, "drop dead code")["dropped"] == ["mul", "all_reduce"]
    with pytest.raises(Exception, match="not defined to alias output but was aliasing"):
        torch.library.opcheck(op.wait_tensor.default, (torch.ones(3),))


@pytest.mark.slow
def test_dynamo_believes_a_fake_kernel(ranks):
    """The reader's change to `double`."""

    def believed(fake):
        @torch.library.custom_op("lesson::believed", mutates_args=())
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        double.register_fake(fake)
        return functional.refusal(lambda x: double(x) + 1)

    for fake in (torch.empty_like, lambda x: x.new_empty(1)):
        assert ranks.run(believed, fake)[0] == ""


@pytest.mark.slow
def test_inductor_makes_the_same_of_both_forms_and_copies_an_input_that_must_survive(ranks):
    def calls(name, form, own):
        return ranks.run(
            lambda: inside.look(functional.forms(name, own)[form], functional.sample())["calls"], timeout=300
        )[0]

    of = {
        (form, own): calls("all_reduce", form, own)
        for form in ("in place", "functional")
        for own in (True, False)
    }
    assert of["in place", True] == of["functional", True]
    assert "_c10d_functional.all_reduce_" in of["functional", True][1]
    assert len(of["functional", False]) == len(of["in place", False]) + 1  # a copy of the input
    assert (
        "arg0_1" in of["in place", False][0] and "cpp_fused_all_reduce_0(arg0_1" in of["functional", False][0]
    )
    gathered = [calls("all_gather_into_tensor", form, True) for form in ("in place", "functional")]
    assert len(gathered[0]) == len(gathered[1]) == 4  # no copy into the tensor that was made for it


@pytest.mark.slow
def test_what_is_wrong_in_both_jobs_is_said_at_once(ranks):
    answer = exercises.jobs.check(wrong.wrong_in_a_and_b, ranks)
    assert not answer and "job A: a barrier changes when" in answer.hint and "job B: work out" in answer.hint


def test_the_key_of_the_jobs_is_what_their_logs_show():
    printed = {
        job: [json.loads(re.search(rf"rank {rank} x=.* result=(.*)", log)[1]) for rank, log in of.items()]
        for job, of in LOGS.items()
    }
    assert all(
        f"x={x}" in of[rank] for of in LOGS.values() for rank, x in enumerate(([1.0, 2.0], [10.0, 20.0]))
    )
    right = [23, 45]  # twice 1 + 10 and 2 + 20, plus 1
    wrong_on = {job: {rank for rank in (0, 1) if printed[job][rank] != right} for job in LOGS}
    assert wrong_on == {"A": {0}, "B": {0, 1}} == {job: wrong_ranks(job) for job in LOGS}
    waited = {rank: "wait_tensor.default" in log for rank, log in LOGS["A"].items()}
    assert waited == {rank: "unwaited" not in log for rank, log in LOGS["A"].items()} == {0: False, 1: True}


@pytest.mark.slow
def test_gradients_by_collective_on_three_ranks(three):
    lesson = lesson_cells.definitions(LESSON, "cell-41b-l02")
    lesson["inside"] = inside
    names = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
    found = {
        name: three.run(lesson["gradients"], name, timeout=300)[0]
        for name in (*names, "broadcast", *lesson["OPERATIONS"])
    }
    said = {name: {c: word for c, (word, _) in of.items()} for name, of in found.items()}
    for name in names:
        assert said[name].pop("in place, eager") != "right", name
        assert set(said[name].values()) == {"right"} and len(said[name]) == 3, name
    assert said["broadcast"]["functional, eager"] == "wrong"
    assert found["broadcast"]["functional, eager"][1] == found["broadcast"]["in place, eager"][1]
    since = {"all_reduce, avg": "2.14", "all_reduce, max": "2.15"}
    for name, least in since.items():
        has = torch_compat.within(torch.__version__, since=least)
        assert said[name].pop("in place, eager") == "wrong", name
        assert {*said[name].values()} == {"right" if has else "raises"}, name
    one, name = lesson["gradient"], "all_reduce"
    for compiled, word in ((False, "wrong"), (True, "raises")):  # on a weight itself
        found = three.run(lambda on=compiled: one(name, functional.forms(name, own=False)["in place"], on))
        assert {said for said, _ in found.values()} == {word}
    name = "all_gather_into_tensor"
    for _ in range(3):  # by timing, and not alike on the ranks
        words = three.run(lambda: one(name, functional.forms(name)["in place"], False)[0])
        assert {*words.values()} <= {"raises", "no gradient"}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_which_tensor_parallel_gradients_are_right_on_three_ranks(three, mode):
    lesson = lesson_cells.definitions(LESSON, "blocks-run")
    (whole, share), (none, have, summed) = lesson["LOSSES"], lesson["REPLICATED"]

    def words(form, on, blocks, replicated=none):
        found = three.run(lesson["train"], form, mode, on, blocks, replicated, timeout=120)[0]
        return " ".join(found.values())

    for form in ("functional", "in place") if mode == "compiled" else ("functional",):
        for blocks in (1, 2):
            assert (
                {*words(form, share, blocks).split()}
                == {*words(form, share, blocks, summed).split()}
                == {"right"}
            )
            assert words(form, whole, blocks) == " ".join(["n times"] * 2 * blocks)
        assert words(form, share, 2, have) == "other right right other other right right 1/n"
    if mode == "eager":
        assert words("in place", whole, 1) == "right right"
        assert words("in place", whole, 2) == "other other right right"
        assert words("in place", whole, 1, have) == "other right right right"


@pytest.mark.slow
def test_the_whole_loss_needs_the_sum_at_the_input_of_up_and_none_after_it(three):
    """The other column of the lesson's table: f and g of Megatron, a gain before f, and a bias."""

    def right():
        class F(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, grad):
                dist.all_reduce(grad := grad.clone())
                return grad

        class G(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                dist.all_reduce(y := x.clone())
                return y

            @staticmethod
            def backward(ctx, grad):
                return grad

        def loss(layers, enter, leave):
            x = torch.linspace(-1, 2, 12).reshape(3, 4)
            for gain, up, down, bias in layers:
                x = x + leave(torch.relu(enter(x * gain) @ up.T) @ down.T) + bias
            return x.square().mean()

        def part(i, w):
            return w.chunk(dist.get_world_size(), i - 1)[dist.get_rank()] if i in (1, 2) else w

        torch.manual_seed(0)
        shapes = (4,), (12, 4), (4, 12), (4,)  # gain, up, down, bias
        whole = [[torch.randn(shape, requires_grad=True) for shape in shapes] for _ in range(2)]
        mine = [
            [part(i, w.detach()).clone().requires_grad_() for i, w in enumerate(layer)] for layer in whole
        ]
        loss(whole, lambda x: x, lambda x: x).backward()
        loss(mine, F.apply, G.apply).backward()
        return [
            torch.allclose(own.grad, part(i, w.grad), rtol=1e-4, atol=1e-5)
            for owned, layer in zip(mine, whole, strict=True)
            for i, (own, w) in enumerate(zip(owned, layer, strict=True))
        ]

    assert three.run(right).same() == [True] * 8


@pytest.mark.slow
def test_the_broadcast_that_trains_on_three_ranks(three):
    found = three.run(
        lesson_cells.definitions(LESSON, "cell-41b-l02", "trains")["trained_broadcast"], timeout=120
    )
    assert {word for of in found.values() for word, _ in of.values()} == {"right"}


START = """
import sys, torch, labkit
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.distributed.distributed_c10d import _resolve_process_group


def trained(where):
    @torch.library.custom_op("start::broadcast", mutates_args=())
    def broadcast(x: torch.Tensor, src: int, group: str) -> torch.Tensor:
        y = x.clone()
        dist.broadcast(y, group=_resolve_process_group(group), group_src=src)
        return y

    @torch.library.custom_op("start::total", mutates_args=())
    def total(grad: torch.Tensor, src: int, group: str) -> torch.Tensor:
        y = grad.clone()
        dist.all_reduce(y, group=_resolve_process_group(group))
        return y if where != "an operator" or dist.get_rank() == src else torch.zeros_like(y)

    def backward(ctx, grad):
        src, group = ctx.given
        waited = where == "backward, with a wait"
        found = funcol.all_reduce(grad, "sum", group) + 0 if waited else total(grad, src, group)
        if where != "an operator" and dist.get_rank() != src:
            found = torch.zeros_like(found)
        return found, None, None

    for one in (broadcast, total):
        one.register_fake(lambda x, src, group: torch.empty_like(x))
    broadcast.register_autograd(backward, setup_context=lambda ctx, inputs, output: setattr(ctx, "given", inputs[1:]))
    x = torch.ones(6, requires_grad=True)
    run = torch.compile(lambda x: broadcast(x * 1, 0, dist.group.WORLD.group_name) + 0, fullgraph=True)
    run(x).sum().backward()
    return x.grad.tolist() == [3.0 if dist.get_rank() == 0 else 0.0] * 6


if __name__ == "__main__":
    with labkit.Ranks(3, device="cpu", backend="gloo", quiet=True, stall=10) as ranks:
        print(*ranks.run(trained, sys.argv[1], timeout=300).values())
"""


tried = pytest.mark.skipif(
    not torch.__version__.startswith("2.13"), reason="the lesson says it of torch 2.13"
)


def started(where, folder):
    """A start of a job of three ranks, whose compiler's cache is in this folder."""
    (folder / "start.py").write_text(START)
    has = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, folder / "start.py", where], env=has, capture_output=True, text=True
    )


@pytest.mark.slow
def test_the_rank_may_be_asked_for_in_an_operator_of_backward(tmp_path):
    assert [started("an operator", tmp_path).stdout.split() for _ in range(2)] == [["True"] * 3] * 2


@tried
@pytest.mark.slow
def test_a_warm_cache_gives_a_rank_the_traced_backward_of_another(tmp_path):
    second = [started("backward, with a wait", tmp_path) for _ in range(2)][1]
    assert len(second.stdout.split()) == 3 and "False" in second.stdout, second


@tried
@pytest.mark.slow
def test_a_sum_whose_result_only_the_root_uses_is_dropped_on_the_other_ranks(tmp_path):
    said = started("backward, an operator without a wait", tmp_path).stderr
    assert "stalled" in said and "rank 0 was waiting in all_reduce" in said, said


@pytest.mark.slow
def test_a_copy_of_an_operator_of_ones_own_is_kept_by_inductor_as_well(ranks):
    def compiled():
        broadcast = wrong.operator()
        torch.compiler.reset()
        run = torch.compile(lambda x: broadcast(x * 2, 1, dist.group.WORLD) + 1, fullgraph=True)
        with torch.no_grad():
            return run(torch.full((3, 5), 1.0 + dist.get_rank())).unique().tolist()

    assert ranks.run(compiled, timeout=120).same() == [5.0]


def test_the_lessons_functional_forms_give_no_warning_of_a_deprecated_name(ranks):
    def warned():
        with torch.no_grad(), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for form in functional.FUNCTIONAL.values():
                form(functional.sample()) + 0
        return [str(one.message) for one in seen if issubclass(one.category, FutureWarning)]

    assert ranks.run(warned)[0] == []


EDITED = """
import torch


def trained(factor):
    @torch.library.custom_op("start::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    twice.register_autograd(lambda ctx, grad: grad * factor)
    torch.compiler.reset()
    x = torch.ones(3, requires_grad=True)
    torch.compile(lambda x: twice(x) + 1, fullgraph=True)(x).sum().backward()
    return x.grad[0].item()


print(trained(2), trained(3))
"""


@tried
@pytest.mark.slow
def test_an_edited_backward_is_not_seen_through_the_cache_of_one_process(tmp_path):
    for uses, printed in (("1", "2.0 2.0"), ("0", "2.0 3.0")):
        has = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / uses), "TORCHINDUCTOR_AUTOGRAD_CACHE": uses}
        (tmp_path / "edited.py").write_text(EDITED)
        job = [sys.executable, tmp_path / "edited.py"]
        done = subprocess.run(job, env=os.environ | has, capture_output=True, text=True)
        assert done.stdout.strip() == printed, done
