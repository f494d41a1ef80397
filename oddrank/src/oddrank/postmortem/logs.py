"""Text of ranks and launchers: what TORCH_LOGS, NCCL, gloo, torchrun and Python's tracebacks print, in one pass."""

from __future__ import annotations

import re
from collections import Counter

from oddrank.postmortem.blocks import ASIDE, LAST, OVER, Block, block
from oddrank.postmortem.lines import Line, Lines, prefix
from oddrank.postmortem.phrases import QUICK, SENTENCES
from oddrank.postmortem.rows import Row, short
from oddrank.postmortem.stacks import Stacks

__all__ = ["MOST_ROWS", "Log"]

MOST = 2_000  # rows of one kind that are kept of one rank and file, first and last halves
MOST_ROWS = 100_000  # of one file
MOST_PIDS = 100_000

HEADING = re.compile(r"^\W{0,8}rank[ _=:]{0,3}(\d{1,5})\W{0,8}$", re.I)  # above what one rank left
THREAD = re.compile(r"^Exception in thread (.+?):?$")
STRANGER = re.compile(r"on global rank (\d{1,5}) which")


class Log:
    """Reads one file: `rows` of evidence, the ranks that it has, and which process is which rank."""

    def __init__(self, file: str, rank: int | None, srun: bool = False) -> None:
        self.file, self.rank, self.srun = file, rank, srun
        self.headings = rank is None  # a file of several ranks may have a line `rank N` above each
        self.rows: list[Row] = []
        self.kinds: Counter[tuple[str, int | None]] = Counter()
        self.pids: dict[str, int] = {}
        self.last: dict[int | None, tuple[int, str]] = {}
        self.open: dict[int | None, Block] = {}
        self.stacks: dict[int | None, Stacks] = {}
        self.threads: dict[int | None, str] = {}  # of which a traceback comes next
        self.torch = self.dropped = 0
        self.prefixed: set[int] = set()  # ranks that prefixes of torch name

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
            self.prefixed.add(line.rank)
        if line.pid and line.rank is not None and len(self.pids) < MOST_PIDS:
            self.pids[line.pid] = line.rank
        if line.time:
            self.last[rank] = (number, line.time)
        text = line.text
        if (open_ := self.open.get(rank)) and (taken := open_.take(number, line)) != ASIDE:
            if taken in (LAST, OVER):
                self._close(rank)
            if taken != OVER:
                return
        stacks = self.stacks.get(rank)
        if stacks is None and text.startswith(("Thread ", "Current thread ", "Process ")):
            stacks = self.stacks[rank] = Stacks()
        if stacks:
            self._keep(stacks.take(rank, self.file, number, text))
        if begun := block(number, line, self.threads.get(rank, "")):
            self.open[rank] = begun
            if text.startswith("Traceback"):
                self.threads.pop(rank, None)
        elif thread := THREAD.match(text):
            self.threads[rank] = short(thread[1], 60)
        elif QUICK.search(text):
            self._sentence(rank, number, line)

    def _sentence(self, rank: int | None, number: int, line: Line) -> None:
        for kind, pattern in SENTENCES:
            if found := pattern.search(line.text):
                key = next((group for group in found.groups() if group), "")
                if kind in ("begin", "traced", "end") or (kind in ("hit", "miss") and line.compile):
                    key = line.compile
                if kind == "stranger" and (whose := STRANGER.search(line.text)):
                    rank = int(whose[1])
                where = _place(found[1]) if kind == "begin" and found[1] else ""
                text = short(line.text.strip())
                self._keep([Row(rank, kind, self.file, number, text, where, short(key, 120), line.time)])
                return

    def _close(self, rank: int | None) -> None:
        ended = self.open.pop(rank)
        if row := ended.row(rank, self.file):
            self._keep([row])
        if len(self.pids) < MOST_PIDS:
            self.pids |= ended.pids

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
