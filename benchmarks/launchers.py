"""Starting ranks and calling them: labkit beside a bare floor, torchrun and ipyparallel, all in one run.

    python benchmarks/launchers.py [--starts 20] [--rounds 60] [--only first] [--save DIR]

Two ranks, gloo on CPU unless a row says otherwise. 'started' is up to a finished all_reduce and the end of the ranks.
The first ranks are those of a fresh kernel, up to a finished all_reduce and up to the error of a second call, which
fails, beside an import of torch, Dynamo and Inductor in a fresh interpreter, in turns: once with `import labkit` in the
same cell, and once after the cell of imports with which every lesson begins (`%load_ext labkit` starts to prepare ranks
while the kernel imports torch). `--only first` measures nothing else.
The warm calls are timed inside a real Jupyter kernel, in interleaved batches of ten; a sample is the mean of a batch.
`--save DIR` keeps the Report as DIR/launchers.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

import labkit
from labkit.ranks import RankError, spawn
from labkit.report import provenance
from labkit.timing import Times, interleave

BATCH = 10  # calls in a row, as cells make them; a sample is their mean

HELLO = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
os._exit(0)
"""

IMPORT = """
import time
began = time.perf_counter()
import torch.distributed, torch._dynamo, torch._inductor.compile_fx
print(time.perf_counter() - began)
"""

FIRST = """
import time
began = time.perf_counter()
import labkit
def call():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(1))
ranks = labkit.Ranks(2, device="cpu", backend="gloo", quiet=True)
ranks.run(call)
print("first", time.perf_counter() - began)
def fail():
    import torch, torch.distributed as dist
    if dist.get_rank():
        raise ValueError("on purpose")
    dist.all_reduce(torch.ones(1))
try:
    ranks.run(fail)
except labkit.RankError:
    print("failure", time.perf_counter() - began)
"""

# as a lesson begins: after its cell of imports, without a pause, the one with the ranks
LESSON = """
import time
get_ipython().run_cell("%load_ext labkit\\nimport pandas\\nimport torch\\nimport torch.distributed\\nimport labkit")
def call():
    import torch, torch.distributed as dist
    dist.all_reduce(torch.ones(1))
began = time.perf_counter()
ranks = labkit.Ranks(2, device="cpu", backend="gloo", quiet=True)
ranks.run(call)
print("lesson", time.perf_counter() - began)
"""

# in a kernel: every way to call a function with one all_reduce on two processes that are up
WARM = '''
import json, os, subprocess, sys, time
import torch
import torch.distributed as dist
import labkit
from labkit.timing import interleave

FLOOR = """
import os, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
while os.read(0, 1):
    x = torch.ones(1)
    dist.all_reduce(x)
    os.write(1, b".")
"""

def call():
    import torch, torch.distributed as dist
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def short():  # as a lesson writes it: with the imports of its first cell
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()

def floor():
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}", WORLD_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    pipe = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    both = [subprocess.Popen([sys.executable, "-c", FLOOR], env=dict(env, RANK=str(r)), **pipe) for r in (0, 1)]
    def once():
        for process in both: process.stdin.write(b".")
        for process in both: assert process.stdout.read(1) == b"."
    def end():
        for process in both: process.stdin.close(); process.wait()
    return once, end

def ranks(fn=call, **options):
    group = labkit.Ranks(2, device="cpu", quiet=True, **options)
    def once(): assert group.run(fn).same() == 2.0
    return once, group.close

def parallel():
    import ipyparallel
    began = time.perf_counter()
    cluster = ipyparallel.Cluster(n=2, log_level=50)
    view = cluster.start_and_connect_sync(activate=False)[:]
    def join(port):
        import os, torch, torch.distributed as dist
        torch.set_num_threads(1)
        os.environ.update(GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{{port}}", rank=MINE, world_size=2)
    view.scatter("MINE", [0, 1], flatten=True, block=True)
    view.apply_sync(join, {other})
    assert view.apply_sync(call) == [2.0, 2.0]
    print("started", json.dumps(time.perf_counter() - began))
    def once(): assert view.apply_sync(call) == [2.0, 2.0]
    return once, lambda: cluster.stop_cluster_sync()

made = {{
    "bare processes behind pipes": floor(),
    "labkit": ranks(backend="gloo"),
    "labkit, with imports of a cell": ranks(short, backend="gloo"),
    "labkit over shm": ranks(backend="shm"),
    "labkit, verify=True": ranks(backend="gloo", verify=True),
    "labkit over shm, verify=True": ranks(backend="shm", verify=True),
}}
try:
    made["ipyparallel"] = parallel()
except ImportError:
    print("ipyparallel is not installed: left out")
try:
    def batch(once): return lambda: [once() for _ in range({BATCH})]
    taken = interleave({{name: batch(once) for name, (once, _) in made.items()}}, rounds={rounds}, warmup=3)
finally:
    for _, end in made.values(): end()
print("samples", json.dumps({{name: list(taken[name] / {BATCH}) for name in taken.variants}}))
'''


def all_reduce() -> float:
    """One all_reduce of one element, on a rank."""
    import torch
    import torch.distributed as dist

    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


def fail_once() -> None:
    """Rank 1 raises while rank 0 waits for it."""
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise ValueError("half-way")
    all_reduce()


def fresh() -> Callable[[], None]:
    """Two new ranks, up to a finished all_reduce, and their end."""

    def once() -> None:
        with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
            ranks.run(all_reduce)

    return once


def torchrun() -> None:
    """The same with torch's own launcher, which imports torch in every process every time."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "hello.py"
        script.write_text(HELLO)
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        subprocess.run(
            [*launcher, str(script)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


def replacements(starts: int) -> Times:
    """From the start of the replacement, right after a failed call is understood, to a finished all_reduce."""
    samples = []
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        for _ in range(starts):
            replace = ranks._replace
            began: list[float] = []

            def timed(began: list[float] = began, replace: Callable[[], float] = replace) -> float:
                began.append(time.perf_counter())
                return replace()

            ranks._replace = timed  # type: ignore[method-assign]
            try:
                ranks.run(fail_once)
                raise AssertionError("the call was to fail")
            except RankError:
                pass
            ranks._replace = replace  # type: ignore[method-assign]
            ranks.run(all_reduce)
            samples.append(time.perf_counter() - began[0])
    return Times({"replaced after a failure": samples})


def first_ranks(starts: int) -> Times:
    """The first ranks of a fresh kernel and of a lesson, and the import of torch and its compiler in an interpreter."""
    names = (
        "first ranks of a kernel",
        "with the first failure",
        "first ranks of a lesson",
        "import of torch",
    )
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(starts):
        kernel = in_a_kernel(FIRST)
        done = subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True)
        seconds = (kernel["first"], kernel["failure"], in_a_kernel(LESSON)["lesson"], done.stdout)
        for name, measured in zip(names, seconds, strict=True):
            taken[name].append(float(measured))
    return Times(taken)


def to_import(first: Times) -> list[Any]:
    """The verdicts on what `first_ranks` has measured."""
    *ranks, plain = first.variants
    return [first.compare(name, plain) for name in ranks]


def in_a_kernel(code: str) -> dict[str, str]:
    """Run code in a fresh Jupyter kernel; returns the lines that it printed, by their first words."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        content = message["content"]
        printed.append(content.get("text", "") + "\n".join(content.get("traceback", ())))

    try:
        answer = client.execute_interactive(code, timeout=600, output_hook=hear)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    if answer["content"]["status"] != "ok":
        raise RuntimeError("the kernel measured nothing:\n" + "".join(printed))
    lines = "".join(printed).splitlines()
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}


def warm_calls(rounds: int) -> tuple[Times, list[str], Times | None]:
    """The warm calls, what was left out, and how long ipyparallel took to start."""
    found = in_a_kernel(WARM.format(port=_free_port(), other=_free_port(), rounds=rounds, BATCH=BATCH))
    taken = Times(json.loads(found["samples"]))
    started = Times({"ipyparallel": [json.loads(found["started"])]}) if "started" in found else None
    left_out = [f"{name} {rest}" for name, rest in found.items() if "left out" in rest]
    return taken, left_out, started


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


def idle_and_memory(seconds: float = 5.0) -> pd.DataFrame:
    """What an idle group of two costs: processor time, and each process' own memory."""
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        ranks.run(all_reduce)
        processes = {f"rank {rank}": pid for rank, pid in ranks.run(os.getpid).items()}
        processes["zygote"] = spawn.shared().process.pid
        time.sleep(0.5)
        before = {name: _processor_s(pid) for name, pid in processes.items()}
        time.sleep(seconds)
        rows = [
            (name, _own_memory_mb(pid), seconds, _processor_s(pid) - before[name])
            for name, pid in processes.items()
        ]
    return pd.DataFrame(rows, columns=["process", "own_memory_mb", "idle_s", "processor_s"])


def _own_memory_mb(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) * 1024 / 1e6


def _processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        user, system = file.read().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(starts: int, rounds: int, only: str = "") -> labkit.Report:
    """The whole comparison as a Report; times in seconds."""
    first = first_ranks(max(8, starts // 2))  # fewer give no verdict
    kinds = [("first ranks", first)]
    if only:
        return _report(kinds, to_import(first), {}, [], starts=len(first[first.variants[0]]))
    fresh()()  # the zygote is up
    began = interleave({"labkit, zygote up": fresh()}, rounds=starts)
    slow = interleave({"torchrun": torchrun}, rounds=max(3, starts // 6), warmup=0)
    warm, notes, parallel = warm_calls(rounds)
    kinds += [
        *(("two ranks started", times) for times in (began, slow, parallel) if times is not None),
        ("replaced", replacements(starts)),
        ("warm call in a kernel", warm),
    ]
    floor, ours = "bare processes behind pipes", "labkit"
    pairs = [(ours, floor), ("labkit, with imports of a cell", floor), (ours, "ipyparallel")]
    verdicts = [*to_import(first), *(warm.compare(a, b) for a, b in pairs if b in warm.variants)]
    settings = {"starts": starts, "rounds": rounds, "calls_a_sample": BATCH}
    return _report(kinds, verdicts, {"idle": idle_and_memory()}, notes, **settings)


def _report(
    kinds: list[tuple[str, Times]],
    verdicts: list[Any],
    more: dict[str, pd.DataFrame],
    notes: list[str],
    **settings: int,
) -> labkit.Report:
    rows = []
    for kind, times in kinds:
        middle, low, high = (times.quantile(q) * 1e3 for q in (0.5, 0.1, 0.9))
        rows += [
            (kind, name, middle[name], low[name], high[name], len(times[name])) for name in times.variants
        ]
    summary = pd.DataFrame(rows, columns=["what", "by", "median_ms", "p10_ms", "p90_ms", "n"])
    title, tables = "Starting two ranks and calling them", {"summary": summary, **more}
    return labkit.Report("launchers", title, "gloo · cpu", tables, verdicts, provenance(**settings), notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--only", choices=["first"], default="")
    parser.add_argument("--save", metavar="DIR")
    options = parser.parse_args()
    report = measure(options.starts, options.rounds, options.only)
    print(report)
    if "idle" in report.tables:
        print(report.tables["idle"].to_string(index=False))
    if options.save:
        print(f"saved: {report.save(options.save)}")


if __name__ == "__main__":
    main()
