"""Lesson 17 from top to bottom: whose graphs the switch makes equal, and where runs what one process compiled."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "17_one_compile"
SIZES = ("PAIRS=1,2 STARTS=1",)  # graphs of two ranks, too

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_how_many_graphs_the_ranks_have_without_and_with_the_switch(run):
    table = run.table("one_compile", "graphs").pivot(
        index=["program", "ranks"], columns="switch", values="graphs"
    )
    found = {key: (row["off"], row["on"]) for key, row in table.iterrows()}
    right = {}
    for n in (2 * pairs for pairs in run.values["PAIRS"]):
        right |= {
            ("Replicate to Shard, and back", n): (n, 1),
            ("Shard(0) to Shard(1)", n): (n, n),
            ("sum over a sub mesh", n): (n // 2, 1),
            ("sum over a group of its own", n): (n, 1),
            ("slice by dist.get_rank()", n): (n, n),
            ("slice by mesh.get_local_rank()", n): (n, n),
            ("break on one rank (08)", n): (2, 2),
            ("other order on one rank (08)", n): (1, 1),  # the text does not tell the order of inputs
        }
    assert found == right
    assert "measured: 4 of 8 programs" in run.text("table")


def test_what_becomes_of_one_processs_program_on_four_ranks(run):
    named = run.table("one_compile", "carried")
    ways = {key: [*rows] for key, rows in named.groupby(["store", "form", "switch"], sort=False)["outcome"]}
    again = "right, compiled again"
    right = {}
    for form in ("mesh", "mesh, own rows"):  # without the switch the code names the group of ranks 0 and 1
        right["aot_compile", form, "off"] = ["right", "right", "refused", "refused"]
        right["aot_compile", form, "on"] = ["right"] * 4
        right["disk cache", form, "off"] = ["right", "right", again, again]
        right["disk cache", form, "on"] = ["right", again, again, again]
    for store in ("aot_compile", "disk cache"):
        right[store, "DTensor", "off"] = ["right", "right", "error", "error"]
        right[store, "DTensor", "on"] = ["error"] * 4
    assert ways == {key: said for key, said in right.items() if key[0] in run.values["ONLY"]}
    refused = named[named["outcome"] == "refused"]
    assert refused["said"].str.match(r"guard: L\['tp'\]\._dim_group_names").all()


def test_a_process_group_is_silently_the_first_one_and_a_mesh_is_not(run):
    rows = re.findall(r"(group, an argument|mesh, in a closure|mesh, an argument) +(off|on) +\[(.+?)\]",
                      run.text("0cdca7a3"))  # fmt: skip
    wrong = {(what, switch) for what, switch, sums in rows if sums != "4.0, 8.0"}
    assert len(rows) == 6 and wrong == {("group, an argument", "on")}


def test_of_three_constants_the_switch_leaves_what_python_computed(run):
    off, on = (
        re.findall(r"^[-+](\w+): .*# (.*)", run.text(cell), re.MULTILINE) for cell in ("job", "switch-on")
    )
    assert {name for name, _ in off} >= {"all_reduce", "add", "clone"}
    assert on == 2 * [("add", "x = x + dist.get_rank()")]
    assert "five rows: 1 graph; right: True True" in run.text("switch-on")


def test_the_text_of_a_graph_is_its_operators_alone(run):
    number, operator = run.text("one-graph").split("my_operator_solution")
    assert "2 lines differ" in number and operator.split("\n")[1] == "0 lines differ"
    shown = operator.split("\n\n")[1].strip().splitlines()
    assert shown[0].startswith("coordinate: ") and shown[-1] == "return (wait_tensor,)"
    assert not any("#" in line or "torch.ops" in line for line in shown)


def test_the_gradients_of_a_training_step_stay_right_and_its_graphs_become_one(run):
    rows = re.findall(
        r"switch on: (\w+), different graphs: (\d), largest error: (\S+)", run.text("training-run")
    )
    assert [row[:2] for row in rows] == [("False", "2"), ("True", "1")]
    assert all(float(error) < 1e-4 for *_, error in rows)


def test_of_the_jobs_seven_lines_only_distribute_tensor_breaks_the_graph_and_four_still_differ(run):
    said = run.text("stays-log").split("\n-")[0].strip().splitlines()
    assert {line.strip() for line in said if not line.startswith("Failed")} == {
        "f = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None).to_local()"
    }
    assert "passed: still different with the switch on: c, d, f, g" in run.text("stays-attempts")
