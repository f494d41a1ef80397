"""Records of an earlier moment than the end, tracebacks without a rank, and calls in which only one rank has inputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from flight_records import dump, entry, text_of, verdict_on

C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def aged(path: Path, seconds: float) -> None:
    """Set when a file was written."""
    os.utime(path, (1_795_805_700 + seconds,) * 2)


def stack(folder: Path, rank: int, line: int, call: str = "", at: float = 0.0) -> None:
    """What faulthandler writes of a rank at a line of train.py, in a call of a collective or in the program itself."""
    frames = [f'  File "{C10D}", line 3245 in {call}'] if call else []
    frames += [f'  File "/a/train.py", line {line} in step', '  File "/a/train.py", line 1 in main']
    path = folder / f"stacks_{rank}.txt"
    path.write_text("\n".join(["Current thread 0x00007f6b58022b80 (most recent call first):", *frames, ""]))
    aged(path, at)


def late_rank(folder: Path) -> None:
    """Records of a moment in which rank 1 has not made the fifth call, and ranks 0 and 2 wait in it."""
    for rank in range(3):
        calls = [entry(n, op="gloo:all_reduce", line=30, done=n < 5) for n in range(1, 5 + (rank != 1))]
        dump(folder, rank, calls, {"0": range(3)})
        aged(folder / f"nccl_trace_rank_{rank}", 0.0)


def test_a_later_stack_wins_over_an_older_record(tmp_path):
    late_rank(tmp_path)
    for rank in range(3):
        stack(tmp_path, rank, 80 if rank == 1 else 70, "broadcast" if rank == 1 else "all_reduce", at=40.0)
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks, sorted(held.stale)) == ("waiting", [1], [0, 1, 2]), text_of(found)
    assert "rank 1 at train.py:80 in step" in text_of(found) and "has not made" not in text_of(found)
    older = [text for text in found.unknown if text.startswith("the record of rank 1")]
    assert "train.py:80" in older[0] and "40 s older" in older[0] and "stacks_1.txt" in older[0]


@pytest.mark.parametrize("case", ["where the record ends", "in the program", "before the record", "several"])
def test_a_stack_that_does_not_contradict_a_record_leaves_it(case, tmp_path):
    late_rank(tmp_path)
    if case == "where the record ends":
        stack(tmp_path, 0, 30, "all_reduce", at=40.0)
    if case == "in the program":
        stack(tmp_path, 1, 80, at=40.0)
    if case == "before the record":
        stack(tmp_path, 0, 20, "all_reduce", at=-40.0)
    if case == "several":  # which of them is the last one, the files do not say
        stack(tmp_path, 0, 20, "all_reduce", at=40.0)
        (tmp_path / "stacks_0.txt").rename(tmp_path / "more_0.txt")
        stack(tmp_path, 0, 30, "all_reduce", at=40.0)
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq, held.stale) == ("difference", [1], 5, {})
    age = "by the times of the files 40 s older than its last file: it may have made the call since"
    assert (age in text_of(found)) is (case == "in the program")


TORCHRUN = """\
[RANK1] step 1
Error executing job with overrides: []
Traceback (most recent call last):
  File "/a/train.py", line 10, in train
    {call}
{error}
E1129 16:46:42.539000 29876 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/env/bin/torchrun", line 10, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
{more}Root Cause (first observed failure):
[0]:
  time      : 2026-11-29_16:46:42
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 29970)
  error_file: <N/A>
============================================================
"""
OTHER = """\
Failures:
[1]:
  time      : 2026-11-29_16:46:42
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code}
  error_file: <N/A>
------------------------------------------------------------
"""


def test_a_traceback_without_a_rank_is_that_of_the_only_rank_that_failed(tmp_path):
    """A framework prints it, without torch's prefix, into the log of all ranks."""
    log = tmp_path / "run.log"
    ended = OTHER.format(code="-15 (pid: 29971)  (SIGTERM)")  # by the launcher
    log.write_text(TORCHRUN.format(call="config['layers']", error="KeyError: 'layers'", more=ended))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("dead", [0])
    assert "KeyError: 'layers', at train.py:10 in train" in text_of(found)
    lost = "RuntimeError: [/g/pair.cc:553] Connection closed by peer [127.0.0.1]:5783."
    log.write_text(TORCHRUN.format(call="dist.all_reduce(x)", error=lost, more=ended))
    found, _ = verdict_on(tmp_path)
    assert found.kind == "cannot tell" and "rank 0 lost the connection to a rank" in text_of(found)
    assert "rank ?" not in text_of(found)
    both = OTHER.format(code="1 (pid: 29971)")  # then it may be either's
    log.write_text(TORCHRUN.format(call="config['layers']", error="KeyError: 'layers'", more=both))
    found, _ = verdict_on(tmp_path)
    assert found.kind == "cannot tell" and "rank ?: KeyError: 'layers'" in text_of(found)


@pytest.mark.parametrize("none", [([], []), ([[0]], ["Undefined"])])
def test_only_the_source_of_a_scatter_has_inputs(none, tmp_path):
    def scatter(rank: int, dtype: str):
        inputs = ([[4]] * 3, [dtype] * 3) if rank == 0 else none
        return entry(1, op="nccl:scatter", size=4) | {
            "input_sizes": inputs[0],
            "input_dtypes": inputs[1],
            "output_dtypes": [dtype],
        }

    for rank in range(3):
        dump(tmp_path, rank, [scatter(rank, "Float"), entry(2)], {"0": range(3)})
    assert verdict_on(tmp_path)[0].kind == "nothing wrong"
    dump(tmp_path, 2, [scatter(2, "Half"), entry(2)], {"0": range(3)})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.what) == ("difference", [2], "dtype")
    assert "rank 2: scatter([4] Half) number 1" in text_of(found)


def test_ranks_may_give_an_all_gather_parts_of_other_sizes(tmp_path):
    for rank in range(3):
        part = entry(1, op="nccl:all_gather", size=4 + rank) | {"output_sizes": [[15]]}
        dump(tmp_path, rank, [part, entry(2)], {"0": range(3)})
    assert verdict_on(tmp_path)[0].kind == "nothing wrong"
    dump(tmp_path, 2, [part | {"output_sizes": [[16]]}, entry(2)], {"0": range(3)})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.what) == ("difference", [2], "size")


def test_what_is_left_is_compared_after_a_record_was_set_aside(tmp_path):
    """gloo's records name no members. Rank 3 wrote its record at the start; rank 1 left out the sixth call."""
    for rank in range(4):
        calls = [entry(n, op="gloo:all_reduce", line=20 + n) for n in range(1, {1: 6, 3: 3}.get(rank, 7))]
        dump(tmp_path, rank, calls, {})
    lost = "RuntimeError: [/g/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
    place = 'Traceback (most recent call last):\n  File "/a/train.py", line 26, in step\n'
    (tmp_path / "log_0.txt").write_text(f"{place}{lost}\n")
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks, list(held.stale)) == ("difference", [1], [3]), text_of(found)
    assert found.difference.seq == 6 and "train.py:26" in text_of(found)
