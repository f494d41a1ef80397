"""A check that cannot fail is not a check: every judge is handed records in which its claim is false."""

from __future__ import annotations

import pytest
from ledger_records import BASE, CASES, patched, reference_cases

from labkit.study.checks import CHECKS, Bench
from labkit.study.checks.base import judging, verdict

ALL = CASES | reference_cases()


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
    result = check.judge(good)
    assert result.status == "holds", result
    assert result.measured
    for patch in violating:
        result = check.judge(patched(good, patch))
        assert result.status in ("changed", "cannot tell"), (patch, result)
        assert result.measured, patch


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_a_check_says_what_it_looks_for(name):
    assert CHECKS[name].says.endswith("."), name
    assert name.partition(".")[0] == CHECKS[name].probe.name.partition(".")[0]


def test_a_timing_that_is_the_opposite_here_is_no_refutation():
    result = CHECKS["cost.functional_is_slower_in_eager"].judge(
        {"outcome": "faster", "ratio": 0.5, "label": "shm · cpu"}
    )
    assert result.status == "cannot tell"
    assert "opposite" in result.missing and "2 GPUs" in result.missing
    assert "shm · cpu" in result.measured


def test_a_name_is_given_once():
    probe = CHECKS["breaks.logging_breaks"].probe
    with pytest.raises(ValueError, match="two checks named 'breaks.logging_breaks'"):
        judging(probe, "breaks.logging_breaks")(lambda seen: verdict(True, ""))
