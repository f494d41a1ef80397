"""The variables that ranks see, and what torch made of them as it was imported."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import time

import pytest
from oddrank.record import record

import labkit
from labkit.ranks import spawn
from labkit.ranks.zygote import Noting


def seen() -> tuple[str | None, int, bool]:
    import torch._dynamo as dynamo

    return os.environ.get("LABKIT_LATE"), logging.getLogger("torch._dynamo").level, dynamo.config.verbose


def started(env: dict[str, str | None] | None = None) -> tuple[object, int]:
    """What a rank sees, and the process that it was forked from."""
    with labkit.Ranks(1, device="cpu", backend="fake", quiet=True, env=env) as ranks:
        return ranks.run(seen)[0], ranks.run(os.getppid)[0]


def zygote_of(env: dict[str, str]) -> int:
    with labkit.Ranks(1, device="cpu", backend="fake", quiet=True, env=env) as ranks:
        return ranks.run(os.getppid)[0]


@pytest.fixture
def torch_alone(monkeypatch):
    """Zygotes of tests that compile nothing."""
    monkeypatch.setattr(spawn, "PRELOAD", ("torch", "labkit.ranks.worker"))


def test_ranks_see_the_kernels_variables_of_now_and_env_on_top(monkeypatch):
    monkeypatch.setenv("LABKIT_LATE", "first")
    found, zygote = started()
    assert found[0] == "first"
    monkeypatch.setenv("LABKIT_LATE", "second")
    assert started() == (("second", *found[1:]), zygote)
    assert started({"LABKIT_LATE": "env"}) == (("env", *found[1:]), zygote)
    assert started({"LABKIT_LATE": None})[0][0] is None
    monkeypatch.delenv("LABKIT_LATE")
    assert started()[0][0] is None


def test_the_successors_of_ranks_see_what_these_saw(monkeypatch):
    monkeypatch.setenv("LABKIT_LATE", "then")
    with labkit.Ranks(1, device="cpu", backend="fake", quiet=True) as ranks:
        monkeypatch.setenv("LABKIT_LATE", "now")
        ranks.restart()
        assert ranks.run(seen)[0][0] == "then"


@pytest.mark.slow
def test_what_torch_reads_as_it_is_imported_has_its_effect(monkeypatch):
    (_, level, verbose), zygote = started()
    assert (level, verbose) == (logging.NOTSET, False)
    (_, level, _), other = started({"TORCH_LOGS": "+dynamo"})
    assert level == logging.DEBUG and other != zygote
    assert started({"TORCH_LOGS": "+dynamo"})[1] == other, "the second time torch is there"
    monkeypatch.setenv("TORCHDYNAMO_VERBOSE", "1")
    assert started()[0][1:] == (logging.NOTSET, True)
    monkeypatch.delenv("TORCHDYNAMO_VERBOSE")
    assert started()[0][1:] == (logging.NOTSET, False)


@pytest.mark.slow
def test_what_importing_torch_sets_in_the_kernel_is_no_other_environment(monkeypatch):
    monkeypatch.delenv(
        "TORCHINDUCTOR_CACHE_DIR", raising=False
    )  # this process may have imported torch before
    _, zygote = started()
    made = spawn.shared().started.made
    assert "TORCHINDUCTOR_CACHE_DIR" in made, "torch sets it as it is imported"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", made["TORCHINDUCTOR_CACHE_DIR"])
    assert started()[1] == zygote
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert started()[1] != zygote


def test_recording_in_the_kernel_is_no_other_environment(monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    _, zygote = started()
    with record():
        pass
    assert "KINETO_LOG_LEVEL" in os.environ, "or the profiler writes a line"
    assert started()[1] == zygote


@pytest.mark.slow
def test_few_zygotes_are_kept_and_one_that_is_used_is_not_ended(monkeypatch, torch_alone):
    monkeypatch.setattr(spawn, "KEPT", 1)  # each of them imports torch
    kept = labkit.Ranks(1, device="cpu", backend="fake", quiet=True)
    zygotes = [zygote_of({"TORCH_LOGS_FORMAT": f"%(message)s {i}"}) for i in range(spawn.KEPT + 1)]
    assert len(set(zygotes)) == spawn.KEPT + 1
    assert not os.path.exists(f"/proc/{zygotes[0]}")
    assert all(os.path.exists(f"/proc/{pid}") for pid in zygotes[1:])
    assert kept.run(os.getppid)[0] == kept._pool.spawner.process.pid  # type: ignore[union-attr]
    kept.close()
    assert sum(not spawner.users for spawner in spawn._zygotes) <= spawn.KEPT


@pytest.mark.slow
def test_an_import_that_says_much_does_not_wait_for_a_reader(capfd, torch_alone):
    assert zygote_of({"PYTHONVERBOSE": "1"})
    assert os.fstat(spawn.shared(complete_with(PYTHONVERBOSE="1"))._said).st_size > 1 << 16


def complete_with(**env: str) -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": "", **env}


def test_an_import_may_start_a_program(monkeypatch):
    monkeypatch.setattr(os.environ, "__class__", Noting)
    subprocess.run(["true"], check=True)
    assert all(isinstance(name, str) for name in Noting.read), Noting.read
    assert "PATH" in Noting.read


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"": "x"}, "env: '' cannot be 'x': a name is text without '='"),
        ({"A=B": "x"}, "env: 'A=B' cannot be 'x'"),
        ({1: "x"}, "env: 1 cannot be 'x'"),
        ({"A": 1}, "env: 'A' cannot be 1: a name is text without '=', a value is text without a NUL"),
        ({"A": 0}, "env: 'A' cannot be 0"),
        ({"A": "x\0y"}, "env: 'A' cannot be 'x\\x00y'"),
        ([1], "env is a mapping of variables to their values, got list"),
    ],
)
def test_an_environment_that_cannot_be_is_refused_and_harms_no_later_ranks(env, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        labkit.Ranks(1, device="cpu", backend="fake", quiet=True, env=env)
    assert started()


def test_a_zygote_that_cannot_import_torch_says_why():
    with pytest.raises(RuntimeError, match="exit code 1.*nonsense"):
        started({"TORCH_LOGS": "nonsense"})


@pytest.mark.slow
def test_a_call_that_a_signal_handler_breaks_off_leaves_new_ranks(monkeypatch):
    def alarm(*_):
        raise LookupError("the reader's own handler")

    before = signal.signal(signal.SIGALRM, alarm)
    try:
        with labkit.Ranks(1, device="cpu", backend="fake", quiet=True) as ranks:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(LookupError):
                ranks.run(time.sleep, 60)
            assert ranks.run(lambda: "second", timeout=20)[0] == "second"
    finally:
        signal.signal(signal.SIGALRM, before)


def test_an_import_that_fails_is_told_with_its_cause(monkeypatch, tmp_path):
    (tmp_path / "cannot.py").write_text("raise LookupError('cannot be imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(spawn, "PRELOAD", ("cannot",))
    starter = spawn.Spawner(spawn.complete(os.environ))
    with pytest.raises(RuntimeError, match="exit code 1, LookupError: cannot be imported"):
        starter.fork()
    starter.close()
