"""Runs on a machine with NVIDIA GPUs what no machine without them can tell, and leaves one folder to be sent back.

    python -m tools.gpu [FOLDER]      what `make gpu` calls; FOLDER is build/gpu by default

Every step runs, whatever became of those before it. Its output is kept in a file of its own; `summary.md` says for each
step what it ran, how it ended and how long it took.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from labkit import hardware
from ledger.facts import load
from tools.fit import ROOT

__all__ = ["Done", "Step", "main", "run", "steps"]

FOLDER = ROOT / "build" / "gpu"
LESSONS = ("04", "05", "06", "07", "12")
MINUTE = 60.0
ENDED = {0: "passed", 124: "ended: out of time"}


@dataclass(frozen=True)
class Step:
    """A command line, the arguments behind `python -m`, with its name and the most seconds that it may take."""

    name: str
    command: tuple[str, ...]
    seconds: float = 15 * MINUTE


@dataclass(frozen=True)
class Done:
    """How a step ended: its exit status (124: out of time), seconds, and the last line that it printed."""

    step: Step
    status: int
    seconds: float
    last: str

    @property
    def ended(self) -> str:
        return ENDED.get(self.status, f"failed: exit status {self.status}")


def steps(folder: Path) -> list[Step]:
    """What is run, in order: the shortest and most telling first."""
    needing = [fact.id for fact in load().facts if fact.needs]
    lessons = [
        Step(f"lesson {number}", ("labkit", "run", number, "--save", str(folder / "recorded")))
        for number in LESSONS
    ]
    return [
        Step("doctor", ("labkit", "doctor"), 2 * MINUTE),
        Step("tests", ("pytest", "-q", "-n", "0", "-m", "gpu", "tests")),
        Step("ledger", ("labkit", "ledger", "--only", *needing, "--save", str(folder / "recorded"))),
        Step("dumps", ("tools.dumps", str(folder / "dumps")), 4 * MINUTE),
        Step("stream traces", ("tools.stream_traces", str(folder / "traces")), 4 * MINUTE),
        *lessons,
    ]


def run(step: Step, folder: Path) -> Done:
    """Run a step and keep its output in `<name>.txt`."""
    output = folder / f"{step.name.replace(' ', '-')}.txt"
    began = time.monotonic()
    with output.open("w", encoding="utf-8") as file:
        try:
            command = [sys.executable, "-m", *step.command]
            status = subprocess.run(
                command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, timeout=step.seconds
            ).returncode
        except subprocess.TimeoutExpired:
            status = 124
    lines = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return Done(step, status, time.monotonic() - began, lines[-1][:160] if lines else "")


def main(arguments: Sequence[str] | None = None, run: Callable[[Step, Path], Done] = run) -> int:
    """The command line; returns 2 without a GPU, 1 where a step failed."""
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args(arguments).folder.resolve()
    if not hardware.gpus():
        built = " (a build for the CPU)" if hardware.torch_version().endswith("+cpu") else ""
        print(
            "make gpu needs an NVIDIA GPU that torch can use, and there is none here: torch is "
            f"{hardware.torch_version()}{built}, and nvidia-smi names the GPUs that a driver knows",
            file=sys.stderr,
        )
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "machine.json").write_text(json.dumps(hardware.describe(), indent=1) + "\n", encoding="utf-8")
    done: list[Done] = []
    for step in steps(folder):
        print(f"{step.name}: at most {step.seconds / MINUTE:.0f} minutes ...", flush=True)
        done.append(run(step, folder))
        print(f"{step.name}: {done[-1].ended} after {done[-1].seconds:.0f} s", flush=True)
        (folder / "summary.md").write_text(
            _summary(done), encoding="utf-8"
        )  # whatever comes next, this is kept
    print(f"everything is in {folder}: send it back as it is")
    return int(any(one.status for one in done))


def _summary(done: Sequence[Done]) -> str:
    facts = hardware.describe()
    lines = [f"# labkit on {facts['hardware']}", "", f"torch {facts['torch']}, driver {facts['driver']}", ""]
    lines += ["| step | ended | seconds | last line |", "|---|---|---|---|"]
    for one in done:
        last = one.last.replace("|", "\\|")
        lines.append(f"| {one.step.name} | {one.ended} | {one.seconds:.0f} | {last} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
