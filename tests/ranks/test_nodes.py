"""torchrun's launches: on this machine, and on two "machines" in network namespaces."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import two_machines
from two_machines import LEFT, Machines

from course.cliff import experiment as cliff
from course.guards import experiment as guards
from labkit import Report, attach, experiments, hardware
from labkit.cli import main
from labkit.ranks import spawn
from labkit.ranks.nodes import launched
from labkit.ranks.nodes.command import torchrun_line
from labkit.ranks.nodes.launch import interface, keep_alive, new_token, receive_greeting, send_greeting

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
# quick, and it makes ranks raise and be replaced
WORDS = ["run", "break-it/digest"]
machines = pytest.mark.skipif(bool(two_machines.why_not()), reason=two_machines.why_not() or "-")


def torchrun(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LABKIT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "labkit", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, env=env)


def until(process: subprocess.Popen[str], words: str) -> None:
    deadline = time.monotonic() + HANG_S
    while words not in Machines.output(process):
        assert time.monotonic() < deadline and process.poll() is None, Machines.output(process)
        time.sleep(0.1)


def test_what_torchrun_said_is_read() -> None:
    launch = launched(ENV)
    assert launch is not None and (launch.rank, launch.node, launch.hosts_store) == (1, 1, False)
    assert launched({}) is None


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
def test_an_environment_that_was_tampered_with_is_named(change: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        launched({**ENV, **change})


def test_such_an_environment_ends_the_command_line_with_one_sentence(monkeypatch, capsys) -> None:
    monkeypatch.setattr(spawn, "shared", lambda: pytest.fail("a process was about to be started"))
    for name, value in {**ENV, "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "99999"}.items():
        monkeypatch.setenv(name, value)
    assert main(WORDS) == 2
    assert capsys.readouterr().err == "labkit: MASTER_PORT must be at least 1 and at most 65535, got 99999\n"


@pytest.mark.parametrize(
    "said", [b'{"token": "wrong", "kind": "agent"}\n', b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04N.\n", b""]
)
def test_a_stranger_is_not_greeted(said: bytes) -> None:
    import socket

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as stranger,
    ):
        ours, _ = server.accept()
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        assert receive_greeting(ours, new_token()) is None
        ours.close()


def test_one_of_us_is_greeted_and_nothing_that_follows_is_read() -> None:
    import socket

    token = new_token()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as friend,
    ):
        ours, _ = server.accept()
        send_greeting(keep_alive(friend), token, kind="agent", rank=3)
        friend.sendall(b"next")
        assert receive_greeting(ours, token) == {"kind": "agent", "rank": 3}
        assert ours.recv(4) == b"next"
        ours.close()


def test_the_interface_of_an_address() -> None:
    assert interface("203.0.113.7") == ""
    if sys.platform == "linux":
        assert interface("127.0.0.1") == "lo"


def test_the_line_that_torchrun_takes() -> None:
    words = torchrun_line(guards, 4, 2, "shm", "cpu", "out dir", {"full": True})
    assert words == (
        "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29400 "
        "-m labkit run guards --backend gloo --device cpu --full --save 'out dir'"
    )
    words = torchrun_line(cliff, 2, 1, "shm", "cpu", None, {"also": ("gloo",), "cold": False})
    assert words.endswith("run cliff --backend shm --device cpu --also gloo")


@pytest.mark.parametrize(
    ("experiment", "nodes", "options", "words"),
    [
        (cliff, 3, {}, "nodes must divide the 2 ranks, got 3"),
        (cliff, True, {}, "nodes must divide"),
        (cliff, 1, {"reduce": 1}, "cliff has no --reduce on the command line: it takes --"),
        ("cliff", 1, {}, "is no experiment"),
    ],
)
def test_a_line_that_cannot_be_written(
    experiment: object, nodes: int, options: dict[str, int], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        torchrun_line(experiment, 2, nodes, "gloo", "cpu", None, options)


def test_every_experiment_has_a_line_that_the_command_line_reads() -> None:
    from labkit.cli import _parser

    for name in experiments.declared():
        words = torchrun_line(experiments.get(name), 2, 1, "gloo", "cpu", None, {}).split()
        given = _parser().parse_args(words[words.index("labkit") + 1 :])
        assert experiments.get(given.experiment) is experiments.get(name)


@pytest.mark.slow
def test_an_experiment_under_torchrun_on_this_machine(tmp_path: Path) -> None:
    done = torchrun(*WORDS, "--save", str(tmp_path), home=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    last = json.loads((tmp_path / "break-it-digest.running.jsonl").read_text().splitlines()[-1])
    assert last["ended"] == ""
    report = Report.load(tmp_path / last["saved"])
    assert report.provenance["launched"] == {"by": "torchrun", "machines": [f"{hardware.name()} (2 ranks)"]}
    assert report.provenance["world_size"] == 2
    assert attach(tmp_path, "break-it/digest").tables.keys() == report.tables.keys()


@pytest.mark.slow
def test_a_request_that_cannot_be_met_ends_every_process(tmp_path: Path) -> None:
    done = torchrun("run", "cliff", "--ranks", "3", "--save", str(tmp_path), home=tmp_path)
    assert done.returncode
    assert "torchrun started 2 ranks, and 3 were asked for" in done.stderr
    assert not (tmp_path / "cliff.json").exists()


@machines
@pytest.mark.slow
def test_an_experiment_on_two_machines_one_behind_a_slow_link(tmp_path: Path) -> None:
    with Machines() as two:
        two.slow(megabits=50)
        both = [
            two.torchrun(m, "-m", "labkit", *WORDS, "--save", str(tmp_path), home=tmp_path / str(m))
            for m in (0, 1)
        ]
        assert [process.wait(HANG_S) for process in both] == [0, 0], two.output(both[0])
        sent = json.loads(two.inside(1, "ip", "-s", "-j", "link", "show", "vright"))[0]["stats64"]["tx"][
            "bytes"
        ]
        assert sent > 10_000  # the ranks really talked across the link
    (saved,) = tmp_path.glob("*.json")
    report = Report.load(saved)
    assert report.provenance["launched"]["machines"] == [f"{hardware.name()} (1 ranks)"] * 2
    live = Report.from_json(saved.read_text())
    assert live.label == "gloo · cpu · 2 nodes"
    assert "digest" in report.frame.to_string()


@machines
@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_machine_that_dies_ends_the_run_on_both(tmp_path: Path, who: int) -> None:
    with Machines() as two:
        words = ["-m", "labkit", "run", "cliff", "--blocks", "2", "--save", str(tmp_path)]
        both = [two.torchrun(m, *words, home=tmp_path / str(m)) for m in (0, 1)]
        until(both[0], "up in")
        other = both[1 - who]
        if not who:  # torchrun of 1 loses its store and may end its rank before that has said what it saw
            os.kill(other.pid, signal.SIGSTOP)
        two.kill(both[who])
        words = "node 1 (" if who else f"the connection to rank 0's process at {LEFT}"
        until_said = time.monotonic() + HANG_S
        while words not in two.output(other) and time.monotonic() < until_said:
            time.sleep(0.1)
        assert words in two.output(other), two.output(other)
        if who:  # torchrun itself waits minutes for a machine that held its store
            assert other.wait(HANG_S) != 0
    assert not (tmp_path / "cliff.json").exists()
    assert not list(tmp_path.glob(".cliff*"))
