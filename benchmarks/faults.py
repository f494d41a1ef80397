"""How long a cell takes to end after each fault: the table of docs/ranks.md, measured in real Jupyter kernels.

    python benchmarks/faults.py [--runs 5] [--save DIR] [--docs]

Every fault is injected on two ranks and on four, with the peers waiting in a gloo all_reduce and in a C++ store wait.
A time runs from the start of the cell, or from the limit, the press of stop or the signal that ends the kernel, to
the end of the cell, ranks replaced, or of the last process. `--save DIR` keeps the Report as DIR/faults.json;
`--docs` writes its table into docs/ranks.md.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

import labkit
from labkit.report import provenance

DOCS = Path(__file__).resolve().parents[1] / "docs" / "ranks.md"
BEGIN, END = "<!-- measured -->", "<!-- end -->"
STALL_S, TIMEOUT_S = 1.0, 1.0

SETUP = """
import ctypes, os, signal, sys, time
import torch, torch.distributed as dist
import labkit
options = dict(device="cpu", backend="gloo", quiet=True, live=False)
groups = {{n: labkit.Ranks(n, stall={stall}, **options) for n in (2, 4)}}
checked = {{n: labkit.Ranks(n, verify=True, **options) for n in (2, 4)}}
def in_collective():
    dist.all_reduce(torch.ones(1))
def in_store():
    dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False).wait(["never"])
def right():
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item() == dist.get_world_size()
"""

# what happens, on the last rank -> code, what the cell must say, and the seconds that are no part of the answer
FAULTS: dict[str, tuple[str, str, float]] = {
    "a rank raises": ("raise ValueError('mine')", r"raised ValueError: mine", 0),
    "a rank raises, its group destroyed on the way": (
        "\n        try: raise ValueError('mine')\n        finally: dist.destroy_process_group()",
        r"raised ValueError: mine",
        0,
    ),
    "a rank is killed (SIGKILL)": ("os.kill(os.getpid(), 9)", r"killed by SIGKILL", 0),
    "a rank calls `os._exit(3)`": ("os._exit(3)", r"exit code 3", 0),
    "a rank crashes (SIGSEGV)": ("ctypes.string_at(0)", r"killed by SIGSEGV", 0),
    "a rank runs out of memory": (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (8 << 30,) * 2); torch.ones(1 << 32)",
        r"can't allocate memory",
        0,
    ),
    "a rank never comes: stall limit": ("return", r"^stalled", STALL_S),
    "a rank sleeps for ever: timeout": ("time.sleep(600)", r"^no end within", TIMEOUT_S),
    "a rank loops for ever: timeout": ("exec('while True: pass')", r"^no end within", TIMEOUT_S),
}
# what every rank runs -> code and what the cell must say, with verify=True
SILENT = {
    "another reduction, checked": (
        "dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if last else dist.ReduceOp.SUM)",
        "different reduction",
    ),
    "two tensors swapped, checked": (
        "a, b = torch.ones(4), torch.ones(4) * 9\n    for t in (a, b) if last else (b, a): dist.all_reduce(t)",
        "swapped tensors",
    ),
}


class Kernel:
    """A Jupyter kernel; `run` and `finish` give a cell's error text ('' for none)."""

    def __init__(self) -> None:
        from jupyter_client.manager import start_new_kernel

        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def finish(self, request: str) -> str:
        error = ""
        while True:
            message = self.client.get_iopub_msg(timeout=120)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "error":
                error = "\n".join(message["content"]["traceback"]) or message["content"]["ename"]
            elif message["msg_type"] == "stream":
                self.said = message["content"]["text"]
            elif message["content"].get("execution_state") == "idle":
                return re.sub(r"\x1b\[[0-9;]*m", "", error)

    def run(self, code: str) -> str:
        return self.finish(self.start(code))

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def faults(kernel: Kernel) -> Iterator[dict[str, Any]]:
    """Every fault once, in each of its settings."""
    for n in (2, 4):
        for peers in ("in_collective", "in_store"):
            for what, (how, words, apart) in FAULTS.items():
                limit = f", timeout={TIMEOUT_S}" if "timeout" in what else ""
                code = (
                    f"def faulty():\n    if dist.get_rank() == {n - 1}:\n        {how}\n    {peers}()\n"
                    f"groups[{n}].run(faulty{limit})"
                )
                seconds = timed(kernel, code, words) - apart
                yield {"what": what, "ranks": n, "peers": peers, "seconds": seconds}
                again(kernel, f"groups[{n}]")
        for what, (body, words) in SILENT.items():
            code = (
                f"def silent():\n    last = dist.get_rank() == {n - 1}\n    {body}\nchecked[{n}].run(silent)"
            )
            yield {"what": what, "ranks": n, "peers": "in_collective", "seconds": timed(kernel, code, words)}
            again(kernel, f"checked[{n}]")


def timed(kernel: Kernel, code: str, words: str) -> float:
    """Seconds from the start of a cell to its end. Raises RuntimeError unless it ended with the right words."""
    began = time.perf_counter()
    error = kernel.run(code)
    taken = time.perf_counter() - began
    if not re.search(words, error, re.M):
        raise RuntimeError(f"the cell was to say {words!r} and said {error!r}:\n{code}")
    return taken


def again(kernel: Kernel, group: str) -> None:
    """The next cell must compute the right number."""
    if error := kernel.run(f"assert {group}.run(right).same()"):
        raise RuntimeError(f"the cell after a fault failed: {error}")


def stops(kernel: Kernel) -> Iterator[dict[str, Any]]:
    """The stop button, once and twice, while ranks wait."""
    for n in (2, 4):
        for peers in ("in_collective", "in_store"):
            for presses in (1, 2):
                code = f"def stuck():\n    if dist.get_rank(): {peers}()\n    time.sleep(600)\ngroups[{n}].run(stuck)"
                request = kernel.start(code)
                time.sleep(0.5)
                began = time.perf_counter()
                for press in range(presses):
                    kernel.manager.interrupt_kernel()
                    time.sleep(0.1 * (press + 1 < presses))
                error = kernel.finish(request)
                if "KeyboardInterrupt" not in error:
                    raise RuntimeError(f"stop gave {error!r}")
                what = "the stop button" + (", twice" if presses == 2 else "")
                yield {"what": what, "ranks": n, "peers": peers, "seconds": time.perf_counter() - began}
                again(kernel, f"groups[{n}]")


def ends() -> Iterator[dict[str, Any]]:
    """The kernel killed, restarted and shut down while four ranks work: until every process is gone."""
    for how in ("killed", "restarted", "shut down"):
        kernel = Kernel()
        try:
            kernel.run(SETUP.format(stall=STALL_S))
            kernel.run(
                "from labkit.ranks import spawn\n"
                "print(*groups[4].run(os.getpid).values(), spawn.shared().process.pid, flush=True)"
            )
            pids = list(map(int, kernel.said.split()))
            kernel.start("groups[4].run(time.sleep, 600)")
            time.sleep(0.5)
            began = time.perf_counter()
            if how == "killed":
                kernel.manager.signal_kernel(9)
            elif how == "restarted":
                kernel.manager.restart_kernel(now=True)
            else:
                kernel.manager.shutdown_kernel(now=False)
                began = time.perf_counter()  # Jupyter gives a busy kernel some seconds first
            while any(map(alive, pids)):
                time.sleep(0.005)
                if time.perf_counter() - began > 30:
                    raise RuntimeError(f"processes outlived the kernel that was {how}")
            seconds = time.perf_counter() - began
            yield {"what": f"the kernel is {how}", "ranks": 4, "peers": "in_collective", "seconds": seconds}
        finally:
            kernel.close()


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may also go while it is read
        return False


def carried() -> Iterator[dict[str, Any]]:
    """1 GB to one rank and back: seconds, and the most memory that kernel and rank held."""
    import torch

    size = 1 << 30
    with labkit.Ranks(2, device="cpu", backend="gloo", quiet=True) as ranks:
        x = torch.arange(size // 8)
        for what, carry in {
            "1 GB argument": lambda: ranks.run(len, x, ranks=[1]),
            "1 GB result": lambda: ranks.run(torch.arange, size // 8, ranks=[1]),
        }.items():
            forget_peak(), ranks.run(forget_peak)
            before = resident(), ranks.run(resident)[1]
            began = time.perf_counter()
            carry()
            seconds = time.perf_counter() - began
            more = (peak() - before[0]) / 1e9, (ranks.run(peak)[1] - before[1]) / 1e9
            yield {"what": what, "seconds": seconds, "kernel_gb": more[0], "rank_gb": more[1]}


def forget_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak() -> int:
    return _status("VmHWM")


def resident() -> int:
    return _status("VmRSS")


def _status(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def measure(runs: int) -> labkit.Report:
    """Every fault `runs` times."""
    rows: list[dict[str, Any]] = []
    kernel = Kernel()
    try:
        if error := kernel.run(SETUP.format(stall=STALL_S)):
            raise RuntimeError(error)
        for run in range(runs):
            found = [*faults(kernel), *stops(kernel)]
            rows += ({"run": run, **row} for row in found)
    finally:
        kernel.close()
    rows += ({"run": run, **row} for run in range(runs) for row in ends())
    raw = pd.DataFrame(rows)
    by = raw.groupby("what", sort=False)["seconds"]
    summary = by.agg(median_s="median", most_s="max", n="size")
    on_4 = raw[raw["ranks"] == 4].groupby("what")["seconds"].max()
    summary.insert(2, "most_on_4_s", on_4)
    return labkit.Report(
        "faults",
        "How long a cell takes to end after a fault",
        "gloo · cpu",
        {"summary": summary.reset_index(), "carried": pd.DataFrame(carried()), "raw": raw},
        provenance=provenance(runs=runs, stall_s=STALL_S, timeout_s=TIMEOUT_S, cores=os.cpu_count()),
        notes=["seconds beyond the stall limit or timeout, the press of stop, the kernel's end"],
    )


def table(report: labkit.Report) -> str:
    """The summary as the table of docs/ranks.md."""
    where = f"{report.provenance['hardware']}, torch {report.provenance['torch']}, {report.provenance['date'][:10]}"
    lines = [
        f"{report.provenance['runs']} runs of every setting on {where}.",
        "",
        "| what happens | the cell has ended after, median | longest |",
        "|---|---|---|",
    ]
    for row in report.tables["summary"].to_dict("records"):
        plus = "limit + " if "limit" in row["what"] or "timeout" in row["what"] else ""
        lines.append(f"| {row['what']} | {plus}{row['median_s']:.2f} s | {plus}{row['most_s']:.2f} s |")
    lines += ["", "| what travels | seconds | more memory, kernel | more memory, rank |", "|---|---|---|---|"]
    for row in report.tables["carried"].to_dict("records"):
        lines.append(
            f"| {row['what']} | {row['seconds']:.1f} | {row['kernel_gb']:.1f} GB | {row['rank_gb']:.1f} GB |"
        )
    return "\n".join(lines)


def write_docs(report: labkit.Report) -> None:
    """Put the table between its marks in docs/ranks.md."""
    text = DOCS.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{BEGIN}\n{table(report)}\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--save", metavar="DIR")
    parser.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    report = measure(options.runs)
    print(report)
    print(report.tables["carried"].to_string(index=False))
    if options.save:
        print(f"saved: {report.save(options.save)}")
    if options.docs:
        write_docs(report)


if __name__ == "__main__":
    main()
