"""Lesson 02: its program, and its rules outside of its examples: other sizes, groups, models and three ranks."""

from __future__ import annotations

import json
import re

import lesson_cells
import pandas as pd
import pytest
import torch
from lessons.functional import wrong

import labkit
from course.functional.exercises.jobs import wrong_ranks
from course.functional.figures import timeline
from course.functional.logs import LOGS
from labkit import lessons

LESSON = "02_inplace_vs_functional"
release = tuple(int(part) for part in torch.__version__.split(".")[:2])
functional = lessons.program("functional")


@pytest.fixture(scope="module")
def three():
    with labkit.Ranks(3, device="cpu", backend="gloo", quiet=True) as found:
        yield found


def cells(*words: str) -> dict:
    """The names that the lesson's cells with these words define."""
    import nbformat

    from labkit import files

    notebook = nbformat.read(files.ours("notebooks") / f"{LESSON}.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    space = lesson_cells.copied(LESSON)
    for word in words:
        (cell,) = [cell for cell in code if word in cell.source]
        source = (
            cell.source.partition("\n\n\nfor ")[0]
            .partition("\n\n\npd.DataFrame(")[0]
            .partition("\n\n\nfound = ")[0]
        )
        exec(compile(source.partition("\n\n\nwith ")[0], f"<{word}>", "exec"), space)
    return space


@pytest.mark.slow
def test_what_dynamo_has_a_functional_form_for_stays_in_one_graph(ranks):
    whole = ranks.run(lambda: {name: functional.reasons(name) for name in functional.IN_PLACE}, timeout=300)[
        0
    ]
    kept = {name for name, why in whole.items() if not why["in place"]}
    # torch/distributed/_functional_collectives.py, traceable_collective_remaps
    assert kept == {name for name in functional.FUNCTIONAL if name != "broadcast"} | {"all_gather"}
    assert not any(why["functional"] for why in whole.values() if "functional" in why)
    assert all(why["async_op"] for why in whole.values())
    assert "async_op=True" in whole["all_reduce"]["async_op"]


@pytest.mark.slow
def test_a_pass_drops_a_write_that_no_schema_declares_on_three_ranks(three):
    lesson = cells("def sum_in_place(", "def dead_code(")
    kept = {
        program.__name__: three.run(lesson["after"], program, lesson["dead_code"])[1][1]
        for program in lesson["PROGRAMS"]
    }
    right = [61 + 6 * i for i in range(6)]
    assert kept == {"opaque": [21 + 2 * i for i in range(6)], "written": right, "functional": right}


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
    lesson = cells("def fill(", "TRAINED = {")
    compiled = {"in place, compiled": "right", "functional, eager": "right", "functional, compiled": "right"}
    found = three.run(lesson["trained"], timeout=300)[0]
    for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"):
        assert found[name] | compiled == found[name], name
        assert found[name]["in place, eager"] != "right", name
    assert found["broadcast"]["functional, eager"] == "wrong"
    has_average, has_maximum = (release >= least for least in ((2, 14), (2, 15)))
    for name, has in (("all_reduce, avg", has_average), ("all_reduce, max", has_maximum)):
        assert (found[name]["functional, eager"] == "right") is has, name


@pytest.mark.slow
def test_a_tensor_parallel_gradient_is_n_times_too_large_with_a_replicated_loss_on_three_ranks(three):
    ratio = cells("def ratio(")["ratio"]

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
    import warnings

    import torch
    import torch.distributed as dist

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
def test_another_order_on_one_rank_changes_the_sums_of_three_ranks_and_says_nothing(three):
    lesson = cells("from torch import fx", "def latest_first(")
    found = three.run(lesson["scheduled"], lesson["two_sums"], (2,))
    assert [sums for sums, _ in three.run(lesson["scheduled"], lesson["two_sums"], ()).values()] == [
        [6, 600]
    ] * 3
    assert found[0][0] == [1 + 2 + 300, 100 + 200 + 3] and found[2][0] == [303, 303]


@pytest.mark.slow
def test_a_copy_of_an_operator_of_ones_own_is_kept_by_inductor_as_well(ranks):
    def compiled():
        import torch
        import torch.distributed as dist

        broadcast = wrong.operator()
        torch.compiler.reset()
        run = torch.compile(lambda x: broadcast(x * 2, 1, dist.group.WORLD) + 1, fullgraph=True)
        with torch.no_grad():
            return run(torch.full((3, 5), 1.0 + dist.get_rank())).unique().tolist()

    assert ranks.run(compiled, timeout=120).same() == [5.0]


def test_the_timeline_names_who_waits_and_where():
    rows = [
        ("in place", 0, "call", 0.0, 300.0), ("in place", 0, "first read", 350.0, 351.0),
        ("functional", 0, "call", 0.0, 1.0), ("functional", 0, "first read", 51.0, 301.0),
    ]  # fmt: skip
    figure = timeline(pd.DataFrame(rows, columns=["form", "rank", "what", "start", "end"]), "gloo · cpu")
    assert "in place, the call (300 ms); functional, the first read (250 ms)" in figure.summary
    assert (
        "Nothing was measured"
        in timeline(pd.DataFrame(columns=["form", "rank", "what", "start", "end"])).summary
    )
    with pytest.raises(ValueError, match="no column"):
        timeline(pd.DataFrame({"form": ["in place"]}))
