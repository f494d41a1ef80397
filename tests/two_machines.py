"""Two "machines" on this one: network namespaces joined by a veth pair, one end of which can be slowed down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LEFT, RIGHT = "10.77.0.1", "10.77.0.2"
REPOSITORY = Path(__file__).resolve().parents[1]


def why_not() -> str:
    """Why this machine cannot do it; '' where it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"the command {tool} is not installed"
    trial = "ip link add lktest0 type veth peer name lktest1"
    done = subprocess.run(["unshare", "--net", "sh", "-c", trial], capture_output=True, text=True)
    return (
        "" if done.returncode == 0 else f"this machine forbids network namespaces: {done.stderr.strip()[:80]}"
    )


class Machines:
    """Namespaces 0 and 1 with addresses LEFT and RIGHT; everything in them is ended with the block."""

    def __enter__(self) -> Machines:
        self.started: list[subprocess.Popen[str]] = []
        hold = ["unshare", "--net", "sleep", "600"]
        self.holders = [subprocess.Popen(hold) for _ in range(2)]
        for holder in self.holders:  # until unshare has become sleep
            deadline = time.monotonic() + 30
            while "sleep" not in Path(f"/proc/{holder.pid}/comm").read_text() and time.monotonic() < deadline:
                time.sleep(0.01)
        left, right = (str(h.pid) for h in self.holders)
        self.inside(0, "ip", "link", "add", "vleft", "type", "veth", "peer", "name", "vright", "netns", right)
        for machine, link, address in ((0, "vleft", LEFT), (1, "vright", RIGHT)):
            self.inside(machine, "ip", "addr", "add", f"{address}/24", "dev", link)
            self.inside(machine, "ip", "link", "set", link, "up")
            self.inside(machine, "ip", "link", "set", "lo", "up")
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self.started:
            self.kill(process)
        for holder in self.holders:
            holder.kill()
            holder.wait()

    def inside(self, machine: int, *command: str) -> str:
        """Run a command on one of the machines and return what it printed."""
        enter = ["nsenter", "-t", str(self.holders[machine].pid), "-n"]
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout

    def slow(self, megabits: int) -> None:
        """Shape what the second machine sends."""
        shape = f"tc qdisc replace dev vright root tbf rate {megabits}mbit burst 64kbit latency 400ms"
        self.inside(1, *shape.split())

    def cut(self) -> None:
        """Take the link away, without a word to either side."""
        self.inside(1, "ip", "link", "set", "vright", "down")

    def torchrun(
        self,
        machine: int,
        *arguments: str,
        home: Path,
        a_node: int = 1,
        cwd: Path | None = None,
        more: dict[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        """Start torchrun on one machine as one of two nodes; its output goes to a file, see `output`."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "GLOO_"))}
        env |= {
            "LABKIT_HOME": str(home),
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": "1",
            **(more or {}),
        }
        command = [
            *("nsenter", "-t", str(self.holders[machine].pid), "-n"),
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--nnodes",
                "2",
                "--nproc-per-node",
                str(a_node),
            ),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LEFT}:29511", "--rdzv-id", "labkit"),
            # torchrun finds out by the name of the machine who hosts its store, and these two have the same name
            *("--rdzv-conf", f"is_host={1 - machine}", "--local-addr", (LEFT, RIGHT)[machine], *arguments),
        ]
        log = tempfile.NamedTemporaryFile("w+", prefix=f"labkit-node{machine}-", delete=True)
        process = subprocess.Popen(
            command, stdout=log, stderr=log, text=True, env=env, cwd=cwd, start_new_session=True
        )
        process.log = log  # type: ignore[attr-defined]
        self.started.append(process)
        return process

    @staticmethod
    def output(process: subprocess.Popen[str]) -> str:
        """What a torchrun has printed so far."""
        return Path(process.log.name).read_text()  # type: ignore[attr-defined]

    def kill(self, process: subprocess.Popen[str]) -> None:
        """End torchrun and all it started, at once, as a machine that loses power does."""
        for pid in [*descendants(process.pid), process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        process.wait()


def descendants(pid: int) -> list[int]:
    """The processes below one, by pid."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    below, rest = [], [pid]
    while rest:
        rest += (found := parents.get(rest.pop(), []))
        below += found
    return below
