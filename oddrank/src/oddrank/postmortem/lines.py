"""The lines of a text file, with bounded memory, and the prefixes of torchrun, Slurm, torch's ranks and glog."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SRUN", "Line", "Lines", "looks_like", "prefix"]

LONGEST = 64 * 1024  # bytes of a line that are looked at
STEP = 4 * 2**20  # bytes between two signs of progress

RANK = re.compile(r"^\[(?:rank ?|Rank )(\d{1,5})\]:? ?")
TEE = re.compile(r"^\[([A-Za-z_]\w*?)(\d{1,5})\]:")  # torchrun's --tee: role and local rank
SRUN = re.compile(r"^ *(\d{1,5}): ")
GLOG = re.compile(r"^\[?([VDIWEFC])(\d{4} \d\d:\d\d:\d\d\.\d+) +(?:(\d+) )?([^\s\]]+:\d+)\] ?")
COMPILE_ID = re.compile(r"^\[(!?\d+/\d+)(?:_\d+)?\] ?")
ARTIFACT = re.compile(r"^\[__(\w+)\] ?")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log without its prefixes; `rank` and `pid` where a prefix has them."""

    text: str
    rank: int | None = None
    local: int | None = None
    pid: str = ""
    time: str = ""
    compile: str = ""
    glog: bool = False


def prefix(line: str, srun: bool = False) -> Line:
    """Take the prefixes of torchrun, Slurm (only where the file has them), torch's ranks and glog off a line.

    >>> prefix("[default1]:[rank3]:V1128 03:04:14.85 293 torch/_dynamo/guards.py:53] [1/1] [__recompiles] Recompiling")
    Line(text='Recompiling', rank=3, local=1, pid='293', time='1128 03:04:14.85', compile='1/1', glog=True)
    """
    rank = local = None
    if srun and (found := SRUN.match(line)):
        local, line = int(found[1]), line[found.end() :]
    for _ in range(3):
        if found := RANK.match(line):
            rank, line = int(found[1]), line[found.end() :]
        elif found := TEE.match(line):
            local, line = int(found[2]), line[found.end() :]
        else:
            break
    found = GLOG.match(line)
    if not found:
        return Line(line, rank, local)
    line, pid, time = line[found.end() :], found[3] or "", found[2]
    number = COMPILE_ID.match(line)
    line = line[number.end() :] if number else line
    line = ARTIFACT.sub("", line)
    whose = re.match(r"\[(?:PG ID .*?)?Rank (\d{1,5})\] ", line)
    rank = int(whose[1]) if whose and rank is None else rank
    return Line(line, rank, local, pid, time, number[1] if number else "", True)


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is text; zero bytes are holes, as a log has that was cut while it was written.

    >>> looks_like(b"Traceback"), looks_like(b"\\x00\\x01"), looks_like(b"\\x00\\x00Traceback")
    (True, False, True)
    """
    text = head.replace(b"\0", b"").decode("utf-8", "replace")
    odd = sum(char == "\ufffd" or (char < " " and char not in "\t\n\r\f\b\x1b") for char in text)
    return bool(text.strip()) and odd <= (0 if b"\0" in head else 2) + len(text) // 50


class Lines:
    """The lines of a file with their numbers, one at a time, cut to `LONGEST` bytes.

    Args:
        path: of the file.
        progress: is called now and then with the bytes that were read.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] = lambda done: None) -> None:
        self.path, self.progress = path, progress

    def __iter__(self) -> Iterator[tuple[int, str]]:
        with self.path.open("rb") as file:
            number, going_on, done, shown = 0, False, 0, 0
            while line := file.readline(LONGEST):
                done += len(line)
                if done - shown > STEP:
                    shown = done
                    self.progress(done)
                number += not going_on
                if not going_on:
                    yield number, line.replace(b"\0", b"").decode("utf-8", "replace").rstrip("\r\n")
                going_on = not line.endswith(b"\n")
