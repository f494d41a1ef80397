"""One kernel a file and a backend: two ranks and four, how a peer waits, and what a cell after a fault must give."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest
from kernels import Kernel, quiet_seconds

SETUP = """
import ctypes, os, resource, signal, sys, time
import torch, torch.distributed as dist
import labkit
groups = {n: labkit.Ranks(n, device="cpu", backend="BACKEND", quiet=True) for n in (2, 4)}
ranks = groups[2]
def in_collective():
    dist.all_reduce(torch.ones(1))
def in_store():
    dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False).wait(["never"])
def right_number():
    x = torch.full((2,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    return x.tolist()
"""


@dataclass
class Cell:
    """What a cell gave: its output, its error as (name, text), and how long it took (see `quiet_seconds`)."""

    out: dict
    seconds: float

    @property
    def error(self) -> str:
        assert self.out["error"] is not None, (
            f"no error; printed {self.out['stdout']!r} {self.out['stderr']!r}"
        )
        return self.out["error"][1]


class Lesson:
    """A kernel that has ranks. `cell` runs code; `right` says whether the ranks still compute."""

    def __init__(self, kernel: Kernel, backend: str):
        self.kernel, self.backend = kernel, backend

    def cell(self, code: str, limit: float = 60) -> Cell:
        started = time.monotonic()
        out = self.kernel.run(code, limit)
        return Cell(out, quiet_seconds(started))

    def value(self, code: str, limit: float = 60) -> str:
        found = self.cell(code, limit)
        assert found.out["error"] is None, found.out["error"][1]
        return found.out["text"]

    def right(self, n: int = 2) -> bool:
        """A stale collective that paired with this one would give another number."""
        total = float(n * (n + 1) // 2)
        return self.value(f"groups[{n}].run(right_number).same()") == str([total, total])


def pytest_generate_tests(metafunc):
    """A file whose faults are those of the table names both backends: `BACKENDS = ("gloo", "shm")`."""
    if "lesson" in metafunc.fixturenames:
        backends = getattr(metafunc.module, "BACKENDS", ("gloo",))
        metafunc.parametrize("lesson", backends, indirect=True, scope="module")


@pytest.fixture(scope="module")
def lesson(request):
    kernel = Kernel()
    assert kernel.run(SETUP.replace("BACKEND", request.param), 120)["error"] is None
    yield Lesson(kernel, request.param)
    kernel.close()
