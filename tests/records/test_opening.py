"""The life of a record: it opens once, closes whatever happens, and is read when it is closed."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pandas as pd
import pytest
import torch

import labkit
from labkit import torch_compat
from labkit.records.record import TABLES
from labkit.views import strip


def test_an_exception_passes_through_and_leaves_nothing_open():
    run = torch.compile(lambda x: x + 1, backend="eager")
    with pytest.raises(KeyError, match="mine"):
        with labkit.record() as rec:
            with rec.forward():
                run(torch.ones(2))
                raise KeyError("mine")
    assert rec.counts.loc[0, "regions"] == 1  # what ran until then
    assert not torch_compat.profiler_running()
    with labkit.record() as again:
        with again.forward():
            run(torch.ones(2))
    assert again.counts.loc[0, "regions"] == 1


def test_records_and_forwards_do_not_nest():
    with labkit.record() as rec:
        with pytest.raises(ValueError, match="records do not nest"):
            with labkit.record():
                pass
        with rec.forward():
            with pytest.raises(ValueError, match=r"rec.forward\(\) and rec.step\(\) do not nest"):
                with rec.forward():
                    pass
            torch.ones(2).sin()
    assert rec.counts.loc[0, "forwards"] == 1
    with pytest.raises(ValueError, match="inside the"):
        rec.forward()


def test_a_record_is_not_read_or_sent_while_it_is_open():
    with labkit.record() as rec:
        for name in TABLES:
            with pytest.raises(ValueError, match="still open"):
                getattr(rec, name)
        with pytest.raises(ValueError, match="still open"):
            pickle.dumps(rec)
        assert repr(rec) == "Record(open)"
    assert pickle.loads(pickle.dumps(rec)).counts.equals(rec.counts)


def test_a_running_profiler_is_named():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(ValueError, match="profiler is already running"):
            with labkit.record():
                pass
    with labkit.record() as rec:  # and nothing was left locked
        pass
    assert rec.ranks == [0]


def test_a_profiler_inside_the_block_takes_the_events_and_the_record_says_so():
    with labkit.record() as rec:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            torch.ones(2).sin()
    assert "another profiler inside the block" in rec.notes[0]
    assert rec.counts.empty and repr(rec).startswith("Record(nothing)")


def test_an_empty_record_has_all_its_tables_and_no_counts():
    with labkit.record() as rec:
        pass
    for name, columns in TABLES.items():
        assert list(getattr(rec, name).columns) == list(columns)
        assert isinstance(getattr(rec, name), pd.DataFrame)
    assert (rec.counts.drop(columns=["rank", "forwards"]) == 0).all(axis=None)
    assert rec.first_difference() is None
    assert "<table" in rec._repr_html_()


@pytest.mark.slow
def test_a_record_works_without_torch_distributed_and_says_so_in_its_label(fake_group):
    with labkit.record() as rec:
        torch.ones(2).sin()
    assert rec.label == "host only"
    code = (
        "import torch, labkit\nwith labkit.record() as r: torch.ones(2).sin()\nprint(repr(r.label), r.ranks)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "'' [0]"


def test_steps_are_counted_as_forwards_and_called_steps():
    with labkit.record() as rec:
        for _ in range(2):
            with rec.step():
                torch.ones(4).sin()
        with pytest.raises(ValueError, match="this record marks steps"), rec.forward():
            pass
    assert repr(rec).startswith("Record(rank 0: 2 steps, each with 0 regions")
    assert rec.counts["forwards"].tolist() == [2]
    assert strip(rec, forward=1).summary.startswith("Eager: no collective and no compiled region in one step")
    with pytest.raises(ValueError, match=r"rec.step\(\) marks a step inside"):
        rec.step()
