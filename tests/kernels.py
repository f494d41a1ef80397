"""A real Jupyter kernel for tests, and what must be gone after one."""

from __future__ import annotations

import os
import re
import tempfile
import time

from labkit.pace import patience

LIVE = {"labkit": "live"}
# in `quiet_seconds`: far above what it takes (benchmarks/faults.py measures that), far below the limits that would
# otherwise end a cell: 30 s for a stall, half an hour for a collective
AT_ONCE_S = 15.0


def quiet_seconds(began: float) -> float:
    """The seconds since `began`, a `time.monotonic()`, as they would be on a quiet machine of the usual speed."""
    return (time.monotonic() - began) / patience(1.0)


class Kernel:
    """A kernel under test: `run(code)` gives what a reader would see."""

    def __init__(self):
        from jupyter_client import KernelManager

        # not over TCP: Jupyter chooses a kernel's ports before the kernel takes them, and another may be sooner;
        # the same holds for its sockets in a folder where another kernel starts
        self.folder = tempfile.TemporaryDirectory()
        connection = os.path.join(self.folder.name, "kernel.json")
        self.manager = KernelManager(kernel_name="python3", transport="ipc", connection_file=connection)
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(patience(60))
        self.pids: list[int] = []

    def start(self, code: str) -> str:
        return self.client.execute(code)

    def finish(self, request: str, limit: float = 60) -> dict:
        found = {"stdout": "", "stderr": "", "text": "", "html": "", "error": None, "count": None}
        deadline = time.monotonic() + patience(limit)
        while True:
            message = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            if message["parent_header"].get("msg_id") != request:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input":
                found["count"] = content["execution_count"]
            elif kind == "stream":
                found[content["name"]] += content["text"]
            elif kind == "display_data" and content["metadata"] == LIVE:
                continue  # how a long call stands
            elif kind in ("execute_result", "display_data"):
                found["text"] += content["data"].get("text/plain", "")
                found["html"] += content["data"].get("text/html", "")
            elif kind == "error":
                plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
                found["error"] = (content["ename"], plain)
            elif kind == "status" and content["execution_state"] == "idle":
                return found

    def run(self, code: str, limit: float = 60) -> dict:
        return self.finish(self.start(code), limit)

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.folder.cleanup()


def for_each_rank(error: str) -> str:
    """The text of a RankError with a paragraph for every rank, where it has one for several that say the same."""
    found = []
    for paragraph in re.split(r"^(?=\S)", error, flags=re.M):
        head = re.match(r"rank (\d+) \(and ranks? ([\d, a-z]+)\) ", paragraph)
        ranks = [int(head[1])] if head else []
        for words in re.split(", | and ", head[2]) if head else []:
            first, _, last = words.partition(" to ")
            ranks += range(int(first), int(last or first) + 1)
        found += [f"rank {rank} {paragraph[head.end() :]}" for rank in ranks] if head else [paragraph]
    return "".join(p if p.endswith("\n") else p + "\n" for p in found)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may also go while it is read
        return False


def gone(pids: list[int], limit: float = 10.0) -> list[int]:
    deadline = time.monotonic() + patience(limit)
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [pid for pid in pids if alive(pid)]
