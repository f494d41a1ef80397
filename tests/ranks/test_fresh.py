"""Ranks as fresh interpreters, as on systems without a zygote: the same behaviour, forced here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from kernels import gone

import labkit
from labkit.ranks import RankError, fresh

pytestmark = pytest.mark.slow


def add():
    import torch
    import torch.distributed as dist

    x = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    return x.tolist()


@pytest.fixture(scope="module")
def started():
    with labkit.Ranks(2, device="cpu", start="fresh", quiet=True) as ranks:
        yield ranks


def test_functions_run_and_output_is_labelled(started, capfd):
    assert started.run(add).same() == [3.0, 3.0]
    started.run(print, "hello")
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] hello", "[rank 1] hello"]
    assert [row["state"] for row in started.status()] == ["idle", "idle"]


def test_the_parents_of_the_ranks_is_this_process(started):
    assert started.run(os.getppid).same() == os.getpid()


def test_a_death_is_named_and_the_next_call_works(started):
    def die():
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        add()

    pids = [row["pid"] for row in started.status()]
    with pytest.raises(RankError, match="rank 1 died: killed by SIGKILL") as caught:
        started.run(die)
    assert caught.value.rank == 1 and gone(pids) == []
    assert started.run(add).same() == [3.0, 3.0]


def test_a_timeout_says_where(started):
    with pytest.raises(
        RankError, match=r"(?s)no end within 0.3 s \(timeout\).*rank 0 \(and rank 1\) was here:.*time.sleep"
    ):
        started.run(lambda: time.sleep(60), timeout=0.3)


def test_closing_leaves_nothing():
    before = len(os.listdir("/proc/self/fd"))
    ranks = labkit.Ranks(2, device="cpu", backend="fake", start="fresh", quiet=True)
    pids = [row["pid"] for row in ranks.status()]
    ranks.close()
    assert gone(pids) == []
    assert len(os.listdir("/proc/self/fd")) <= before


def test_they_end_with_the_process_that_started_them_even_while_they_import_torch(tmp_path):
    code = textwrap.dedent(
        """
        import os, signal
        from labkit.ranks import fresh
        starter = fresh.Interpreters(os.environ)
        print(starter.fork().pid, starter.fork().pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pids = list(map(int, done.stdout.split()))
    assert len(pids) == 2 and gone(pids) == []


def test_what_is_said_of_it(capsys, monkeypatch):
    labkit.Ranks(1, device="cpu", backend="fake", start="fresh").close()
    assert f"start='fresh': {fresh.WHY}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("platform", "start", "rule"),
    [
        ("linux", "spoon", "start must be 'auto', 'zygote' or 'fresh', got 'spoon'"),
        ("darwin", "zygote", r"start='zygote' needs Linux \(WSL2 included\), and this is darwin"),
        ("win32", "auto", "Ranks needs Linux or macOS: on Windows, work in WSL2"),
    ],
)
def test_what_cannot_be_started_is_refused(monkeypatch, platform, start, rule):
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ValueError, match=rule):
        labkit.Ranks(2, device="cpu", start=start)


def test_elsewhere_it_is_what_auto_takes(monkeypatch):
    from labkit.ranks import pool

    assert pool.start_method("auto") == ("zygote" if sys.platform == "linux" else "fresh")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert pool.start_method("auto") == "fresh"


def test_a_variable_that_torch_reads_as_it_is_imported_has_its_effect():
    def verbose():
        import torch._dynamo as dynamo

        return dynamo.config.verbose

    with labkit.Ranks(
        1, device="cpu", backend="fake", start="fresh", env={"TORCHDYNAMO_VERBOSE": "1"}, quiet=True
    ) as ranks:
        assert ranks.run(verbose)[0] is True
