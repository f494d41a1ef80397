"""What single files say: prefixes, compiles longer than the timeout, caches, py-spy, watchdogs, launchers' numbers."""

from __future__ import annotations

import quoted
from flight_records import CLOSED, DATA, dump, entry, failed, text_of, verdict_on
from oddrank.command import main

PYSPY = """\
Process 4242: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4242 (idle): "MainThread"
    read_batch (loader.py:6)
    step (train.py:22)
    <module> (train.py:40)
Thread 4250 (active): "pin"
    run (pin.py:3)
"""
HEAD = "[rank{rank}]:I1128 03:00:{at:09.6f} {pid} torch/_dynamo/symbolic_convert.py:53] [0/0] "
BEGIN = HEAD + "Step 1: torchdynamo start tracing f /a/net.py:9\n"
END = HEAD + "Step 2: done compiler function inductor\n"
CACHE = HEAD.format(rank="{rank}", at=1, pid=7) + "AOTAutograd cache {what} for key a{rank}\n"
WATCHDOG = (
    "[rank{0}]:[E1126 11:14:25.171 ProcessGroupNCCL.cpp:730] [Rank {0}] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=8, NumelOut=8, Timeout(ms)=8000) ran for 8010 milliseconds before"
    " timing out.\n"
)


def stalled(folder):
    """Records of two ranks: rank 0 waits in the second call, rank 1 did not make it."""
    dump(folder, 0, [entry(1), entry(2, line=30, done=False)], {"0": range(2)})
    dump(folder, 1, [entry(1)], {"0": range(2)})


def test_py_spy_names_a_process_and_the_log_its_rank(tmp_path):
    stalled(tmp_path)
    (tmp_path / "spy.4242.txt").write_text(PYSPY)
    (tmp_path / "all.log").write_text(
        BEGIN.format(rank=1, at=1, pid=4242) + END.format(rank=1, at=2, pid=4242)
    )
    found, held = verdict_on(tmp_path)
    assert found.ranks == [
        1
    ] and "loader.py:6 in read_batch < train.py:22 in step  [spy.4242.txt:4]" in text_of(found)
    assert [read.kind for read in held.files] == ["log", "flight record", "flight record", "stacks"]


def test_a_compile_that_took_longer_than_the_timeout(tmp_path):
    stalled(tmp_path)
    for rank, seconds in ((0, 2), (1, 31.5)):
        text = BEGIN.format(rank=rank, at=1, pid=7) + END.format(rank=rank, at=1 + seconds, pid=7)
        (tmp_path / f"log_{rank}.txt").write_text(text)
    found, _ = verdict_on(tmp_path)
    assert "rank 1 compiled [0/0] net.py:9 in f for 31.5 s, and the timeout is 8 s" in text_of(found)
    assert "rank 0 was through with [0/0] in 2.0 s" in text_of(found)
    (tmp_path / "log_1.txt").write_text(BEGIN.format(rank=1, at=1, pid=7) + END.format(rank=1, at=3, pid=7))
    assert "compiled" not in text_of(verdict_on(tmp_path)[0])


def test_a_compile_that_ends_in_one_file_is_open_in_none(tmp_path):
    """The trace of rank 1, whose rank stands in it late, is cut off before its log."""
    stalled(tmp_path)
    said = (
        '{"frame_id": 0, "frame_compile_id": 0, "dynamo_start": {"stack": []}}',
        '{"rank": 1, "str": ["a", 1]}',
    )
    (tmp_path / "torch_trace.log").write_text("".join(f"V1128 03:00:01.1 7 a.py:1] {one}\n" for one in said))
    assert "rank 1 was compiling [0/0]" in text_of(verdict_on(tmp_path)[0])
    log = BEGIN.format(rank=1, at=1, pid=7) + END.format(rank=1, at=2, pid=7)
    (tmp_path / "log_1.txt").write_text(log)
    assert "was compiling" not in text_of(verdict_on(tmp_path)[0])


def test_a_cache_that_hits_on_one_rank_only(tmp_path):
    stalled(tmp_path)
    for rank, what in ((0, "hit"), (1, "miss")):
        (tmp_path / f"log_{rank}.txt").write_text(CACHE.format(rank=rank, what=what))
    found, _ = verdict_on(tmp_path)
    assert (
        "for compile [0/0], rank 1 did not find it in a cache, rank 0 took its code from a cache"
        in text_of(found)
    )
    (tmp_path / "log_1.txt").write_text(CACHE.format(rank=1, what="hit"))
    assert "cache" not in text_of(verdict_on(tmp_path)[0])


def test_a_launcher_numbers_files_by_node_and_torch_by_rank(tmp_path):
    """Of the second node, the file of local rank 0 is that of rank 2: torch's prefix says so."""
    file = tmp_path / "node2" / "attempt_0" / "0" / "stderr.log"
    file.parent.mkdir(parents=True)
    file.write_text(
        "[rank2]: Traceback (most recent call last):\n[rank2]: ValueError: bad batch\nlast words\n"
    )
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("dead", [2]) and held.files[0].rank == 2


def test_errors_of_others_are_no_cause(tmp_path):
    """Rank 0 lost its peer, rank 2 was ended by the launcher; rank 1 raised, in an error that has two lines."""
    compiler = "torch._dynamo.exc.BackendCompilerFailed"
    two = "backend='b' raised:\n[rank1]: TypeError: no len"
    aborted = "NCCL communicator was aborted"
    (tmp_path / "log_0.txt").write_text(failed(0, 30, CLOSED))
    (tmp_path / "log_1.txt").write_text(failed(1, 20, two, compiler))
    (tmp_path / "log_2.txt").write_text(failed(2, 30, aborted, "torch.distributed.DistBackendError"))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("dead", [1])
    assert "raised: TypeError: no len, at train.py:20 in step  [log_1.txt:3]" in text_of(found)
    assert "rank 0 lost its connection in the call at train.py:30 in step" in text_of(found)


def test_watchdogs_alone_name_the_calls(tmp_path):
    """Without records: each rank's watchdog has the number and the operation, and not the group."""
    for rank, call in enumerate(("ALLREDUCE", "ALLREDUCE", "ALLGATHER")):
        (tmp_path / f"log_{rank}.txt").write_text(WATCHDOG.format(rank, 5, call))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [2])
    assert (
        "number 5" in text_of(found)
        and "ALLGATHER" in text_of(found)
        and "the group is not in that line" in text_of(found)
    )
    (tmp_path / "log_2.txt").write_text(WATCHDOG.format(2, 5, "ALLREDUCE"))
    found, _ = verdict_on(tmp_path)
    assert found.kind == "cannot tell"


def test_the_two_hung_runs_of_lesson_08():
    """Captured from a job of four ranks; the second has the stacks of all ranks in one file, below lines `rank N`."""
    found, _ = verdict_on(DATA / "captured/symmetry/a")
    assert (found.ranks, found.difference.seq, found.difference.what) == ([2], 27, "operation")
    found, held = verdict_on(DATA / "captured/symmetry/b")
    assert (found.ranks, found.difference.seq, found.difference.what) == ([1], 37, "missing")
    assert {row.rank for row in held.rows if row.kind == "stack"} == {0, 1, 2, 3}
    assert "rank 1 was in the program: train.py:" in text_of(found)


def test_the_page_quotes_what_the_command_prints(tmp_path, monkeypatch, capsys):
    """Captured on torch 2.15: rank 0 takes its code from the cache and runs it, rank 1 compiles and asks rank 0."""
    monkeypatch.chdir(tmp_path)
    assert main(["postmortem", str(DATA / "captured/cache_hang")]) == 0
    assert quoted.pattern("oddrank/docs/postmortem.md", "oddrank postmortem").fullmatch(
        capsys.readouterr().out
    )


def test_a_group_of_gloo_that_cannot_be_made_is_no_death_of_a_rank(tmp_path):
    error = "Gloo connectFullMesh failed with timed out connecting: SO_ERROR: Connection refused"
    for rank in range(2):
        (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 20, error))
    assert verdict_on(tmp_path)[0].kind != "dead"


def test_an_abort_of_a_rank_that_is_not_named(tmp_path):
    (tmp_path / "out.txt").write_text(
        "op.preamble.length <= op.nbytes. 256 vs 4. Received data size doesn't match expected size.\n"
    )
    found, _ = verdict_on(tmp_path)
    assert found.ranks == [] and "a rank that the text does not name aborted" in text_of(found)


def test_the_rank_that_aborts_is_not_by_that_the_wrong_one(tmp_path):
    """Rank 0 aborts over the message of rank 1, whose size is the wrong one: rank 1 left no record."""
    abort = "op.preamble.length <= op.nbytes. 48 vs 44. Received data size doesn't match expected size.\n"
    (tmp_path / "log_0.txt").write_text(abort)
    for rank in (1, 2, 3):
        dump(tmp_path, rank, [entry(1, op="gloo:all_reduce")], {"0": range(4)})
    found, _ = verdict_on(tmp_path)
    assert found.ranks == [0] and "rank 0's is another" in text_of(found)
    (tmp_path / "nccl_trace_rank_1").unlink()
    found, _ = verdict_on(tmp_path)
    assert found.ranks == [] and "this text does not say" in text_of(found)
    assert "rank 0 aborted, because a peer sent 48 bytes where 44 were expected" in text_of(found)
