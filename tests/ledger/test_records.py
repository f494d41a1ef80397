"""The recorded answers: of five versions, as today's judges give them, and each judge says no to a false record."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from ledger import versions
from ledger.facts import load
from ledger.run import CANNOT_TELL, ERROR, NO, YES
from ledger.trials import TRIALS

FACTS = load(trials=TRIALS)
THERE = versions.answers(FACTS)
FIVE = ("2.11.0", "2.12.0", "2.13.0", "2.14.0", "2.15.0")
FALSE = runpy.run_path(str(Path(__file__).with_name("false_records.py")))


@pytest.mark.parametrize("version", FIVE)
def test_every_fact_that_needs_no_gpu_has_an_answer(version):
    missing = [fact.id for fact in FACTS.facts if not fact.needs and fact.id not in THERE[version]]
    assert not missing, f"`labkit ledger --torch {version} --only {' '.join(missing)}`"


def test_few_recorded_answers_are_errors_and_each_fact_has_a_yes_or_a_no():
    told = [one for version in FIVE for one in THERE[version].values() if not one.fact.needs]
    errors = [(one.fact.id, one.missing) for one in told if one.answer == ERROR]
    assert len(errors) <= 0.01 * len(told), errors
    known = {one.fact.id for one in told if one.answer in (YES, NO)}
    assert {fact.id for fact in FACTS.facts if not fact.needs} == known


def test_what_cannot_be_told_names_hardware_a_package_or_noise():
    untold = {one.missing for found in THERE.values() for one in found.values() if one.answer == CANNOT_TELL}
    assert all(
        said.startswith(("the package", "a quieter machine", "the counterexample: ")) for said in untold
    ), untold


def test_the_answer_that_was_recorded_is_the_one_that_is_given_today():
    for version, path in versions.records().items():
        beside = path.with_name(versions.ON_A_GPU)
        recorded = {
            row["id"]: row["answer"]
            for one in (beside, path)
            if one.exists()
            for row in versions.load(one).frame.to_dict("records")
        }
        told = {name: one.answer for name, one in THERE[version].items()}
        assert told == {name: recorded[name] for name in told}, version


def failed(name, record):
    try:
        return {part.words for part in TRIALS[name].parts(record) if not part.holds}
    except Exception:  # how a probe ended, or what a probe of another version saw
        return set()


def test_each_part_of_a_judge_can_fail_and_stands_in_the_sentence():
    """Of a run that was recorded, mostly of the counterexample; else of a record that is false on purpose."""
    for name, trial in TRIALS.items():
        (fact,), told = FACTS.choose(only=[name]), [found[name] for found in THERE.values() if name in found]
        seen = [record for one in told for record in (one.seen, one.counter) if record]
        base = FALSE["HOLDS"].get(name) or [one.seen for one in told if one.answer == YES and one.seen][-1]
        parts = {part.words for part in trial.parts(base) if part.holds}
        fail = set().union(*(failed(name, record) for record in seen))
        for words, changes in FALSE["WRONG"].get(name, {}).items():
            assert words in failed(name, {**base, **changes}), f"{name}: {changes}"
            fail.add(words)
        assert parts and parts <= fail, f"{name}: nothing is recorded in which these fail: {parts - fail}"
        assert all(words in fact.says for words in parts), fact.says


def test_every_counterexample_was_run_and_denied():
    """`answer` makes a yes to a counterexample an error; here: that none was left out in the recordings."""
    for version, found in THERE.items():
        for name, one in found.items():
            if TRIALS[name].counter and one.answer in (YES, NO) and one.seen and "not there" not in one.seen:
                assert one.counter is not None, (version, name)


def test_a_counterexample_that_is_left_out_says_why():
    without = {name: trial.why_none for name, trial in TRIALS.items() if trial.counter is None}
    assert all(len(why.split()) > 2 for why in without.values()), without
    assert len(without) <= len(TRIALS) / 4


def test_news_has_both_outcomes_on_record():
    table = versions.matrix(FACTS)
    for name in versions.news(FACTS)["fact"]:
        assert {YES, NO} <= set(table.loc[name])


def test_what_a_yes_means_is_said_of_each_fact_that_differs_and_of_no_other():
    assert {fact.id for fact in FACTS.facts if fact.yes} == set(versions.news(FACTS)["fact"])


def test_the_effects_of_an_upgrade_come_the_most_urgent_first_and_an_error_is_none():
    rows = versions.differing(THERE["2.13.0"], THERE["2.15.0"])
    order = [versions.EFFECTS.index(effect) for effect in rows["effect"]]
    assert order == sorted(order) and len(set(order)) > 3
    assert {*rows["answer_a"], *rows["answer_b"]} == {YES, NO}
    effects = rows.set_index("id")["effect"]
    assert effects["groups.after-a-local-group"] == "breaks"
    assert effects["nccl.nccl-is-nccl2"] == "other behaviour" and effects["guards.static-sources"] == "new"
    assert effects["collectives.gradient-of-an-average"] == "works now"
    back = versions.differing(THERE["2.15.0"], THERE["2.13.0"]).set_index("id")["effect"]
    assert back["collectives.gradient-of-an-average"] == "breaks"
    said = versions.text(FACTS, ("2.13.0", "2.15.0"))
    assert "symmetry.spmd-check-raises" in said.partition("not known on one of them: ")[2]


def test_what_a_gpu_told_counts_beside_what_was_told_without_one():
    assert THERE["2.13.0"]["nccl.id-in-store"].answer == YES and "nccl.id-in-store" not in THERE["2.12.0"]
    rows = versions.differing(THERE["2.13.0"], THERE["2.15.0"]).set_index("id")
    assert rows.loc["nccl.communicator-at-first-collective", "effect"] == "other behaviour"
    assert "1x NVIDIA H100" in versions.text(FACTS, ("2.13.0", "2.15.0")).splitlines()[-1]


@pytest.mark.gpu
def test_facts_that_need_a_gpu_are_told_on_one():
    from labkit import hardware
    from ledger.run import run

    needy = [fact for fact in FACTS.facts if fact.needs and not fact.missing(len(hardware.gpus()))]
    found = {one.fact.id: (one.answer, one.missing) for one in run(needy)}
    assert ERROR not in {answer for answer, _ in found.values()}, found
