"""Lesson 02's rules outside of its examples: other sizes, models and three ranks; the key of its exercise."""

from __future__ import annotations

import json
import re
import warnings

import lesson_cells
import pytest
import torch
import torch.distributed as dist
from lessons.functional import wrong

from course.functional import exercises
from course.functional.exercises.jobs import wrong_ranks
from course.functional.logs import LOGS
from labkit import lessons, torch_compat

LESSON = "02_inplace_vs_functional"
functional = lessons.program("functional")


@pytest.mark.slow
def test_a_write_that_no_schema_declares_and_another_order_change_the_sums_of_three_ranks(three):
    lesson = lesson_cells.definitions(LESSON, "cell-05-l02", "cell-07-l02", "cell-32-l02")
    kept = {
        program.__name__: three.run(lesson["after"], program, lesson["dead_code"])[1][1]
        for program in lesson["PROGRAMS"]
    }
    right = [61 + 6 * i for i in range(6)]
    assert kept == {"opaque": [21 + 2 * i for i in range(6)], "written": right, "functional": right}
    in_order = three.run(lesson["scheduled"], lesson["two_sums"], ()).values()
    assert [sums for sums, _ in in_order] == [[6, 600]] * 3
    found = three.run(lesson["scheduled"], lesson["two_sums"], (2,))
    assert found[0][0] == [1 + 2 + 300, 100 + 200 + 3] and found[2][0] == [303, 303]


@pytest.mark.slow
def test_what_is_wrong_in_two_jobs_is_said_at_once(ranks):
    answer = exercises.jobs.check(wrong.wrong_in_a_and_c, ranks)
    assert not answer and "job A: a barrier changes when" in answer.hint and "job C: work out" in answer.hint
    assert "job B" not in answer.hint


def test_the_key_of_the_three_jobs_is_what_their_logs_show():
    printed = {
        job: [json.loads(re.search(rf"rank {rank} x=.* result=(.*)", log)[1]) for rank, log in of.items()]
        for job, of in LOGS.items()
    }
    assert all(
        f"x={x}" in of[rank] for of in LOGS.values() for rank, x in enumerate(([1.0, 2.0], [10.0, 20.0]))
    )
    right = {"A": [[11, 22], [1100, 2200]], "B": [23, 45], "C": [23, 45]}  # 1 + 10 and 2 + 20
    wrong_on = {job: {rank for rank in (0, 1) if printed[job][rank] != right[job]} for job in right}
    assert wrong_on == {"A": {0, 1}, "B": {0}, "C": {0, 1}}
    assert {job: wrong_ranks(job) for job in right} == wrong_on
    waited = {rank: "wait_tensor.default" in log for rank, log in LOGS["B"].items()}
    assert waited == {rank: "unwaited" not in log for rank, log in LOGS["B"].items()} == {0: False, 1: True}


@pytest.mark.slow
def test_gradients_by_collective_on_three_ranks(three):
    lesson = lesson_cells.definitions(LESSON, "cell-41b-l02")
    compiled = {"in place, compiled": "right", "functional, eager": "right", "functional, compiled": "right"}
    found = three.run(lesson["trained"], timeout=300)[0]
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"):
        assert found[name] | compiled == found[name], name
        assert found[name]["in place, eager"] != "right", name
    assert found["broadcast"]["functional, eager"] == "wrong"
    has_average, has_maximum = (
        torch_compat.within(torch.__version__, since=least) for least in ("2.14", "2.15")
    )
    for name, has in (("all_reduce, avg", has_average), ("all_reduce, max", has_maximum)):
        assert (found[name]["functional, eager"] == "right") is has, name


@pytest.mark.slow
def test_a_tensor_parallel_gradient_is_n_times_too_large_with_a_replicated_loss_on_three_ranks(three):
    ratio = lesson_cells.definitions(LESSON, "cell-42-l02")["ratio"]

    def other_size():
        how = dict(rows=7, inner=12, outer=2)
        forms = [("functional", False), ("functional", True), ("in place", True), ("in place", False)]
        return [
            [ratio(form, loss, compiled, **how) for form, compiled in forms]
            for loss in ("replicated", "summed")
        ]

    replicated, summed = three.run(other_size, timeout=120).same()
    assert replicated == [3, 3, 3, 1]
    assert summed == [1, 1, 1, pytest.approx(1 / 3, abs=1e-3)]


def two_layers():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    up = torch.randn(12, 6, generator=torch.Generator().manual_seed(2))
    down = torch.randn(6, 12, generator=torch.Generator().manual_seed(3))

    def one_process(first):
        y = first
        for _ in range(2):
            y = (y @ up.T).relu() @ down.T
        return y.square().mean()

    whole = x.clone().requires_grad_()
    one_process(whole).backward()
    mine = x.clone().requires_grad_()
    y = mine
    for _ in range(2):
        y = (y @ up.chunk(n, 0)[rank].T).relu() @ down.chunk(n, 1)[rank].T
        with warnings.catch_warnings(action="ignore"):
            dist.all_reduce(y)
    y.square().mean().backward()
    return torch.allclose(mine.grad, whole.grad)


@pytest.mark.slow
def test_below_the_first_layer_the_in_place_gradient_is_wrong_with_a_replicated_loss_too(three):
    assert three.run(two_layers).same() is False


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
