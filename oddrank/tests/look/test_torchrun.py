"""`oddrank look` under torchrun: each process is a rank, writes its record as it goes, and rank 0 merges them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import two_machines
from oddrank.look import look
from oddrank.look.rendezvous import launched
from two_machines import Machines, descendants

from oddrank import command as cli

SCRIPTS = Path(__file__).parent / "scripts"
HANG_S = 240  # a guard, not an expectation
ENV = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "a",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
}
# six steps; then one rank does what the first argument says, and the others wait for it in an all_reduce
SCRIPT = """\
import multiprocessing
import os
import sys
import time

import torch
import torch.distributed as dist


@torch.compile(backend="eager")
def step(x):
    return x.sin() + 1


dist.init_process_group("gloo")
for turn in range(6):
    total = step(torch.ones(4))
    dist.all_reduce(total)
print("six steps", flush=True)
if sys.argv[1] == "raise" and dist.get_rank() == 1:
    raise ValueError("the loss is nan")
if sys.argv[1] == "wait" and dist.get_rank() == 0:
    time.sleep(600)
if sys.argv[1] == "kill" and dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
if sys.argv[1] == "term":
    for _ in range(30):  # a signal for a child that has just begun is not this process's
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join(60)
        assert child.exitcode == -15, child.exitcode
    print("thirty children", flush=True)
    os.kill(os.getpid(), 15)
    time.sleep(600)
if sys.argv[1] == "skip" and dist.get_rank() == 1:
    dist.broadcast(torch.ones(1), 0)
dist.all_reduce(torch.ones(1))
"""


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def start(folder: Path, *words: str, launcher: tuple[str, ...] = TORCHRUN) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, *launcher, "-m", "oddrank", "look", *words]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, text=True, cwd=folder, env=env, **output)


def run(folder: Path, *words: str, launcher: tuple[str, ...] = TORCHRUN) -> tuple[int, str]:
    process = start(folder, *words, launcher=launcher)
    said, _ = process.communicate(timeout=HANG_S)
    return process.returncode, said


def of_rank(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"rank-{rank}.json").read_text())


def test_what_torchrun_said_is_read() -> None:
    launch = launched(ENV)
    assert launch is not None and (launch.rank, launch.node, launch.machines) == (1, 1, 2)
    assert not launch.hosts_store and launched({}) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": "one"}, "RANK must be a whole number, got 'one'"),
        ({"GROUP_RANK": ""}, "GROUP_RANK is not set"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT must be at least 1 and at most 65535, got 99999"),
        ({"RANK": "7"}, "RANK must be at least 0 and at most 1, got 7"),
        ({"LOCAL_RANK": "-1"}, "LOCAL_RANK must be at least 0 and at most 0, got -1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1, got 0"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE must be at least 1 and at most 2, got 3"),
    ],
)
def test_an_environment_that_was_tampered_with_is_named(
    change: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {**ENV, **change}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["look", str(SCRIPTS / "trouble.py"), "none"]) == 2
    assert words in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-n", "3", "train.py", "none"], "torchrun started 2 ranks, and 3 were asked for"),
        (["--out", ".", "train.py", "none"], "is there already and not empty"),
    ],
)
def test_a_request_that_cannot_be_met_ends_every_process(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    status, said = run(tmp_path, *words)
    assert status and sentence in said and "six steps" not in said, said


@pytest.mark.slow
def test_where_rank_0_is_killed_the_next_makes_the_page_and_so_does_merge_of_both_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    process = start(tmp_path, "--out", "page", "train.py", "wait")
    until = time.monotonic() + HANG_S
    files = [tmp_path / "page" / f"rank-{rank}.json" for rank in (0, 1)]
    while not all(file.exists() for file in files):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.1)
    first = min(pid for pid in descendants(process.pid) if b"\0RANK=0\0" in _environment(pid))
    os.kill(first, signal.SIGKILL)
    said, _ = process.communicate(timeout=HANG_S)
    assert process.returncode and "\nrank 0 died: its process is gone" in said, said
    assert "rank 0 died" in (tmp_path / "page" / "failure.txt").read_text(), "rank 1 made the page"
    # as after a copy from another machine: two folders, one rank in each
    (tmp_path / "other").mkdir()
    files[1].rename(tmp_path / "other" / "rank-1.json")
    assert cli.main(["look", "--merge", str(tmp_path / "page"), str(tmp_path / "other")]) == 0
    assert "train.py: 3 forwards recorded" in capsys.readouterr().out
    assert "on 2 ranks" in (tmp_path / "page" / "index.html").read_text()

    # what --merge refuses
    alone = tmp_path / "alone"
    alone.mkdir()
    body = of_rank(tmp_path / "page", 1)
    body["provenance"]["run"] = "another"
    (alone / "rank-1.json").write_text(json.dumps(body))
    for folders, sentence in (
        ([tmp_path / "page", alone], "these are ranks of different runs"),
        ([tmp_path], "there is no rank-N.json in"),
        ([tmp_path / "page", "--out", tmp_path / "page"], "is there already and not empty"),
    ):
        assert cli.main(["look", "--merge", *map(str, folders)]) == 2
        assert sentence in capsys.readouterr().err
    for text in ("", "[1]", "{}", json.dumps(body | {"provenance": {"rank": 0}}), json.dumps(body)[:-9]):
        (alone / "rank-1.json").write_text(text)
        with pytest.raises(ValueError, match="rank-1.json is no record of a rank"):
            look.read(alone)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "launcher"),
    [
        pytest.param("kill", TORCHRUN, marks=pytest.mark.guard),
        pytest.param("skip", (), marks=pytest.mark.guard),
        ("raise", TORCHRUN),  # rank 0 is inside a collective meanwhile
        ("skip", TORCHRUN),
    ],
)
def test_the_cause_stands_first_whoever_is_told_first(
    kind: str, launcher: tuple[str, ...], tmp_path: Path
) -> None:
    status, said = run(tmp_path, "--out", "page", "--stall", "4", "train.py", kind, launcher=launcher)
    first, *rest = (tmp_path / "page" / "failure.txt").read_text().splitlines()
    assert (status if launcher else status == 3) and f"\n{first}\n" in said, said
    if kind == "skip":
        assert first.startswith("stalled: the ranks have waited for each other for 4 s")
        at = next(i for i, line in enumerate(rest) if line == "First difference, at collective 7:")
        assert "rank 0  all_reduce" in rest[at + 1] and "rank 1  broadcast" in rest[at + 2], rest
    else:
        ended = "rank 1 died: " if kind == "kill" else "rank 1 raised ValueError: the loss is nan"
        assert first.startswith("rank 1 failed after") and rest[0].startswith(ended), rest
        assert "SIGKILL" not in rest[0], "torchrun alone knows the signal"
        other = r"rank 0 (was waiting in all_reduce here|raised RuntimeError)"
        assert any(re.match(other, line) for line in rest) and not any("oddrank/" in line for line in rest)
    assert "3 forwards recorded" in said and "on 2 ranks" in (tmp_path / "page" / "index.html").read_text()


@pytest.mark.slow
@pytest.mark.guard
def test_a_signal_to_the_ranks_is_no_success_and_one_to_a_forked_child_is_the_childs(tmp_path: Path) -> None:
    status, said = run(tmp_path, "--out", "page", "train.py", "term", launcher=())
    assert status == 3 and said.count("thirty children") == 2 and "3 forwards recorded" in said, said
    failure = (tmp_path / "page" / "failure.txt").read_text()
    assert failure.startswith("ended from outside, by SIGTERM\nrank 0 (and rank 1) was here:")
    assert re.search(r"train.py:\d+ +time.sleep\(600\)", failure)


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
@pytest.mark.skipif(bool(two_machines.why_not()), reason=two_machines.why_not() or "-")
def test_two_machines_without_a_shared_folder_are_on_one_page(tmp_path: Path) -> None:
    homes = [tmp_path / str(machine) for machine in (0, 1)]
    with Machines() as two:
        two.slow(megabits=50)
        both = []
        for machine, home in enumerate(homes):
            home.mkdir()
            (home / "train.py").write_text(SCRIPT)
            command = ("-m", "oddrank", "look", "--out", "page", "train.py", "none")
            # both machines have one name, by which gloo would look for its own address
            link = {"GLOO_SOCKET_IFNAME": ("vleft", "vright")[machine]}
            both.append(two.torchrun(machine, *command, home=home, cwd=home, more=link))
        assert [process.wait(HANG_S) for process in both] == [0, 0], two.output(both[0])
        said = two.output(both[0])
    assert "train.py: 3 forwards recorded  [gloo · cpu · 2 nodes]" in said, said
    assert {path.name for path in (homes[0] / "page").glob("rank-*")} == {"rank-0.json", "rank-1.json"}
    of_one = {"rank-1.json", "compiles-1.jsonl", "ended-1.json", "crash-1.txt"}
    assert {path.name for path in (homes[1] / "page").glob("*.*")} == of_one
    assert "on 2 ranks" in (homes[0] / "page" / "index.html").read_text()
