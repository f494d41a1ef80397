"""The annotated source as text: for a terminal, a log, and wherever HTML is not shown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

from oddrank.source.listing import Cell, Listing, Note, Row, Section, number

__all__ = ["SIGNS", "draw", "printable", "sentence"]

SIGNS = {
    "break": "✂",
    "gave-up": "⊘",
    "def": "⊘",
    "eager": "▨",
    "error": "✗",
    "collective": "⇄",
    "recompile": "↻",
    "cause": "↳",
    "inlined": "↰",
    "split": "┄",
    "unfinished": "…",
    "limit": "⊘",
    "shape": "→",
}
WORDS = {
    "break": "graph ends",
    "gave-up": "given up here",
    "def": "runs in eager",
    "eager": "runs in eager",
    "error": "cannot compile",
    "cause": "given up because",
    "recompile": "compiled again",
    "limit": "not compiled again, the limit is reached",
    "unfinished": "was being compiled when the trace ends",
}
HUES = (33, 36, 170, 110)  # of xterm's 256 colours; they repeat after four graphs
_BROKEN, _AGAIN, _CALL, _FAINT = "38;5;166", "38;5;172", "36", "2"
_INK = {
    "collective": _CALL,
    "recompile": _AGAIN,
    "inlined": _FAINT,
    "eager": _FAINT,
    "split": _FAINT,
    "shape": _FAINT,
}
_KEY = "┃A operators in graph A   │ in A, without one of its own   ⠿ inlined   ✂ graph ends   ┊ eager   ×2 a step"
MOST_OWNERS = 4  # that a heading names
_NARROW = 60  # columns; a terminal with fewer is written as wide as this


def draw(listing: Listing, colour: bool = False, width: int = 118) -> str:
    """Draw it.

    Args:
        listing: What to draw.
        colour: Whether to use the terminal's colours.
        width: Of the terminal, in columns.

    Returns:
        Lines. Libraries' functions are left out where the program has any.
    """
    shown = [one for one in listing.sections if not one.library] or listing.sections
    made = _Pen(colour, max(width, _NARROW), len(listing.ranks) > 1 or listing.against, listing)
    lines = [made.head()]
    for section in shown:
        lines += ["", *made.section(section)]
    left = len(listing.sections) - len(shown)
    if left:
        lines += ["", made.ink(_FAINT, f"{left} function{'s' * (left > 1)} of libraries not shown")]
    lines += [made.ink(_FAINT, f"note: {printable(note)}") for note in listing.notes]
    return "\n".join(line.rstrip() for line in lines)


def sentence(note: Note, shown: Callable[[str], str]) -> str:
    """A note's kind, how often, and its words.

    Args:
        note: The note.
        shown: Makes the words fit for where they stand.

    >>> sentence(Note("break", "no", runs="2× a step"), str), sentence(Note("inlined", "into f"), str)
    ('graph ends, 2× a step: no', 'into f')
    """
    head = WORDS.get(note.kind, "")
    words = shown(note.words if note.kind != "unfinished" else "")
    if not head:
        return " · ".join(filter(None, (words, note.runs)))
    return ": ".join(filter(None, (", ".join(filter(None, (head, note.runs))), words)))


def decorates(section: Section) -> str:
    """What the code of a decorator decorates, for the heading; '' for other functions."""
    names = section.owners
    more = f" and {len(names) - MOST_OWNERS} more" if len(names) > MOST_OWNERS else ""
    return f" · decorates {', '.join(names[:MOST_OWNERS])}{more}" if names else ""


def printable(text: str) -> str:
    """A text from a trace, which may not command the terminal.

    >>> printable("a\\x1b[2Jb")
    'a [2Jb'
    """
    return "".join(c if c.isprintable() else " " for c in text)


class _Pen:
    def __init__(self, colour: bool, width: int, heads: bool, listing: Listing) -> None:
        self.colour, self.width, self.heads, self.listing = colour, width, heads, listing

    def ink(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text.strip() else text

    def head(self) -> str:
        n = len(self.listing.ranks)
        said = [
            f"{n} rank{'s' * (n != 1)}",
            f"torch {printable(self.listing.torch)}" if self.listing.torch else "",
        ]
        if not self.listing.counted:
            said.append("no counts: nothing was profiled")
        return self.ink("1", " · ".join(filter(None, said))) + "\n" + self.ink(_FAINT, _KEY)

    def section(self, one: Section) -> list[str]:
        runs = [2 + len(self.runs(c)) for row in one.rows for c in row.cells if c.runs is not None]
        wide = max([4, *(len(lane.head) for lane in one.lanes), *runs]) + 1
        wide += any(c.cut for row in one.rows for c in row.cells)
        wide += any(c.also for row in one.rows for c in row.cells)
        lines = [
            self.ink("1", printable(one.name))
            + self.ink(_FAINT, f"  {printable(one.file)}:{one.first}{printable(decorates(one))}")
        ]
        if self.heads:
            told = [f"{lane.head} is {lane.said}" for lane in one.lanes if lane.said]
            told += [f"not drawn: ranks {one.left_out}"] if one.left_out else []
            heads = "".join(f"{lane.head:<{wide}}" for lane in one.lanes)
            lines.append(self.ink(_FAINT, f"  rank {heads}{'   '.join(told)}"))
        base = one.indent
        for n, row in one.folded():
            lines += [self.ink(_FAINT, f"   ⋮   {n} lines")] if row is None else self.row(row, wide, base)
        return lines

    def row(self, row: Row, wide: int, base: int) -> list[str]:
        lanes = "".join(self.cell(c, wide) for c in row.cells)
        indent = max(row.indent - base, 0)
        code = printable(row.text.rstrip()[base:] if row.text.strip() else "")
        code = code[: max(self.width - 8 - wide * len(row.cells), 20)]
        sign = row.change or ("≠" if row.differs else " ")
        lines = [
            self.ink(_FAINT, f"{row.number or '':>4}")
            + f" {sign} {lanes}{code if row.bright else self.ink(_FAINT, code)}"
        ]
        pad = " " * min(7 + wide * len(row.cells) + indent, self.width // 2)
        for note in row.notes:
            lines += [
                pad + self.ink(_INK.get(note.kind, _BROKEN), part) for part in self.note(note, len(pad))
            ]
        return lines

    def note(self, note: Note, at: int) -> list[str]:
        who = f"[{note.who}] " if note.who else ""
        said = f"{SIGNS[note.kind]} {who}{sentence(note, printable)}"
        return textwrap.wrap(said, max(40, self.width - at), subsequent_indent="  ") or [said]

    @staticmethod
    def runs(cell: Cell) -> str:
        return f"×{number(cell.runs)}" if cell.runs is not None else ""

    def cell(self, c: Cell, wide: int) -> str:
        if not c.block:
            sign = "✗" if c.error else "✂" if c.ends else "┊" if c.eager else ""
            return self.ink(_BROKEN if c.ends or c.error else _FAINT, f"{sign:<{wide}}")
        bar = ("┆" if c.between else "⠿") if c.inlined else "│" if c.between else "┃"
        letters = "".join(c.graphs) if len(c.graphs) > 1 else c.block if c.edge in ("first", "only") else ""
        if c.cut == "middle":
            letters = f"{c.before}✂{c.block}"
        body = "✂" * (c.cut == "above") + bar + letters[: wide - 2] + "✂" * (c.cut == "below") + self.runs(c)
        body += f"/{c.only}" if c.only else ""
        body += "┊" * c.also
        hue = HUES[(ord(c.block[-1]) - 65) % 4] if c.block.isalpha() else 245
        return self.ink(f"38;5;{hue}", f"{body:<{wide}}")
