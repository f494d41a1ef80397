"""Lesson 05 from top to bottom: operations, results and gradients of each form, and what its times may say."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest
import torch
from lesson_run import test_it_runs_from_top_to_bottom  # noqa: F401

LESSON = "05_eager_trap"

pytestmark = [pytest.mark.slow, pytest.mark.kernel]

OUTCOMES = {"slower", "faster", "cannot tell"}


def rows(text):
    """A printed table's numbers by the first word of a line; what pandas broke is joined."""
    found = defaultdict(list)
    for name, *words in (line.split() for line in text.splitlines() if line.strip()):
        found[name] += [float(word) for word in words if re.fullmatch(r"-?[\d.]+", word)]
    return found


def test_the_gate_is_in_place_in_eager_and_functional_is_not(run):
    """One operation is in all columns: in place, functional, gated. The others are the functional form's."""
    counted = {name: found for name, found in rows(run.text("cell-07-l05")).items() if "::" in name}
    assert counted.pop("c10d::allreduce_") == [1, 1, 1]
    assert all(found == [0, 1, 0] for found in counted.values()) and "aten::clone" in counted
    # itself, its wrapper, its wait; torch 2.14 wraps without an operation
    assert sum(name.startswith("_c10d_functional::") for name in counted) == 2 + (torch.__version__ < "2.14")
    assert f"measured: {1 + len(counted)} operations" in run.text("cell-07-l05")


def test_a_gate_changes_the_result_and_each_form_has_the_gradient_of_one_loss(run):
    forms = _forms(run.text("cell-27b-l05"))
    read = {line.split()[0]: re.findall(r"\d+, and x = \d+", line) for line in forms}
    in_place, left = "6, and x = 3", "4, and x = 1"
    assert read == {
        "inplace": [in_place, in_place],
        "functional": [left, left],
        "gated": [in_place, left],
        "total": [left, left],
    }
    # of a replicated loss in eager and compiled, then of a summed one
    twice, once, gated = [2, 2, 1, 1], [1, 1, 0.5, 0.5], [1, 2, 0.5, 1]
    ratios = rows("\n".join(_forms(run.text("cell-29-l05"))))
    assert ratios == {
        "inplace": gated,
        "functional": twice,
        "gated": gated,
        "g": once,
        "summed": twice,
    }
    assert "an autograd kernel was not registered" in run.text("cell-29-l05")


def _forms(text):
    names = ("inplace", "functional", "gated", "total", "g ", "summed")
    return [line for line in text.splitlines() if line.startswith(names)]


def test_g_alone_is_right_in_the_last_block_only(run):
    lines = re.findall(r"^(g|f and g), (eager|compiled) +(.*)", run.text("cell-30b-l05"), re.M)
    off = {(pair, mode): [float(error) for error in errors.split()] for pair, mode, errors in lines}
    assert set(off) == {(pair, mode) for pair in ("g", "f and g") for mode in ("eager", "compiled")}
    for (pair, _), (*others, up, down) in off.items():
        assert up <= 0.1 and down <= 0.1 and all((error <= 0.1) == (pair == "f and g") for error in others)


def test_a_wrapper_and_a_tensor_compile_twice_and_a_wait_before_the_call_saves_one(run):
    said = run.text("cell-37-l05")
    assert "'AsyncCollectiveTensor'" in said
    assert list(map(int, re.findall(r": (\d)", said))) == [1 if torch.__version__ >= "2.14" else 2, 2, 1]


def test_the_report_has_both_forms_at_each_size_and_a_verdict_on_each_link(run):
    sizes = run.table("eager_trap", "sizes")
    assert list(sizes["bytes"]) == run.values["SIZES"]
    assert (sizes[["in place", "functional"]] > 0).all(axis=None) and set(sizes["said"]) <= OUTCOMES
    verdicts = run.reports["eager_trap"].verdicts
    pairs = [(v.a, v.b) for v in verdicts]
    assert pairs == [("functional", "in place")] * 3 + [("in place again", "in place")] * 3
    assert verdicts[0].evidence == "host only" and {v.n for v in verdicts} == {run.values["ROUNDS"]}
    assert {str(v.outcome) for v in verdicts} <= OUTCOMES
    added = re.findall(r"([\w ,()]+): [+-]\d+ µs, ([\w ]+)", run.text("cell-17-l05"))
    assert len(added) == 9 and {said for _, said in added} <= OUTCOMES
    shown = run.text("cell-19-l05")
    drawn = ("this machine, host only", "H100, host only", "H100, gloo · 1 gpu")
    assert all(f"{one}: " in shown for one in drawn) and "of 5 cases" in shown


def test_no_step_behind_the_device_is_shorter_than_its_kernels(run):
    found = [list(map(float, row)) for row in re.findall(
        r"^\d +([\d.]+) +(?:in place|functional) +([\d.]+) +([\d.]+) +([\d.]+)$", run.text("cell-22-l05"), re.M
    )]  # fmt: skip
    collectives = 4 * min(run.values["BLOCKS"], 10)
    assert len(found) == 6 and [found[0][0], found[-1][0]] == [0, 3000]
    for (kernel, _, device, step), each in zip(found, [1, 1.05] * 3, strict=True):
        assert device == pytest.approx(kernel * each * collectives / 1e3, abs=0.06) and step >= device - 0.1
