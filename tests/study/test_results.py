"""Kept results of the ledger: what counts here, how an interrupted run goes on, and that nothing unrun ever holds."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from labkit import cli, files, hardware
from labkit.study import ledger, results
from labkit.study.catalog import CHECKS
from labkit.study.claims import Claims, load

REAL = load(checks=CHECKS)
# rows of two probes that only read files
ROWS = REAL.choose(only=["streams.result.small-*", "t11.model.run-12b-fps"])
FACTS = hardware.describe() | {"commit": "0123456789ab"}


@pytest.fixture(autouse=True)
def committed(monkeypatch, home):
    """A checkout without changes: with some, no result may count."""
    facts = dict(FACTS)
    monkeypatch.setattr(hardware, "describe", lambda: dict(facts))
    return facts


def claims_of(*rows):
    return Claims(REAL.sources, tuple(rows), 0)


@pytest.fixture
def measured(monkeypatch):
    """The probes that are measured."""
    names: list[str] = []
    real = ledger._measure

    def measure(probe, bench):
        names.append(probe.name)
        return real(probe, bench)

    monkeypatch.setattr(ledger, "_measure", measure)
    return names


def test_kept_results_come_back_with_where_and_when_they_were_made():
    results.add(ledger.run(REAL, ROWS))
    kept = results.load()
    assert list(kept.frame["status"]) == ["cited"] * len(ROWS)
    assert set(kept.frame["commit"]) == {"0123456789ab"} and set(kept.frame["torch"]) == {FACTS["torch"]}
    assert kept.frame["date"].str.len().min() >= 19
    assert list(kept.tables["probes"]["probe"]) == ["reference.tables"]
    assert set(results.usable(REAL, kept)) == {row.id for row in ROWS}
    assert kept.label.startswith("recorded on") and " cited" in kept.figure().summary


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("torch", "2.99.0"),
        ("commit", "fedcba987654"),
        ("commit", "0123456789ab+changes"),
        ("hardware", "1x H200"),
    ],
)
def test_results_of_another_torch_commit_or_machine_do_not_count(committed, key, value):
    results.add(ledger.run(REAL, ROWS))
    committed[key] = value
    assert results.usable(REAL, results.load()) == {}
    assert set(results.standing(REAL, kept=results.load()).frame["status"]) <= {
        "not run",
        "cited",  # what needs no run
        "cannot tell here",
        "not yet tested",
    }


def test_results_of_a_tree_with_changes_never_count(committed):
    committed["commit"] += "+changes"
    results.add(ledger.run(REAL, ROWS))
    assert results.usable(REAL, results.load()) == {}


@pytest.mark.parametrize(
    "change", [{"claim": "Something else."}, {"figure": "5 MB"}, {"check": "cliff.breaks_per_forward"}]
)
def test_a_claim_that_reads_otherwise_now_is_not_told_by_what_was_kept(change):
    results.add(ledger.run(REAL, ROWS[:2]))
    now = claims_of(dataclasses.replace(ROWS[0], **change), ROWS[1])
    assert set(results.usable(now, results.load())) == {ROWS[1].id}
    assert list(results.standing(now, kept=results.load()).frame["status"]) == ["not run", "cited"]


def test_what_failed_is_kept_as_failed_and_measured_again(monkeypatch):
    monkeypatch.setattr(ledger, "_measure", lambda probe, bench: "RuntimeError: no memory")
    results.add(ledger.run(REAL, ROWS))
    kept = results.load()
    assert set(kept.frame["status"]) == {"cannot tell here"}
    assert list(kept.tables["probes"]["failed"]) == ["RuntimeError: no memory"]
    assert results.usable(REAL, kept) == {}
    assert results.affordable(REAL, 1e9, kept.tables["probes"]) == ((), 0.0)


def test_rows_that_nobody_measured_are_not_kept():
    beyond = next(row for row in REAL.rows if row.beyond)
    results.add(ledger.run(REAL, [beyond, *ROWS]))
    assert set(results.load().frame["id"]) == {row.id for row in ROWS}


def test_a_second_run_measures_only_what_is_missing(measured):
    found, there = results.resume(REAL, ROWS)
    assert (measured, there, found.counts()["cited"]) == (["reference.tables"], 0, len(ROWS))
    beyond = next(row for row in REAL.rows if row.beyond)
    found, there = results.resume(REAL, (beyond, *ROWS))
    assert (measured, there) == (["reference.tables"], len(ROWS))
    assert [line.claim.id for line in found.lines] == [beyond.id, *(row.id for row in ROWS)]
    results.resume(REAL, ROWS, again=True)
    assert measured == ["reference.tables"] * 2


def test_an_interrupted_run_keeps_what_it_had(monkeypatch):
    by_probe = {CHECKS[row.check].probe.name: row for row in REAL.rows if row.check}
    first, second = by_probe["functional.operators"], by_probe["contract.drift"]
    ran = []

    def measure(probe, bench):
        ran.append(probe.name)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return {"seconds": 0.0}

    monkeypatch.setattr(ledger, "_measure", measure)
    with pytest.raises(KeyboardInterrupt):
        results.resume(REAL, [first, second])
    assert list(results.load().frame["id"]) == [first.id]
    found, there = results.resume(REAL, [first, second])
    assert there == 1 and ran[-1] == "contract.drift" and len(found.lines) == 2
    assert set(results.load().frame["id"]) == {first.id, second.id}


def test_every_row_stands_there_and_only_what_was_run_holds():
    results.add(ledger.run(REAL, ROWS[:1]))
    frame = results.standing(REAL, ledger.run(REAL, ROWS[1:2]), results.load()).frame.set_index("id")
    assert list(frame.index) == [row.id for row in REAL.rows]
    measured = (frame["status"] == "cited") & frame["origin"].isin(["kept", "run now"])
    assert list(frame.index[measured]) == [row.id for row in ROWS[:2]]
    assert list(frame.loc[[row.id for row in ROWS[:2]], "origin"]) == ["kept", "run now"]
    rest = frame[frame["origin"] == ""]
    assert set(rest["status"]) == {"not run"} and (rest["measured"] == "").all()
    assert all(frame.loc[row.id, "missing"].endswith(row.beyond) for row in REAL.rows if row.beyond)


def test_a_row_from_another_run_says_so():
    before = results.of(ledger.run(REAL, ROWS[:1]))
    filled = results.filled(results.standing(claims_of(*ROWS[:2])), before).frame
    assert list(filled["status"]) == ["cited", "not run"]
    torch = FACTS["torch"].partition("+")[0]
    where = f"recorded on {FACTS['hardware']}, torch {torch}, {before.frame['date'][0][:10]}"
    assert filled["origin"][0] == where


def test_a_row_in_a_word_that_its_check_does_not_give_today_is_left_out(home, monkeypatch):
    """A recording of before "cited" and "enforced" says that a copied figure holds: it is read, and not believed."""
    old = results.of(ledger.run(REAL, ROWS[:2]))
    old.frame["status"] = "holds"
    old.frame.loc[1, ["status", "check"]] = ["cited", "reference.another"]
    filled = results.filled(results.standing(claims_of(*ROWS[:3])), old)
    assert set(filled.frame["status"]) == {"not run"}
    left = results.current(REAL, old)
    assert len(left.frame) == 0 and left.notes[0].startswith(
        "2 of 2 rows left out: their claim or check has changed"
    )
    assert "hold" in old.figure().summary  # the file as it is can still be drawn
    monkeypatch.setattr(results.recorded, "ledger", lambda torch: old.save(home))
    found = results.quick(REAL, ROWS[:2], seconds=0)
    assert [(line.status, "recorded on" in line.measured) for line in found.lines] == [("cited", False)] * 2


def test_the_cheapest_probes_are_chosen_while_they_fit():
    costs = pd.DataFrame(
        {
            "probe": ["reference.tables", "contract.drift", "cliff.forwards", "endings.ending"],
            "seconds": [3.0, 1.0, 20.0, float("nan")],
        }
    )
    probes = lambda chosen: {CHECKS[row.check].probe.name for row in chosen}  # noqa: E731
    for seconds, names, cost in (
        (0.5, set(), 0),
        (3.9, {"contract.drift"}, 1),
        (4, {"contract.drift", "reference.tables"}, 4),
        (1e6, {"contract.drift", "reference.tables", "cliff.forwards"}, 24),
    ):
        chosen, told = results.affordable(REAL, seconds, costs)
        assert (probes(chosen), told) == (names, cost)
    assert results.affordable(REAL, 10, costs, rows=ROWS) == (ROWS, 3.0)


@pytest.mark.parametrize(("text", "says"), [("{", "is not a saved report"), ("{}", "is not a saved report")])
def test_a_damaged_file_is_named(home, text, says):
    home.mkdir()
    results.file().write_text(text)
    with pytest.raises(ValueError, match="ledger.json|no name"):
        results.load()


def test_the_command_saves_and_takes_up_again(capsys, tmp_path, measured):
    asked = ["ledger", "--only", "streams.result.small-*", "--save", str(tmp_path)]
    assert cli.main(asked) == 0 and (tmp_path / "ledger.json").exists()
    assert "kept from before: 0 rows" in capsys.readouterr().err
    assert cli.main(asked) == 0
    printed = capsys.readouterr()
    assert "kept from before: 5 rows" in printed.err and "cited: 5 " in printed.out
    assert measured == ["reference.tables"]
    assert cli.main([*asked, "--again"]) == 0 and len(measured) == 2
    assert cli.main(["ledger", "--again"]) == 2 and "--again goes with --save" in capsys.readouterr().err


def test_without_a_folder_it_is_the_readers_own(capsys, home):
    assert cli.main(["ledger", "--only", "streams.result.small-*", "--save"]) == 0
    assert [path.name for path in home.iterdir()] == ["ledger.json"]


def test_results_that_cannot_be_kept_are_printed(capsys, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "replace", full)
    assert cli.main(["ledger", "--only", ROWS[0].id, "--save", str(tmp_path)]) == 3
    found = capsys.readouterr()
    assert ROWS[0].id in found.out and "cited: 1" in found.out
    assert found.err.endswith(f"cannot save report 'ledger' in {tmp_path}: No space left on device\n")


def test_an_empty_name_is_no_folder(capsys, tmp_path, monkeypatch, measured):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["ledger", "--only", ROWS[0].id, "--save", ""]) == 2
    assert "--save: needs the name of a folder" in capsys.readouterr().err
    assert not measured and not list(tmp_path.iterdir())
