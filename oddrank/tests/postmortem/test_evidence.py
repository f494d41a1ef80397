"""Jobs that no rule was written for: old records, processes without a rank, waits outside of collectives, threads."""

from __future__ import annotations

from flight_records import CLOSED, TIMEOUT, dump, entry, failed, text_of, verdict_on
from oddrank.postmortem.activity import activity

GLOO = "gloo:all_reduce"


def test_a_record_of_the_start_is_not_compared_with_those_of_the_end(tmp_path):
    """Rank 1 wrote its record once, at the start; the others wrote theirs when the sixth call failed."""
    for rank in (0, 2):
        calls = [entry(n, op=GLOO, line=20 if n < 6 else 30) for n in range(1, 7)]
        dump(tmp_path, rank, calls, {"0": range(3)})
        (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 30, TIMEOUT))
    dump(tmp_path, 1, [entry(n, op=GLOO, line=20) for n in (1, 2)], {"0": range(3)})
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks, list(held.stale)) == ("waiting", [1], [1])
    assert (
        "ranks 0, 2 wait in all_reduce([1024] Float) number 6 of default_pg at train.py:30 in step"
        in text_of(found)
    )
    assert "number 3" not in text_of(found) and "nothing here says" in str(found.head)
    assert any(text.startswith("the record of rank 1") and "number 2" in text for text in found.unknown)
    # what its log says counts on: it was cut off, in a call that no record shows
    (tmp_path / "log_1.txt").write_text(failed(1, 44, CLOSED))
    found, _ = verdict_on(tmp_path)
    assert "what rank 1 called, no record shows" in str(found.head) and "train.py:44" in text_of(found)


def test_a_record_that_ends_at_the_same_moment_is_compared(tmp_path):
    """The rank made another call later than the others' sixth: its record is of the end, and it left that call out."""
    for rank in (0, 2):
        dump(tmp_path, rank, [entry(n, op=GLOO) for n in range(1, 8)], {"0": range(3)})
        (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 10, TIMEOUT))
    late = entry(1, op=GLOO, group="1", desc="loss", line=50, time_created_ns=entry(9)["time_created_ns"])
    dump(tmp_path, 1, [*(entry(n, op=GLOO) for n in range(1, 6)), late], {"0": range(3)})
    found, held = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq, held.stale) == ("difference", [1], 6, {})


def test_a_call_that_has_not_ended_is_a_difference(tmp_path):
    """With calls in flight the others are further, too; the first open one is the one that the rank left out."""
    for rank in (0, 2):
        calls = [entry(n, op=GLOO, done=n < 5) for n in range(1, 8)]
        dump(tmp_path, rank, calls, {"0": range(3)})
    dump(tmp_path, 1, [entry(n, op=GLOO) for n in range(1, 5)], {"0": range(3)})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [1], 5)


def test_a_compile_that_one_rank_alone_made(tmp_path):
    head = "[rank{0}]:I1128 07:29:3{1}.0 7 torch/_dynamo/symbolic_convert.py:53] [{2}] Step 1: torchdynamo "
    end = "[rank{0}]:I1128 07:29:35.0 7 torch/_dynamo/pgo.py:985] [{1}] put_code_state: no cache key, skipping\n"

    def compiled(rank: int, number: str, name: str, line: int) -> str:
        text = head.format(rank, 1, number) + f"start tracing {name} /a/net.py:{line}\n"
        return text + head.format(rank, 2, number) + f"done tracing {name}\n" + end.format(rank, number)

    step = [compiled(rank, "0/0", "step", 4) for rank in range(2)]
    rest = [compiled(rank, "2/0", "resume_in_step", 6) for rank in range(2)]
    lost = failed(0, 9, CLOSED), failed(1, 9, TIMEOUT)
    (tmp_path / "log_0.txt").write_text(step[0] + rest[0] + lost[0])
    (tmp_path / "log_1.txt").write_text(step[1] + lost[1])
    found, _ = verdict_on(tmp_path)
    text = "rank 0's last compile is [2/0] net.py:6 in resume_in_step, which rank 1 did not make"
    assert found.kind == "waiting" and text in text_of(found)
    (tmp_path / "log_1.txt").write_text(step[1] + rest[1] + lost[1])
    found, _ = verdict_on(tmp_path)
    assert found.kind == "waiting" and "last compile" not in text_of(found)


SPY = """\
Process {pid}: /env/bin/python -u train.py
Python v3.11.7 (/env/bin/python3.11)

Thread {pid} (idle): "MainThread"
"""
LOADER = """\
    _PollLikeSelector.select (selectors.py:415)
    Queue.get (multiprocessing/queues.py:113)
    _MultiProcessingDataLoaderIter._try_get_data (torch/utils/data/dataloader.py:1291)
    _BaseDataLoaderIter.__next__ (torch/utils/data/dataloader.py:725)
    main (train.py:19)
    <module> (train.py:22)
"""
WORKER = """\
    Data.__getitem__ (train.py:8)
    _MapDatasetFetcher.fetch (torch/utils/data/_utils/fetch.py:54)
    _worker_loop (torch/utils/data/_utils/worker.py:374)
    BaseProcess.run (multiprocessing/process.py:108)
    _MultiProcessingDataLoaderIter.__init__ (torch/utils/data/dataloader.py:1176)
    main (train.py:19)
    <module> (train.py:22)
"""
AGENT = "W1128 07:26:36.925000 90 torch/distributed/elastic/multiprocessing/api.py:1028] "
ENDS = AGENT + "Sending process {} closing signal SIGTERM\n"
FROM_OUTSIDE = """\
W1128 07:28:02.220000 90 torch/distributed/elastic/agent/api.py:753] Received 15 death signal, shutting down workers
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/api.py", line 86, in _terminate
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 90 got signal: 15
"""


def stalled(folder, ranks=2):
    """Rank 0 did not make the second call, in which the others wait."""
    for rank in range(ranks):
        calls = [entry(1, op=GLOO), entry(2, op=GLOO, line=30, done=False)]
        dump(folder, rank, calls if rank else calls[:1], {"0": range(ranks)})


def test_the_number_of_a_process_is_no_rank(tmp_path):
    stalled(tmp_path)
    (tmp_path / "pyspy-18519.txt").write_text(SPY.format(pid=18519) + LOADER)
    (tmp_path / "pyspy-18534.txt").write_text(SPY.format(pid=18534) + WORKER)
    found, _ = verdict_on(tmp_path)
    assert sorted(found.states) == [0, 1] and not any("18519" in text for text in found.unknown)
    unknown = "process 18519, of which nothing says the rank, is waiting for a worker of its DataLoader, at train.py:19"
    assert unknown in text_of(found)
    # torchrun ends its processes by their local rank
    (tmp_path / "launcher.log").write_text(ENDS.format(18519) + ENDS.format(18520))
    found, _ = verdict_on(tmp_path)
    assert "rank 0 waits for a worker of its DataLoader: train.py:19 in main  [pyspy-18519.txt:4]" in text_of(
        found
    )
    assert (
        "process 18534, of which nothing says the rank, is a worker of a DataLoader, at train.py:8"
        in text_of(found)
    )
    # its table of failures has their numbers, too
    table = "[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 18519)\n"
    (tmp_path / "launcher.log").write_text(table)
    assert "rank 0 waits for a worker of its DataLoader" in text_of(verdict_on(tmp_path)[0])
    # where one process had ended before, or the job has other nodes, the order says nothing
    (tmp_path / "launcher.log").write_text(ENDS.format(18519))
    assert "process 18519, of which nothing" in text_of(verdict_on(tmp_path)[0])


def test_the_stack_of_a_worker_is_not_that_of_its_rank(tmp_path):
    stalled(tmp_path)
    text = SPY.format(pid=41) + LOADER + "\n" + SPY.format(pid=42) + WORKER
    (tmp_path / "stacks_0.txt").write_text(text)
    found, _ = verdict_on(tmp_path)
    assert (
        found.states[0].sentence.text
        == "its stack is at train.py:19 in main, waiting for a worker of its DataLoader"
    )
    assert "rank 0 has a worker of a DataLoader, which is at train.py:8 in Data.__getitem__" in text_of(found)


def test_an_error_that_ends_a_thread_ends_no_rank(tmp_path):
    stalled(tmp_path)
    (tmp_path / "log_0.txt").write_text(
        "Exception in thread prefetch:\nTraceback (most recent call last):\n"
        '  File "/env/lib/python3.11/threading.py", line 982, in run\n'
        '  File "/a/train.py", line 8, in prefetch\nKeyError: 3\n'
    )
    (tmp_path / "stacks_0.txt").write_text(
        "Current thread 0x00007f25e6031b80 (most recent call first):\n"
        '  File "/env/lib/python3.11/threading.py", line 327 in wait\n'
        '  File "/env/lib/python3.11/queue.py", line 171 in get\n  File "/a/train.py", line 16 in main\n'
    )
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.states[0].name) == ("difference", [0], "elsewhere")
    assert "rank 0: its thread prefetch ended: KeyError: 3, at train.py:8 in prefetch" in text_of(found)
    assert "rank 0 waits in queue.get: train.py:16 in main" in text_of(found)
    # the same error in the main thread ends the rank
    text = (tmp_path / "log_0.txt").read_text().partition("\n")[2]
    (tmp_path / "log_0.txt").write_text(text)
    assert verdict_on(tmp_path)[0].kind == "dead"


def test_a_wait_in_the_store_is_a_wait(tmp_path):
    """Ranks 0 and 1 make another group first: the names of the groups differ, and the ranks never meet."""
    (tmp_path / "log.txt").write_text(
        "".join(failed(rank, 11, TIMEOUT) for rank in (2, 3))
        + "".join(
            f"[rank{rank}]: Traceback (most recent call last):\n"
            f'[rank{rank}]:   File "/a/train.py", line 9, in main\n'
            f'[rank{rank}]:   File "/env/site-packages/torch/distributed/distributed_c10d.py", line 5, in new_group\n'
            f"[rank{rank}]: torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /a//0/2\n"
            for rank in (0, 1)
        )
    )
    found, _ = verdict_on(tmp_path)
    assert {state.name for state in found.states.values()} == {"waiting"} and found.ranks == [0, 1, 2, 3]
    assert "all ranks wait, not at one place: ranks 0, 1 at train.py:9 in main; ranks 2, 3 at" in text_of(
        found
    )
    assert "rank 0: waited in new_group for a key of the store" in text_of(found)


def test_all_ranks_wait_for_one_key(tmp_path):
    for rank in range(2):
        (tmp_path / f"log_{rank}.txt").write_text(failed(rank, 9, "wait timeout after 8000ms, keys: /plan"))
    found, _ = verdict_on(tmp_path)
    assert found.kind == "cannot tell"
    assert "all ranks for the key /plan of the store wait, and no record shows" in str(found.head)


def test_ranks_that_make_different_groups(tmp_path):
    """Ranks 1 and 2 made group 1 and called in it; rank 0 still waits for a member of another group of this name."""

    def waits(rank: int, group: int) -> str:
        inner = '  File "/env/site-packages/torch/distributed/distributed_c10d.py", line 5, in new_group'
        key = f"torch.distributed.DistStoreError: wait timeout after 6000ms, keys: /default_pg/0//{group}//cpu//0/2"
        lines = ("Traceback (most recent call last):", '  File "/a/train.py", line 40, in main', inner, key)
        return "".join(f"[rank{rank}]: {line}\n" for line in lines)

    (tmp_path / "log_0.txt").write_text(waits(0, group=1))
    for rank in (1, 2):
        mesh = entry(1, op=GLOO, group="1", desc="mesh", line=30)
        dump(tmp_path, rank, [entry(1, op=GLOO), mesh], {})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [0])
    assert "rank 0 waits in the making of group 1 at train.py:40 in main" in str(found.head)
    assert "ranks 1, 2 made group 1 (mesh) and called all_reduce([1024] Float) in it" in text_of(found)
    assert "rank 0 makes another group under this name" in text_of(found)
    # where all of them wait, which one is wrong cannot be told
    for rank in (1, 2):
        (tmp_path / f"nccl_trace_rank_{rank}").unlink()
        (tmp_path / f"log_{rank}.txt").write_text(waits(rank, group=2))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [])
    assert "rank 0 waits in the making of group 1" in str(found.head)
    assert "ranks 1, 2 wait in the making of group 2" in str(found.head)


def test_a_job_that_was_ended_from_outside_has_no_fault_of_its_own(tmp_path):
    for rank in range(2):
        dump(tmp_path, rank, [entry(n, op=GLOO) for n in (1, 2)], {"0": range(2)})
    (tmp_path / "launcher.log").write_text(FROM_OUTSIDE)
    found, _ = verdict_on(tmp_path)
    assert (
        found.kind == "nothing wrong"
        and "the job was ended from outside: Received 15 death signal" in text_of(found)
    )
    # an error of a rank stays one
    (tmp_path / "log_1.txt").write_text(failed(1, 9, "no such shard"))
    assert verdict_on(tmp_path)[0].kind == "dead"


def test_messages_are_told_from_collectives(tmp_path):
    inner = '  File "/env/lib/python3.11/site-packages/torch/distributed/{}", line 2753 in {}\n'
    for rank, (file, name, words) in enumerate(
        (
            ("distributed_c10d.py", "send", "waits in send: pipe.py:14 in main"),
            ("distributed_c10d.py", "recv", "waits in recv: pipe.py:14 in main"),
            (
                "pipelining/schedules.py",
                "_wait_batch_p2p",
                "waits in send or recv of a pipeline: pipe.py:14 in main",
            ),
            ("distributed_c10d.py", "barrier", "waits in a collective: pipe.py:14 in main"),
        )
    ):
        text = "Current thread 0x00007f (most recent call first):\n" + inner.format(file, name)
        (tmp_path / f"stacks_{rank}.txt").write_text(text + '  File "/a/pipe.py", line 14 in main\n')
        found, held = verdict_on(tmp_path)
        assert words in [
            said.text.partition(" ")[2].partition(" ")[2] for said in activity(held, rank, [], 0)
        ]
        assert found.states[rank].name == "waiting"


def test_an_abort_in_a_log_of_all_ranks_is_of_the_rank_that_ended_so(tmp_path):
    abort = (
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  op.preamble.length <= op.nbytes. 44 vs 22. Received data size doesn't match expected size.\n"
        "Fatal Python error: Aborted\n\nThread 0x00007f (most recent call first):\n"
        '  File "/env/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
        '  File "/a/train.py", line 12 in main\n\n'
    )
    table = "[{0}]:\n  rank      : {0} (local_rank: {0})\n  exitcode  : -6 (pid: 7{0}) (SIGABRT)\n"
    for rank in (0, 2):
        dump(tmp_path, rank, [entry(n, op=GLOO) for n in (1, 2)], {"0": range(3)})
    (tmp_path / "launcher.log").write_text(abort + table.format(1))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [1]) and "rank 1's is another" in text_of(found)
    assert "rank 1 waits in a collective: train.py:12 in main" in text_of(found)
    # two ranks ended so: whose text it is, nothing says
    (tmp_path / "launcher.log").write_text(abort + table.format(1) + table.format(2))
    _, held = verdict_on(tmp_path)
    assert {row.rank for row in held.rows if row.kind in ("abort", "gloo", "stack")} == {None}


def test_what_a_killed_rank_compiled_and_a_group_that_a_rank_is_not_in(tmp_path):
    begin = "[rank2]:I1128 07:26:04.1 7 torch/_dynamo/symbolic_convert.py:5] [0/0] Step 1: torchdynamo start tracing"
    warning = "/a/distributed_c10d.py:322: UserWarning: Running all_reduce on global rank 2 which does"
    warning += " not belong to the given group.\n"
    (tmp_path / "log_2.txt").write_text(begin + " forward /a/net.py:25\n")
    (tmp_path / "launcher.log").write_text(
        "[0]:\n  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 7) (SIGKILL)\n"
    )
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("dead", [2])
    assert "rank 2 was compiling [0/0] (net.py:25 in forward)" in text_of(found)
    (tmp_path / "launcher.log").write_text(warning + failed(3, 14, TIMEOUT))
    (tmp_path / "log_2.txt").write_text(failed(2, 15, TIMEOUT))
    found, _ = verdict_on(tmp_path)
    assert "rank 2 called all_reduce in a group that it is not in" in found.chain[0].text


def test_a_rank_that_ends_without_an_error_leaves_others_cut_off(tmp_path):
    """The shard of rank 1 is shorter: it ends with exit code 0, and is in no table of failures."""
    table = "[{0}]:\n  rank      : {0} (local_rank: {0})\n  exitcode  : 1 (pid: 7{0})\n"
    for rank in (0, 2):
        dump(tmp_path, rank, [entry(n, op=GLOO) for n in range(1, 6)], {"0": range(3)})
    (tmp_path / "launcher.log").write_text("".join(failed(r, 10, CLOSED) + table.format(r) for r in (0, 2)))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("waiting", [1])
    assert "ranks 0, 2 lost the connection in all_reduce([1024] Float) number 5 of default_pg" in text_of(
        found
    )
    assert "rank 1 is not in the launcher's table of failures: exit code 0, or another node" in text_of(found)
    (tmp_path / "log_1.txt").write_text(failed(1, 9, "no such shard"))
    assert verdict_on(tmp_path)[0].kind == "dead"


def test_the_number_of_a_job_is_no_rank(tmp_path):
    stalled(tmp_path)
    ends = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-11-28T08:00:10 DUE TO TIME LIMIT ***\n"
    lines = "".join(
        f"{rank}: {line}\n" for rank in range(2) for line in failed(rank, 10, CLOSED).splitlines()[:2]
    )
    for name in ("slurm-77.out", "train_512300.out"):
        (tmp_path / name).write_text(lines + ends)
    found, _ = verdict_on(tmp_path)
    assert sorted(found.states) == [0, 1] and found.ranks == [0]
    assert "the job was ended from outside: slurmstepd: error: *** STEP 77.0" in found.chain[-1].text


DEVICE = (
    "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu, layout=Strided (default), requires_grad=false"
    " (default), pinned_memory=false (default), memory_format=(nullopt))"
)
MISMATCH = (
    "Detected mismatch between collectives on ranks. Rank {0} is running collective: CollectiveFingerPrint("
    "SequenceNumber=2, OpType={1}, TensorShape=[{2}], TensorDtypes=Float, "
    + DEVICE
    + "), but Rank {3} is running"
    " collective: CollectiveFingerPrint(SequenceNumber=0OpType=GATHER).Collectives differ in the following aspects: "
)


def test_what_torch_itself_found_is_no_death(tmp_path):
    """The texts of TORCH_DISTRIBUTED_DEBUG=DETAIL: each rank raises, and the other call in its text is no call."""
    for rank in range(3):
        call = ("BROADCAST", "2, 2") if rank == 1 else ("ALLREDUCE", "3")
        (tmp_path / f"log_{rank}.txt").write_text(
            failed(rank, 9, MISMATCH.format(rank, *call, int(not rank)))
        )
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [1]) and "GATHER" not in text_of(found)
    assert (
        "rank 1: OpType=BROADCAST, TensorShape=[2, 2], TensorDtypes=Float as number 2 at train.py:9"
        in text_of(found)
    )
    (tmp_path / "log_0.txt").unlink()
    assert verdict_on(tmp_path)[0].ranks == [1, 2]  # as many on each side


def test_who_missed_a_monitored_barrier(tmp_path):
    text = "Rank 1 failed to pass monitoredBarrier in 6000 ms"
    logged = f"[rank0]:[E1128 08:18:40.1 ProcessGroupGloo.cpp:2] [Rank 0]: {text}\n"
    (tmp_path / "log_0.txt").write_text(logged + failed(0, 9, f"[Rank 0]: {text}"))
    after = "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    (tmp_path / "log_2.txt").write_text(failed(2, 9, after))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [1])
    assert "rank 1 did not come to a monitored barrier in 6 s, called at train.py:9 in step" in str(
        found.head
    )


def test_a_rank_without_a_record_ended_at_the_line_of_one_side(tmp_path):
    dump(tmp_path, 1, [entry(1, op=GLOO), entry(2, op=GLOO, line=22)], {"0": range(3)})
    dump(tmp_path, 2, [entry(1, op=GLOO), entry(2, op="gloo:all_gather", line=28)], {"0": range(3)})
    (tmp_path / "log_0.txt").write_text(failed(0, 22, CLOSED))
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [1, 2])
    assert "rank 0, of which there is no record, ended at the line of rank 1: train.py:22 in step" in text_of(
        found
    )
    (tmp_path / "log_0.txt").write_text(failed(0, 40, CLOSED))
    assert "of which there is no record" not in text_of(verdict_on(tmp_path)[0])
    # both sides called at this line
    dump(tmp_path, 2, [entry(1, op=GLOO), entry(2, op="gloo:all_gather", line=22)], {"0": range(3)})
    (tmp_path / "log_0.txt").write_text(failed(0, 22, CLOSED))
    assert "of which there is no record" not in text_of(verdict_on(tmp_path)[0])


def test_calls_at_other_lines_before_the_difference_are_said(tmp_path):
    """The third request of rank 1 was none: its call after the loop meets the others' third one."""
    for rank, lines in enumerate(((20, 20, 20, 30), (20, 20, 30), (20, 20, 20, 30))):
        calls = [entry(n, line=line, done=n < 4) for n, line in enumerate(lines, 1)]
        dump(tmp_path, rank, calls, {"0": range(3)})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [1], 4)
    said = "at collective 3 of default_pg, the ranks made like calls at different lines: rank 1 at train.py:30 in step"
    assert said in text_of(found) and "ranks 0, 2 at train.py:20 in step" in text_of(found)


def test_a_call_in_another_group_at_the_same_line_is_said(tmp_path):
    world, mesh = entry(2, line=30, done=False), entry(1, group="1", desc="mesh", line=30)
    dump(tmp_path, 0, [entry(1), world], {"0": range(2), "1": range(2)})
    dump(tmp_path, 1, [entry(1), mesh | {"time_created_ns": world["time_created_ns"]}], {"0": range(2)})
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [1], 2)
    said = (
        "at the line where rank 0 called all_reduce of default_pg, rank 1's last call is of mesh: all_reduce"
    )
    assert said in text_of(
        found
    ) and "rank 1's last call is all_reduce([1024] Float) number 1 of mesh" in text_of(found)


def test_a_rank_with_another_graph_is_named(tmp_path):
    """Where gloo has ended a rank that got another size, and where the records differ."""
    for rank in range(3):
        graph = f'"has_payload": "{"b" if rank == 1 else "a"}", "dynamo_output_graph": {{"sizes": {{}}}}'
        said = (
            f'V1128 03:04:14.1 7 a.py:1] {{"rank": {rank}, "frame_id": 1, "frame_compile_id": 0, {graph}}}\n'
        )
        (tmp_path / f"trace_rank_{rank}.log").write_text(said)
    abort = "op.preamble.length <= op.nbytes. 8 vs 4. Received data size doesn't match expected size.\n"
    (tmp_path / "log_0.txt").write_text(abort)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks) == ("difference", [1])
    assert "rank 0 aborted, because a peer sent 8 bytes" in text_of(found)
    assert "rank 1 has another graph of compile [1/0] than ranks 0, 2" in text_of(found)
    (tmp_path / "log_0.txt").unlink()
    for rank, op in enumerate((GLOO, "gloo:broadcast", GLOO)):
        dump(tmp_path, rank, [entry(1, op=GLOO), entry(2, op=op)], {"0": range(3)})
    assert "ranks 1 and 0 have different graphs of compile [1/0]" in text_of(verdict_on(tmp_path)[0])
