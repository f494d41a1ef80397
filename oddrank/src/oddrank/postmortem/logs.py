"""Text of ranks and launchers: what TORCH_LOGS, NCCL, gloo, torchrun and Python's tracebacks print, in one pass."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from oddrank.postmortem.lines import Line, Lines, prefix
from oddrank.postmortem.phrases import QUICK, SAID
from oddrank.postmortem.rows import Frame, Row, own, short
from oddrank.postmortem.stacks import Stacks

__all__ = ["MOST_ROWS", "Log"]

MOST = 2_000  # rows of one kind that are kept of one rank and file, first and last halves
MOST_ROWS = 100_000  # of one file

HEADING = re.compile(r"^\W{0,8}rank[ _=:]{0,3}(\d{1,5})\W{0,8}$", re.I)  # above what one rank left
FINAL = re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Unsupported|Iteration))(?:: (.*))?$"
)
FRAME = re.compile(r'^  File "([^"]+)", line (\d{1,9}), in (.+)$')
NCCL_FRAME = re.compile(r"^#\d+ (.+) from (.+):(\d{1,9})$")
GUARD = re.compile(r"^\s*- (\d+/\d+): (.+)$")
PLACE = re.compile(r"\[/\S*/gloo/\S+:\d+\] ")  # of gloo's own source
STORE = re.compile(r"keys: (.+)")
THREAD = re.compile(r"^Exception in thread (.+?):?$")
STRANGER = re.compile(r"on global rank (\d{1,5}) which")
DEVICES = re.compile(
    r", TensorDeviceTypes=TensorOptions\((?:[^()]|\([^()]*\))*\)"
)  # of a collective's fingerprint
EXIT = re.compile(r"^  (rank|exitcode|time) +: +(.+)$")


@dataclass(slots=True)
class _Open:
    """A traceback, a recompile or a launcher's entry whose lines are still coming."""

    kind: str
    line: int
    text: str = ""
    time: str = ""
    key: str = ""
    frames: list[Frame] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)


class Log:
    """Reads one file: `rows` of evidence, the ranks that it has, and which process is which rank."""

    def __init__(self, file: str, rank: int | None, srun: bool = False) -> None:
        self.file, self.rank, self.srun = file, rank, srun
        self.headings = rank is None  # a file of several ranks may have a line `rank N` above each
        self.rows: list[Row] = []
        self.kinds: Counter[tuple[str, int | None]] = Counter()
        self.pids: dict[str, int] = {}
        self.last: dict[int | None, tuple[int, str]] = {}
        self.open: dict[int | None, _Open] = {}
        self.stacks: dict[int | None, Stacks] = {}
        self.threads: dict[int | None, str] = {}  # of which a traceback comes next
        self.torch = self.dropped = 0
        self.said: set[int] = set()  # ranks that prefixes of torch name

    def read(self, lines: Lines) -> None:
        """Read all lines."""
        for number, raw in lines:
            self.take(number, raw)
        self._end()
        if self.headings:
            self.rank = None

    def _end(self) -> None:
        for rank in list(self.open):
            self._close(rank)
        for rank, stacks in self.stacks.items():
            self._keep(stacks.end(rank, self.file))

    def take(self, number: int, raw: str) -> None:
        """Read one line."""
        line = prefix(raw, self.srun)
        if self.headings and (found := HEADING.match(raw)):
            self._end()
            self.rank = int(found[1])
            return
        rank = line.rank if line.rank is not None else self.rank if self.rank is not None else line.local
        self.torch += line.glog or line.rank is not None
        if line.rank is not None:
            self.said.add(line.rank)
        if line.pid and line.rank is not None and len(self.pids) < 100_000:
            self.pids[line.pid] = line.rank
        if line.time:
            self.last[rank] = (number, line.time)
        text = line.text
        held = self.open.get(rank)
        if held and self._goes_on(held, rank, number, line):
            return
        stacks = self.stacks.get(rank)
        if stacks is None and text.startswith(("Thread ", "Current thread ", "Process ")):
            stacks = self.stacks[rank] = Stacks()
        if stacks:
            self._keep(stacks.take(rank, self.file, number, text))
        if text.startswith("Traceback (most recent call last)"):
            self.open[rank] = _Open("traceback", number, time=line.time, key=self.threads.pop(rank, ""))
        elif thread := THREAD.match(text):
            self.threads[rank] = short(thread[1], 60)
        elif text.startswith("[") and re.match(r"^\[\d+\]:$", text):
            self.open[rank] = _Open("exit", number)
        elif "Stack trace of the failed collective" in text:
            self.open[rank] = _Open("nccl", number, time=line.time)
        elif QUICK.search(text):
            self._said(rank, number, line)

    def _said(self, rank: int | None, number: int, line: Line) -> None:
        if found := re.search(r"Recompiling function (.+?) in (\S+)", line.text):
            where = f"{found[2].rpartition('/')[2]} in {found[1]}"
            self.open[rank] = _Open("recompile", number, short(where), line.time, line.compile)
            return
        for kind, pattern in SAID:
            if found := pattern.search(line.text):
                key = (
                    line.compile
                    if kind in ("begin", "traced", "end") or (kind in ("hit", "miss") and line.compile)
                    else next((g for g in found.groups() if g), "")
                )
                if kind == "stranger" and (whose := STRANGER.search(line.text)):
                    rank = int(whose[1])
                where = _place(found[1]) if kind == "begin" and found[1] else ""
                self._keep(
                    [
                        Row(
                            rank,
                            kind,
                            self.file,
                            number,
                            short(line.text.strip()),
                            where,
                            short(key, 120),
                            line.time,
                        )
                    ]
                )
                return

    def _goes_on(self, held: _Open, rank: int | None, number: int, line: Line) -> bool:
        text = line.text
        if held.kind == "traceback":
            if found := FRAME.match(text):
                held.frames = [*held.frames[-400:], Frame(found[1], int(found[2]), found[3])]
                return True
            if text.startswith("  ") or not text.strip():
                return bool(text.strip()) or not held.frames
            if not line.glog and not text.startswith("Traceback"):
                held.text, held.line = (
                    f"{held.text} {text.strip()}".strip(),
                    held.text and held.line or number,
                )
                if (
                    text.rstrip().endswith("raised:") and len(held.text) < 200
                ):  # the error is in the next line
                    return True
            self._close(rank)
            return not (line.glog or text.startswith("Traceback"))
        if held.kind == "nccl":
            if found := NCCL_FRAME.match(text):
                held.frames.append(Frame(found[2], int(found[3]), found[1]))
                return True
            self._close(rank)
            return False
        if held.kind == "recompile":
            if "guard failure" in text:
                return True
            if found := GUARD.match(text):
                held.said.setdefault("guard", short(found[2]))
                return True
            self._close(rank)
            return False
        if found := EXIT.match(text):
            held.said[found[1]] = found[2]
            if found[1] != "exitcode":
                return True
            self._close(rank)
            return True
        if text.startswith("  "):
            return True
        self._close(rank)
        return False

    def _close(self, rank: int | None) -> None:
        held = self.open.pop(rank)
        if held.kind == "traceback" and held.text:
            frames = tuple(reversed(held.frames))
            held.text = DEVICES.sub("", PLACE.sub("", held.text))
            kind = next(
                (
                    k
                    for k, p in SAID
                    if k in ("named", "gloo", "memory", "watchdog", "store") and p.search(held.text)
                ),
                "error",
            )
            name = FINAL.match(held.text)
            key = STORE.search(held.text) if kind == "store" else None
            if held.key and kind == "error":
                kind = "thread"
            row = Row(
                rank,
                kind,
                self.file,
                held.line,
                short(held.text),
                own(frames),
                short(key[1], 200) if key else held.key or (name[1] if name else ""),
                held.time,
                frames,
            )
            self._keep([row])
        elif held.kind == "nccl" and held.frames:
            frames = tuple(held.frames[:400])
            said = "the watchdog's stack of the failed collective"
            self._keep(
                [Row(rank, "watchdog", self.file, held.line, said, own(frames), "", held.time, frames)]
            )
        elif held.kind == "recompile":
            row = Row(
                rank,
                "recompile",
                self.file,
                held.line,
                held.said.get("guard", ""),
                held.text,
                held.key,
                held.time,
            )
            self._keep([row])
        elif held.kind == "exit" and "exitcode" in held.said and "rank" in held.said:
            whose = re.match(r"(\d{1,5}) ", held.said["rank"])
            found = re.match(r"(-?\d+) +\(pid: (\d+)\) *(?:\((\w+)\))?", held.said["exitcode"])
            if whose and found:
                if len(self.pids) < 100_000:
                    self.pids[found[2]] = int(whose[1])
                said = f"exit code {found[1]}" + (f" ({found[3]})" if found[3] else "")
                row = Row(
                    int(whose[1]),
                    "exit",
                    self.file,
                    held.line,
                    said,
                    key=found[1],
                    time=short(held.said.get("time", ""), 40),
                )
                self._keep([row])

    def _keep(self, rows: list[Row]) -> None:
        for row in rows:
            if len(self.rows) >= MOST_ROWS:
                self.dropped += 1
                continue
            kind = (row.kind, row.rank)
            self.kinds[kind] += 1
            self.rows.append(row)
            if self.kinds[kind] > MOST and self.kinds[kind] % MOST == 1:  # the first and the last stay
                same = [i for i, r in enumerate(self.rows) if (r.kind, r.rank) == kind]
                drop = set(same[MOST // 2 : -MOST // 2])
                self.rows = [r for i, r in enumerate(self.rows) if i not in drop]


def _place(text: str) -> str:
    """'inner /a/b.py:67' as 'b.py:67 in inner'."""
    name, _, place = text.strip().rpartition(" ")
    return short(f"{place.rpartition('/')[2]} in {name}" if name else text)
