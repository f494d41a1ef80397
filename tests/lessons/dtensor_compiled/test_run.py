"""Lesson 10b from top to bottom: what each form sends and compiles to, and what it guards."""

from __future__ import annotations

import re

import pytest
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "10b_dtensor_compiled"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]


def test_all_forms_compute_the_same(run):
    errors = re.findall(r"^(?:explicit|plan|open plan) +(\S+) +(\S+)$", run.text("cell-06-l10b"), re.M)
    assert len(errors) == 3 and all(float(error) < 1e-4 for both in errors for error in both)


def test_only_local_tensors_between_the_mlps_send_the_same_at_every_size(run):
    rows = re.findall(r"^.*?\d+ +\d+  +(\d.*?)   *(\d.*?) *\\?$", run.text("cell-13-l10b"), re.M)
    assert len(rows) == 12
    local, partial, replicate, shard = (rows[i : i + 3] for i in (0, 3, 6, 9))
    assert local == [("2 AR", "2 AR")] * 3
    assert partial[0] == ("1 AG, 1 AR, 1 RS", "3 AG, 1 AR, 1 RS") and partial[1] == ("2 AR", "4 AR")
    assert [forward for forward, _ in replicate] == ["2 AR"] * 3 and len({*replicate}) == 3
    assert len({*shard}) == 3
    kept = re.findall(r"^.*?\d+ +\d+ +(\d) *$", run.text("cell-13-l10b"), re.M)  # gradients that stay Partial
    assert kept[:3] == ["0"] * 3 and kept[3:6] == ["2", "0", "1"] and len(kept) == 12
    opened = re.findall(r"(\w+) (\d+) KiB", run.text("cell-09-l10b"))
    assert opened == [("all_gather_into_tensor", "32"), ("reduce_scatter_tensor", "8"), ("all_reduce", "2")]


def test_the_plan_compiles_to_the_calls_of_the_explicit_program(run):
    forward, backward = run.text("cell-15-l10b").partition("aot_forward")[2].split("aot_backward")
    for text, calls in (
        (forward, "mm gelu mm AR " * 2),
        (backward, "mm mm gelu_backward mm mm AR " * 2),
    ):
        shown = dict(re.findall(r"^ *(explicit|plan|open plan): (.*?); also", text, re.M))
        assert shown["explicit"] == shown["plan"] == calls.strip()
        assert "AG" in shown["open plan"]


def test_a_plan_has_more_guards_and_most_of_the_further_ones_are_of_hooks(run):
    text = run.text("cell-20-l10b")
    (explicit, few), (plan, hooks) = (
        (int(all_), int(some)) for all_, some in re.findall(r"(\d+) guards, (\d+) of them", text)
    )
    assert 2 * (hooks - few) > plan - explicit > 0
    assert "TENSOR_MATCH ._parameters['weight']._local_tensor" in text and "[128, 64]" in text


def test_a_constant_whole_size_is_not_checked_and_a_symbol_is_right(run):
    rows = re.findall(
        r"(by default|dynamic=False|dynamic=True) +(\S+) +(\S+)$", run.text("cell-20c-l10b"), re.M
    )
    right = [(float(loss) == 1, float(gradient) == 1) for _, loss, gradient in rows]
    yes, no = (True, True), (False, False)
    assert right == [no, no, yes, yes, no, yes, yes, yes, yes]  # batches of 6, 5; of 4, 6, 5; of 6, 6
