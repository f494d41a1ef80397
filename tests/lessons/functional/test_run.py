"""Lesson 02 from top to bottom, and what its report and its cells say."""

from __future__ import annotations

import re

import pytest
import torch
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

from labkit import lessons, torch_compat

LESSON = "02_inplace_vs_functional"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_what_dynamo_has_a_functional_form_for_stays_in_one_graph(run):
    program, found = lessons.program("functional"), run.table("collectives").set_index("collective")
    # torch/distributed/_functional_collectives.py, traceable_collective_remaps
    lists = {"all_gather"} | set(["reduce_scatter"] * torch_compat.within(torch.__version__, since="2.14"))
    kept = {name for name in program.FUNCTIONAL if name != "broadcast"} | lists
    for name in program.IN_PLACE:
        functional = "one graph" if name in program.FUNCTIONAL else "-"
        in_place = "one graph" if name in kept else "breaks"
        assert found.loc[name].to_dict() == {
            "in place": in_place,
            "functional": functional,
            "async_op": "breaks",
        }
    assert len(found) == len(program.IN_PLACE)
    assert "async_op=True" in run.text("cell-21-l02")


def test_a_pass_drops_a_write_that_no_schema_declares(run):
    kept = dict(re.findall(r"^(\w+) .*  (x mul .*)$", run.text("cell-07-l02"), re.M))
    assert kept == {
        "opaque": "x mul add output",
        "written": "x mul all_reduce_ wait_tensor add output",
        "functional": "x mul all_reduce wait_tensor add output",
    }


def test_another_schedule_on_one_rank_changes_the_sums_and_verify_sees_a_type(run):
    said = run.text("cell-32-l02")
    sums = [[float(number) for number in two.split(", ")] for two in re.findall(r"rank \d: \[(.*?)\]", said)]
    assert sums == [[3, 300], [3, 300], [201, 102], [102, 201]]
    assert "different dtype" in said.rpartition("---")[2]


def test_half_of_the_expressions_wait(run):
    waits = re.findall(r"^\d+ +(.*?)  +([01])  +\w+$", run.text("cell-26-l02"), re.M)
    assert [expression for expression, wait in waits if wait == "1"] == [
        "torch.empty_like(y)", "print(y, file=nowhere)", "y + 1", "y.tolist()", "y.wait()", "funcol.wait_tensor(y)",
    ]  # fmt: skip
    assert len(waits) == 12


def test_inductor_calls_each_collective_once_and_waits_for_it(run):
    """In place, functional, beside a matmul; assertions of a buffer are no calls."""
    programs = run.text("cell-40-l02").split("--- ")[1:]
    assert len(programs) == 6
    for shown in programs:
        calls = re.findall(r"_c10d_functional\.(\w+)", shown)
        collective = "reduce_scatter_tensor" if shown.startswith("scattered") else "all_reduce_"
        assert calls == [collective, "wait_tensor"], shown
