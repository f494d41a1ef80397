"""Running the ledger: a probe is run once, what fails is never called true, and the table says what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from labkit import cli
from labkit.ranks import RankError
from labkit.ranks.errors import Outcome
from labkit.study import ledger
from labkit.study.catalog import CHECKS
from labkit.study.checks import Check, Probe, cannot_tell, quietly, verdict
from labkit.study.claims import load, parse

ROW = """
[[claim]]
id = "doc.{name}"
section = "First"
claim = "Something about {name} is so."
kind = "structure"
figure = "3 graphs"
lesson = "04_graph_break_cliff"
"""
HEAD = 'untested = 1\n[sources.doc]\ntitle = "A document"\n'
REAL = load(checks=CHECKS)
BARE = next(
    (row for row in REAL.rows if row.untested), REAL.rows[0]
)  # rows get checks: none lacks one for good


def rows_of(*names: str, extra: str = ""):
    text = HEAD
    for name in names:
        text += ROW.format(name=name) + (f'check = "{name}"\n' if name != "none" else "") + extra
    return parse(text)


def check_of(name: str, see, judge=None) -> Check:
    probe = see if isinstance(see, Probe) else Probe(f"probe.{name}", see)
    return Check(
        name, probe, judge or (lambda seen: verdict(seen["graphs"] == 3, f"{seen['graphs']} graphs")), "."
    )


def run_one(see, judge=None, **options) -> ledger.Line:
    (line,) = ledger.run(
        rows_of("a"), checks={"a": check_of("a", see, judge)}, **{"gpus": 0, **options}
    ).lines
    return line


@pytest.mark.parametrize(("graphs", "status"), [(3, "holds"), (5, "changed")])
def test_a_judge_decides_and_the_measured_figure_stands_beside_the_claimed(graphs, status):
    line = run_one(lambda bench: {"graphs": graphs})
    assert (line.status, line.measured) == (status, f"{graphs} graphs")
    found = ledger.run(rows_of("a"), checks={"a": check_of("a", lambda bench: {"graphs": graphs})}, gpus=0)
    (row,) = [text for text in str(found).splitlines() if "doc.a" in text and status in text]
    assert row.index("3 graphs") < row.rindex(f"{graphs} graphs")


def test_a_row_that_no_run_can_tell_says_why():
    row = parse(HEAD.replace("1", "0") + ROW.format(name="none") + 'beyond = "advice, nothing to run"\n')
    (line,) = ledger.run(row, checks={}, gpus=0).lines
    assert (line.status, line.missing) == ("cannot tell here", "no run can tell: advice, nothing to run")


def test_a_fact_of_the_past_that_no_run_can_tell_is_cited():
    row = ROW.replace("structure", "history").format(name="none") + 'beyond = "somebody else\'s system"\n'
    (line,) = ledger.run(parse(HEAD.replace("1", "0") + row), checks={}, gpus=0).lines
    assert (line.status, line.missing) == ("cited", "no run can tell: somebody else's system")


@pytest.mark.parametrize("word", ["enforced", "cited", "simulated"])
def test_the_word_of_a_check_is_its_yes_and_its_no_refutes_nothing(word):
    for graphs, status in ((3, word), (5, "cannot tell here")):
        check = replace(check_of("a", lambda bench, n=graphs: {"graphs": n}), word=word)
        found = ledger.run(rows_of("a"), checks={"a": check}, gpus=0)
        (line,) = found.lines
        assert (line.status, line.measured, bool(line.missing)) == (status, f"{graphs} graphs", graphs == 5)
        assert found.counts()["holds"] == 0 and found.to_dict()["counts"][status] == 1


@pytest.mark.parametrize(
    ("field", "status", "missing"),
    [
        ("", "changed", ""),
        ("can = true\n", "not provoked", ""),
        ('never = "no torch has it"\n', "never true", "no torch has it"),
    ],
)
def test_the_row_says_what_its_no_is_called(field, status, missing):
    check = check_of("a", lambda bench: {"graphs": 5})
    found = ledger.run(rows_of("a", extra=field), checks={"a": check}, gpus=0)
    (line,) = found.lines
    assert (line.status, line.measured, line.missing) == (status, "5 graphs", missing)
    good = ledger.run(
        rows_of("a", extra=field), checks={"a": check_of("a", lambda bench: {"graphs": 3})}, gpus=0
    )
    assert [line.status for line in good.lines] == ["holds"]
    assert ledger.possible("a", line.claim.no, {"a": check}) == {"holds", status, "cannot tell here"}


def test_the_version_since_which_it_changed_stands_before_what_was_measured():
    found = ledger.run(rows_of("a"), checks={"a": check_of("a", lambda bench: {"graphs": 5})}, gpus=0)
    assert "since 2.15.0; 5 graphs" in found.text(since={"doc.a": "2.15.0"})


def test_every_word_is_defined_once_and_stands_in_the_readme():
    from labkit.lessons.ledger.figures import LOOKS
    from labkit.study.claims import FILE
    from labkit.study.results import STATUSES

    assert tuple(LOOKS) == STATUSES == (*ledger.MEANINGS, "not run")
    (paragraph,) = [
        text
        for text in (FILE.parent.parent / "README.md").read_text().split("\n\n")
        if "**The claim ledger.**" in text
    ]
    assert all(f"*{word}*" in " ".join(paragraph.split()) for word in ledger.MEANINGS)


def test_a_row_without_a_check_is_not_yet_tested():
    found = ledger.run(rows_of("none"), gpus=0)
    assert found.counts() == dict.fromkeys(ledger.STATUSES, 0) | {"not yet tested": 1}
    assert "rows without a check: 1 of 1" in found.text()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RuntimeError("no such operator"), "RuntimeError: no such operator"),
        (
            RankError("rank 1 failed", [Outcome(1, "error", "TypeError", "cannot")], ended="raised"),
            "rank 1 raised TypeError: cannot",
        ),
        (OSError("out of processes"), "OSError: out of processes"),
    ],
)
def test_a_probe_that_raises_tells_nothing_and_is_no_crash(error, says):
    def see(bench):
        raise error

    line = run_one(see)
    assert line.status == "cannot tell here"
    assert line.missing == f"probe.a failed: {says}"


def test_an_interrupt_passes_through():
    def see(bench):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_one(see)


def test_a_judge_that_finds_nothing_to_judge_tells_nothing():
    line = run_one(lambda bench: {"something": "else"})
    assert line.status == "cannot tell here"
    assert "a could not judge: KeyError: 'graphs'" in line.missing


@pytest.mark.parametrize("value", [math.nan, math.inf, object()])
def test_evidence_that_is_no_plain_data_is_none(value):
    assert run_one(lambda bench: {"graphs": value}).status == "cannot tell here"


def test_what_a_judge_cannot_tell_is_said_with_what_is_missing():
    line = run_one(lambda bench: {}, lambda seen: cannot_tell("the spread is too wide", "ratio 1.0"))
    assert (line.status, line.measured, line.missing) == (
        "cannot tell here",
        "ratio 1.0",
        "the spread is too wide",
    )


@pytest.mark.parametrize(
    ("need", "gpus", "missing"),
    [("gpu", 0, "needs a GPU"), ("2 gpus", 1, "needs 2 GPUs"), ("2 gpus", 2, ""), ("gpu", 1, "")],
)
def test_hardware_that_is_missing_is_named_and_nothing_runs(need, gpus, missing):
    ran = []

    def see(bench):
        ran.append(1)
        return {"graphs": 3}

    claims = rows_of("a", extra=f'needs = ["{need}"]\n')
    (line,) = ledger.run(claims, checks={"a": check_of("a", see)}, gpus=gpus).lines
    assert line.missing == missing
    assert line.status == ("cannot tell here" if missing else "holds")
    assert len(ran) == (not missing)


def test_a_row_that_needs_hardware_and_has_no_check_says_both():
    (line,) = ledger.run(rows_of("none", extra='needs = ["2 gpus"]\n'), gpus=0).lines
    assert (line.status, line.missing) == ("cannot tell here", "needs 2 GPUs; no check yet")


def test_rows_share_a_measurement_that_is_made_once():
    ran = []

    def see(bench):
        ran.append(1)
        return {"graphs": 3}

    shared = Probe("probe.shared", see)
    checks = {name: check_of(name, shared) for name in "abc"}
    found = ledger.run(rows_of("a", "b", "c"), checks=checks, gpus=0)
    assert found.counts()["holds"] == 3 and len(ran) == 1
    assert found.evidence["probe.shared"]["graphs"] == 3


def test_the_claimed_figure_reaches_the_judge():
    line = run_one(lambda bench: {}, lambda seen: verdict(seen["claimed"] == "3 graphs", "as claimed"))
    assert line.status == "holds"


def test_claims_are_printed_where_rows_are_few():
    found = ledger.run(rows_of("none"), gpus=0)
    assert "Something about none is so. (A document, First; undated)" in found.text()
    assert "Something about none" not in found.text(claims=False)


def test_stderr_is_shut_in_a_probe_and_open_after_it(capfd):
    import os

    assert quietly(lambda: os.write(2, b"noise\n")) == 6
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"


# the command


def test_the_command_prints_a_table_totals_and_the_version(capsys, monkeypatch):
    import importlib.metadata

    monkeypatch.setenv("COLUMNS", "150")
    assert cli.main(["ledger", "--only", "streams.result.small-*"]) == 0
    out = capsys.readouterr().out
    assert "07_streams_in_compile" in out and "9,664 MB" in out and "9664 in data/reference" in out
    assert "enforced: 0  cited: 5  cannot tell here: 0  not yet tested: 0" in out
    assert f"cited               {ledger.MEANINGS['cited']}" in out and ledger.MEANINGS["enforced"] not in out
    assert f"rows without a check: {REAL.untested} of {len(REAL.rows)}" in out
    assert f"torch {importlib.metadata.version('torch')}" in out


def test_the_command_lists_what_has_no_check_and_runs_nothing(capsys, monkeypatch):
    monkeypatch.setattr(ledger, "run", lambda *a, **k: pytest.fail("something was run"))
    assert cli.main(["ledger", "--untested"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"rows without a check: {REAL.untested}"
    assert cli.main(["ledger", "--untested", "--json", "--lesson", BARE.lesson.partition("_")[0]]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert bool(listed) == BARE.untested and all(row["lesson"] == BARE.lesson for row in listed)
    assert all(row["check"] is None and not row["beyond"] for row in listed)


def test_the_command_prints_json_with_the_evidence(capsys):
    assert cli.main(["ledger", "--json", "--only", "t11.model.run-12b-fps", BARE.id]) == 0
    found = json.loads(capsys.readouterr().out)
    by_id = {line["id"]: line for line in found["lines"]}
    assert by_id["t11.model.run-12b-fps"]["status"] == "cited"
    assert by_id["t11.model.run-12b-fps"]["figure"] == "~24.5 frames/s"
    assert (by_id[BARE.id]["status"] in ("not yet tested", "cannot tell here")) or not BARE.untested
    assert found["evidence"]["reference.tables"]["scope_runs"]["Run 12b"]["frames_per_s"] == 24.5
    assert found["rows_without_check"] == REAL.untested


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["--lesson", "77"], "there is no lesson '77'"), (["--only", "x.y"], "no claim has the id 'x.y'")],
)
def test_a_choice_that_matches_nothing_is_one_sentence(arguments, sentence, capsys):
    assert cli.main(["ledger", *arguments]) == 2
    assert sentence in capsys.readouterr().err


# on ranks


@pytest.mark.slow
def test_cheap_probes_really_run(capsys):
    expected = {
        "t11.intro.inplace-side-effects": "holds",
        "t11.concept.wait-before-access": "holds",
        "t11.concept.wait-returns-new": "never true",
        "t11.intro.cannot-be-traced": "changed",
        "t11.cross.rfc-solution": "holds",
        "soc.c9.no-autograd": "changed",
        "soc.c3.then-dynamic": "holds",
        "t11.trap.one-escape": "holds",
        "t11.exp.guardrail": "enforced",
        "t12.parity.topology": "enforced",
        "ntd.automates.dispatch": "changed",
        "ntd.linear.view-gathers": "holds",
        "t12.concept.dynamic-is-explicit": "changed",
        "t12.trap.divergent-recompile": "holds",
        "ntd.create.shard": "holds",
        "ntd.linear.sum-gathers": "never true",
        "ntd.lookup.coordinate": "holds",
        "streams.ir.record-event": "holds",
        "streams.ir.get-object": "never true",
        "streams.functionalization.epilogue": "holds",
    }
    found = ledger.run(REAL, REAL.choose(only=list(expected)))
    assert {line.claim.id: line.status for line in found.lines} == expected
    assert all(line.measured and (not line.missing or line.status == "never true") for line in found.lines)
    assert capsys.readouterr().err == ""
