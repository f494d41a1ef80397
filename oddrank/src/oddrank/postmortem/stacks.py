"""Stacks of living processes: the text of `py-spy dump` and of faulthandler, line by line out of any text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from oddrank.postmortem.rows import Frame, Row, above_own, own_lines

__all__ = ["WORKER", "Stacks"]

# faulthandler: innermost first, the thread that asked is "Current", the main thread comes last
FAULT = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\)")
FAULT_FRAME = re.compile(r'^  File "([^"]+)", line (\d{1,9}) in (.+)$')
SPY_PROCESS = re.compile(r"^Process (\d+): (.*)$")
SPY = re.compile(r'^Thread (0x[0-9A-Fa-f]+|\d+) \((idle|active)[^)]*\)(?:: "([^"]*)")?')
SPY_FRAME = re.compile(r"^    (.+) \((?:([^():]+)(?::(\d{1,9}))?)\)$")
# what the innermost frame tells
COLLECTIVE = re.compile(
    r"torch/distributed/(distributed_c10d|_functional_collectives|c10d_logger)|/_ops\.py$"
)
COMPILES = re.compile(
    r"torch/_dynamo/(convert_frame|output_graph|symbolic_convert)|torch/_inductor/compile_fx"
)
WORKER_FILE = re.compile(r"torch/utils/data/_utils/worker\.py$")
LOADER = re.compile(r"torch/utils/data/dataloader\.py$")
MESSAGES = ("send", "recv", "send_object_list", "recv_object_list", "_wait_batch_p2p", "batch_isend_irecv")
WORKER = "a worker of a DataLoader"
MOST_FRAMES = 300


@dataclass(slots=True)
class _Thread:
    line: int
    main: bool
    spy: bool
    frames: list[Frame] = field(default_factory=list)


class Stacks:
    """Takes lines, and keeps the stack of the main thread of each process that was printed.

    >>> stacks = Stacks()
    >>> text = 'Thread 0x01 (most recent call first):\\n  File "train.py", line 7 in batch\\n\\n'
    >>> [row.where for n, line in enumerate(text.split("\\n"), 1) for row in stacks.take(0, "s.txt", n, line)]
    ['train.py:7 in batch']
    """

    def __init__(self) -> None:
        self.thread: _Thread | None = None
        self.pid = ""

    def take(self, rank: int | None, file: str, number: int, line: str) -> list[Row]:
        """Take one line; returns a row where it ends the stack of a main thread."""
        if process := SPY_PROCESS.match(line):
            self.pid = process[1]
            return []
        if FAULT.match(line):
            rows = self.end(rank, file)
            self.thread = _Thread(number, True, False)
            return rows
        if begin := SPY.match(line):
            rows = self.end(rank, file)
            self.thread = _Thread(number, begin[3] in (None, "MainThread"), True)
            return rows
        if self.thread is None:
            return []
        frame = (SPY_FRAME if self.thread.spy else FAULT_FRAME).match(line)
        if frame and len(self.thread.frames) < MOST_FRAMES:
            file_, at, name = (
                (frame[2], frame[3], frame[1]) if self.thread.spy else (frame[1], frame[2], frame[3])
            )
            self.thread.frames.append(Frame(file_, int(at or 0), name))
            return []
        return self.end(rank, file)

    def end(self, rank: int | None, file: str) -> list[Row]:
        """The row of the stack that was being read, if it is one of a main thread."""
        thread, self.thread = self.thread, None
        if thread is None or not thread.main or not thread.frames:
            return []
        frames = tuple(thread.frames)
        if not thread.spy and frames[-1].file.endswith("threading.py"):
            return []  # faulthandler names no thread; all but the main one begin in threading.py
        text = _position(frames)
        inner = (
            frames[: next(i for i, f in enumerate(frames) if WORKER_FILE.search(f.file))]
            if text == WORKER
            else frames
        )
        return [Row(rank, "stack", file, thread.line, text, own_lines(inner), self.pid, frames=frames)]


def _position(frames: tuple[Frame, ...]) -> str:
    """What a stack says its thread does: one of the texts below, 'in send', 'in recv' and the like, or 'elsewhere'.

    >>> recv = Frame("torch/distributed/distributed_c10d.py", 9, "recv")
    >>> _position((Frame("train.py", 3, "batch"),)), _position((recv,))
    ('elsewhere', 'in recv')
    """
    above = above_own(frames)
    compiles = [
        frame for frame in frames if COMPILES.search(frame.file) and frame.name != "<module>"
    ]  # no import
    if any(WORKER_FILE.search(frame.file) for frame in frames):
        return WORKER
    message = next((f.name for f in above[:8] if f.name in MESSAGES and "torch/distributed/" in f.file), "")
    if message and not set(compiles) & set(above):
        return f"in {message}" if message in MESSAGES[:4] else "in send or recv of a pipeline"
    if any(COLLECTIVE.search(frame.file) for frame in above[:8]) and not set(compiles) & set(above):
        return "in a collective"
    if compiles:
        return "compiling"
    if any("threading.py" in frame.file and frame.name == "_shutdown" for frame in frames):
        return "exiting"
    if any(LOADER.search(frame.file) for frame in above):
        return "waiting for a worker of its DataLoader"
    if any(("/" + f.file).endswith("/queue.py") and f.name == "get" for f in above[:3]):
        return "waiting in queue.get"
    return "elsewhere"
