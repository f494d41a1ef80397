"""What stands in several lines of a log: a traceback, a recompile, the stack of a watchdog, a launcher's entry."""

from __future__ import annotations

import re

from oddrank.postmortem.lines import Line
from oddrank.postmortem.phrases import SENTENCES
from oddrank.postmortem.rows import Frame, Row, own_lines, short

__all__ = [
    "ASIDE",
    "LAST",
    "MORE",
    "OVER",
    "Block",
    "Exit",
    "Recompile",
    "Traceback",
    "WatchdogStack",
    "block",
]

# a line belongs to the block, is its last one, stands behind it, or stands within and is no part of it
MORE, LAST, OVER, ASIDE = range(4)

FINAL = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Unsupported|Iteration))(?:: (.*))?$"
)
FRAME = re.compile(r'^  File "([^"]+)", line (\d{1,9}), in (.+)$')
NCCL_FRAME = re.compile(r"^#\d+ (.+) from (.+):(\d{1,9})$")
FUNCTION = re.compile(r"Recompiling function (.+?) in (\S+)")
GUARD = re.compile(r"^\s*- (\d+/\d+): (.+)$")
PLACE = re.compile(r"\[/\S*/gloo/\S+:\d+\] ")  # of gloo's own source
STORE = re.compile(r"keys: (.+)")
DEVICES = re.compile(
    r", TensorDeviceTypes=TensorOptions\((?:[^()]|\([^()]*\))*\)"
)  # of a collective's fingerprint
ENTRY = re.compile(r"^\[\d+\]:$")
FIELD = re.compile(r"^  (rank|exitcode|time) +: +(.+)$")
OF_TRACEBACKS = ("named", "gloo", "memory", "watchdog", "store")
MOST_FRAMES = 400


class Block:
    """A block whose lines are still coming; it begins with a line of this number."""

    def __init__(self, number: int, line: Line) -> None:
        self.number, self.time = number, line.time
        self.pids: dict[str, int] = {}  # which process is which rank

    def take(self, number: int, line: Line) -> int:
        """Take the next line, and say whether it belongs here: MORE, LAST, OVER or ASIDE."""
        raise NotImplementedError

    def row(self, rank: int | None, file: str) -> Row | None:
        """The evidence, None where there is none."""
        raise NotImplementedError


class Traceback(Block):
    """Python's traceback; `thread` is the name of the thread that it ended."""

    def __init__(self, number: int, line: Line, thread: str = "") -> None:
        super().__init__(number, line)
        self.thread, self.text = thread, ""
        self.frames: list[Frame] = []

    def take(self, number: int, line: Line) -> int:
        text = line.text
        if found := FRAME.match(text):
            self.frames = [*self.frames[-MOST_FRAMES:], Frame(found[1], int(found[2]), found[3])]
            return MORE
        if text.startswith("  ") or not text.strip():
            return MORE if text.strip() or not self.frames else ASIDE
        if line.glog or text.startswith("Traceback"):
            return OVER
        self.number = self.number if self.text else number
        self.text = f"{self.text} {text.strip()}".strip()
        # else the error is in the next line
        return MORE if text.rstrip().endswith("raised:") and len(self.text) < 200 else LAST

    def row(self, rank: int | None, file: str) -> Row | None:
        if not self.text:
            return None
        frames = tuple(reversed(self.frames))
        text = DEVICES.sub("", PLACE.sub("", self.text))
        kind = next((k for k, p in SENTENCES if k in OF_TRACEBACKS and p.search(text)), "error")
        name, key = FINAL.match(text), self.thread
        if kind == "store" and (found := STORE.search(text)):
            key = short(found[1], 200)
        kind = "thread" if self.thread and kind == "error" else kind
        key = key or (name[1] if name else "")
        return Row(rank, kind, file, self.number, short(text), own_lines(frames), key, self.time, frames)


class WatchdogStack(Block):
    """The stack of the failed collective that NCCL's watchdog prints."""

    def __init__(self, number: int, line: Line) -> None:
        super().__init__(number, line)
        self.frames: list[Frame] = []

    def take(self, number: int, line: Line) -> int:
        if found := NCCL_FRAME.match(line.text):
            self.frames.append(Frame(found[2], int(found[3]), found[1]))
            return MORE
        return OVER

    def row(self, rank: int | None, file: str) -> Row | None:
        text, frames = "the watchdog's stack of the failed collective", tuple(self.frames[:MOST_FRAMES])
        where = own_lines(frames)
        return (
            Row(rank, "watchdog", file, self.number, text, where, "", self.time, frames) if frames else None
        )


class Recompile(Block):
    """A recompile, with the first guard that failed."""

    def __init__(self, number: int, line: Line, name: str, place: str) -> None:
        super().__init__(number, line)
        self.compile, self.guard = line.compile, ""
        self.where = short(f"{place.rpartition('/')[2]} in {name}")

    def take(self, number: int, line: Line) -> int:
        if found := GUARD.match(line.text):
            self.guard = self.guard or short(found[2])
        return MORE if found or "guard failure" in line.text else OVER

    def row(self, rank: int | None, file: str) -> Row | None:
        return Row(rank, "recompile", file, self.number, self.guard, self.where, self.compile, self.time)


class Exit(Block):
    """An entry of torchrun's table of failures."""

    def __init__(self, number: int, line: Line) -> None:
        super().__init__(number, line)
        self.fields: dict[str, str] = {}

    def take(self, number: int, line: Line) -> int:
        if found := FIELD.match(line.text):
            self.fields[found[1]] = found[2]
            return LAST if found[1] == "exitcode" else MORE
        return MORE if line.text.startswith("  ") else OVER

    def row(self, rank: int | None, file: str) -> Row | None:
        whose = re.match(r"(\d{1,5}) ", self.fields.get("rank", ""))
        code = re.match(r"(-?\d+) +\(pid: (\d+)\) *(?:\((\w+)\))?", self.fields.get("exitcode", ""))
        if not whose or not code:
            return None
        self.pids[code[2]] = int(whose[1])
        text = f"exit code {code[1]}" + (f" ({code[3]})" if code[3] else "")
        time = short(self.fields.get("time", ""), 40)
        return Row(int(whose[1]), "exit", file, self.number, text, key=code[1], time=time)


def block(number: int, line: Line, thread: str = "") -> Block | None:
    """The block that begins with a line, None where none does.

    Args:
        number: of the line.
        line: without its prefixes.
        thread: whose end the line before has announced.
    """
    if line.text.startswith("Traceback (most recent call last)"):
        return Traceback(number, line, thread)
    if ENTRY.match(line.text):
        return Exit(number, line)
    if "Stack trace of the failed collective" in line.text:
        return WatchdogStack(number, line)
    if "Recompiling" in line.text and (found := FUNCTION.search(line.text)):
        return Recompile(number, line, found[1], found[2])
    return None
