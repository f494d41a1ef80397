"""Files from outside: damaged, hostile, huge, without ranks. Each ends in a sentence, and none in a traceback."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource
import subprocess
import sys

import pytest
import torch
from flight_records import DATA, dump, entry, text_of, verdict_on
from oddrank.command import main
from oddrank.postmortem.folder import gather
from oddrank.postmortem.summary import summary

NCCL = DATA / "recorded/1x-nvidia-h100-80gb-hbm3-2026-11-26/dumps/torch-2.13.0"


class Runs:
    """Pickled, it is a call of os.system when it is read."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_the_keys_of_the_generator_are_those_of_a_real_record():
    real = pickle.loads((NCCL / "missing" / "trace_0").read_bytes())
    assert set(entry(1)) <= set(real["entries"][0])
    assert {"version", "pg_config", "pg_status", "comm_lib_version", "entries"} <= set(real)


@pytest.mark.parametrize(
    ("name", "kind", "ranks", "what"),
    [
        ("missing", "difference", [1], "missing"),
        ("sizes", "difference", [0, 1], "size"),
        ("order", "difference", [0, 1], "operation"),
        ("branch", "difference", [0, 1], "size"),
    ],
)
def test_records_of_nccl_on_an_h100(name, kind, ranks, what):
    found, held = verdict_on(NCCL / name)
    assert (found.kind, found.ranks, found.difference.seq, found.difference.what) == (kind, ranks, 5, what)
    said = text_of(found)
    if name == "missing":
        assert "rank 1 has not made collective 5" in said and "train.py:51 in missing" in said
    if name == "order":
        assert "the same two calls in the other order" in said
    if name == "branch":
        assert "by a compiled graph" in said and "train.py:64 in corrected" in said


def test_a_rank_that_wrote_nothing_is_named_and_nothing_is_guessed():
    """torch 2.15: of the rank that came too late there is no record."""
    found, _ = verdict_on(NCCL.parent / "torch-2.15.0" / "missing")
    assert (found.kind, found.ranks) == ("waiting", [1])
    assert "what rank 1 did, nothing here says" in found.head.text


def test_a_pickle_that_wants_to_run_code_runs_none(tmp_path, capsys):
    mark = tmp_path / "ran"
    (tmp_path / "trace_0").write_bytes(pickle.dumps({"entries": Runs(f"touch {mark}"), "pg_config": {}}))
    assert main(["postmortem", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert not mark.exists() and "CANNOT TELL" in capsys.readouterr().out
    _, held = verdict_on(tmp_path)
    assert "system" in held.files[-1].note or "system" in held.files[0].note


@pytest.mark.parametrize(
    "data",
    [
        bytes(range(256)) * 300,
        b"\x80\x02" + bytes(range(256)),
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f",
        b'{"entries": [' + b"[" * 100_000,
        b'{"pg_config": {}, "entries": [{"process_group": 3}]}',
        b'{"pg_config": [], "entries": {"a": 1}}',
        b'{"pg_config": {}, "entries": [{"process_group": ["0"], "profiling_name": "", "collective_seq_id": 1e999}]}',
        pickle.dumps({"pg_config": {}, "entries": [dict(entry(10**5000), time_created_ns=1)]}),
        b"\x80\x02}X\x09\x00\x00\x00pg_config}X\x01\x00\x00\x000}X\x05\x00\x00\x00ranks"
        + b"]" * 100_000
        + b"a" * 99_999
        + b"sss.",
        b'V1128 03:04:14.1 1 a.py:1] {"str": ["a", []]}\n',
        b'V1128 03:04:14.1 1 a.py:1] {"compilation_metrics": {"entire_frame_compile_time_s": 1'
        + b"0" * 400
        + b"}}\n",
        b"",
        "ÿþ§ nichts\n".encode("utf-16"),
        b"[rank0]:" * 50_000,
        b"Traceback (most recent call last):\n" * 1000,
        b"x" * 300_000,
    ],
    ids=range(16),
)
def test_rubbish_ends_in_a_sentence(data, tmp_path, capsys):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "trace_0").write_bytes(data)
    assert main(["postmortem", str(folder), "--out", str(tmp_path / "out")]) == 1
    assert gc.isenabled(), "the command leaves the collector as it was"
    said = capsys.readouterr()
    assert "CANNOT TELL" in said.out and "Traceback" not in said.err


def test_numbers_without_bounds_take_no_time_and_no_memory(tmp_path):
    """A call with the number 10**18, texts with numbers of 5,000 digits, and lines of 100,000 ranks."""
    job = tmp_path / "job"
    job.mkdir()
    dump(job, 0, [entry(1), entry(2), entry(10**18)], {"0": range(2)})
    dump(job, 1, [entry(1), entry(2)], {"0": range(2)})
    long = "9" * 5000
    lines = [
        f"[rank{long}]: x",
        f"[default{long}]:x",
        f'  File "a.py", line {long}, in f',
        f"#0 f from a.py:{long}",
    ]
    lines = [
        "Traceback (most recent call last):",
        *lines,
        "Thread 0x1 (most recent call first):",
        *lines,
        "[0]:",
    ]
    lines += [f"  rank      : {long} (local_rank: 0)", f"  exitcode  : {long} (pid: {long})"]
    (job / "a.log").write_text("\n".join(lines + [f"[rank{n}]: ValueError: x" for n in range(100_000)]))
    (job / "b.log").write_text(
        'V1128 03:04:14.1 1 a.py:1] {"str": ["a", 1]}\n'
        f'V1128 03:04:14.1 1 a.py:1] {{"dynamo_start": {{}}, "rank": {10**30}, "frame_id": {long}}}\n'
    )
    found, held = verdict_on(job)
    assert found.difference.seq == 10**18 and len(held.rows) < 200_000


@pytest.mark.parametrize(
    "place", ['"line": "x", "filename": []', '"line": 1e999, "filename": 1', '"line": null']
)
def test_an_odd_place_in_a_trace_leaves_the_compile_known(place, tmp_path):
    start = f'{{"rank": 0, "dynamo_start": {{"stack": [{{{place}, "name": "f"}}]}}}}'
    (tmp_path / "trace_0").write_text(f"V1128 03:04:14.1 1 a.py:1] {start}\n")
    found, _ = verdict_on(tmp_path)
    assert found.kind == "waiting" and "rank 0 is compiling" in found.head.text


def test_a_pickle_that_asks_for_gigabytes_gets_none(tmp_path):
    """Its one object is to be kept as number 2**27, in a table of 2 GiB."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "trace_0").write_bytes(b"\x80\x02]r\x00\x00\x00\x08.")
    code = (
        "import sys, resource; from oddrank.command import main; main(sys.argv[1:]);"
        # not ru_maxrss, which has the size of the process that started this one
        "most = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'));"
        "print(int(most.split()[1]) // 1024, resource.getrlimit(resource.RLIMIT_AS) == eval(sys.stdin.read()))"
    )
    command = [sys.executable, "-c", code, "postmortem", str(job), "--out", str(tmp_path / "out")]
    limits = repr(resource.getrlimit(resource.RLIMIT_AS))
    done = subprocess.run(command, input=limits, capture_output=True, text=True, timeout=120)
    megabytes, as_before = done.stdout.split()[-2:]
    assert int(megabytes) < 500 and as_before == "True", done.stdout + done.stderr
    _, held = verdict_on(job)
    assert "more memory" in held.files[0].note


def test_a_text_of_a_record_cannot_write_to_the_terminal(tmp_path):
    job = tmp_path / "job"
    job.mkdir()
    dump(job, 0, [entry(1, op="nccl:\x1b[2J\n" * 1000, group="\x1b]0;t\x07", done=False)], {})
    dump(job, 1, [entry(1)], {})
    (job / "\x1b[2J_2.txt").write_text(
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "\x1b[2J.py", line 1, in f\n'
        "[rank2]: ValueError: x\n"
    )
    said = summary(*verdict_on(job))
    assert "\x1b" not in said and "\x07" not in said and max(map(len, said.splitlines())) < 2000


def test_a_file_that_goes_while_it_is_read_is_said(tmp_path):
    for rank in range(2):
        dump(tmp_path, rank, [entry(1)], {"0": range(2)})

    def progress(done, total, file):
        (tmp_path / "nccl_trace_rank_1").unlink(missing_ok=True)

    held = gather([tmp_path], progress)
    assert held.files[1].note == "cannot be read: No such file or directory"


def test_a_folder_that_cannot_be_read_is_said(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "theirs").mkdir()
    dump(tmp_path / "mine", 0, [entry(1)], {})
    scan = os.scandir

    def refused(path):  # root may read all: its tests need a refusal of their own
        if str(path).endswith("theirs"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    held = gather([tmp_path])
    notes = {read.name: read.note for read in held.files}
    assert notes["theirs/"] == "cannot be read: Permission denied" and list(held.dumps) == [0]


def test_a_log_with_holes_is_read_and_a_binary_file_is_not(tmp_path):
    (tmp_path / "rank_1.log").write_bytes(
        b"\0" * 5000 + b"[rank1]: Traceback (most recent call last):\n"
        b'[rank1]:   File "train.py", line 3, in step\n[rank1]: ValueError: bad batch\n'
    )
    torch.save(torch.zeros(4096), tmp_path / "zeros_1.pt")
    torch.save(torch.randn(4096), tmp_path / "weights_1.pt")
    held = gather([tmp_path])
    assert {read.name: read.kind for read in held.files} == {
        "rank_1.log": "log", "weights_1.pt": "", "zeros_1.pt": "",
    }  # fmt: skip
    assert [row.rank for row in held.rows if "bad batch" in row.text] == [1]


def test_folders_of_one_name_are_told_apart(tmp_path):
    for rank in range(2):
        (tmp_path / f"node{rank}" / "logs").mkdir(parents=True)
        dump(tmp_path / f"node{rank}" / "logs", rank, [entry(1)], {})
    held = gather(tmp_path / f"node{rank}" / "logs" for rank in range(2))
    assert [read.name.split("/")[-3:-1] for read in held.files] == [["node0", "logs"], ["node1", "logs"]]


def test_a_request_that_cannot_be_met(tmp_path, capsys):
    assert main(["postmortem", str(tmp_path / "none")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert main(["postmortem"]) == 2
    assert "the following arguments are required: DIR" in capsys.readouterr().err


def test_text_of_a_file_is_escaped(tmp_path):
    groups = {"0": range(2)}
    dump(tmp_path, 0, [entry(1, op="nccl:<script>alert(1)</script>")], groups)
    dump(tmp_path, 1, [entry(1)], groups)
    (tmp_path / "<b>log_0.txt").write_text(
        "[rank0]: Traceback (most recent call last):\n[rank0]: ValueError: <img src=x>\n"
    )
    assert main(["postmortem", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<script" not in page and "<img" not in page and "<b>log" not in page and "&lt;script&gt;" in page


def test_records_without_a_rank_are_left_out_and_said(tmp_path):
    groups = {"0": range(2)}
    dump(tmp_path, 0, [entry(1)], groups)
    (tmp_path / "nccl_trace_rank_0").rename(tmp_path / "record")
    found, held = verdict_on(tmp_path)
    assert found.kind == "cannot tell" and "no rank" in held.files[0].note


def test_two_groups_of_one_name_with_other_members_are_not_compared(tmp_path):
    """Ranks 0 and 1 reduce 8 numbers over their group, ranks 2 and 3 reduce 16 twice over theirs; both are named 5."""
    for rank in range(4):
        pair = (0, 1) if rank < 2 else (2, 3)
        calls = [entry(1)] + [
            entry(n, group="5", size=8 if rank < 2 else 16) for n in range(1, 2 if rank < 2 else 3)
        ]
        dump(tmp_path, rank, calls, {"0": range(4), "5": pair})
    found, _ = verdict_on(tmp_path)
    assert found.kind == "nothing wrong"
    dump(tmp_path, 3, [entry(1), entry(1, group="5", size=16)], {"0": range(4), "5": (2, 3)})
    dump(
        tmp_path,
        2,
        [entry(1), entry(1, group="5", size=16), entry(2, group="5", size=16, done=False)],
        {"0": range(4), "5": (2, 3)},
    )
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [3], 2)


def test_the_first_cause_is_found_through_a_chain_of_groups(tmp_path):
    """Rank 3 leaves out a call of its pair; rank 2 waits for it there, and 0 and 1 wait for rank 2 in the world."""
    groups = {"0": range(4), "5": (2, 3)}
    for rank in (0, 1):
        dump(tmp_path, rank, [entry(1), entry(2, line=30, done=False)], groups)
    pair = [entry(1), entry(1, group="5", desc="tensor", line=20)]
    dump(tmp_path, 2, [*pair, entry(2, group="5", desc="tensor", line=21, done=False)], groups)
    dump(tmp_path, 3, pair, groups)
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [3], 2)
    said = "\n".join(map(str, found.chain))
    assert (
        "rank 2: all_reduce" in said
        and "train.py:21" in said
        and "collective 2 of default_pg waits for the same" in said
    )


def test_a_record_that_is_older_is_no_fault(tmp_path):
    """All of a job that runs were written one after the other: the first is some calls behind."""
    groups = {"0": range(3)}
    for rank in range(3):
        dump(tmp_path, rank, [entry(n) for n in range(1, 20 if rank else 17)], groups)
    found, _ = verdict_on(tmp_path)
    assert found.kind == "nothing wrong"


def test_a_record_that_has_lost_its_oldest_calls_misses_none(tmp_path):
    """Of the second group, in which rank 1 called long ago, its record has nothing any more."""
    groups = {"0": range(2), "1": range(2)}
    dump(tmp_path, 0, [entry(1, group="1"), *(entry(n) for n in range(1, 31))], groups)
    dump(tmp_path, 1, [entry(n) for n in range(11, 31)], groups)
    ended = "[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : -15 (pid: 7) (SIGTERM)\n"  # by the launcher
    (tmp_path / "launcher.log").write_text(ended)
    found, _ = verdict_on(tmp_path)
    assert found.kind == "nothing wrong"


def test_the_json_form_of_torch(tmp_path):
    """`_dump_fr_trace_json`: numbers as texts, no frames, 0 for a time that is not known."""
    for rank in range(2):
        held = [
            dict(entry(n, done=n < 3 or rank), process_group=["0", "default_pg"]) for n in range(1, 4 - rank)
        ]
        for one in held:
            del one["frames"]
        config = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
        (tmp_path / f"rank{rank}.json").write_text(
            json.dumps({"comm_lib_version": "", "entries": held, "pg_config": config})
        )
    found, _ = verdict_on(tmp_path)
    assert (found.kind, found.ranks, found.difference.seq) == ("difference", [1], 3)


def test_a_page_of_64_ranks_is_readable(tmp_path, capsys):
    """500 calls of each of 64 ranks, of the world and of 8 groups; rank 37 leaves out one."""
    for rank in range(64):
        group = f"{rank // 8 + 1}"
        calls = []
        for n in range(1, 251):
            calls.append(entry(n, line=10 + n % 3))
            if not (rank == 37 and n == 240):
                calls.append(
                    entry(
                        n - (rank == 37 and n > 240),
                        group=group,
                        desc="tensor",
                        op="nccl:all_gather",
                        line=20,
                    )
                )
        if rank // 8 == 4 and rank != 37:
            calls[-1] |= {"retired": False, "state": "scheduled"}
        dump(tmp_path, rank, calls, {"0": range(64), group: range(rank // 8 * 8, rank // 8 * 8 + 8)})
    assert main(["postmortem", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "rank 37" in capsys.readouterr().out.partition("\n\n")[2].partition("\n")[0]
    page = (tmp_path / "out" / "index.html").read_text()
    assert page.count("<th>rank ") >= 64 and "no call" in page and len(page) < 2_000_000


@pytest.mark.slow
@pytest.mark.full
def test_200_mb_of_log_below_300_mb_of_memory(tmp_path):
    place = "V1128 03:04:14.850000 29360 torch/_dynamo/guards.py:5396]"
    line = "[rank{rank}]:" + place + " [0/{n}] [__recompiles] Recompiling function f in train.py:9\n"
    guard = "[rank{rank}]:" + place + " [0/{n}] [__recompiles]     - 0/{n}: x\n"
    with (tmp_path / "all.log").open("w") as log:
        n = 0
        while log.tell() < 200 * 2**20:
            log.write(line.format(rank=n % 8, n=n))
            log.write(guard.format(rank=n % 8, n=n))
            log.write(f"step {n} loss 0.1\n" * 20)
            n += 1
        log.write("[rank3]: Traceback (most recent call last):\n[rank3]: ValueError: the last line\n")
    code = (
        "import re, sys; from oddrank.command import main; status = main(sys.argv[1:]);"
        # not ru_maxrss, which begins with that of the process before exec
        r"peak = re.search(r'VmHWM:\s*(\d+)', open('/proc/self/status').read())[1];"
        "print(int(peak) // 1024, file=sys.stderr); sys.exit(status)"
    )
    command = [sys.executable, "-c", code, "postmortem", str(tmp_path), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "ValueError: the last line" in done.stdout, done.stderr
    assert int(done.stderr.split()[-1]) < 300
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(
    ("output", "status", "sentence"),
    [
        ("> /dev/full", 3, "oddrank: cannot write to standard output: No space left on device\n"),
        (">&-", 0, ""),
        ("| head -1", 141, ""),
    ],
)
def test_an_output_that_takes_no_more(output, status, sentence, tmp_path):
    for rank in range(2):
        dump(tmp_path, rank, [entry(1)], {"0": range(2)})
    command = f"{sys.executable} -m oddrank postmortem {tmp_path} --out {tmp_path / 'out'} {output}"
    command += "; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, sentence)
