"""The logs that TORCH_TRACE writes, which tlparse reads: compiles, their guards, caches and graphs of one rank."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from oddrank.postmortem.lines import Lines
from oddrank.postmortem.logs import MOST_ROWS
from oddrank.postmortem.rows import MOST_RANKS, Frame, Row, own_lines, short

__all__ = ["Trace", "looks_like"]

HEAD = re.compile(r"^[VDIWE](\d{4} \d\d:\d\d:\d\d\.\d+) +(\d+) [^\s\]]+:\d+\] (\{.*\})\s*$")
WANTED = ('"dynamo_start"', '"compilation_metrics"', '"artifact"', '"dynamo_output_graph"', '"str"')
CACHE = re.compile(r"^(fx_graph|aotautograd)_cache_(hit|miss|bypass)$")
MOST_TEXTS = 200_000


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is a log of TORCH_TRACE.

    >>> looks_like(b'V1128 03:04:14.173000 29360 torch/_dynamo/utils.py:2350] {"chromium_event": {}}\\n')
    True
    """
    first = head.lstrip().partition(b"\n")[0].decode("utf-8", "replace")
    return bool(HEAD.match(first))


class Trace:
    """Reads one file into `rows`; its rank stands in it once the process group is made."""

    def __init__(self, file: str, rank: int | None) -> None:
        self.file, self.rank = file, rank
        self.rows: list[Row] = []
        self.dropped = 0
        self.pids: dict[str, int] = {}
        self.texts: dict[int, str] = {}
        self.last: dict[int | None, tuple[int, str]] = {}
        self.reasons: tuple[int, str, str] | None = None

    def read(self, lines: Lines) -> None:
        """Read all lines, in one pass."""
        for number, line in lines:
            if line[:1] == "\t":
                if self.reasons:
                    at, key, time = self.reasons
                    reason = re.sub(r"^\d+/\d+: ", "", line.strip())
                    self.rows.append(Row(self.rank, "recompile", self.file, at, short(reason), "", key, time))
                    self.reasons = None
                continue
            self.reasons = None
            found = HEAD.match(line)
            if found is None:
                continue
            time, pid, text = found.groups()
            self.last[self.rank] = (number, time)
            if not any(name in text for name in WANTED):
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict):
                self._take(record, number, time, pid)
        # records before the process group have no rank
        self.rows = [replace(row, rank=self.rank) if row.rank is None else row for row in self.rows]

    def _take(self, record: dict[str, Any], number: int, time: str, pid: str) -> None:
        if isinstance(rank := record.get("rank"), int) and 0 <= rank < MOST_RANKS:
            self.rank = rank
            self.pids[pid] = self.rank
        key = f"{record.get('frame_id', '')}/{record.get('frame_compile_id', '')}"

        def row(
            kind: str, text: str, where: str = "", key: str = key, frames: tuple[Frame, ...] = ()
        ) -> None:
            if len(self.rows) >= MOST_ROWS:
                self.dropped += 1
                return
            self.rows.append(Row(self.rank, kind, self.file, number, short(text), where, key, time, frames))

        if isinstance(named := record.get("str"), list) and len(named) == 2 and len(self.texts) < MOST_TEXTS:
            self.texts[_whole(named[1])] = str(named[0])
        elif isinstance(start := record.get("dynamo_start"), dict):
            frames = self._frames(start.get("stack"))
            row(
                "begin",
                "dynamo_start",
                own_lines(frames) or (str(frames[0]) if frames else ""),
                frames=frames,
            )
        elif isinstance(end := record.get("compilation_metrics"), dict):
            seconds, failed = end.get("entire_frame_compile_time_s"), end.get("fail_reason")
            known = isinstance(seconds, int | float) and seconds < 1e9
            ended = f"compiled in {seconds:.1f} s" if known else "compilation_metrics"
            row("end", ended + (f", failed: {failed}" if failed else ""), short(str(end.get("co_name", ""))))
        elif "dynamo_output_graph" in record:
            row("graph", key, key=str(record.get("has_payload", "")))
        elif isinstance(artifact := record.get("artifact"), dict):
            name = str(artifact.get("name", ""))
            if name == "recompile_reasons":
                self.reasons = (number, key, time)
            elif cache := CACHE.match(name):
                row("hit" if cache[2] == "hit" else "miss", f"{cache[1]} cache {cache[2]}")

    def _frames(self, stack: Any) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first."""
        if not isinstance(stack, list):
            return ()
        frames = [frame for frame in stack if isinstance(frame, dict)]
        return tuple(
            Frame(
                self.texts.get(_whole(frame.get("filename")), "?"),
                max(_whole(frame.get("line")), 0),
                str(frame.get("name", "")),
            )
            for frame in reversed(frames)
        )


def _whole(value: Any) -> int:
    """A whole number of the trace, -1 for anything else."""
    return value if isinstance(value, int) else -1
