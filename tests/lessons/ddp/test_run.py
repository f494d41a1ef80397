"""Lesson 13 from top to bottom: when messages are sent, how many, and which gradients are right."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "13_ddp_and_compiled_autograd"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_hooks_run_between_the_matmuls_of_eager_and_after_those_of_a_graph(run):
    hooks = re.findall(r"(\S+): (\d+) +(\S+): (\d+)", run.text("cell-04-l13"))
    assert [(name, int(after)) for name, after, *_ in hooks] == [
        ("layers.2.weight", 2),
        ("layers.1.down.weight", 4),
        ("layers.1.up.weight", 6),
        ("layers.0.down.weight", 8),
        ("layers.0.up.weight", 9),
    ]
    assert {after for *_, after in hooks} == {"9"} and {hook[0] for hook in hooks} == {
        hook[2] for hook in hooks
    }


def test_a_graph_sends_at_its_end_and_a_bucket_that_does_not_end_with_it_waits(run):
    blocks, caps = run.values["BLOCKS"], run.table("ddp", "sends").set_index("bucket_cap_mb")
    total = str(4 * blocks + 1)  # matmuls of backward: two a weight, and one for the first
    eager, optimizer, none = (caps[w].str.split(", ") for w in ("eager", "ddp_optimizer", "no_optimization"))
    for cap in caps.index:
        assert eager[cap][-1] == optimizer[cap][-1] == total and {*none[cap]} == {total}
        assert len(eager[cap]) == len(optimizer[cap]) == len(none[cap])
        assert len(eager[cap]) == caps["MiB, eager"][cap].count(",") + 1
        assert eager[cap] == optimizer[cap] or cap == 2
    block_by_block = [str(2 + 4 * i) for i in range(1, blocks)] + [total]
    assert eager[1] == block_by_block and caps["graphs"][1] == blocks
    assert eager["left out"] == ["6", total] and caps["graphs"]["left out"] == 2
    assert (eager[2], optimizer[2], caps["graphs"][2]) == (["10", total], ["14", total], 3)
    assert eager[25] == [total] and caps["graphs"][25] == 2
    parts = [line for line in run.text("cell-23-l13").splitlines() if "submod" in line]
    weights = [part.count("_parameters_weight_") for part in parts]
    assert weights == [2] * (blocks - 1) + [3]  # a block each, and the last layer with the last block


def test_each_way_sends_its_messages_and_the_control_hides_none(run):
    eager, compiled = (run.table("ddp", name).set_index("way") for name in ("eager", "compiled"))
    blocks = run.values["BLOCKS"]
    assert dict(eager["messages"]) == {
        "my buckets, in hooks": blocks,
        "DDP, bucket_cap_mb=1": blocks,
        "DDP, bucket_cap_mb=25": 1,
        "my buckets, after backward": blocks,
    }
    assert list(compiled["messages"]) == [blocks, blocks, 2, 1]
    assert eager["hidden, ms"].iloc[-1] == eager["saved, ms"].iloc[-1] == 0
    assert compiled["saved, ms"].iloc[-1] == 0


def test_what_is_not_compiled_and_what_is_not_cut(run):
    shown = re.findall(r"^(\S.*?) +(\d) +[\d., ]+$", run.text("cell-31-l13"), re.MULTILINE)
    assert [(name, int(graphs)) for name, graphs in shown] == [
        ("compile(DDP(Sequential))", 0),
        ("DDP(compile(Sequential))", 4),
        ("compile(DDP(Sequential of Blocks))", 2),
        ("checkpoint of each block", 4),
        ("checkpoint of two blocks", 2),
    ]
    assert re.search(r"checkpoint of each block +8, 13, 18, 22 +22", run.text("cell-31-l13"))
    assert re.search(r"checkpoint of two blocks +14, 14, 24, 24 +24", run.text("cell-31-l13"))


def test_accumulation_sends_once_and_has_the_gradients_of_one_process(run):
    shown = re.findall(r"(?:eager|compiled) +(\d) +(\S+)$", run.text("cell-33-l13"), re.MULTILINE)
    assert [int(messages) for messages, _ in shown] == [2, 2, 1, 1, 2, 2, 1, 1, 1, 1]
    *right, divided, compiled = (float(error) for _, error in shown)
    assert max(right) < 1e-5 and min(divided, compiled) > 0.1


def test_what_is_read_of_a_dtensor_has_the_gradient_of_the_loss_that_its_placement_says(run):
    text = run.text("cell-35-l13")
    replicated, summed = (
        re.findall(r"(?:eager|compiled) +(right|wrong)", part) for part in text.split("summed")
    )
    assert replicated == ["right", "right", "wrong", "wrong"] * 3  # each read without Partial(), then with it
    assert summed == ["wrong", "wrong", "right", "right"] * 3


def test_compiled_autograd_captures_one_graph_in_which_each_message_is_waited_for_at_once(run):
    broken, parallel = (line.split(" | ") for line in run.text("cell-37-l13").strip().splitlines()[-2:])
    assert broken[1:3] == ["2", "1"] and {*broken[3].split(", ")} == {"mm"}
    assert parallel[1:3] == ["1", "1"] and parallel[3].count("all_reduce") == 3
    assert parallel[3].count("all_reduce, wait_tensor") == 3
