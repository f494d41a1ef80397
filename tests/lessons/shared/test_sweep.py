"""Sweeps: an interrupt loses no finished point, nobody takes up another sweep's points, bad ranges start nothing."""

from __future__ import annotations

import errno
import json

import pytest

from course.shared.sweep import Sweep, parse_range
from labkit import files

POINTS = {"a b": 1, "a-b": 2, "c": 3}


def squares(done, stop_at=None):
    def measure(point):
        if point == stop_at:
            raise KeyboardInterrupt
        done.append(point)
        return [{"point": point, "square": point**2}]

    return measure


@pytest.mark.parametrize(
    ("given", "found"),
    [("8,16, 24", (8, 16, 24)), ("8:24:8,8", (8, 16, 24, 8)), ([3, 1, 3], (3, 1, 3)), ("2:4", (2, 3, 4))],
)
def test_a_range_is_read(given, found):
    assert parse_range("lengths", given) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "whole numbers such as 8,16,24 or a range such as 8:64:8, got ''"),
        ("8,x", "got 'x'"),
        ("8:64:0", "the step of 8:64:0 leads nowhere"),
        ("64:8", "the range 64:8 is empty: it goes from 64 up to 8"),
        ("0,8", "a value is from 1 to 4096, got 0"),
        ("-3,8", "a value is from 1 to 4096, got -3"),
        ("8,5000", "got 5000"),
        ("1:4096", "more than 64 values: take a larger step"),
        ("16,16", "at least two different values, got '16,16'"),
        ([], "at least two different values"),
        ([8, 2.5], "got 2.5"),
        ([8, True], "got True"),
        (range(1, 70), "at most 64 values"),
    ],
)
def test_a_bad_range_names_itself_and_the_rule(given, said):
    with pytest.raises(ValueError) as caught:
        parse_range("lengths", given)
    assert str(caught.value).startswith("lengths: ") and said in str(caught.value)


def test_an_interrupt_keeps_what_is_done_and_the_next_run_goes_on_behind_it(tmp_path):
    done: list[int] = []
    first = Sweep("squares", {"n": 1}, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        first.run(POINTS, squares(done, stop_at=3))
    assert len(list(first.place.glob("*.json"))) == 2
    again = Sweep("squares", {"n": 1}, tmp_path)
    rows = again.run(POINTS, squares(done))
    assert done == [1, 2, 3], "no point was measured twice, and none was left out"
    assert [row["square"] for row in rows] == [1, 4, 9]
    assert again.resumed == 2 and "2 points are from before an interrupt" in again.note()
    assert not again.place.exists(), "a finished sweep measures anew the next time"
    assert Sweep("squares", {"n": 1}, tmp_path).run(POINTS, squares(done)) and done == [1, 2, 3] * 2


def test_points_of_other_settings_or_another_torch_are_not_taken_up(tmp_path, monkeypatch):
    from labkit import hardware

    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        Sweep("squares", {"n": 1}, tmp_path).run(POINTS, squares(done, stop_at=2))
    place = Sweep("squares", {"n": 1}, tmp_path).place
    assert Sweep("squares", {"n": 2}, tmp_path).place != place != Sweep("cubes", {"n": 1}, tmp_path).place
    facts = hardware.describe()
    monkeypatch.setattr(hardware, "describe", lambda: {**facts, "torch": "2.99"})
    assert Sweep("squares", {"n": 1}, tmp_path).place != place


def test_a_file_that_cannot_be_read_is_measured_again_and_fresh_begins_anew(tmp_path):
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        Sweep("squares", {}, tmp_path).run(POINTS, squares(done, stop_at=3))
    damaged, whole = sorted(Sweep("squares", {}, tmp_path).place.glob("*.json"))
    damaged.write_text('{"half')
    whole.write_text(json.dumps({**json.loads(whole.read_text()), "key": "another"}))
    with pytest.raises(KeyboardInterrupt):
        Sweep("squares", {}, tmp_path).run(POINTS, squares(done, stop_at=3))
    assert done == [1, 2, 1, 2]
    again = Sweep("squares", {}, tmp_path, fresh=True)
    again.run(POINTS, squares(done))
    assert done == [1, 2, 1, 2, 1, 2, 3] and again.resumed == 0 and again.note() == ""


def test_progress_is_shown_and_what_cannot_run_is_refused(tmp_path, capsys):
    Sweep("squares", {}, tmp_path, talk=True).run(POINTS, squares([]))
    said = capsys.readouterr().out.splitlines()
    assert (
        said[0] == "squares: 0 of 3 points, now: a b" and "2 of 3 points, about 0 s left, now: c" in said[2]
    )
    assert said[-1].startswith("squares: 3 points in")
    with pytest.raises(ValueError, match="has no points"):
        Sweep("squares", {}, tmp_path).run({}, squares([]))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ValueError, match="cannot keep the points of 'squares'"):
        Sweep("squares", {}, blocked).run(POINTS, squares([]))


def test_a_full_disk_costs_the_points_that_are_kept_and_not_the_result(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    done: list[int] = []
    monkeypatch.setattr(files, "replace", full)
    rows = Sweep("squares", {"n": 1}, tmp_path).run(POINTS, squares(done))
    assert [row["square"] for row in rows] == [1, 4, 9] and done == [1, 2, 3]
    said = "squares: points cannot be kept for a later run: No space left on device\n"
    assert capsys.readouterr().err == said
