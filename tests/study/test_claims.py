"""The rows of data/claims.toml: complete, well formed, and no more of them without a check than is written there."""

from __future__ import annotations

import re

import pytest

from labkit.study import ledger, results
from labkit.study.catalog import CHECKS
from labkit.study.claims import FILE, KINDS, LESSONS, load, parse

CLAIMS = load(checks=CHECKS)
GOOD = """
untested = 1
[sources.doc]
title = "A document"
[[claim]]
id = "doc.one"
section = "First"
claim = "Something is so."
kind = "semantics"
lesson = "04_graph_break_cliff"
"""


def test_a_row_takes_title_and_date_from_its_source():
    (row,) = parse(GOOD).rows
    assert (row.source, row.date, row.check, row.needs) == ("A document", "undated", None, ())
    (row,) = parse(GOOD.replace('title = "A document"', 'title = "A document"\ndate = "2025-08"')).rows
    assert row.date == "2025-08"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("untested = 1", "", "untested must be the number of rows without a check, got None"),
        ("untested = 1", "untested = -1", "got -1"),
        ('title = "A document"', "", "source 'doc': it has no title"),
        ('id = "doc.one"', "", "claim number 1: it has no id"),
        ('section = "First"', "", "claim 'doc.one': it has no section"),
        ('claim = "Something is so."', 'claim = " "', "claim 'doc.one': it has no claim"),
        ('kind = "semantics"', "", "claim 'doc.one': it has no kind"),
        ('kind = "semantics"', 'kind = "rumour"', "unknown kind 'rumour': there are semantics, structure"),
        ('"04_graph_break_cliff"', '"04_cliff"', "unknown lesson '04_cliff'"),
        ('kind = "semantics"', 'kind = "semantics"\ncheck = "no.such"', "there is no check 'no.such'"),
        (
            'kind = "semantics"',
            'kind = "semantics"\nneeds = ["tpu"]',
            "it cannot need 'tpu': there are 'gpu'",
        ),
        ('kind = "semantics"', 'kind = "semantics"\nnote = "x"', "there is no field 'note'"),
        ('id = "doc.one"', 'id = "other.one"', "no source has the key 'other': there are doc"),
    ],
)
def test_a_rule_that_is_broken_is_named_with_its_row(old, new, says):
    assert old in GOOD
    with pytest.raises(ValueError, match=re.escape(says)):
        parse(GOOD.replace(old, new), checks={"breaks.splits"})


def test_an_id_stands_once():
    with pytest.raises(ValueError, match="claim 'doc.one': this id stands there twice"):
        parse(GOOD + GOOD.partition('title = "A document"')[2])


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="cannot read the claims in .*nothing.toml"):
        load(tmp_path / "nothing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("untested = ")
    with pytest.raises(ValueError, match="broken.toml is not TOML"):
        load(broken)
    monkeypatch.setattr("labkit.study.claims.FILE", tmp_path / "data" / "claims.toml")
    with pytest.raises(ValueError, match="run labkit from a checkout"):
        load()


def test_the_number_of_rows_without_a_check_is_the_one_written_down():
    # add a check and lower `untested` in data/claims.toml; raising it is for new rows, and for those whose check told
    # something else than the row says
    assert sum(row.untested for row in CLAIMS.rows) == CLAIMS.untested


def test_every_check_tests_a_row():
    assert {name for row in CLAIMS.rows for name in (row.check, row.read) if name} == set(CHECKS)


def test_the_five_documents_are_covered():
    per_source = {key: [r for r in CLAIMS.rows if r.id.startswith(f"{key}.")] for key in CLAIMS.sources}
    assert list(per_source) == ["t11", "t12", "streams", "soc", "rfc", "ntd", "since"]
    # the RFC stands behind topic 11: eight goals, and one thing that it does not aim for
    assert [row.section for row in per_source.pop("rfc")] == 8 * ["Goals"] + ["Non-goals"]
    assert {row.lesson for row in per_source.pop("since")} == {"17_one_compile", "07_streams_in_compile"}
    assert all(len(rows) >= 50 for rows in per_source.values())
    assert {row.kind for row in CLAIMS.rows} == set(KINDS)
    # no document makes claims about the collection itself, nor about worlds of a thousand ranks
    without = {"00_start_here", "16_beyond_this_machine", "19_ledger"}
    assert {row.lesson for row in CLAIMS.rows} == set(LESSONS) - without


def test_a_claim_is_one_sentence_in_plain_text():
    for row in CLAIMS.rows:
        assert row.claim.endswith("."), row.id
        assert len(row.claim) <= 180, row.id
        assert re.fullmatch(r"[a-z0-9]+(\.[a-z0-9-]+)+(\.\d+)?", row.id) or "9.6" in row.id, row.id


def test_a_row_quotes_its_source_in_a_few_words():
    quoting = {row.id.partition(".")[0] for row in CLAIMS.rows if row.words}
    assert quoting == {"t11", "t12", "streams", "soc", "ntd"}
    for row in CLAIMS.rows:
        # the text of the RFC is not at hand, and a row on later changes names a pull request
        assert row.id.startswith(("rfc.", "since.")) or 0 < len(row.words.split()) <= 30, row.id
        assert row.words == row.words.strip() != row.claim, row.id


def test_what_is_read_stands_for_a_check_that_needs_hardware():
    row = next(row for row in CLAIMS.rows if row.read)
    assert ledger.check_of(row, 0) == row.read and ledger.check_of(row, 8) == row.check
    assert not ledger.needs_no_run(row, 0)
    (line,) = ledger.run(CLAIMS, [row], gpus=0).lines
    assert (
        line.status == "read in the source" and results.of(ledger.Ledger((line,), {}, 0, 1)).frame["check"][0]
    )
    needless = GOOD.replace('kind = "semantics"', 'kind = "semantics"\nread = "breaks.splits"')
    with pytest.raises(ValueError, match="claim 'doc.one': it needs nothing, so its check can run"):
        parse(needless)
    with pytest.raises(ValueError, match="there is no check 'breaks.splits'"):
        parse(needless, checks={"a.b"})


def test_a_figure_of_the_past_that_is_checked_has_a_number():
    for row in CLAIMS.rows:
        if (row.check or "").startswith("reference."):
            assert re.search(r"\d", row.figure), row.id
            assert row.kind == "history", row.id


def test_rows_are_chosen_by_lesson_and_id():
    assert CLAIMS.choose("04") == CLAIMS.choose("04_graph_break_cliff") != ()
    assert all(row.id.startswith("t11.trap.") for row in CLAIMS.choose(only=["t11.trap.*"]))
    assert [row.id for row in CLAIMS.choose("05", ["t11.trap.*"])] == ["t11.trap.eager-slower"]
    with pytest.raises(ValueError, match="there is no lesson '99': there are 00_start_here"):
        CLAIMS.choose("99")
    with pytest.raises(ValueError, match="no claim has the id 't11.nothing'"):
        CLAIMS.choose(only=["t11.trap.eager-slower", "t11.nothing"])
    with pytest.raises(ValueError, match="no claim in lesson '01'"):
        CLAIMS.choose("01", ["t11.trap.eager-slower"])


def test_comments_in_the_file_explain_every_field():
    head = FILE.read_text().partition("untested =")[0]
    for name in ("id", "section", "words", "kind", "figure", "lesson", "check", "needs", "read", "beyond"):
        assert re.search(rf"^#.*\b{name}\b", head, re.M), name


def test_a_row_beyond_any_check_says_why_and_has_none():
    for row in CLAIMS.rows:
        if row.beyond:
            assert row.check is None and not row.needs and len(row.beyond) > 10, row.id
    head = 'untested = 0\n[sources.doc]\ntitle = "A document"\n[[claim]]\nid = "doc.a"\nsection = "S"\nclaim = "C"\n'
    rest = 'kind = "history"\nlesson = "04_graph_break_cliff"\nbeyond = "advice, nothing to run"\n'
    (row,) = parse(head + rest).rows
    assert not row.untested
    with pytest.raises(ValueError, match="it has a check, so it cannot be beyond one"):
        parse(head + rest + 'check = "x.y"\n')
