"""Starting ranks and calling them, side by side in one run: the zygote, torchrun, and a warm call in a kernel.

    python benchmarks/launchers.py [--starts 20] [--torchruns 3]

Prints medians with the 10th and 90th percentile. Two ranks, gloo on CPU; 'started' means a finished all_reduce.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import labkit
from labkit.timing import Measurement

HELLO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
os._exit(0)
"""

WARM = """
import labkit
from labkit.timing import interleave
ranks = labkit.Ranks(2, device="cpu", backend="{backend}", quiet=True)
def call():
    import torch, torch.distributed as dist
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()
taken = interleave({{"call": lambda: ranks.run(call)}}, rounds=300, warmup=30)["call"]
print("samples", *taken.samples)
"""


def all_reduce() -> float:
    """One all_reduce of one element, on a rank."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def zygote(starts: int) -> Measurement:
    """Two fresh ranks up to a finished all_reduce, once the zygote is up."""
    labkit.Ranks(2, device="cpu", quiet=True).close()
    samples = []
    for _ in range(starts):
        began = time.perf_counter()
        ranks = labkit.Ranks(2, device="cpu", quiet=True)
        ranks.run(all_reduce)
        samples.append(time.perf_counter() - began)
        ranks.close()
    return Measurement("labkit.Ranks(2), zygote up", tuple(samples))


def replacement(starts: int) -> Measurement:
    """From the end of a failed call's message to a finished all_reduce on the new ranks."""
    samples = []
    with labkit.Ranks(2, device="cpu", quiet=True) as ranks:
        for _ in range(starts):
            began = time.perf_counter()
            ranks.restart()
            ranks.run(all_reduce)
            samples.append(time.perf_counter() - began)
    return Measurement("replace both ranks", tuple(samples))


def torchrun(starts: int) -> Measurement:
    """The same with torch's own launcher, which imports torch in every process every time."""
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "hello.py"
        script.write_text(HELLO)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(script),
        ]
        for _ in range(starts):
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            samples.append(time.perf_counter() - began)
    return Measurement("torchrun --nproc-per-node 2", tuple(samples))


def warm_call(backend: str) -> Measurement:
    """A function with one all_reduce, called on both ranks from a real Jupyter kernel, timed inside the kernel."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    try:
        printed: list[str] = []
        client.execute_interactive(
            textwrap.dedent(WARM.format(backend=backend)),
            timeout=120,
            output_hook=lambda m: (
                printed.append(m["content"].get("text", "")) if m["msg_type"] == "stream" else None
            ),
        )
        found = re.search(r"samples (.*)", "".join(printed))
        if found is None:
            raise RuntimeError(f"the kernel printed no samples: {''.join(printed)!r}")
        return Measurement(f"warm call in a kernel, {backend}", tuple(map(float, found[1].split())))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--torchruns", type=int, default=3)
    options = parser.parse_args()
    print(line("", "median", "p10", "p90", "n"))
    for taken in (
        zygote(options.starts),
        replacement(options.starts),
        torchrun(options.torchruns),
        warm_call("gloo"),
        warm_call("shm"),
    ):
        print(
            line(
                taken.name, *(f"{s * 1e3:.2f} ms" for s in (taken.median, taken.p10, taken.p90)), str(taken.n)
            )
        )


def line(name: str, *columns: str) -> str:
    return f"{name:<32}" + "".join(f"{column:>13}" for column in columns)


if __name__ == "__main__":
    main()
