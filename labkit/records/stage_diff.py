"""`diff(a, b, stage)`: compare one stage of two variants or ranks line by line, with the first difference marked."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from labkit.records import decompiled
from labkit.records.frame import GRAPHS, STAGES, Frame, Frames
from labkit.records.nodes import Node, nodes

__all__ = ["Diff", "Row", "diff", "digest"]

CAREFUL = 1_000_000  # pairs of lines up to which every line counts; above, lines that stand everywhere do not
MOST = 40_000_000  # pairs of lines above which nothing is aligned but what both begin and end with
_KEPT = 3  # lines shown on each side of a difference
_DEVICE = re.compile(r"cuda:\d+|device\(type='cuda', index=\d+\)")
# as Inductor's code and the guards write a rank's own GPU
_OWN = re.compile(
    r"(?<=_DeviceGuard\()\d+|(?<=set_device\()\d+|(?<=get_raw_stream\()\d+|\d+(?= = get_raw_stream)"
    r"|(?<=\braw_stream)\d+|(?<=stream=stream)\d+|(?<=device=)\d+(?=, requires_grad)|(?<=type='cuda', index=)\d+"
)
_GROUP = re.compile(r"(_c10d_functional\S*\(.*), '[^']*'\)")
_NUMBERED = re.compile(r"(__compiled_fn_|__resume_at_\d+_|\bgraph_out_|__temp_|tmp_)\d+")
_HASHED = re.compile(r"\b(?:c[a-z0-9]{51}|[0-9a-f]{32,})\b")
_AOT_ID = re.compile(r"(# AOT ID: \[')\d+_")
_COMMENT = re.compile(r"\s+# .*$")


@dataclass(frozen=True)
class _Entry:
    """One line: what it is compared by, what is shown of it, and its node where the stage is a graph."""

    key: str
    text: str
    node: Node | None = None


@dataclass(frozen=True)
class Row:
    """One aligned pair of lines. kind: same, changed, rewired (other inputs), left or right (only on that side)."""

    kind: str
    left: str
    right: str
    left_line: int = 0  # counted from 1; 0 where there is none
    right_line: int = 0


@dataclass(frozen=True)
class Diff:
    """The aligned lines of one stage on two sides. `first` is the first row that differs, or None."""

    stage: str
    names: tuple[str, str]
    rows: tuple[Row, ...]
    note: str = ""

    @property
    def same(self) -> bool:
        """Whether all lines agree, apart from ids, devices, groups and names of values."""
        return self.first is None

    @property
    def first(self) -> Row | None:
        """The first row that differs."""
        return next((row for row in self.rows if row.kind != "same"), None)

    @property
    def different(self) -> int:
        """The number of rows that differ."""
        return sum(row.kind != "same" for row in self.rows)

    @property
    def said(self) -> str:
        """The finding on one line."""
        left, right = self.names
        if self.first is None:
            return f"{self.stage}: {left} and {right} agree on all {len(self.rows)} lines"
        first = self.first
        where = {
            "changed": f"line {first.left_line} of {left}, {first.right_line} of {right}",
            "rewired": f"line {first.left_line} of {left}: the same operation on other inputs",
            "left": f"line {first.left_line} of {left}, which {right} does not have",
            "right": f"line {first.right_line} of {right}, which {left} does not have",
        }[first.kind]
        return f"{self.stage}: {self.different} of {len(self.rows)} lines differ, the first at {where}"

    def __str__(self) -> str:
        lines = [self.said, *([self.note] if self.note else [])]
        marked = False
        for part in _parts(self.rows):
            if isinstance(part, int):
                lines.append(f"      ... {part} lines the same")
                continue
            mark = " " if part.kind == "same" or marked else "→"
            marked = marked or mark == "→"
            if part.kind == "same":
                lines.append(f"        {part.left.strip()}")
                continue
            lines += [f"  {mark}  - {part.left.strip()}"] if part.left_line else []
            lines += (
                [f"  {mark if not part.left_line else ' '}  + {part.right.strip()}"]
                if part.right_line
                else []
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left, right = (html.escape(name) for name in self.names)
        cell = (
            "font-family:monospace;font-size:12px;white-space:pre-wrap;word-break:break-word;text-align:left;"
        )
        cell += "padding:1px 6px;vertical-align:top;width:48%;"
        looks = {"left": "background:#fbe3d6;color:#222;", "right": "background:#d8eefa;color:#222;"}
        rows, marked = [], False
        for part in _parts(self.rows):
            if isinstance(part, int):
                rows.append(
                    f"<tr><td></td><td colspan=2 style='opacity:.7;text-align:left'>… {part} lines the same</td></tr>"
                )
                continue
            first = part.kind != "same" and not marked
            marked = marked or first
            sign = {"same": "", "changed": "≠", "rewired": "⤭", "left": "−", "right": "+"}[part.kind]
            sign = f"<b>▶ {sign}</b>" if first else sign
            edge = "outline:2px solid #D55E00;" if first else ""
            sides = [(part.left, "left", part.left_line), (part.right, "right", part.right_line)]
            cells = ""
            for text, side, number in sides:
                tone = looks[side] if part.kind != "same" and number else ""
                cells += f"<td style='{cell}{tone}'>{html.escape(text.strip())}</td>"
            rows.append(f"<tr style='{edge}'><td style='white-space:nowrap'>{sign}</td>{cells}</tr>")
        head = f"<tr><th></th><th style='text-align:left'>{left}</th><th style='text-align:left'>{right}</th></tr>"
        note = f"<div>{html.escape(self.note)}</div>" if self.note else ""
        table = "<table style='width:100%;table-layout:fixed'><colgroup><col style='width:4%'><col><col></colgroup>"
        return f"<div><b>{html.escape(self.said)}</b></div>{note}{table}{head}{''.join(rows)}</table>"


def diff(a: Any, b: Any, stage: str = "dynamo", names: tuple[str, str] | None = None) -> Diff:
    """Compare one stage of `a` with that of `b`.

    What differs between any two runs is not a difference: compile ids, addresses, names of values, process groups and
    devices. In a graph, operations are aligned and their inputs compared by what they come from, so an operation that
    one side lacks does not change everything after it.

    Args:
        a: A Frame, Frames (all of them in order), or a text.
        b: The same for the other side.
        stage: A key of `STAGES`.
        names: What to call the two sides; without it, by rank or function.

    Returns:
        The aligned lines; it prints and shows itself with the first difference marked.

    Raises:
        ValueError: For an unknown stage, or one that a side does not have.

    >>> print(diff("a\\nb\\nc", "a\\nx\\nc").said)
    dynamo: 1 of 3 lines differ, the first at line 2 of a, 2 of b
    """
    if stage not in STAGES:
        raise ValueError(f"{stage!r} is no stage: there are {', '.join(STAGES)}")
    left, right = _entries(a, stage), _entries(b, stage)
    rows, note = _align(left, right)
    return Diff(stage, names or _names(a, b), tuple(_rewired(rows, left, right)), note)


def digest(text: str, stage: str) -> str:
    """Return a short hash of one stage's text, the same for texts that `diff` finds alike; '' for no text.

    Args:
        text: The stage as torch writes it.
        stage: A key of `STAGES`.

    >>> digest("a = torch.ops.x(b)  # line 3", "inductor") == digest("a = torch.ops.x(b)", "inductor")
    True
    """
    order: dict[str, int] = {}
    said = []
    for entry in _entries(text, stage):
        inputs = [order.get(name, -1) for name in entry.node.inputs] if entry.node else []
        if entry.node:
            order[entry.node.name] = len(order)
        said.append(f"{entry.key} {inputs}")
    return hashlib.md5("\n".join(said).encode(), usedforsecurity=False).hexdigest()[:12] if said else ""


def _names(a: Any, b: Any) -> tuple[str, str]:
    def ranks(of: Any) -> list[int]:
        return [of.rank] if isinstance(of, Frame) else of.ranks if isinstance(of, Frames) else []

    def name(of: Any) -> str:
        one = of if isinstance(of, Frame) else of.frames[0] if isinstance(of, Frames) and len(of) else None
        return one.name if one else ""

    if ranks(a) and ranks(b) and ranks(a) != ranks(b):
        return f"rank {ranks(a)[0]}", f"rank {ranks(b)[0]}"
    if name(a) and name(b) and name(a) != name(b):
        return name(a), name(b)
    return ("a", "b") if not name(a) else (f"{name(a)} (a)", f"{name(b)} (b)")


def _entries(of: Any, stage: str) -> list[_Entry]:
    if isinstance(of, Frames):
        having = [frame for frame in of if stage in frame.raw]
        if not having and len(of):
            of[0].stage(stage)  # raises, with the reason
        found: list[_Entry] = []
        for frame in having:
            if len(having) > 1:
                found.append(_Entry(f"frame {frame.name.split(' ')[0]}", f"# frame {frame.title}"))
            found += _entries(frame, stage)
        return found
    if isinstance(of, Frame):
        text = of.stage(stage)
    elif isinstance(of, str):
        text = of
    else:
        raise ValueError(f"diff takes a Frame, Frames or a text, and got a {type(of).__name__}")
    parsed = nodes(text) if stage in GRAPHS else []
    if parsed:
        return [_Entry(_key(node), _shown(node), node) for node in parsed]
    return [_Entry(_plain(line), line) for line in text.splitlines() if line.strip()]


def _key(node: Node) -> str:
    shape = _DEVICE.sub("cuda", node.shape)
    if node.kind == "input":
        return f"input {shape}"
    if node.kind == "output":
        return "output"
    constants = _GROUP.sub(r"\1)", _DEVICE.sub("cuda", node.constants))
    return f"{node.op} {shape} {constants}"


def _shown(node: Node) -> str:
    if node.kind == "input":
        return f'{node.name}: "{node.shape}"'
    return f"return {', '.join(node.inputs)}" if node.kind == "output" else node.text


def _plain(line: str) -> str:
    text = _OWN.sub("", _NUMBERED.sub(r"\1", _DEVICE.sub("cuda", decompiled.clean(line))))
    return _AOT_ID.sub(r"\1", _HASHED.sub("", _GROUP.sub(r"\1)", _COMMENT.sub("", text)))).strip()


def _align(left: Sequence[_Entry], right: Sequence[_Entry]) -> tuple[list[Row], str]:
    a, b = [e.key for e in left], [e.key for e in right]
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    end = 0
    while end < min(len(a), len(b)) - start and a[len(a) - 1 - end] == b[len(b) - 1 - end]:
        end += 1
    inner_a, inner_b = a[start : len(a) - end], b[start : len(b) - end]
    pairs, note = len(inner_a) * len(inner_b), ""
    if pairs > MOST:
        codes: list[tuple[str, int, int, int, int]] = [("replace", 0, len(inner_a), 0, len(inner_b))]
        note = "what lies between their common beginning and end is too long to be aligned: it is paired line by line"
    else:
        codes = list(SequenceMatcher(None, inner_a, inner_b, autojunk=pairs > CAREFUL).get_opcodes())
    rows = [_row("same", left, right, i, i) for i in range(start)]
    for kind, i, i_end, j, j_end in codes:
        many = max(i_end - i, j_end - j)
        for k in range(many):
            x = start + i + k if i + k < i_end else None
            y = start + j + k if j + k < j_end else None
            rows.append(_row("same" if kind == "equal" else "changed", left, right, x, y))
    rows += [_row("same", left, right, len(a) - k, len(b) - k) for k in range(end, 0, -1)]
    return rows, note


def _row(kind: str, left: Sequence[_Entry], right: Sequence[_Entry], i: int | None, j: int | None) -> Row:
    if i is None or j is None:
        kind = "right" if i is None else "left"
    return Row(
        kind,
        "" if i is None else left[i].text,
        "" if j is None else right[j].text,
        0 if i is None else i + 1,
        0 if j is None else j + 1,
    )


def _rewired(rows: list[Row], left: Sequence[_Entry], right: Sequence[_Entry]) -> list[Row]:
    """Look at the same operations once more: do they also take what comes from the same places?"""
    meant: dict[str, str] = {}
    found = []
    for row in rows:
        a = left[row.left_line - 1].node if row.left_line else None
        b = right[row.right_line - 1].node if row.right_line else None
        if a and b:
            meant[a.name] = b.name
            wired = tuple(meant.get(name) for name in a.inputs) == b.inputs
            if row.kind == "same" and not wired:
                row = Row("rewired", row.left, row.right, row.left_line, row.right_line)
        found.append(row)
    return found


def _parts(rows: Sequence[Row]) -> list[Row | int]:
    """The rows around differences, and between them how many were left out."""
    near = set()
    for i, row in enumerate(rows):
        if row.kind != "same":
            near |= set(range(i - _KEPT, i + _KEPT + 1))
    parts: list[Row | int] = []
    for i, row in enumerate(rows):
        if i in near or (not near and i < _KEPT):
            parts.append(row)
        elif parts and isinstance(parts[-1], int):
            parts[-1] += 1
        else:
            parts.append(1)
    return parts
