"""The annotated source as data: functions, their lines, what stands beside them. HTML and text draw this."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

__all__ = [
    "MOST_LANES",
    "Cell",
    "Lane",
    "Listing",
    "Note",
    "Operator",
    "Row",
    "Section",
    "letter",
    "number",
    "span",
]

MOST_LANES = 6  # of a function; the groups with most ranks are drawn
FOLDED = 9  # rows in which nothing happens, one after the other; of more, two are drawn


@dataclass(slots=True)
class Operator:
    """An operator or kernel of a line: its name, its type such as 'f32[4, 16]', and how often it is there."""

    name: str
    type: str
    times: int


@dataclass(slots=True)
class Note:
    """A fact beside a line.

    Args:
        kind: As in `Mark`; 'collective' of eager ones, too; 'shape' for what the line makes.
        words: What is said, without the kind.
        runs: How often, such as '2× a step'; '' where that is not known.
        who: The ranks in words; '' for all of them.
        explanation: Torch's, where `words` leaves something out.
        hints: What torch suggests, or further facts of this kind.
        link: Torch's page on it; '' for none.
        exact: False where the line was worked out.
    """

    kind: str
    words: str
    who: str = ""
    runs: str = ""
    explanation: str = ""
    hints: tuple[str, ...] = ()
    link: str = ""
    exact: bool = True


@dataclass(slots=True)
class Cell:
    """What one lane has at one line.

    Args:
        graphs: The letters of the graphs that have an operator of this line.
        block: The letter of the graph whose block spans it; '' for none.
        edge: 'first', 'last', 'only' line of a piece of that block, or ''.
        between: Inside a block, without an operator of its own. A branch of an `if` that has none is in no block.
        inlined: The block belongs to a caller's graph.
        ends: A graph ends here, or the function was given up here.
        cut: Where it ends, of a line that is in a block: 'above' its operators, 'below' them, or in the 'middle', where
            `before` and `block` both have operators.
        before: The letter of the graph that ends in the middle.
        error: It cannot be compiled.
        eager: It runs in eager.
        also: It is in a block, and runs in eager, too: calls of the function outside of what is compiled.
        split: DDP begins another part of the graph.
        only: The compiles that hold the line, where others of the same code do not: '1, 3'.
        runs: How often the block runs in a step, at its first line; None elsewhere, and where nothing was profiled.
    """

    graphs: tuple[str, ...] = ()
    block: str = ""
    edge: str = ""
    between: bool = False
    inlined: bool = False
    ends: bool = False
    cut: str = ""
    before: str = ""
    error: bool = False
    eager: bool = False
    also: bool = False
    split: bool = False
    only: str = ""
    runs: float | None = None

    @property
    def several(self) -> bool:
        """Whether the line is inlined into several graphs, so that no one's colour is its own."""
        return self.inlined and (len(self.graphs) > 1 or self.block == "…")


@dataclass(slots=True)
class Row:
    """A line of code with all that is known of it.

    Args:
        number: The line; 0 in a comparison, where it is not in the newer run.
        text: The line, or '' where it is not known.
        cells: One for each lane.
        notes: What stands beside it.
        operators: Who has them ('' for all) -> stage ('Dynamo', 'forward', 'backward', 'kernels') -> operators.
        differs: Whether ranks differ here; in a comparison, whether the runs do.
        change: '-' or '+' in a comparison, for a line of one run alone.
    """

    number: int
    text: str
    cells: list[Cell] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    operators: dict[str, dict[str, list[Operator]]] = field(default_factory=dict)
    differs: bool = False
    change: str = ""

    @property
    def indent(self) -> int:
        """How many spaces the line begins with."""
        return len(self.text) - len(self.text.lstrip())

    @property
    def bright(self) -> bool:
        """Whether the line is more than a part of a block: it has a note, or an operator."""
        return bool(self.notes) or any(c.graphs for c in self.cells)

    @property
    def quiet(self) -> bool:
        """Whether nothing happens here."""
        return not (
            self.notes or self.operators or self.change or any(c.block and not c.between for c in self.cells)
        )


@dataclass(slots=True)
class Lane:
    """A column: ranks that are alike in this function.

    Args:
        ranks: Ascending.
        head: Its head: 'all', '0–3', '48×'.
        said: Its ranks in words, where the head does not say them.
    """

    ranks: list[int]
    head: str
    said: str = ""


@dataclass(slots=True)
class Section:
    """One function.

    Args:
        name: With its class: 'Block.forward'.
        file: The short name of its file.
        first: Its first line.
        lanes: The columns.
        rows: Its lines.
        left_out: Ranks of further lanes, in words; '' for none.
        graphs, breaks, recompiles, collectives: Their numbers in any lane, ascending: [1, 2] where lanes differ.
        seconds: Of compiling, in the slowest rank.
        eager: Whether a lane runs in eager.
        eager_on: Which ranks, in words; '' for all.
        beside: Whether it ran in eager outside of what is compiled, on any rank.
        error: Whether a lane cannot be compiled.
        library: Whether it is not the program's.
        owners: Of a decorator's code: what it decorates, such as 'Block.forward'.
    """

    name: str
    file: str
    first: int
    lanes: list[Lane] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    left_out: str = ""
    graphs: list[int] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    recompiles: list[int] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)
    seconds: float = 0.0
    eager: bool = False
    eager_on: str = ""
    beside: bool = False
    error: bool = False
    library: bool = False
    owners: list[str] = field(default_factory=list)

    @property
    def indent(self) -> int:
        """The indentation that all its lines have, which is not drawn."""
        return min((row.indent for row in self.rows if row.text.strip()), default=0)

    def folded(self) -> Iterator[tuple[int, Row | None]]:
        """What is drawn, line by line: the number of a row and the row, or how many are left out and None. Of rows in
        which nothing happens the first and the last stand for the others."""
        n = 0
        while n < len(self.rows):
            end = n
            while end < len(self.rows) and self.rows[end].quiet:
                end += 1
            yield n, self.rows[n]
            if n and end - n > FOLDED:
                yield end - n - 2, None
                yield end - 1, self.rows[end - 1]
                n = end
            else:
                n += 1

    @property
    def differs(self) -> bool:
        """Whether ranks differ in a line."""
        return any(row.differs for row in self.rows)

    @property
    def whole(self) -> bool:
        """Whether it was compiled without a break, a recompile or a difference, or only met."""
        return not (any(self.breaks) or any(self.recompiles) or self.eager or self.error or self.differs)


@dataclass(slots=True)
class Listing:
    """The annotated source of a run, ready to be drawn.

    Args:
        sections: The program's functions, in the order of their files and lines, then those of libraries.
        ranks: All ranks, ascending; of the newer run in a comparison.
        torch: The version of torch.
        notes: What a reader has to know about gaps.
        counted: Whether anything was profiled, so that runs are known.
        shapes: Whether the lines say what they make.
        against: Whether it compares two runs.
    """

    sections: list[Section]
    ranks: list[int]
    torch: str = ""
    notes: list[str] = field(default_factory=list)
    counted: bool = False
    shapes: bool = False
    against: bool = False


def span(ranks: Iterable[int]) -> str:
    """Ranks in few characters.

    >>> span([0, 1, 2, 5]), span(range(0, 64, 8))
    ('0–2, 5', '0, 8, … 56')
    """
    ranks = sorted(ranks)
    steps = {b - a for a, b in zip(ranks, ranks[1:], strict=False)}
    if len(ranks) > 3 and len(steps) == 1 and steps != {1}:
        return f"{ranks[0]}, {ranks[1]}, … {ranks[-1]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(
        str(r[0]) if len(r) == 1 else f"{r[0]}{', ' if len(r) == 2 else '–'}{r[-1]}" for r in runs
    )


def letter(i: int) -> str:
    """The name of a function's i-th graph: A to Z, then AA.

    >>> letter(0), letter(26)
    ('A', 'AA')
    """
    return (letter(i // 26 - 1) if i >= 26 else "") + chr(65 + i % 26)


def number(value: float) -> str:
    """A count of one step: whole where it is.

    >>> number(2.0), number(1.5)
    ('2', '1.5')
    """
    return f"{value:.0f}" if value == int(value) else f"{value:.2g}"
