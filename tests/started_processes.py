"""What the processes have that tests and the examples in docstrings start: a compiler that repeats nothing, zygotes."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from _pytest import runner

from labkit.ranks import spawn
from labkit.ranks.environment import complete

TESTS = Path(__file__).parent
PROCESSES = TESTS / "processes"
# tests of zygotes, faults and kernels, and of what counts as another torch in lesson 12
OF_ZYGOTES = [f"ranks/test_{name}.py" for name in ("environment", "descendants", "status")]
OWN_ZYGOTES = [TESTS / name for name in ("browser", "faults", "kernel", "lessons/cold", *OF_ZYGOTES)]

# else Inductor builds four C++ programs in every cache folder that a test makes, to try the CPU's instructions
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# scikit-learn sets them as it is imported, and ranks in another environment need another zygote
os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "True")
os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")
# of all processes of this run
if "TESTS_KEPT" not in os.environ:
    os.environ["TESTS_KEPT"] = tempfile.mkdtemp(prefix="labkit-tests-")
    atexit.register(shutil.rmtree, os.environ["TESTS_KEPT"], ignore_errors=True)
    # every Python that a test starts finds sitecustomize.py there
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(PROCESSES), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    # what g++ has made is not made again, and it links with the names of torch's libraries: tests/processes/bin/g++
    if sys.platform == "linux" and (compiler := shutil.which("g++")):
        for name in ("c10", "torch", "torch_cpu", "torch_python"):
            library = f"{os.environ['TESTS_KEPT']}/lib{name}.so"
            called = ["-shared", "-o", library, f"-Wl,-soname,lib{name}.so"]
            subprocess.run([compiler, "-x", "c", os.devnull, *called], check=True)
        os.environ["TESTS_GXX"] = compiler
        os.environ["PATH"] = os.pathsep.join([str(PROCESSES / "bin"), os.environ["PATH"]])
# tests that compile here have what sitecustomize.py gives to the processes that they start
protocol = runner.runtestprotocol
protocol.__code__ = protocol.__code__.replace(co_stacksize=1 << 16)
PREFORK = os.path.join(os.environ["TESTS_KEPT"], "prefork")  # so its sockets begin
LAST_SOCKET = f"{PREFORK}.ipykernel_launcher"


def pytest_configure(config):
    """Start the process that becomes the zygotes and kernels of the run, unless that has too few processes."""
    if "PYTEST_XDIST_WORKER" not in os.environ and (getattr(config.option, "numprocesses", None) or 0) > 2:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefork", PREFORK, str(os.getpid()), *spawn.PRELOAD],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=complete({**os.environ, "PYTHON_TESTS_PREFORK": PREFORK}),
            start_new_session=True,
        )
        while not os.path.exists(LAST_SOCKET) and process.poll() is None:
            time.sleep(0.01)


@pytest.fixture(scope="module", autouse=True)
def zygotes(request):
    """Let zygotes and kernels be forked by that process, but for tests that have their own."""
    with pytest.MonkeyPatch.context() as patch:
        if os.path.exists(LAST_SOCKET) and not {request.path, *request.path.parents} & {*OWN_ZYGOTES}:
            patch.setenv("PYTHON_TESTS_PREFORK", PREFORK)
        yield
