"""How long to wait for what may hang: a limit in seconds that grows on a slow machine and on a busy one.

No limit made here decides what is right: it only ends what would otherwise never end.

    python -m labkit.pace

compiles a fixed small function in a new process with empty caches, and keeps its processor seconds in this environment.
`make setup` does it once.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from labkit.hardware import cores

__all__ = ["KEPT", "measure", "patience"]

KEPT = Path(sys.prefix, "labkit-pace.json")
USUAL_S = 11.0  # processor seconds of the compile on the machine for which the lessons' limits were chosen
SMALL = """
import torch
x = torch.linspace(0, 1, 64, requires_grad=True)
torch.compile(lambda x: (x.sin() @ x.cos()).relu())(x).backward()
assert torch.isfinite(x.grad).all()
"""


def patience(seconds: float) -> float:
    """Scale a limit up by what the fixed compile took here, and by the processes that want the cores now, in seconds.

    >>> patience(60) >= 60
    True
    """
    busy = os.getloadavg()[0] / cores()
    return math.ceil(10 * seconds * max(1.0, _kept_s() / USUAL_S) * max(1.0, busy)) / 10


@functools.cache
def _kept_s() -> float:
    """The processor seconds that `measure` kept; those of the usual machine where there are none."""
    try:
        found = json.loads(KEPT.read_text())["compile_cpu_s"]
        return found if isinstance(found, (int, float)) else USUAL_S
    except (OSError, ValueError, KeyError, TypeError):
        return USUAL_S


def measure() -> float:
    """Compile the fixed function in a new process with empty caches, and return the processor seconds that it took.

    Raises:
        RuntimeError: It does not compile here; the message has the error.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix="labkit-pace-") as caches:
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": caches, "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run([sys.executable, "-c", SMALL], env=env, capture_output=True, text=True)
    if done.returncode:
        said = re.findall(r"^[\w.]+(?:Error|Exception)\b.*", done.stderr, re.MULTILINE)
        raise RuntimeError(f"torch.compile does not work here: {said[-1] if said else done.stderr[-300:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Measure and keep; say in a line what was found."""
    try:
        spent = measure()
    except RuntimeError as error:
        print(f"Note: {error}")
        print("It needs a C++ compiler and Python's headers (g++ and python3-dev on Debian and Ubuntu).")
        return 0  # a reader without a compiler still gets everything that compiles nothing
    KEPT.write_text(json.dumps({"compile_cpu_s": round(spent, 2)}) + "\n")
    print(f"A small compile takes {spent:.1f} s of processor time here.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
