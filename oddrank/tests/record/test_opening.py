"""The life of a record: it opens once, closes whatever happens, and is read when it is closed."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch
from oddrank.record import record
from oddrank.record.tables import NAMES

from oddrank import torch_names

pytestmark = pytest.mark.usefixtures("fresh")


def test_an_exception_passes_through_and_leaves_nothing_open():
    run = torch.compile(lambda x: x + 1, backend="eager")
    with pytest.raises(KeyError, match="mine"), record() as rec, rec.forward():
        run(torch.ones(2))
        raise KeyError("mine")
    assert rec.counts[0].regions == 1  # what ran until then
    assert not torch_names.profiler_running()
    with record() as again, again.forward():
        run(torch.ones(2))
    assert again.counts[0].regions == 1


def test_records_and_marks_do_not_nest_and_are_counted_as_one_kind():
    with record() as rec:
        with pytest.raises(ValueError, match="records do not nest"), record():
            pass
        with rec.step():
            with pytest.raises(ValueError, match=r"rec.forward\(\) and rec.step\(\) do not nest"), rec.step():
                pass
            torch.ones(2).sin()
        with rec.step():
            pass
        with pytest.raises(ValueError, match="this record marks steps"), rec.forward():
            pass
    assert rec.counts[0].forwards == 2 and sum(one.name == "oddrank.step" for one in rec.ranges) == 2
    with pytest.raises(ValueError, match="inside the"):
        rec.step()


def test_a_record_is_read_and_sent_when_it_is_closed():
    with record() as rec:
        for name in (*NAMES, "counts", "breaks"):
            with pytest.raises(ValueError, match="still open"):
                getattr(rec, name)
        assert repr(rec) == "Record(open)"
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    sent = pickle.loads(pickle.dumps(rec))
    assert sent.counts == rec.counts and sent.counts[0].regions == 1
    with pytest.raises(ValueError, match="kept no stages"):
        rec.frames  # noqa: B018


def test_another_profiler_is_named_or_said():
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu):
        with pytest.raises(ValueError, match="profiler is already running"), record():
            pass
    with record() as rec:  # and nothing was left locked
        with torch.profiler.profile(activities=cpu):
            torch.ones(2).sin()
    assert "another profiler inside the block" in rec.notes[0] and not rec.ranges


def test_an_empty_record_counts_nothing():
    with record() as rec:
        pass
    (counts,) = rec.counts
    assert (counts.forwards, counts.regions, counts.breaks, counts.collectives) == (1, 0, 0, 0)
    assert [one.kind for one in rec.ranges] == ["forward"] and not rec.notes


@pytest.mark.slow
def test_the_first_compile_of_a_process_is_heard_and_nothing_is_printed(tmp_path):
    # torch's own handler leaves the list while the first entry is handled, which would hide it from the next one
    code = """
import torch
from oddrank.record import install, record
log = install()
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
(one,) = log.compiles.tries.values()
with record() as rec: torch.ones(2).sin()
print(one.id, one.begun, one.row.outcome, one.row.operators, log.error or "read all", repr(rec.label), rec.ranks)
"""
    trace = {"TORCH_TRACE": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=trace
    )
    assert done.stdout.strip() == "0/0 True graph 1 read all '' [0]"
    assert done.stderr == ""
    (written,) = tmp_path.glob("dedicated_log_torch_trace_*.log")  # torch's own trace is as it was
    assert "dynamo_output_graph" in written.read_text()


def test_it_hears_compiles_again_after_torch_set_its_logs_up_anew():
    import logging

    torch._logging.set_logs(dynamo=logging.ERROR)
    try:
        with record() as rec:
            torch.compile(lambda x: x - 1, backend="eager")(torch.ones(2))
    finally:
        torch._logging.set_logs()
    assert rec.counts[0].graphs == 1
