"""`diff(a, b, stage)`: one stage of two variants or ranks line by line, with the first difference marked."""

from __future__ import annotations

import hashlib
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any

from oddrank.record.nodes import Node, nodes
from oddrank.stages.bytecode import clean
from oddrank.stages.frames import GRAPHS, STAGES, Frame

__all__ = ["Diff", "Row", "diff", "digest"]

CAREFUL = 1_000_000  # pairs of lines up to which every line counts; above, lines that stand everywhere do not
MOST = 40_000_000  # pairs of lines above which nothing is aligned but what both begin and end with
KEPT = 3  # lines shown on each side of a difference
# what is no difference: a rank's own GPU, as graphs, Inductor's code and guards write it, ...
_DEVICE = re.compile(r"cuda:\d+|device\(type='cuda', index=\d+\)")
_OWN = re.compile(
    r"(?<=_DeviceGuard\()\d+|(?<=set_device\()\d+|(?<=get_raw_stream\()\d+|\d+(?= = get_raw_stream)"
    r"|(?<=\braw_stream)\d+|(?<=stream=stream)\d+|(?<=device=)\d+(?=, requires_grad)|(?<=type='cuda', index=)\d+"
)
# ... a collective's group, numbers of graphs and temporary values, hashes, and comments
_GROUP = re.compile(r"(_c10d_functional\S*\(.*), '[^']*'\)")
_NUMBERED = re.compile(r"(__compiled_fn_|__resume_at_\d+_|\bgraph_out_|__builtins_dict___|__temp_|tmp_)\d+")
_HASHED = re.compile(r"\b(?:c[a-z0-9]{51}|[0-9a-f]{32,})\b")
_AOT_ID = re.compile(r"(# AOT ID: \[')\d+_")
_COMMENT = re.compile(r"\s+# .*$")
_SIGNS = {"same": "", "changed": "≠", "rewired": "⤭", "left": "−", "right": "+"}
_CELL = "font-family:monospace;white-space:pre-wrap;word-break:break-word;text-align:left;vertical-align:top;width:48%;"
_LOOKS = ("background:#fbe3d6;color:#222;", "background:#d8eefa;color:#222;")


@dataclass(frozen=True)
class _Line:
    """One line of a stage: what it is compared by, what is shown of it, and its node where the stage is a graph."""

    key: str
    text: str
    node: Node | None = None


@dataclass(frozen=True)
class Row:
    """One aligned pair of lines.

    Args:
        kind: 'same', 'changed', 'rewired' (the same operation on other inputs), 'left' or 'right' (only on that side).
        left, right: The lines; '' where there is none.
        left_line, right_line: Their numbers from 1; 0 where there is none.
    """

    kind: str
    left: str
    right: str
    left_line: int = 0
    right_line: int = 0


@dataclass(frozen=True)
class Diff:
    """The aligned lines of one stage on two sides; it prints and shows itself with the first difference marked.

    Args:
        stage: The stage.
        names: Of the two sides.
        rows: The lines.
        note: What was not done; '' for nothing.
    """

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
        (left, right), first = self.names, self.first
        if first is None:
            return f"{self.stage}: {left} and {right} agree on all {len(self.rows)} lines"
        where = {
            "changed": f"line {first.left_line} of {left}, {first.right_line} of {right}",
            "rewired": f"line {first.left_line} of {left}: the same operation on other inputs",
            "left": f"line {first.left_line} of {left}, which {right} does not have",
            "right": f"line {first.right_line} of {right}, which {left} does not have",
        }[first.kind]
        return f"{self.stage}: {self.different} of {len(self.rows)} lines differ, the first at {where}"

    def __str__(self) -> str:
        lines = [self.said, *([self.note] if self.note else [])]
        for part in self._near():
            if isinstance(part, int):
                lines.append(f"      ... {part} lines the same")
            elif part.kind == "same":
                lines.append(f"        {part.left}")
            else:
                sides = [f"- {part.left}"] if part.left_line else []
                sides += [f"+ {part.right}"] if part.right_line else []
                for n, side in enumerate(sides):
                    lines.append(f"  {'→' if part is self.first and n == 0 else ' '}  {side}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in self.names)
        rows = [f"<tr><th></th>{heads}</tr>"]
        for part in self._near():
            if isinstance(part, int):
                rows.append(
                    f"<tr><td></td><td colspan=2 style='opacity:.7;text-align:left'>… {part} lines the same</td></tr>"
                )
                continue
            cells = ""
            for text, line, look in zip(
                (part.left, part.right), (part.left_line, part.right_line), _LOOKS, strict=True
            ):
                tone = look if line and part.kind != "same" else ""
                cells += f"<td style='{_CELL}{tone}'>{html.escape(text)}</td>"
            mark, edge = ("▶ ", "outline:2px solid #D55E00") if part is self.first else ("", "")
            rows.append(
                f"<tr style='{edge}'><td style='white-space:nowrap'><b>{mark}{_SIGNS[part.kind]}</b></td>{cells}</tr>"
            )
        columns = "<colgroup><col style='width:4%'><col><col></colgroup>"
        table = f"<table style='width:100%;table-layout:fixed'>{columns}{''.join(rows)}</table>"
        return f"<div><b>{html.escape(self.said)}</b></div><div>{html.escape(self.note)}</div>{table}"

    def _near(self) -> list[Row | int]:
        """The rows around differences, and between them how many were left out."""
        near = {
            k for i, row in enumerate(self.rows) if row.kind != "same" for k in range(i - KEPT, i + KEPT + 1)
        }
        parts: list[Row | int] = []
        for i, row in enumerate(self.rows):
            if i in near or (not near and i < KEPT):
                parts.append(row)
            elif parts and isinstance(parts[-1], int):
                parts[-1] += 1
            else:
                parts.append(1)
        return parts


def diff(a: Frame | str, b: Frame | str, stage: str = "dynamo", names: tuple[str, str] | None = None) -> Diff:
    """Compare one stage of two frames.

    What differs between any two runs is not a difference: compile ids, addresses, names of values, process groups and
    devices. In a graph, operations are aligned and their inputs compared by what they come from, so an operation that
    one side lacks does not change everything after it.

    Args:
        a: A frame, or a stage's text.
        b: The other side.
        stage: A key of `STAGES`.
        names: What to call the two sides; without it, by rank or function.

    Returns:
        The aligned lines.

    Raises:
        ValueError: For an unknown stage, or one that a side does not have.

    >>> print(diff("a\\nb\\nc", "a\\nx\\nc").said)
    dynamo: 1 of 3 lines differ, the first at line 2 of a, 2 of b
    """
    if stage not in STAGES:
        raise ValueError(f"{stage!r} is no stage: there are {', '.join(STAGES)}")
    left, right = _lines(a, stage), _lines(b, stage)
    pairs, whole = _pairs([line.key for line in left], [line.key for line in right])
    note = "what lies between their common beginning and end is too long to be aligned: it is paired line by line"
    return Diff(stage, names or _names(a, b), tuple(_rows(left, right, pairs)), "" if whole else note)


def digest(of: Frame | str, stage: str) -> str:
    """A short hash of one stage, the same for stages that `diff` finds alike; '' for an empty text.

    Args:
        of: A frame, or a stage's text.
        stage: A key of `STAGES`.

    >>> digest("a = torch.ops.x(b)  # line 3", "inductor") == digest("a = torch.ops.x(b)", "inductor")
    True
    """
    order: dict[str, int] = {}
    said = []
    for line in _lines(of, stage):
        inputs = [order.get(name, -1) for name in line.node.inputs] if line.node else []
        if line.node:
            order[line.node.name] = len(order)
        said.append(f"{line.key} {inputs}")
    return hashlib.md5("\n".join(said).encode(), usedforsecurity=False).hexdigest()[:12] if said else ""


def _names(a: Frame | str, b: Frame | str) -> tuple[str, str]:
    if not isinstance(a, Frame) or not isinstance(b, Frame):
        return "a", "b"
    one, other = a.compile, b.compile
    if one.rank != other.rank:
        return f"rank {one.rank}", f"rank {other.rank}"
    return (one.name, other.name) if one.name != other.name else (f"{one.name} (a)", f"{other.name} (b)")


def _lines(of: Any, stage: str) -> list[_Line]:
    if not isinstance(of, (Frame, str)):
        raise ValueError(f"diff takes a frame or a text, and got a {type(of).__name__}")
    text = of if isinstance(of, str) else of.stage(stage)
    parsed = nodes(text) if stage in GRAPHS else []
    if parsed:
        return [_Line(_key(node), _shown(node), node) for node in parsed]
    return [_Line(_plain(line), line.strip()) for line in text.splitlines() if line.strip()]


def _key(node: Node) -> str:
    shape = _DEVICE.sub("cuda", node.shape)
    return f"{node.kind} {shape} " + _GROUP.sub(r"\1)", _DEVICE.sub("cuda", node.constants))


def _shown(node: Node) -> str:
    if node.kind == "input":
        return f'{node.name}: "{node.shape}"'
    return f"return {', '.join(node.inputs)}" if node.kind == "output" else node.text


def _plain(line: str) -> str:
    text = _OWN.sub("", _NUMBERED.sub(r"\1", _DEVICE.sub("cuda", clean(line))))
    return _AOT_ID.sub(r"\1", _HASHED.sub("", _GROUP.sub(r"\1)", _COMMENT.sub("", text)))).strip()


def _pairs(a: Sequence[str], b: Sequence[str]) -> tuple[list[tuple[int | None, int | None]], bool]:
    """Which line stands beside which, None where a side has none; and whether all were aligned."""
    short = min(len(a), len(b))
    start = next((k for k in range(short) if a[k] != b[k]), short)
    end = next((k for k in range(short - start) if a[-1 - k] != b[-1 - k]), short - start)
    inner_a, inner_b = a[start : len(a) - end], b[start : len(b) - end]
    many = len(inner_a) * len(inner_b)
    blocks: list[tuple[str, int, int, int, int]] = [("", 0, len(inner_a), 0, len(inner_b))]
    if many <= MOST:
        blocks = list(SequenceMatcher(None, inner_a, inner_b, autojunk=many > CAREFUL).get_opcodes())
    pairs: list[tuple[int | None, int | None]] = [(k, k) for k in range(start)]
    for _, i, i_end, j, j_end in blocks:
        pairs += zip_longest(range(start + i, start + i_end), range(start + j, start + j_end))
    pairs += [(len(a) - k, len(b) - k) for k in range(end, 0, -1)]
    return pairs, many <= MOST


def _rows(
    left: Sequence[_Line], right: Sequence[_Line], pairs: Sequence[tuple[int | None, int | None]]
) -> list[Row]:
    rows = []
    meant: dict[str, str] = {}  # a node of the left side -> the one beside it
    for i, j in pairs:
        if j is None:
            rows += [] if i is None else [Row("left", left[i].text, "", i + 1)]
            continue
        if i is None:
            rows.append(Row("right", "", right[j].text, 0, j + 1))
            continue
        a, b = left[i], right[j]
        kind = "same" if a.key == b.key else "changed"
        if a.node and b.node:
            meant[a.node.name] = b.node.name
            if kind == "same" and tuple(meant.get(name) for name in a.node.inputs) != b.node.inputs:
                kind = "rewired"
        rows.append(Row(kind, a.text, b.text, i + 1, j + 1))
    return rows
