"""The gate of `oddrank look`: what rises fails, what falls or moves does not."""

from __future__ import annotations

import copy
import sys

import pytest
from oddrank.look import gate

from oddrank import command as cli

BREAK = "train.py:{} (Block.forward): Failed to trace builtin operator print"


def counted(breaks: float = 1, graphs: float = 2, line: int = 10, collectives: float = 4, apart: str = ""):
    mine = {"breaks": breaks, "frames given up": 0.0, "graphs": graphs, "recompiles": 0.0}
    mine |= {"collectives": collectives, "where": {BREAK.format(line): breaks}}
    mine |= {"operations": {"all_reduce": collectives}}
    ranks = {str(rank): copy.deepcopy(mine) for rank in (0, 1)}
    return {"program": "train.py", "unit": "step", "torch": "2.13.0", "ranks": ranks, "ranks differ": apart}


def test_the_same_counts_pass_also_where_lines_moved_or_counts_fell():
    assert gate.compare(counted(), counted()) is None
    assert gate.compare(counted(line=10), counted(line=99)) is None
    assert gate.compare(counted(breaks=3), counted(breaks=1, line=12)) is None


@pytest.mark.parametrize("name", gate.GATED)
def test_each_count_fails_where_it_rises_on_one_rank(name):
    now = counted()
    now["ranks"]["1"][name] += 1
    rose = gate.compare(counted(), now)
    assert list(zip(rose["rank"], rose["count"], strict=True)) == [("1", name)]


def test_a_new_break_is_named_by_its_place():
    now = counted(breaks=2)
    now["ranks"]["0"]["where"] = {BREAK.format(11): 1.0, "train.py:30 (Head.forward): a new one": 1.0}
    rose = gate.compare(counted(), now)
    assert rose["where"][0] == "train.py:30 (Head.forward): a new one"
    passes, said = gate.verdict(counted(), now, "base.json")
    assert not passes and "Head.forward" in said


def test_another_break_in_place_of_one_passes_and_is_named():
    now = counted()
    now["ranks"]["0"]["where"] = {"train.py:30 (Head.forward): a new one": 1.0}
    assert gate.verdict(counted(), now, "base.json") == (
        True,
        "gate passed: nothing rose above base.json; as many breaks, but others:\n"
        "  train.py:30 (Head.forward): a new one",
    )
    assert gate.verdict(counted(), counted(line=99), "b")[1] == "gate passed: nothing rose above b"


@pytest.mark.parametrize(("torch", "fails"), [("2.13.0", True), ("2.15.0", False)])
def test_another_collective_in_place_of_one_fails_on_the_same_torch(torch, fails):
    now = {**counted(), "torch": torch}  # another torch may make other operations of one program
    now["ranks"]["1"]["operations"] = {"all_reduce": 3.0, "all_gather": 1.0}
    rose = gate.compare(counted(), now)
    assert (rose is not None) == fails
    if fails:
        assert rose.iloc[0].tolist() == ["1", "all_gather", "0", "1", ""]


def test_more_collectives_are_named_by_operation():
    now = counted(collectives=5)
    assert set(gate.compare(counted(), now)["where"]) == {"all_reduce"}


def test_ranks_that_diverge_fail_unless_the_baseline_did():
    apart = "in step 0, rank 1: nothing more"
    rose = gate.compare(counted(), counted(apart=apart))
    assert list(rose["count"]) == ["ranks differ"] and list(rose["where"]) == [apart]
    assert gate.compare(counted(apart=apart), counted(apart=apart)) is None


def test_what_cannot_be_compared_is_refused():
    fewer = counted()
    del fewer["ranks"]["1"]
    with pytest.raises(ValueError, match="the baseline is of 1 rank, and these are 2"):
        gate.compare(fewer, counted())
    with pytest.raises(ValueError, match="per forward, and this run per step"):
        gate.compare({**counted(), "unit": "forward"}, counted())


def test_a_baseline_is_read_as_it_was_saved(tmp_path):
    gate.save(counted(), tmp_path / "new" / "base.json")
    assert gate.load(tmp_path / "new" / "base.json") == counted()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ranks": {"0": {}}}', "no json"])
def test_another_file_is_no_baseline(text, tmp_path):
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="is no baseline"):
        gate.load(path)
    with pytest.raises(ValueError, match="cannot read"):
        gate.load(tmp_path / "missing.json")


@pytest.mark.parametrize("more", [[], ["--torch", sys.prefix, "--torch", sys.prefix]])
def test_a_baseline_of_other_ranks_is_refused_before_a_rank_is_started(more, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("raise AssertionError('it was started')")
    gate.save(counted(), tmp_path / "base.json")
    assert cli.main(["look", "-n", "3", "--against", "base.json", "--out", "out", *more, "train.py"]) == 2
    said = capsys.readouterr().err
    assert said == "oddrank: the baseline is of 2 ranks, and these are 3\n"
    assert not (tmp_path / "out").exists()
