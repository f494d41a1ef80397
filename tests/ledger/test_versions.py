"""Recorded answers: the word over the versions, what counts of a record, and what the command prints of it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from labkit import cli
from ledger import command, versions
from ledger.facts import load
from ledger.run import Answer
from ledger.trials import TRIALS

REAL = load(trials=TRIALS)
FACT, OTHER = [fact for fact in REAL.facts if not fact.needs][:2]
KNOWN = {"torch": "2.13.0+cpu", "hardware": "a box", "commit": "0123456789ab", "date": "2026-11-25T00:00:00"}


@pytest.fixture(autouse=True)
def committed(monkeypatch, home):
    """A checkout without changes: with some, no answer may count."""
    where = dict(KNOWN)
    monkeypatch.setattr(versions, "provenance", lambda: dict(where))
    monkeypatch.setattr(command, "provenance", lambda: dict(where))
    return where


def said(answer: str, fact=FACT, **more) -> Answer:
    """An answer as it was recorded before its data were: it stands as it is."""
    return Answer(fact, answer, f"measured a {answer}", **more)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ("yes yes yes yes", "always"),
        ("no no no no", "not in 2.11-2.14"),
        ("no yes yes yes", "since 2.12"),
        ("yes yes no no", "until 2.12"),
        ("no yes no no", "only in 2.12"),
        ("yes yes no yes", "not in 2.13"),
        ("no yes no yes", "only in 2.12, 2.14"),
        ("error yes yes yes", "always (2.11 not known)"),
        ("error no yes yes", "since 2.13 (2.11 not known)"),
        ("yes error no no", "until 2.11 (2.12 not known)"),
        ("error error error error", "cannot tell here"),
    ],
)
def test_the_word_follows_from_yes_and_no_alone(told, word):
    assert versions.word(dict(zip(("2.11", "2.12", "2.13", "2.14"), told.split(), strict=True))) == word


@pytest.fixture
def recorded(tmp_path):
    """Two facts on three versions: one of them has news."""
    for version, answers in (("2.11.0", "no yes"), ("2.9.0", "no yes"), ("2.12.0", "yes yes")):
        pair = [said(a, fact) for a, fact in zip(answers.split(), (FACT, OTHER), strict=True)]
        versions.save(
            [one.__class__(**{**vars(one), "seen": None}) for one in pair],
            tmp_path / f"torch-{version}/facts.json",
        )
    return tmp_path


def test_versions_come_in_their_order_and_news_once(recorded):
    table = versions.matrix(REAL, recorded)
    assert list(table.columns) == ["2.9.0", "2.11.0", "2.12.0", "word"]
    assert table.loc[FACT.id, "word"] == "since 2.12" and table.loc[OTHER.id, "word"] == "always"
    news = versions.news(REAL, recorded)
    assert list(news["fact"]) == [FACT.id] and news["do"].tolist() == [FACT.do]
    assert [versions.nearest(v, recorded) for v in ("2.11.1+cpu", "2.13.0", "2.8.0")] == [
        "2.11.0",
        "2.12.0",
        "2.9.0",
    ]


def test_what_differs_between_two_versions_is_printed_with_both(recorded, monkeypatch, capsys):
    monkeypatch.setattr(versions, "home", lambda: recorded)
    monkeypatch.setattr(versions.files, "ours", lambda path: recorded)
    monkeypatch.setenv("COLUMNS", "150")
    assert cli.main(["ledger", "--diff", "2.11", "2.12.0"]) == 0
    out = capsys.readouterr().out
    assert FACT.id in out and OTHER.id not in out and "1 of 2 facts differ" in out
    assert "2.11.0  no" in out and "2.12.0  yes" in out and "do: " in out
    assert cli.main(["ledger", "--diff", "2.11", "2.11.0"]) == 0
    assert "0 of 2 facts differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (["--diff", "2.11.0"], "--diff compares two torch versions"),
        (["--diff", "2.11.0", "2.12.0", "2.13.0"], "--diff compares two torch versions"),
        (
            ["--diff", "2.11.0", "2.14"],
            "no ledger is recorded on torch 2.14.0 (there is: 2.9.0, 2.11.0, 2.12.0)",
        ),
        (["--torch", "2.15.0", "--diff", "2.14.0"], "`labkit ledger --torch 2.14.0` makes one"),
        (["--torch", "1.0"], "oddrank supports torch"),
        (["--torch", "new"], "a torch version is a release such as 2.15.0, got 'new'"),
        (["--torch", "2.15.0", "--save"], "--save goes without --torch and --diff"),
        (["--again"], "--again goes with --save"),
        (["--lesson", "99"], "no fact belongs to a lesson '99'"),
        (["--only", "no.such"], "no fact has the id 'no.such'"),
    ],
)
def test_what_cannot_be_met_is_one_sentence_before_anything_runs(
    recorded, monkeypatch, capsys, asked, sentence
):
    monkeypatch.setattr(versions, "home", lambda: recorded)
    monkeypatch.setattr(versions.files, "ours", lambda path: recorded)
    monkeypatch.setattr(command, "run", lambda *a, **k: pytest.fail("a trial ran"))
    assert cli.main(["ledger", *asked]) == 2
    assert sentence in capsys.readouterr().err


# what is kept


def kept(fact=FACT, answer="yes"):
    """An answer with what its trial saw, so that it can be judged again."""
    return said(answer, fact, seen={"error": "made up"} if answer == "error" else None)


def test_answers_replace_those_of_their_facts_and_others_stay(tmp_path):
    path = tmp_path / "facts.json"
    versions.save([Answer(FACT, "yes"), Answer(OTHER, "no")], path)
    versions.save([Answer(FACT, "no")], path)
    frame = versions.load(path).frame.set_index("id")
    assert frame["answer"].to_dict() == {FACT.id: "no", OTHER.id: "no"}
    assert set(frame["torch"]) == {KNOWN["torch"]}


def test_a_record_names_no_place_on_the_machine(tmp_path):
    here = f"{Path(versions.__file__).parents[1]}/ledger/trials/guards.py"
    versions.save(
        [Answer(FACT, "no", measured=f"raised in {here}", seen={"error": here})], tmp_path / "facts.json"
    )
    row = versions.load(tmp_path / "facts.json").frame.iloc[0]
    assert row["measured"] == "raised in ledger/trials/guards.py"
    assert row["seen"] == '{"error": "ledger/trials/guards.py"}'


def test_what_needs_hardware_is_not_kept(tmp_path):
    versions.save(
        [Answer(FACT, "cannot tell", missing="needs a GPU"), Answer(OTHER, "no")], tmp_path / "facts.json"
    )
    assert list(versions.load(tmp_path / "facts.json").frame["id"]) == [OTHER.id]


def test_an_answer_of_a_sentence_that_was_changed_does_not_count(tmp_path):
    path = tmp_path / "facts.json"
    found = versions.save([Answer(FACT, "yes")], path)
    assert set(versions.rejudged(REAL, found)) == {FACT.id}
    found.frame.loc[0, "says"] = "Another sentence."
    assert versions.rejudged(REAL, found) == {}
    found.frame.loc[0, ["id", "says"]] = ["no.such", FACT.says]
    assert versions.rejudged(REAL, found) == {}


def test_a_record_is_judged_by_todays_judge(tmp_path):
    found = versions.save([Answer(FACT, "yes", seen={}, counter={})], tmp_path / "facts.json")
    assert versions.rejudged(REAL, found)[FACT.id].answer == "error"  # what the judge reads is not in it


def test_a_file_of_something_else_is_named(tmp_path):
    from labkit import Report

    Report("facts", "Another", "cpu", {"main": pd.DataFrame({"a": [1]})}).save(tmp_path)
    with pytest.raises(ValueError, match="facts.json holds no answers of the ledger: its tables are main"):
        versions.load(tmp_path / "facts.json")


@pytest.mark.parametrize("key", ["torch", "commit", "hardware"])
def test_kept_answers_count_where_they_were_made(tmp_path, monkeypatch, committed, key):
    ran = []

    def runs(facts, **options):
        facts = list(facts)
        ran.append([fact.id for fact in facts])
        found = tuple(Answer(fact, "yes", "seen") for fact in facts)
        for one in found:
            options["each"](one)
        return found

    monkeypatch.setattr(command, "run", runs)
    asked = ["ledger", "--only", FACT.id, OTHER.id, "--save", str(tmp_path)]
    assert cli.main(asked) == 0 and cli.main(asked) == 0
    assert cli.main([*asked, "--again"]) == 0
    committed[key] = "another"
    assert cli.main(asked) == 0
    committed["commit"] = "0123456789ab+changes"
    assert cli.main(asked) == 0
    assert [len(ids) for ids in ran] == [2, 0, 2, 2, 2]


def test_an_interrupted_run_keeps_what_it_measured(tmp_path, monkeypatch):
    def runs(facts, **options):
        options["each"](Answer(next(iter(facts)), "yes"))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", runs)
    assert cli.main(["ledger", "--only", FACT.id, OTHER.id, "--save", str(tmp_path)]) == 130
    assert len(versions.load(tmp_path / "facts.json").frame) == 1


def test_answers_that_cannot_be_saved_are_printed_all_the_same(tmp_path, monkeypatch, capsys):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("oddrank.report.write", full)
    monkeypatch.setattr(command, "run", lambda facts, **o: tuple(o["each"](a) or a for a in map(_yes, facts)))
    assert cli.main(["ledger", "--only", FACT.id, "--save", str(tmp_path)]) == 3
    found = capsys.readouterr()
    assert FACT.id in found.out and "No space left on device" in found.err


def _yes(fact):
    return Answer(fact, "yes", "seen")


def test_the_command_prints_what_it_found_and_json_what_it_saw(monkeypatch, capsys):
    import json

    monkeypatch.setattr(
        command, "run", lambda facts, **o: tuple(Answer(f, "yes", "seen", seen={"n": 1}) for f in facts)
    )
    assert cli.main(["ledger", "--only", FACT.id]) == 0
    out = capsys.readouterr().out
    assert FACT.id in out and "measured: seen" in out and "yes: 1  no: 0  error: 0  cannot tell: 0" in out
    assert cli.main(["ledger", "--json", "--only", FACT.id]) == 0
    (row,) = json.loads(capsys.readouterr().out)["facts"]
    assert row["fact"]["id"] == FACT.id and row["seen"] == {"n": 1}


@pytest.mark.slow
def test_a_fact_is_really_run_by_the_command(capsys):
    """With its counterexample, as a reader runs it."""
    cheap = next(fact for fact in REAL.facts if fact.topic == "breaks")
    assert cli.main(["ledger", "--only", cheap.id]) == 0
    assert "error: 0" in capsys.readouterr().out
