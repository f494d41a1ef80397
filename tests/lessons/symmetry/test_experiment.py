"""Drills and defences: what gloo makes of each, who notices, and that nothing is noticed where nothing differs."""

from __future__ import annotations

import lesson_cells
import pandas as pd
import pytest

import labkit
from course.symmetry import experiment as divergence
from course.symmetry.drills import DRILLS, Recompile, what
from labkit.contract import Plan
from labkit.ranks.errors import Outcome, RankError
from labkit.report import Report

QUICK = ["shape", "order", "count", "backend", "inputs"]
FOUR = ["none", "parity", "plan", "digests", "collective check", "guard collectives"]


@pytest.fixture(scope="module")
def some(ranks) -> Report:
    return divergence.run(ranks, QUICK, defences=FOUR)


@pytest.fixture(scope="module")
def compiled(ranks) -> Report:
    return divergence.run(
        ranks, ["break", "branch"], defences=["none", "plan", "health", "guard collectives"]
    )


def outcomes(report: Report) -> dict[tuple[str, str], str]:
    return {(row.drill, row.defence): row.outcome for row in report.frame.itertuples()}


@pytest.mark.slow
def test_what_gloo_makes_of_each_without_a_defence(some):
    found = outcomes(some)
    for drill in ("shape", "order", "backend", "inputs"):
        assert found[drill, "none"] == "wrong", drill
    assert found["count", "none"] == "hung"


@pytest.mark.slow
def test_each_defence_notices_its_own_and_lets_others_through(some):
    found = outcomes(some)
    noticed = {d: {drill for drill in QUICK if found[drill, d] == "caught"} for d in FOUR}
    assert noticed == {
        "none": set(),
        "parity": {"backend"},
        "plan": {"shape", "order", "count"},
        "digests": {"shape", "inputs"},
        "collective check": {"shape", "order", "count", "backend"},
        "guard collectives": set(),
    }
    assert found["count", "guard collectives"] == divergence.NOTHING
    assert found["count", "parity"] == "hung", "a defence that does not fit changes nothing"


def test_a_part_that_a_drill_never_meets_is_not_run_and_would_change_nothing(ranks):
    again = {"again": lambda site: DRILLS["count"](site)}  # as the reader's own: run, whatever it meets
    run = divergence.run(ranks, ["count", "again"], drills=again, defences=["none", "parity"])
    assert list(run.frame["outcome"]) == ["hung"] * 4
    skipped = run.frame["said"] == divergence.NO_PLACE
    assert list(skipped) == [False, True, False, False]
    assert list(run.frame["seconds"].isna()) == list(skipped)


@pytest.mark.slow
def test_what_was_said_names_both_values(some):
    said = some.frame.set_index(["drill", "defence"])["said"]
    assert "rank 0 flash, rank 1 paged" in said["backend", "parity"]
    assert "rank 0 3, rank 1 2" in said["count", "plan"]
    assert "rank 0 has [[11" in said["order", "none"] and "rank 0 in all_reduce" in said["count", "none"]


@pytest.mark.slow
def test_compiled_code_that_differs(compiled):
    found = outcomes(compiled)
    assert found["break", "none"] == "right" and found["break", "health"] == "caught"
    assert found["break", "plan"] == "right"
    assert found["branch", "none"] in ("hung", "wrong") and found["branch", "plan"] == found["branch", "none"]
    (said,) = compiled.frame.query("drill == 'break' and defence == 'health'")["said"]
    assert "first other break: rank 0 none, rank 1" in said and "print" in said


@pytest.mark.slow
def test_ranks_that_compile_together_are_repaired(ranks):
    report = divergence.run(ranks, ["recompile"], defences=["none", "guard collectives"], stall=20.0)
    assert report.provenance["stall_s"] == 20.0
    found = outcomes(report)
    assert found["recompile", "none"] == "error", "the peer's collective timed out"
    # on a machine that stands still for a second even these time out; never are the numbers wrong
    assert found["recompile", "guard collectives"] in ("repaired", "error")


@pytest.mark.slow
def test_the_sleep_and_the_short_timeout_are_named_and_the_control_ends_right(ranks):
    drill = Recompile(sleep_s=2.5, timeout_s=0.8)
    report = divergence.run(ranks, ["recompile", "order"], drills={"recompile": drill}, defences=["none"])
    (row,) = report.tables["arranged"].to_dict("records")
    assert row == {
        "drill": "recompile", "sleep_s": 2.5, "timeout_s": 0.8, "outcome": "error",
        "at torch's default timeout": "right",
    }  # fmt: skip
    named = (
        "a compile sleeps 2.5 s, collectives time out after 0.8 s; at torch's default timeout it ends right"
    )
    assert named in report.figure().summary


@pytest.mark.slow
def test_a_break_on_one_rank_ends_the_job_wherever_a_pass_changes_the_calls():
    """Lesson 08: harmless without the pass, right without the break, SIGABRT with both; so does a default pass."""
    import os
    import re

    import torch
    import torch._inductor.config as inductor
    import torch.distributed as dist
    from torch._inductor.utils import run_and_get_code

    from course.shared.outcomes import judge
    from labkit.torch_compat import funcol, renamed

    names = dict(os=os, re=re, torch=torch, inductor=inductor, dist=dist, pd=pd, labkit=labkit, funcol=funcol)
    names |= dict(run_and_get_code=run_and_get_code, judge=judge, renamed=renamed, RankError=RankError)
    names |= dict(reveal=lambda *answer: "")
    with labkit.Ranks(2, device="cpu", backend="gloo", stall=1.5, quiet=True) as two:
        space = lesson_cells.run(
            "08_rank_symmetry", "gathers", "planned", "four", "passes", "passes-run", ranks=two, **names
        )
    space["fake"].close()
    runs = space["runs"]
    assert list(runs["ended"]) == ["finished", "finished", "finished", "crash"]
    right, *other, said = runs["sums, or what was said"]
    assert other == [right, right] and "SIGABRT" in said
    for program, setting, gradients, calls_0, calls_1, ended in space["rows"]:
        same = calls_0 == calls_1
        assert (ended == "finished") == same, (program, setting, ended)
        assert same == ("bucket" not in setting and "dedup" not in setting and not gradients), program


def test_bytes_that_do_not_fit_end_a_process(ranks):
    found = divergence.run(ranks, ["size"], defences=["none", "plan"])
    assert list(found.frame["outcome"]) == ["crash", "caught"]
    assert "SIGABRT" in found.frame["said"][0]


def test_a_drill_of_the_readers_own(ranks):
    def mine(site):
        with site.call(Plan.of("infer", calls=1 + site.odd)) as step:
            for _ in range(1 + site.odd):
                step()
        return site.exchange.rank

    def broken(site):
        raise KeyError("a mistake in the drill")

    found = divergence.run(ranks, ["mine"], drills={"mine": mine}, defences=["none"])
    assert list(found.frame["outcome"]) == ["right"] and found.provenance["stall_s"] == divergence.STALL_S
    with pytest.raises(
        RuntimeError, match=r"(?s)drill 'broken' fails without an odd rank.*a mistake in the drill"
    ):
        divergence.run(ranks, ["broken"], drills={"broken": broken})


def test_bad_requests_are_refused_before_anything_runs(ranks):
    for arguments, says in (
        ((["shap"],), "unknown drill 'shap': there is shape, size"),
        (((), {"defences": ["none", "luck"]}), "unknown defence 'luck': there is none, parity"),
        (((), {"defences": ["plan"]}), "judged against 'none'"),
    ):
        *positional, keywords = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
        with pytest.raises(ValueError, match=says):
            divergence.run(ranks, *positional, **keywords)


@pytest.mark.parametrize(
    ("outcome", "ended", "judged"),
    [
        (Outcome(0, "error", "PlanError", "two"), "raised", ("caught", "PlanError: two")),
        (Outcome(0, "error", "Diverged", "other"), "raised", ("caught", "Diverged: other")),
        (Outcome(0, "error", "RuntimeError", "Timed out\nmore"), "raised", ("error", "RuntimeError: Timed out")),
        (Outcome(0, "unfinished", waits="all_reduce"), "stalled", ("hung", "rank 0 in all_reduce")),
        (Outcome(0, "dead", code=-6), "died", ("crash", "rank 0 died: killed by SIGABRT.")),
        (Outcome(0, "unfinished"), "timed out", ("hung", "the call failed")),
    ],
)  # fmt: skip
def test_how_an_end_is_judged(outcome, ended, judged):
    assert divergence.judge(RankError("the call failed", [outcome, Outcome(1, "ok")], ended=ended)) == judged


@pytest.mark.slow
def test_every_drill_says_what_it_does_and_the_report_is_drawn_after_saving(some, tmp_path):
    assert all(what(drill).endswith(".") for drill in DRILLS.values())
    loaded = Report.load(some.save(tmp_path))
    pd.testing.assert_frame_equal(loaded.frame, some.frame, check_dtype=False)
    assert "order: none wrong, parity wrong, plan caught" in loaded.figure().summary
