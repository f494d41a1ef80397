"""What the annotated source shows: each function's lines, and beside them a lane for every group of ranks alike."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from oddrank.places import is_library, label, place
from oddrank.record import guard_words
from oddrank.record.source import Function, Sources
from oddrank.record.tables import Collective, Compile, Mark, Tables

__all__ = ["MOST_LANES", "Cell", "Lane", "Listing", "Note", "Operator", "Row", "Section", "listing", "span"]

MOST_LANES = 6  # of a function; the groups with most ranks are drawn
MOST_WORDS = 118  # characters of torch's explanation that stand beside a line; its title takes their place
BREAKS = ("break", "gave-up", "cause")
# how the notes of a line follow each other
ORDER = (
    "inlined",
    "unfinished",
    "def",
    "limit",
    "split",
    "error",
    "gave-up",
    "break",
    "cause",
    "collective",
    "recompile",
    "shape",
)
# torch's pages on its graph breaks; a trace is data from outside, and leads nowhere else
_PAGE = re.compile(r"https://(?:[\w-]+\.)*(?:pytorch\.org|meta-pytorch\.github\.io)/[\w./#-]+")

Home = tuple[
    str, int, int, str
]  # file, first line, last line, name; lines are 0 where the source is not here
Region = tuple[str, int, int, int]  # file, first line of the code, where it is resumed, which of several
Attempt = tuple[Region, int]  # which of the compiles that have a graph; 0 for one without
Fact = tuple[int, str, Region | None, str, str]  # line, kind, code, name, text
STAGES = {"dynamo": "Dynamo", "forward": "forward", "backward": "backward"}


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
        who: The ranks in words; '' for all of them.
        explanation: Torch's, where `words` leaves something out.
        hints: What torch suggests, or further facts of this kind.
        link: Torch's page on it; '' for none.
        exact: False where the line was worked out.
    """

    kind: str
    words: str
    who: str = ""
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
        edge: 'first', 'last', 'only' line of that block, or ''.
        between: Inside a block, without an operator of its own.
        inlined: The block belongs to a caller's graph.
        ends: A graph ends here, or the function was given up here.
        error: It cannot be compiled.
        eager: It runs in eager.
        split: DDP begins another part of the graph.
        only: The compiles that hold the line, where others of the same code do not: '1, 3'.
        runs: How often the block runs in a step, at its first line; None where nothing was profiled.
    """

    graphs: tuple[str, ...] = ()
    block: str = ""
    edge: str = ""
    between: bool = False
    inlined: bool = False
    ends: bool = False
    error: bool = False
    eager: bool = False
    split: bool = False
    only: str = ""
    runs: float | None = None


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
        error: Whether a lane cannot be compiled.
        library: Whether it is not the program's.
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
    error: bool = False
    library: bool = False

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


def listing(
    tables: Tables, shapes: bool = False, libraries: bool = False, sources: Sources | None = None
) -> Listing:
    """Work out the annotated source of a run.

    Args:
        tables: Of all its ranks.
        shapes: Say beside each line what it makes, and count another type as a difference between ranks.
        libraries: Show every function of a library, too. One in which a graph broke is there in any case.
        sources: The text of the files; a notebook's cells are in it where they were added.
    """
    return _Builder(tables, shapes, libraries, sources or Sources()).listing()


class _Ranks:
    """Says which ranks, in words."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.all = ranks

    def lane(self, group: Sequence[int]) -> Lane:
        if len(self.all) == 1:
            return Lane(list(group), "")
        if len(group) == len(self.all):
            return Lane(list(group), "all")
        said = span(group)
        return Lane(list(group), said) if len(said) <= 7 else Lane(list(group), f"{len(group)}×", said)

    def who(self, group: Iterable[int]) -> str:
        mine = sorted(set(group))
        if len(mine) == len(self.all):
            return ""
        said = span(mine)
        if len(said) > 16:
            return f"{len(mine)} of {len(self.all)} ranks"
        return f"rank {said}" if len(mine) == 1 else f"ranks {said}"


@dataclass(slots=True)
class _Part:
    """What one rank has in one function."""

    marks: list[Mark] = field(default_factory=list)
    ran: list[Collective] = field(default_factory=list)


class _Builder:
    def __init__(self, tables: Tables, shapes: bool, libraries: bool, sources: Sources) -> None:
        self.tables, self.shapes, self.sources = tables, shapes, sources
        self.ranks = sorted({c.rank for c in tables.compiles} | {c.rank for c in tables.collectives})
        self.said = _Ranks(self.ranks)
        self.quoted = {(row.file, row.line): row.text for row in tables.code}
        self.compiles = {(c.rank, c.id): c for c in tables.compiles}
        self.forwards = {rank: max(n, 1) for rank, n in tables.profiled.items()}
        own = any(not is_library(m.file) for m in tables.marks)
        self.libraries = libraries or not own  # a job may compile a library's model alone
        self.notes = list(tables.notes)
        self._homes: dict[tuple[str, int, str], Home] = {}
        self._library: dict[str, bool] = {}
        self._stale = self._changed()
        self.attempts: dict[tuple[int, str], Attempt] = {}
        self.runs: dict[tuple[int, Region], int] = Counter()
        self.graphs: dict[tuple[int, Region], list[int]] = defaultdict(list)  # attempts that have a graph
        self._number()
        self.parts: dict[Home, dict[int, _Part]] = {}
        self._letters: dict[tuple[int, Home], dict[Region, str]] = {}
        self.low: dict[
            tuple[int, Region], int
        ] = {}  # the first line with an operator, in the function itself
        self.owner: dict[Region, Home] = {}
        self.of_home: dict[tuple[int, Home], list[Compile]] = defaultdict(list)
        for c in tables.compiles:
            home = self.owner.setdefault(
                self.attempts[c.rank, c.id][0], self.home(c.file, c.resume or c.line, c.func)
            )
            self.of_home[c.rank, home].append(c)

    # --- where things are ---

    def library(self, file: str) -> bool:
        if file not in self._library:
            self._library[file] = is_library(file)
        return self._library[file]

    def _changed(self) -> set[str]:
        """Files whose text is not what the trace quotes: they were edited since, or are another machine's."""
        found = set[str]()
        for (file, line), quoted in self.quoted.items():
            if file in found or self.library(file):
                continue
            now, then = ("".join(text.split()) for text in (self.sources.line(file, line), quoted))
            if now and then and not (now.startswith(then) or then.startswith(now)):
                found.add(file)
        for file in sorted(found):
            self.notes.append(
                f"{label(file)} is not what it was: only the lines that the trace quotes are shown"
            )
        return found

    def home(self, file: str, line: int, func: str) -> Home:
        key = file, line, func
        if key not in self._homes:
            inside = None if file in self._stale else self.sources.inside(file, line)
            self._homes[key] = (
                (file, inside.first, inside.last, inside.name) if inside else (file, 0, 0, func or "<module>")
            )
        return self._homes[key]

    def function(self, home: Home) -> Function | None:
        """The function in its file's text; None where that is not here."""
        if not home[1]:
            return None
        return next(
            one for one in self.sources.functions(home[0]) if (one.first, one.name) == (home[1], home[3])
        )

    def _number(self) -> None:
        """Name the code of each compile alike on every rank: torch numbers compiles in the order of the rank."""
        frames: dict[tuple[int, str, str, int, int], list[str]] = defaultdict(list)
        for c in self.tables.compiles:
            frame, _, again = c.id.rpartition("/")
            life = again.partition(" ")[2]  # Dynamo counts anew after a reset
            known = frames[c.rank, life, c.file, c.line, c.resume]
            if frame not in known:
                known.append(frame)
            region = (c.file, c.line, c.resume, known.index(frame))
            self.runs[c.rank, region] += c.runs or 0
            tries = self.graphs[c.rank, region]
            if c.operators:
                tries.append(len(tries) + 1)
                self.attempts[c.rank, c.id] = region, len(tries)
            else:
                self.attempts[c.rank, c.id] = region, 0

    # --- all functions ---

    def listing(self) -> Listing:
        parts = self.parts
        first: dict[str, int] = {}

        def part(file: str, line: int, func: str, rank: int) -> _Part:
            by_rank = parts.setdefault(self.home(file, line, func), {})
            return by_rank.setdefault(rank, _Part())

        for c in self.tables.compiles:  # also one that has nothing to show
            if not self.library(c.file) or self.libraries:
                first.setdefault(c.file, len(first))
                part(c.file, c.resume or c.line, c.func, c.rank)
        for m in self.tables.marks:
            if m.kind == "op" and m.stage == "dynamo":
                region = self.attempts[m.rank, m.compile][0]
                if self.home(m.file, m.line, m.func) == self.owner[region]:
                    self.low[m.rank, region] = min(self.low.get((m.rank, region), m.line), m.line)
            if self.library(m.file) and (not self.libraries or m.kind == "inlined"):
                if m.kind not in (*BREAKS, "def", "error") or not self._program_broke(m):
                    continue
            part(m.file, m.line, m.func, m.rank).marks.append(m)
        for ran in self.tables.collectives:
            if ran.file and not ran.compiled and not self.library(ran.file):
                part(ran.file, ran.line, ran.func, ran.rank).ran.append(ran)
        sections = [self.section(home, by_rank) for home, by_rank in parts.items()]
        at = {id(one): home for one, home in zip(sections, parts, strict=True)}
        sections.sort(key=lambda s: (s.library, first.get(at[id(s)][0], len(first)), at[id(s)][0], s.first))
        counted = bool(self.forwards)
        return Listing(sections, self.ranks, self.tables.torch, self.notes, counted, self.shapes)

    def _program_broke(self, mark: Mark) -> bool:
        """Whether the program leads to a break in a library's function."""
        c = self.compiles.get((mark.rank, mark.compile))
        frames = (*mark.chain, *(c.chain if c else ()))
        return any(not self.library(frame[0]) for frame in frames)

    # --- one function ---

    def section(self, home: Home, by_rank: Mapping[int, _Part]) -> Section:
        whole = self.function(home)
        odd = self._odd_groups(by_rank)
        alike: dict[object, list[int]] = {}
        facts: dict[int, dict[int, frozenset[object]]] = {}
        for rank in self.ranks:
            mine = by_rank.get(rank, _Part())
            found, regions = self._facts(rank, mine, odd)
            runs = frozenset((region, self.each(rank, self.runs[rank, region])) for region in regions)
            key = frozenset(found.items()), runs
            group = alike.setdefault(key, [])
            group.append(rank)
            if len(group) == 1:
                facts[rank] = _by_line(found)
        groups = sorted(alike.values(), key=(lambda g: (-len(g), g)) if len(alike) > MOST_LANES else None)
        drawn, rest = groups[:MOST_LANES], groups[MOST_LANES:]
        made = Section(home[3], label(home[0]), home[1], library=self.library(home[0]))
        made.lanes = [self.said.lane(group) for group in drawn]
        made.left_out = span(rank for group in rest for rank in group)
        lanes = [_Lane(self, home, whole, group) for group in groups]
        numbers = self._numbers(home, whole, by_rank)
        made.first = home[1] or min(numbers, default=0)
        text = self.sources.text(home[0]).splitlines() if whole else []
        marks: dict[int, dict[int, list[Mark]]] = defaultdict(dict)
        ran: dict[int, dict[int, list[Collective]]] = defaultdict(dict)
        for rank, mine in by_rank.items():
            for m in mine.marks:
                marks[self.line(m)].setdefault(rank, []).append(m)
            for c in mine.ran:
                ran[c.line].setdefault(rank, []).append(c)
        for n in numbers:
            written = text[n - 1] if 0 < n <= len(text) else self.quoted.get((home[0], n), "")
            row = Row(n, written, [lane.cell(n) for lane in lanes[:MOST_LANES]])
            row.differs = len({facts[g[0]].get(n, frozenset()) for g in groups}) > 1
            row.notes = self._notes(marks.get(n, {}), ran.get(n, {}))
            if whole and n == whole.line:
                row.notes += self._inlined(lanes)
            row.operators = self._operators(n, lanes)
            row.notes.sort(key=lambda note: ORDER.index(note.kind))
            made.rows.append(row)
        self._total(made, by_rank, lanes)
        made.seconds = max(
            (sum(c.seconds for c in self.of_home.get((rank, home), ())) for rank in self.ranks), default=0
        )
        return made

    def line(self, mark: Mark) -> int:
        """The row of a mark: what is said of a function stands at its `def`, below the decorators; what is said of the
        rest of one, at its first operator, since ranks that broke elsewhere have that in common."""
        if mark.kind not in ("def", "recompile", "unfinished", "limit", "inlined"):
            return mark.line
        region = self.attempts[mark.rank, mark.compile][0]
        if mark.kind != "inlined" and region[2]:
            return self.low.get((mark.rank, region), mark.line)
        whole = self.function(self.home(mark.file, mark.line, mark.func))
        return whole.line if whole and mark.line < whole.line else mark.line

    def _numbers(self, home: Home, whole: Function | None, by_rank: Mapping[int, _Part]) -> Sequence[int]:
        if whole:
            return range(whole.first, whole.last + 1)
        lines = {m.line for mine in by_rank.values() for m in mine.marks}
        return sorted(lines | {c.line for mine in by_rank.values() for c in mine.ran})

    def each(self, rank: int, total: int) -> float | None:
        """Of a number that was counted, how much of it is one step's; None where nothing was profiled."""
        return total / self.forwards[rank] if rank in self.forwards else None

    def letters(self, rank: int, home: Home) -> dict[Region, str]:
        """The graphs that begin in a function, by their first line; a function's letters are its own."""
        if (rank, home) not in self._letters:
            regions = [self.attempts[rank, c.id][0] for c in self.of_home.get((rank, home), ())]
            order = sorted(
                {region for region in regions if self.graphs[rank, region]},
                key=lambda region: (max(self.low.get((rank, region), 0), region[2]), region[2], region[3]),
            )
            self._letters[rank, home] = {region: letter(i) for i, region in enumerate(order)}
        return self._letters[rank, home]

    # --- what makes ranks differ ---

    def _facts(
        self, rank: int, part: _Part, odd: set[tuple[int, str, str]]
    ) -> tuple[Counter[Fact], set[Region]]:
        """What Dynamo saw at each line, in the first compile of each code: not how torch numbers its compiles, not how
        a graph was lowered, and not the name of a group, which is another one in each row of a mesh."""
        found: Counter[Fact] = Counter()
        regions = set[Region]()
        held: dict[tuple[Region, int], set[int]] = defaultdict(set)
        for m in part.marks:
            region, n = self.attempts[m.rank, m.compile]
            if m.kind == "op":
                if m.stage != "dynamo":
                    continue
                regions.add(region)
                held[region, m.line].add(n)
                if n <= 1:
                    found[m.line, m.kind, region, m.name, m.text if self.shapes else ""] += 1
            elif m.kind == "collective":
                if n <= 1:
                    group = m.hints[0] if (m.line, m.name, m.hints[0]) in odd else ""
                    found[m.line, m.kind, region, m.name, f"{m.text} {group}"] += 1
            elif m.kind != "kernel":
                found[self.line(m), m.kind, region, m.name, ""] += 1
        for c in part.ran:
            group = c.group if (c.line, c.name, c.group) in odd else ""
            found[c.line, "ran", None, c.name, f"{c.shapes} {c.dtype} {c.runs} {group}"] += 1
        for (region, line), tries in held.items():
            if len(tries) < len(self.graphs[rank, region]):
                found[line, "only", region, str(sorted(tries)), ""] = 1
        return found, regions

    @staticmethod
    def _odd_groups(by_rank: Mapping[int, _Part]) -> set[tuple[int, str, str]]:
        """Collectives on a group whose other members do not call it at that line."""
        users: dict[tuple[int, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for rank, part in by_rank.items():
            for m in part.marks:
                if m.kind == "collective":
                    users[m.line, m.name][m.hints[0]].add(rank)
            for c in part.ran:
                users[c.line, c.name][c.group].add(rank)
        found = set[tuple[int, str, str]]()
        for (line, name), groups in users.items():
            if len(groups) < 2:
                continue
            for group, ranks in groups.items():
                members = {int(n) for n in re.findall(r"\d+", group.partition(":")[2])}
                if (members & by_rank.keys()) - ranks if members else len(ranks) == 1:
                    found.add((line, name, group))
        return found

    # --- what stands beside a line ---

    def _notes(
        self, marks: Mapping[int, Sequence[Mark]], ran: Mapping[int, Sequence[Collective]]
    ) -> list[Note]:
        found: dict[tuple[str, str], tuple[Note, Counter[int]]] = {}

        def add(rank: int, note: Note, runs: float = 0) -> None:
            found.setdefault((note.kind, note.words), (note, Counter()))[1][rank] += runs  # type: ignore[assignment]

        for rank, mine in sorted(marks.items()):
            again: list[Mark] = []
            done = set[str]()  # said already, by the break itself
            made = ""
            for m in mine:
                n = self.attempts[rank, m.compile][1]
                if m.kind in ("op", "kernel", "inlined"):
                    if m.kind == "op" and m.stage == "dynamo" and n <= 1:
                        made = m.text or made
                elif m.kind == "collective":
                    if n <= 1:
                        self._called(rank, m, add)
                elif m.kind == "recompile":
                    again.append(m)
                elif m.kind != "cause" or m.name not in done:
                    done.add(m.name)
                    ran_it = self.compiles[rank, m.compile].runs if m.kind == "break" else 0
                    add(rank, self._note(m), self.each(rank, ran_it or 0) or 0)
            if again:
                add(rank, _again(again))
            if made and self.shapes:
                add(rank, Note("shape", made))
        for rank, calls in sorted(ran.items()):
            for c in calls:
                where = "in a backward" if c.compiled else "in eager"
                words = " · ".join(
                    filter(None, (c.name, _typed(c), f"group {c.group}" if c.group else "", where))
                )
                add(rank, Note("collective", words, exact=c.exact), self.each(rank, c.runs) or 0)
        notes = []
        for note, times in found.values():
            note.who = self.said.who(times)
            if max(times.values()) > 0:
                few, many = number(min(times.values())), number(max(times.values()))
                note.words += f" · {few if few == many else f'{few} to {many}'}× a step"
            notes.append(note)
        return notes

    def _called(self, rank: int, m: Mark, add: Callable[..., None]) -> None:
        """A collective of a graph, with the shapes that later compiles gave it."""
        group = f"group {m.hints[0]}" if m.hints and m.hints[0] else ""
        words = " · ".join(filter(None, (m.name, m.text, group)))
        note = Note("collective", words, exact=m.exact)
        if not m.exact:
            note.hints = (f"line worked out from the text: torch reports {_short(m.via)}",)
        add(rank, note)

    def _note(self, m: Mark) -> Note:
        words = plain(m.name, m.text) if m.kind in ("break", "gave-up", "error", "cause", "def") else m.name
        if m.kind == "limit":
            words = guard_words.words(m.name)
        where = ""
        if m.kind in ("break", "gave-up", "cause", "def") and m.via:
            where = (
                f" (line {m.via.rpartition(':')[2]})"
                if m.via.rpartition(":")[0] == m.file
                else f" ({_short(m.via)})"
            )
            inner = m.cause
            if m.chain and inner[:2] != (m.file, m.line):
                at = f"line {inner[1]}" if inner[0] == m.file else place(*inner[:2])
                where = f" (in {inner[2]}, {at})"
        said = "" if m.kind == "limit" or (m.name in words and m.text in words) else m.text or m.name
        if m.text and m.name not in (words, m.text) and m.text != said:
            said = f"{m.name}. {said}"
        page = _PAGE.search(m.report)
        return Note(m.kind, words + where, "", said, m.hints, page[0] if page else "", m.exact)

    def _inlined(self, lanes: Sequence[_Lane]) -> list[Note]:
        """Into which functions' graphs this one was traced."""
        into: dict[str, set[str]] = {}
        for lane in lanes:
            for region, owner in lane.inlined.items():
                into.setdefault(owner[3], set()).add(lane.owners_letter(region))
        if not into:
            return []
        several = any(len(letters) > 1 for letters in into.values())
        names = [
            f"graph{'s' * (len(ls) > 1)} {', '.join(sorted(ls))} of {name}"
            if several or len(into) > 1
            else name
            for name, ls in into.items()
        ]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return [Note("inlined", "inlined into " + ", ".join(names[:3]) + more, hints=tuple(names[3:]))]

    def _operators(self, n: int, lanes: Sequence[_Lane]) -> dict[str, dict[str, list[Operator]]]:
        """The operators of a line, by the ranks that have the same."""
        alike: dict[object, tuple[list[int], dict[str, list[Operator]]]] = {}
        for lane in lanes:
            stages = lane.operators(n)
            if stages:
                key = str(stages)
                alike.setdefault(key, ([], stages))[0].extend(lane.ranks)
        if len(alike) == 1:
            ((ranks, stages),) = alike.values()
            return {self.said.who(ranks): stages}
        return {self.said.who(ranks) or "all ranks": stages for ranks, stages in alike.values()}

    def _total(self, made: Section, by_rank: Mapping[int, _Part], lanes: Sequence[_Lane]) -> None:
        kinds: dict[str, set[int]] = {"graphs": {lane.graphs for lane in lanes}}
        for rank in self.ranks:
            part = by_rank.get(rank, _Part())
            broke = {(m.line, m.name) for m in part.marks if m.kind == "break"}
            called = {(m.line, m.name) for m in part.marks if m.kind == "collective"}
            called |= {(c.line, c.name) for c in part.ran}
            kinds.setdefault("breaks", set()).add(len(broke))
            kinds.setdefault("recompiles", set()).add(sum(m.kind == "recompile" for m in part.marks))
            kinds.setdefault("collectives", set()).add(len(called))
        for name, values in kinds.items():
            setattr(made, name, sorted(values))
        made.eager = any(lane.eager for lane in lanes)
        made.error = any(m.kind == "error" for part in by_rank.values() for m in part.marks)


class _Lane:
    """One rank's blocks in one function; it stands for all ranks that are alike."""

    def __init__(self, of: _Builder, home: Home, whole: Function | None, ranks: list[int]) -> None:
        self.of, self.home, self.whole, self.ranks = of, home, whole, ranks
        rank = self.rank = ranks[0]
        part = of.parts[home].get(rank, _Part())
        self.by_line: dict[int, list[Mark]] = defaultdict(list)
        self.held: dict[tuple[Region, int], set[int]] = defaultdict(set)  # the compiles that hold a line
        for m in part.marks:
            self.by_line[of.line(m)].append(m)
            if m.kind == "op" and m.stage == "dynamo":
                region, n = of.attempts[rank, m.compile]
                self.held[region, m.line].add(n)
        self.lines: dict[Region, set[int]] = defaultdict(set)
        for region, line in self.held:
            self.lines[region].add(line)
        self.inlined = {region: of.owner[region] for region in self.lines if of.owner[region] != home}
        for m in part.marks:
            if m.kind == "inlined":
                region = of.attempts[rank, m.compile][0]
                if of.owner[region] != home:
                    self.inlined[region] = of.owner[region]
        self.letters = of.letters(rank, home)
        self.graphs = len(self.letters)
        self.blocks = {region: self._block(region) for region in (*self.letters, *self.inlined)}
        own = of.of_home.get((rank, home))
        given_up = any(m.kind == "def" for m in part.marks)
        self.eager = given_up or (not own and not self.inlined and bool(part.ran))
        self.errors = {m.line for m in part.marks if m.kind == "error"}
        self.ends = {m.line for m in part.marks if m.kind in BREAKS}
        self.splits = {m.line for m in part.marks if m.kind == "split"}

    def owners_letter(self, region: Region) -> str:
        """The letter of a graph in the function that it begins in."""
        return self.of.letters(self.rank, self.of.owner[region]).get(region, "A")

    def _letter(self, region: Region) -> str:
        if region in self.letters:
            return self.letters[region]
        return (
            self.owners_letter(region) if len(set(self.inlined.values())) == 1 and not self.letters else "…"
        )

    def _block(self, region: Region) -> tuple[int, int]:
        """First and last line of a graph's block: from where its code begins to where that ends, as far as the order of
        the statements tells it."""
        lines = self.lines.get(region, set())
        low, high = min(lines, default=0), max(lines, default=0)
        if not self.whole or not self.whole.body:
            return low, high
        body, own = self.whole.body, region in self.letters
        resume = region[2] if own else 0
        begin = resume + 1 if resume else body[0][0]
        if not resume or not lines or low > resume:
            low = min(low, begin) if lines else begin
        if own and (broke := [n for n in self._breaks(region) if n >= low]):
            return low, max(high, max(broke) - 1, low)
        high = max(high, low)
        for first, last, leaves in body:
            if last < high:
                continue
            if leaves and first <= high:
                break
            high = max(high, last)
            if leaves:
                break
        return low, high

    def _breaks(self, region: Region) -> list[int]:
        return [
            m.line
            for marks in self.by_line.values()
            for m in marks
            if m.kind == "break" and self.of.attempts[self.rank, m.compile][0] == region
        ]

    def cell(self, n: int) -> Cell:
        """What it has at a line."""
        made = Cell(eager=self.eager, ends=n in self.ends, error=n in self.errors)
        mine = [region for region in self.blocks if n in self.lines.get(region, ())]
        spanning = mine or [region for region, (a, b) in self.blocks.items() if a <= n <= b and a]
        if not spanning:
            return made
        made.graphs = tuple(dict.fromkeys(self._letter(region) for region in mine))
        region = spanning[-1]
        first, last = self.blocks[region]
        made.block, made.between, made.eager = self._letter(region), not mine, False
        made.inlined = region in self.inlined and region not in self.letters
        made.split = n in self.splits
        made.edge = "only" if first == last else "first" if n == first else "last" if n == last else ""
        if mine:
            held, tries = self.held[region, n], self.of.graphs[self.rank, region]
            if held != set(tries) and len(tries) > 1:
                made.only = ", ".join(map(str, sorted(held)))
        if n == first and self.rank in self.of.forwards:
            made.runs = self.of.each(self.rank, self.of.runs[self.rank, region])
        return made

    def operators(self, n: int) -> dict[str, list[Operator]]:
        """The operators and kernels of a line by stage, of the first compile of each code."""
        found: dict[str, Counter[tuple[str, str]]] = {}
        for m in self.by_line.get(n, ()):
            if m.kind not in ("op", "kernel") or self.of.attempts[self.rank, m.compile][1] > 1:
                continue
            stage = "kernels" if m.kind == "kernel" else STAGES[m.stage]
            found.setdefault(stage, Counter())[short(m.name), m.text] += 1
        order = [*STAGES.values(), "kernels"]
        return {
            stage: [Operator(*key, times) for key, times in found[stage].items()]
            for stage in order
            if stage in found
        }


def _by_line(facts: Counter[Fact]) -> dict[int, frozenset[object]]:
    found: dict[int, set[object]] = defaultdict(set)
    for (line, kind, _, *rest), times in facts.items():
        found[line].add((kind, *rest, times))
    return {line: frozenset(what) for line, what in found.items()}


def _again(marks: Sequence[Mark]) -> Note:
    """All recompiles at one line, with the guards in words: those that differ in a value alone make one sentence."""
    alike: dict[tuple[str, str], list[str]] = {}
    for m in marks:
        alike.setdefault((guard_words.form(guard_words.bare(m.name)), _line_of(m)), []).append(
            guard_words.bare(m.name)
        )
    said = [guard_words.words(first, rest) + at for (_, at), (first, *rest) in alike.items()]
    shown = "; ".join(said[:2]) + (f" and {len(said) - 2} more" if len(said) > 2 else "")
    words = shown if len(marks) == 1 else f"{len(marks)} times: {shown}"
    return Note("recompile", words, hints=tuple(dict.fromkeys([*said[2:], *(m.name for m in marks)])))


def _line_of(m: Mark) -> str:
    return f" (line {m.via.rpartition(':')[2]})" if m.via else ""


def _typed(c: Collective) -> str:
    """What a collective that ran was given, as Dynamo prints a type: 'float32[4, 16]'."""
    return f"{c.dtype}[{c.shapes.replace('x', ', ')}]" if c.dtype and c.shapes else c.shapes or c.dtype


def _short(via: str) -> str:
    file, _, line = via.rpartition(":")
    return place(file, int(line))


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


_SAYS = re.compile(r"^(?:Dynamo|torch\.compile) (does not know how to|cannot|detected|does not support) ?")
_SHORTER = {
    "does not know how to": "cannot ",
    "cannot": "cannot ",
    "detected": "",
    "does not support": "no support for ",
}


def plain(title: str, why: str) -> str:
    """Torch's explanation of a break where it is short, for that has the names; its title otherwise."""
    said = re.sub(r" \((has_kwargs \w+|reason: None)\)", "", why).rstrip(".")
    said = _SAYS.sub(lambda m: _SHORTER[m[1]], said)
    return said if 0 < len(said) <= MOST_WORDS else title


def short(operator: str) -> str:
    """An operator without the packages that all have.

    >>> short("torch.ops.aten.add.Tensor"), short("torch._C._nn.gelu")
    ('aten.add.Tensor', 'gelu')
    """
    for head in ("torch.ops.", "torch._C._nn.", "torch.nn.functional.", "torch.", "_C."):
        operator = operator.removeprefix(head)
    return operator.removesuffix(".default")
