"""Lesson 14 from top to bottom: what a step calls, which gradients are right, and what passes move."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "14_fsdp_and_passes"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def row(text, name):
    """The words of a row of a shown table, whose columns may stand in several parts."""
    return " ".join(
        line.removeprefix(name) for line in text.splitlines() if line.startswith(f"{name} ")
    ).split()


def test_each_unit_is_gathered_forward_and_backward_but_the_root_once(run):
    blocks, text = run.values["BLOCKS"], run.text("fsdp-units")
    shown = {
        "one unit": (1, 1),
        "a unit a block": (2 * blocks + 1, blocks + 1),
        "blocks, reshard_after_forward=False": (blocks + 1, blocks + 1),
        "a unit a linear layer": (2 * (2 * blocks + 2), 2 * blocks + 2),
    }
    found = {name: [int(word) for word in row(text, name)] for name in shown}
    assert {name: (gathers, scatters) for name, (gathers, scatters, _) in found.items()} == shown
    one, block, kept, layer = (peak for *_, peak in found.values())
    assert one > kept > block > layer, "more weights are whole at once"


def test_a_gradient_is_right_for_the_loss_that_its_factor_is_for(run):
    on_all, _, on_the_root = run.text("fsdp-gradients").partition("on the root alone")
    by_loss = {"mean": ("1.0", "2.0"), "sum": ("0.5", "1.0"), "replicated": ("1.0", "2.0")}
    shown = re.findall(r"(?:eager|compiled) +(\S+) +(\S+) *$", on_all, re.M)
    assert shown == [factors for factors in by_loss.values() for _mode in ("eager", "compiled")]
    assert re.findall(r"(?:eager|compiled) +(\S+)", on_the_root) == ["NaN"] * 6


def test_each_way_to_train_has_its_collectives_and_the_gradient_of_one_process(run):
    text = run.text("fsdp-variants")
    shown = {  # eight blocks: gathers, reduce-scatters, all-reduces
        "units": (17, 9, 0),
        "HSDP, 2 x 2": (17, 9, 9),
        "two microbatches": (34, 18, 0),
        "one sync": (34, 9, 0),
        "one sync, no reshard": (25, 9, 0),
        "bfloat16": (17, 9, 0),
        "checkpointed blocks": (17, 9, 0),
    }
    found = {name: row(text, name) for name in shown}
    assert {name: tuple(map(int, words[:3])) for name, words in found.items()} == shown
    # 2 ** -8 is the precision of one number in bfloat16
    assert all(
        float(error) < (0.03 if name == "bfloat16" else 1e-5) for name, (*_, error, _) in found.items()
    )
    peaks = {name: int(words[-1]) for name, words in found.items()}
    assert peaks["units"] < peaks["HSDP, 2 x 2"] and peaks["checkpointed blocks"] < peaks["units"]
    assert peaks["units"] < peaks["one sync"] < peaks["one sync, no reshard"]


def test_the_place_of_compile_decides_the_units_and_never_the_gradient(run):
    text = run.text("fsdp-compile")
    shown = {
        "block.compile(), fully_shard(block)": ("compiles", 1, 5, 9),
        "fully_shard(block), block.compile()": ("compiles", 1, 5, 9),
        "torch.compile(block), fully_shard(wrapper)": ("compiles", 1, 5, 9),
        "torch.compile(block), fully_shard by class": ("compiles", 1, 1, 1),
        "fully_shard, model.compile()": ("Unsupported", 1, 5, 9),
        "checkpoint, compile, fully_shard": ("compiles", 1, 5, 9),
    }
    found = {name: row(text, name) for name in shown}
    assert {
        name: (said, int(graphs), int(units), int(gathers))
        for name, (said, graphs, units, _, gathers, _) in found.items()
    } == shown
    assert all(float(error) < 1e-5 for _, _, _, error, _, _ in found.values())


def test_gathered_weights_are_saved_for_backward_or_gathered_again(run):
    text = run.text("fsdp-in-graphs")
    written, again = (row(text, name) for name in ("as written", "gathered again"))
    assert written[:3] == ["2", "18", "0"] and again[:3] == ["2", "18", "17"]
    assert max(float(written[3]), float(again[3])) < 1e-5 and int(again[4]) < int(written[4])


def test_prefetch_changes_when_a_unit_is_gathered_and_not_how_often(run):
    said = run.text("fsdp-lifetimes")
    for way in ("default", "forward prefetch", "control: waits at launch"):
        assert f"{way}: gathering 9 times, whole 9 times, reducing 5 times" in said


def test_passes_cover_all_collectives_but_one_and_keep_the_numbers(run):
    layers, text = run.values["LAYERS"], run.text("fsdp-orders")
    most = str(layers - 1)
    shown = {  # collectives with a matmul before their wait, forward and backward
        "as written": ("0", "0"),
        "torch's default": ("0", "0"),
        "my_sink_solution": (most, most),
        "my_sink_solution + reorder_for_peak_memory": (most, "0"),
        "scheduler passes + reorder_for_peak_memory": (most, most),
        "enable_overlap_scheduling": (most, most),
        "my_sink_solution, bfloat16": ("0", "0"),  # the conversion before it stops a gather
    }
    found = re.findall(rf"[.:] ([^.]+?), (?:forward|backward), (\d+) of {layers}:", text)
    assert found == [(name, covered) for name, both in shown.items() for covered in both]
    *exact, rounded = (float(error) for error in re.findall(r"relative error (\S+)", text))
    assert max(exact) < 1e-5 < rounded < 0.03


def test_only_passes_that_keep_the_order_of_collectives_leave_ranks_alike_at_a_break(run):
    shown = re.findall(r"^(\w.*)\n  (.*)\n  (.*)$", run.text("fsdp-hazard"), re.M)
    assert {name: zero == one.replace("| ", "") for name, zero, one in shown} == {
        "as written": True,
        "my_sink_solution": True,
        "all_first": False,
        "bucket_all_gathers_fx": False,
    }
    assert all("|" in one and "|" not in zero for _, zero, one in shown)


def test_the_logs_of_the_exercise_show_a_gather_more_on_rank_1_of_job_b_and_one_a_step_in_job_a(run):
    logs = re.findall(r"--- job (\w), rank (\d)\n(.*?)(?=\n---|\Z)", run.text("fsdp-ex-jobs"), re.S)
    gathers = {job + rank: len(re.findall(r"all_gather$", log, re.M)) for job, rank, log in logs}
    assert gathers == {"A0": 1, "A1": 1, "B0": 2, "B1": 3, "C0": 0, "C1": 0}
