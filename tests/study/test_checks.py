"""A check that cannot fail is not a check: every judge is handed records in which its claim is false."""

from __future__ import annotations

import pytest
from ledger_records import (
    ALIKE,
    BASE,
    CASES,
    DONE,
    FASTER,
    GATHERED,
    HUNG,
    SLOWER,
    TELLS_NOTHING,
    patched,
    reference_cases,
)

from labkit.study.catalog import CHECKS
from labkit.study.checks import CITED, ENFORCED, NO, Bench, judging, verdict

ALL = CASES | reference_cases()
PARTED = "bucketing.a_break_on_one_rank_parts_collectives"
KEPT_SPLIT = {"placement": "_S(0, 4)", "collectives": None}


@pytest.fixture(scope="module")
def tables():
    with Bench() as bench:
        return CHECKS["reference.run_12b_fps"].probe.run(bench)


def test_no_check_is_without_a_violating_record():
    assert set(ALL) == set(CHECKS)
    assert all(len(case) >= 2 for case in ALL.values())
    assert set(BASE) == {check.probe.name for check in CHECKS.values()} - {"reference.tables"}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_check_holds_on_one_record_and_fails_on_others(name, tables):
    check, (satisfying, *violating) = CHECKS[name], ALL[name]
    base = tables if check.probe.name == "reference.tables" else BASE[check.probe.name]
    good = {"claimed": ""} | patched(base, satisfying)
    result = check.result(good)
    assert result.status == check.word, result
    assert result.measured
    for patch in violating:
        result = check.result(patched(good, patch))
        told = ("cannot tell",) if NO[check.word] else ("changed", "cannot tell")
        assert result.status in told, (patch, result)
        assert result.measured, patch


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_says_what_it_looks_for(name):
    assert CHECKS[name].says.endswith("."), name
    assert name.partition(".")[0] == CHECKS[name].probe.name.partition(".")[0]


@pytest.mark.parametrize(
    ("seen", "status", "says"),
    [
        (SLOWER, "holds", "slower, time ratio 2.00 [shm · cpu]"),
        (FASTER, "changed", "faster, time ratio 0.50 [shm · cpu]"),
        (ALIKE, "changed", "no difference, time ratio 1.00"),
        (TELLS_NOTHING, "cannot tell", "cannot tell, time ratio 1.00"),
    ],
)
def test_a_timing_is_refuted_by_the_opposite_and_by_no_difference_and_by_no_noise(seen, status, says):
    result = CHECKS["cost.functional_is_slower_in_eager"].judge(seen)
    assert result.status == status and says in result.measured
    assert ("2 GPUs" in result.missing) == (status == "cannot tell")


def test_what_was_copied_is_cited_and_what_labkit_does_itself_is_enforced():
    parts = {name: check.word for name, check in CHECKS.items()}
    assert {word for name, word in parts.items() if name.startswith("reference.")} == {CITED}
    assert {
        word for name, word in parts.items() if name.partition(".")[0] in ("contract", "endings", "trap")
    } == {ENFORCED}
    # these run torch.compile and a group beside parts of labkit: what they show is PyTorch's
    for name in (
        "suite.regions_leave_less_room",
        "membership.a_stranger_deadlocks",
        "symmetry.gathered_counts_differ",
    ):
        assert parts[name] == "holds", name


# records as they come out on torch 2.13, and what has to be said of them
@pytest.mark.parametrize(
    ("name", "record", "status", "says"),
    [
        ("dtensor.operations_arrive_in_dispatch", {"dtensor": 0}, "changed", "3 operations: 0 calls"),
        ("guards.static_unless_asked", {}, "changed", "[1, 2, 2, 2] without"),
        ("cost.compiling_leaves_no_overhead", {"small": {"compiled": SLOWER}}, "changed", "2.00 times compiled"),
        ("training.hooks_break_the_graph", {"pieces": {"DDP": [1, 0]}}, "changed", "DDP 1 (breaks: 0)"),
        ("redistribute.views_gather", {"view(-1,)": KEPT_SPLIT}, "holds", "view(-1) is _S(0, 4) with no collective"),
        (PARTED, {}, "holds", "by default right, with gathers put into buckets hung (rank 0 in all_reduce, rank 1 in"),
        (PARTED, {"bucketed": GATHERED}, "changed", "by default right, with gathers put into buckets right"),
        (PARTED, {"default": HUNG}, "holds", "by default hung"),
        ("symmetry.diverging_programs_deadlock", {"flag_branch": DONE}, "changed", "hung, flag branch wrong"),
        ("suite.conservative_timeouts_pay", {"conservative_late": "timed out"}, "changed", "timed out with 20 s"),
        ("cliff.recorded_functional_brings_it_back", {"torch": "2.12.1"}, "cannot tell", "torch 2.12.1"),
    ],
)  # fmt: skip
def test_a_record_gets_the_word_that_it_deserves(name, record, status, says):
    check = CHECKS[name]
    result = check.result({"claimed": "", **patched(BASE[check.probe.name], record)})
    assert result.status == status and says in result.measured, result


def test_a_word_that_there_is_not_is_refused():
    with pytest.raises(
        ValueError,
        match="a check cannot say 'maybe': its word is one of holds, read in the source, simulated",
    ):
        judging(CHECKS["trap.a_count_guards_the_gate"].probe, "trap.other", word="maybe")


def test_a_name_is_given_once():
    probe = CHECKS["breaks.logging_breaks"].probe
    with pytest.raises(ValueError, match="two checks named 'breaks.logging_breaks'"):
        judging(probe, "breaks.logging_breaks")(lambda seen: verdict(True, ""))


def test_what_rests_on_the_simulator_says_so_in_what_it_measured():
    names = {name for name, check in CHECKS.items() if "(simulated)" in check.says}
    assert names == {"stream_programs.events_order_streams"}
    for name in names:
        base = BASE[CHECKS[name].probe.name]
        for patch in ({}, *ALL[name][1:]):
            measured = CHECKS[name].result({"claimed": ""} | patched(base, patch)).measured
            assert measured.startswith("simulated: ")
