"""Lesson 10 from top to bottom: which gradients are right in which form, and what each change of placement sends."""

from __future__ import annotations

import itertools
import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "10_tensor_parallel_training"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

SPLIT = r"\.(?:q|k|v|out|up|down)\.weight"


def test_without_f_split_weights_are_a_multiple_and_only_the_last_leave_gets_the_whole_gradient(run):
    blocks, text = run.values["BLOCKS"], run.text("tp-multiples")
    for rank in (0, 1):
        (said,) = re.findall(rf"arriving at each leave, rank {rank}: (.*)", text)
        ends = [f"{i}.{branch}" for i in reversed(range(blocks)) for branch in ("mlp", "attention")]
        assert said.split(", ") == [f"{ends[0]} 1.0", *(f"{end} other" for end in ends[1:])]
    assert re.findall(rf"{SPLIT} +(.*)", text) == ["2.0    2.0    -"] * 6 * blocks
    copies = re.findall(r"^(?:input|\S+norm\d\.weight) +(\S+) +(\S+) +(\S+)$", text, re.M)
    assert copies == [("other", "other", "2.0")] * (1 + 2 * blocks)


def test_forms_and_losses_give_these_gradients_eager_and_compiled(run):
    blocks, text = run.values["BLOCKS"], run.text("tp-forms")
    sent = re.findall(r"collectives of (.*): \{'forward': (\d+), 'backward': (\d+)\}", text)
    once = str(2 * blocks)
    assert sent == [
        ("functional", once, once),
        ("f and g", once, once),
        ("plan", once, str(4 * blocks)),  # the gradient of q, k and v's input is summed three times
        ("plan, one f", once, once),
    ]
    assert "compiled (aot_eager) is as eager: True" in text
    table = text.partition("is as eager: True")[2]
    words = re.findall(r"(?:sums to )?(?:2 x )?right|wrong", table)
    split, norms, inputs = words[:24:2], words[1:24:2], words[24:]
    replicated = ["right", "2 x right", "right", "right"]  # f and g, functional, plan, plan with one f
    assert split == [*replicated, "wrong", "right", "wrong", "wrong", *replicated]
    assert norms == inputs == [f"sums to {word}" if i % 4 == 1 else word for i, word in enumerate(split)]


def test_every_change_of_placement_keeps_the_numbers_and_costs_what_it_must(run):
    moves = run.table("placements").set_index(["start", "end"])
    assert "R to P" in run.text("tp-moves") and moves["right"].all()
    names = ("R", "S(0)", "S(1)", "P")
    pairs = {pair for pair in itertools.permutations(names, 2) if pair[1] != "P"} | {("R", "R")}
    assert pairs <= set(moves.index)
    sent = moves[["forward", "backward", "backward, partial"]].T
    gather, scatter = "all_gather_into_tensor", "reduce_scatter_tensor"
    assert list(sent["R", "R"]) == ["none", "none", "all_reduce"]  # f
    assert list(sent["P", "R"]) == ["all_reduce", "none", "none"]  # g
    for shard in ("S(0)", "S(1)"):
        assert list(sent["R", shard]) == ["none", gather, ""]
        assert list(sent[shard, "R"]) == [gather, "none", scatter]
        assert list(sent["P", shard]) == [scatter, gather, ""]


def test_on_a_mesh_of_two_axes_each_copy_has_the_gradients_of_one_process(run):
    text = run.text("tp-mesh")
    assert text.count("{'split weights': 'right', 'norms': 'right'}") == 2
    for rank, dp, tp in ((0, [0, 2], [0, 1]), (1, [1, 3], [0, 1]), (2, [0, 2], [2, 3]), (3, [1, 3], [2, 3])):
        assert re.search(rf"rank {rank} +{re.escape(str(divmod(rank, 2)))} +{re.escape(f'{dp}  {tp}')}", text)


def test_a_checkpoint_loads_on_other_ranks_with_placements_alone(run):
    text = run.text("tp-save")
    wrong = re.findall(r"of \d+ weights wrong: (.*?) *\\?$", text, re.M)  # on two ranks, from plain to plain
    assert sorted(", ".join(wrong).split(", ")) == ["down", "k", "out", "q", "up", "v"] and len(wrong) == 2
    assert text.count("Size mismatch") == 6 and len(re.findall(r" right *$", text, re.M)) == 4


def test_each_fault_has_its_types_and_its_wrong_gradients(run):
    types = dict(re.findall(r"^(.+?): .*Found types: (\[.*?\])", run.text("tp-typed"), re.M))
    assert types == {"no g": "[P, I]", "functional for g": "[R, I]", "bias before g": "[V, V, I]"}
    assert "Found types: [I, V]" in run.text("tp-typed") and "none: no error" in run.text("tp-typed")
    found = dict(
        re.findall(r"^(none|no f|no g|functional for g|bias before g)  +(.*)$", run.text("tp-computed"), re.M)
    )
    assert {fault: words.split() for fault, words in found.items()} == {
        "none": ["right"] * 6,
        "no f": ["right", "wrong", "wrong", "right", "right", "right"],
        "no g": ["wrong"] * 6,
        "functional for g": ["right", "wrong", "2.0", "2.0", "2.0", "right"],
        "bias before g": ["wrong"] * 6,
    }
