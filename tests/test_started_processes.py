"""What tests share: a run would pass without it, and take minutes longer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from kernels import AT_ONCE_S, Kernel, gone
from started_processes import LAST_SOCKET, PREFORK

import labkit

pytestmark = pytest.mark.skipif(
    not os.path.exists(LAST_SOCKET), reason="a run in one or two processes has none"
)


def is_fork(pid: int) -> bool:
    """Whether a process was forked by the one that all processes of the run share."""
    return f"\0-m\0prefork\0{PREFORK}\0" in Path(f"/proc/{pid}/cmdline").read_text()


def test_zygotes_are_forks_of_one_process_also_of_a_process_that_has_compiled(monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache_dir()  # names its folder in the environment, as a first compile does
    assert "TORCHINDUCTOR_CACHE_DIR" in os.environ
    with labkit.Ranks(1, device="cpu", backend="fake", quiet=True) as ranks:
        zygote = ranks.run(os.getppid)[0]
    assert is_fork(zygote)


@pytest.mark.kernel
def test_kernels_are_forks_that_draw_are_interrupted_and_end_as_others():
    kernel = Kernel()
    try:
        pid = int(kernel.run("import os; print(os.getpid())")["stdout"])
        assert is_fork(pid) and pid != kernel.manager.provisioner.pid
        drawn = kernel.run("from matplotlib import pyplot; pyplot.plot([1, 2]); pyplot.show()")
        assert drawn["error"] is None and "Figure" in drawn["text"]
        assert (
            kernel.run("import subprocess; print(subprocess.run('exit 3', shell=True).returncode)")["stdout"]
            == "3\n"
        )
        request = kernel.start("import time; print('begun', flush=True); time.sleep(60)")
        while kernel.client.get_iopub_msg(timeout=AT_ONCE_S)["content"].get("text") != "begun\n":
            pass
        kernel.manager.interrupt_kernel()
        assert kernel.finish(request, AT_ONCE_S)["error"][0] == "KeyboardInterrupt"
        os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
        assert not gone([pid])
    finally:
        kernel.close()
