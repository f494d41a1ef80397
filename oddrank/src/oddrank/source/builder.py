"""From the tables of a run to its annotated source: ranks that are alike, and what is said beside each line."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from oddrank.counted import counted
from oddrank.places import is_library, label, place
from oddrank.record import guard_words
from oddrank.record.nodes import COLLECTIVE
from oddrank.record.source import Function, Sources
from oddrank.record.tables import Collective, Compile, Mark, Tables
from oddrank.source.lanes import BREAKS, MOST_LINES, Attempt, Eager, Home, LaneBlocks, Part, Region, last_name
from oddrank.source.listing import (
    MOST_LANES,
    Lane,
    Listing,
    Note,
    Operator,
    Row,
    Section,
    letter,
    number,
    span,
)
from oddrank.source.words import MOST_TEXT, again, cut, plain, spot, typed

__all__ = ["MOST_NOTES", "MOST_ROWS", "MOST_SECTIONS", "Builder", "listing"]

MOST_NOTES = 30  # of a line, and of what a note opens to
MOST_ROWS = 60_000  # of all functions
MOST_SECTIONS = 2_000
LOWERED = "in the lowered graph alone"
ORDER = (
    "inlined",
    "unfinished",
    "def",
    "eager",
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

# code inside of a function that has no name of its own
_PARTS = ("<lambda>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
Fact = tuple[int, str, Region | None, str, str]  # line, kind, code, name, text


def listing(
    tables: Tables,
    shapes: bool = False,
    libraries: bool = False,
    sources: Sources | None = None,
    eager: Iterable[Eager] = (),
) -> Listing:
    """Work out the annotated source of a run.

    Args:
        tables: Of all its ranks.
        shapes: Say beside each line what it makes, and count another type as a difference between ranks.
        libraries: Show every function of a library, too. One in which a graph broke is there in any case.
        sources: The text of the files; a notebook's cells are in it where they were added.
        eager: Functions that ran in Python outside of all that is compiled, where that is known.
    """
    return Builder(tables, shapes, libraries, sources or Sources(), eager).listing()


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


class Builder:
    """Works out the annotated source of one run; `LaneBlocks` asks it what is alike on all ranks."""

    def __init__(
        self, tables: Tables, shapes: bool, libraries: bool, sources: Sources, eager: Iterable[Eager] = ()
    ) -> None:
        self.tables, self.shapes, self.sources, self.eager = tables, shapes, sources, list(eager)
        self.ranks = tables.ranks
        self.said = _Ranks(self.ranks)
        self.quoted = {(row.file, row.line): row.text for row in tables.code}
        self.compiles = {(c.rank, c.id): c for c in tables.compiles}
        self.forwards = {rank: max(n, 1) for rank, n in tables.profiled.items()}
        own = any(not is_library(m.file) for m in tables.marks)
        self.libraries = libraries or not own  # a job may compile a library's model alone
        self.notes = list(tables.notes)
        self.rows_left = MOST_ROWS
        self._homes: dict[tuple[str, int, str], Home] = {}
        self.wholes: dict[Home, Function | None] = {}  # None where its text is not here
        self._library: dict[str, bool] = {}
        self._stale = self._changed()
        self.attempts: dict[tuple[int, str], Attempt] = {}
        self.runs: dict[tuple[int, Region], int] = Counter()
        self.graphs: dict[tuple[int, Region], list[int]] = defaultdict(list)  # attempts that have a graph
        self._number()
        self.members = self._members()
        self.parts: dict[Home, dict[int, Part]] = {}
        self._letters: dict[tuple[int, Home], dict[Region, str]] = {}
        # the first line with an operator, in the function itself
        self.low: dict[tuple[int, Region], int] = {}
        self.owner: dict[Region, Home] = {}
        self.func: dict[Region, str] = {}
        self.of_home: dict[tuple[int, Home], list[Compile]] = defaultdict(list)
        for c in tables.compiles:
            region = self.attempts[c.rank, c.id][0]
            home = self.owner.setdefault(region, self.home(c.file, c.resume or c.line, c.func))
            self.func.setdefault(region, c.func)
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
        """The function of a line. One of another name is not shown: a trace may name any file that is here."""
        key = file, line, func
        if key not in self._homes:
            inside = None if file in self._stale else self.sources.inside(file, line)
            if inside and not (func in _PARTS or last_name(func) == last_name(inside.name)):
                inside = None
            home = (
                (file, inside.first, inside.last, inside.name) if inside else (file, 0, 0, cut(func) or "?")
            )
            self._homes[key] = home
            self.wholes[home] = inside
        return self._homes[key]

    def _number(self) -> None:
        """Name the code of each compile alike on every rank: torch numbers compiles in the order of the rank."""
        traced = {(m.rank, m.compile) for m in self.tables.marks if m.kind == "op" and m.stage == "dynamo"}
        # by rank: code -> frame -> which of several of that code
        frames: dict[int, dict[tuple[str, int, int], dict[str, int]]] = defaultdict(lambda: defaultdict(dict))
        seen: dict[int, set[str]] = defaultdict(set)  # by rank, since Dynamo was reset and counts anew
        for c in self.tables.compiles:
            bare = c.id.partition(" ")[0]
            if bare in seen[c.rank] or (bare == "0/0" and seen[c.rank]):
                seen[c.rank].clear()
                frames[c.rank].clear()
            seen[c.rank].add(bare)
            known = frames[c.rank][c.file, c.line, c.resume]
            region = (c.file, c.line, c.resume, known.setdefault(bare.rpartition("/")[0], len(known)))
            self.runs[c.rank, region] += c.runs or 0
            tries = self.graphs[c.rank, region]
            if c.operators or (c.outcome == "unfinished" and (c.rank, c.id) in traced):
                tries.append(len(tries) + 1)
                self.attempts[c.rank, c.id] = region, len(tries)
            else:
                self.attempts[c.rank, c.id] = region, 0

    def _members(self) -> dict[str, set[int]]:
        """The ranks of each group, where torch told them, and otherwise those that used it anywhere."""
        told, used = defaultdict[str, set[int]](set), defaultdict[str, set[int]](set)
        for c in self.tables.collectives:
            name, _, ranks = c.group.partition(": ")
            told[name].update(int(n) for n in re.findall(r"\d{1,9}", ranks))
            used[name].add(c.rank)
        for m in self.tables.marks:
            if m.kind == "collective":
                used[_group(m)].add(m.rank)
        return {name: told[name] or users for name, users in used.items() if name}

    # --- all functions ---

    def listing(self) -> Listing:
        parts = self.parts
        first: dict[str, int] = {}

        def part(file: str, line: int, func: str, rank: int) -> Part:
            by_rank = parts.setdefault(self.home(file, line, func), {})
            return by_rank.setdefault(rank, Part())

        if unknown := sum(not c.file for c in self.tables.compiles):
            self.notes.append(
                f"of {unknown} compile{'s' * (unknown > 1)} the trace does not say the function"
            )
        for c in self.tables.compiles:  # also one that has nothing to show
            if c.file and (self.libraries or not self.library(c.file)):
                first.setdefault(c.file, len(first))
                part(c.file, c.resume or c.line, c.func, c.rank)
        for m in self.tables.marks:
            if not m.file or (m.rank, m.compile) not in self.attempts:
                continue
            region, n = self.attempts[m.rank, m.compile]
            if m.kind == "op" and m.stage == "dynamo":
                if self.home(m.file, m.line, m.func) == self.owner[region]:
                    self.low[m.rank, region] = min(self.low.get((m.rank, region), m.line), m.line)
            if self.library(m.file) and (not self.libraries or m.kind == "inlined"):
                if m.kind not in (*BREAKS, "def", "error") or not self._program_broke(m):
                    continue
            part(m.file, m.line, m.func, m.rank).add(m, region, n)
        drawn = self._drawn()
        for ran in self.tables.collectives:
            beside = {(ran.rank, ran.compile, at) for at in (ran.line, ran.name)} & drawn
            if ran.file and not beside and not self.library(ran.file):
                part(ran.file, ran.line, ran.func, ran.rank).ran.append(ran)
        for one in self.eager:
            if self.libraries or not self.library(one.file):
                part(one.file, one.line, one.func, one.rank).eager = one
        order = sorted(
            parts, key=lambda home: (self.library(home[0]), first.get(home[0], len(first)), home[0], home[1])
        )
        sections = [self.section(home, parts[home]) for home in order[:MOST_SECTIONS]]
        if len(order) > MOST_SECTIONS:
            self.notes.append(f"only the first {MOST_SECTIONS} of {len(order)} functions are shown")
        counted = bool(self.forwards)
        return Listing(sections, self.ranks, self.tables.torch, self.notes, counted, self.shapes)

    def _drawn(self) -> set[tuple[int, str, int | str]]:
        """Rank, compile, and line of the collectives that stand in graphs; their name where the line is worked out.

        Redistribution of a DTensor is a collective in the lowered graph alone, which the running process does not keep.
        """
        return {
            (m.rank, m.compile, m.line if m.exact else m.name)
            for m in self.tables.marks
            if m.kind == "collective" or (m.stage == "forward" and COLLECTIVE.search(m.name))
        }

    def _program_broke(self, mark: Mark) -> bool:
        """Whether the program leads to a break in a library's function."""
        c = self.compiles[mark.rank, mark.compile]
        return any(not self.library(frame[0]) for frame in (*mark.chain, *c.chain))

    # --- one function ---

    def section(self, home: Home, by_rank: Mapping[int, Part]) -> Section:
        whole = self.wholes[home]
        odd = self._odd_groups(by_rank)
        alike: dict[object, list[int]] = {}
        facts: list[dict[int, frozenset[object]]] = []
        for rank, mine in sorted(by_rank.items()):
            found, regions = self._facts(rank, home, mine, odd)
            runs = frozenset((region, self.each(rank, self.runs[rank, region])) for region in regions)
            group = alike.setdefault((frozenset(found.items()), runs, _often(mine.eager)), [])
            group.append(rank)
            if len(group) == 1:
                facts.append(_by_line(found))
        if absent := [rank for rank in self.ranks if rank not in by_rank]:
            alike.setdefault((frozenset(), frozenset(), ("", "")), []).extend(absent)
            facts += [{}] * (len(alike) > len(facts))
        groups = sorted((sorted(group) for group in alike.values()), key=lambda g: (-len(g), g))
        if len(groups) <= MOST_LANES:
            groups.sort()
        drawn, rest = groups[:MOST_LANES], groups[MOST_LANES:]
        made = Section(cut(home[3]), cut(label(home[0])), home[1], library=self.library(home[0]))
        compiled = (c for rank in by_rank for c in self.of_home.get((rank, home), ()))
        made.owners = [cut(name) for name in dict.fromkeys(c.owner for c in compiled if c.owner)]
        made.lanes = [self.said.lane(group) for group in drawn]
        made.left_out = span(rank for group in rest for rank in group)
        lanes = [LaneBlocks(self, home, whole, group) for group in groups]
        numbers = self._numbers(home, whole, by_rank)
        made.first = home[1] or min(numbers, default=0)
        text = self.sources.lines(home[0]) if whole else []
        marks: dict[int, dict[int, list[Mark]]] = defaultdict(dict)
        ran: dict[int, dict[int, list[Collective]]] = defaultdict(dict)
        for rank, mine in by_rank.items():
            for m in mine.marks:
                marks[self.line(m)].setdefault(rank, []).append(m)
            for c in mine.ran:
                ran[c.line].setdefault(rank, []).append(c)
        kinds: dict[int, Counter[object]] = defaultdict(Counter)
        for one in facts:
            for line, what in one.items():
                kinds[line][what] += 1
        cells = [lane.cells(numbers) for lane in lanes[:MOST_LANES]]
        for i, n in enumerate(numbers):
            written = text[n - 1] if 0 < n <= len(text) else self.quoted.get((home[0], n), "")
            row = Row(n, cut(written), [column[i] for column in cells])
            row.differs = n in kinds and set(kinds[n].values()) != {len(facts)}
            if n in marks or n in ran:
                row.notes = self._notes(home, marks.get(n, {}), ran.get(n, {}))
                row.operators = self._operators(n, lanes)
            if whole and n == whole.line:
                row.notes += self._inlined(lanes)
            row.notes += self._beside(n, whole, by_rank)
            row.notes += self._unseen(row, made.lanes)
            row.notes.sort(key=lambda note: ORDER.index(note.kind))
            if len(row.notes) > MOST_NOTES:
                more = Note(row.notes[MOST_NOTES].kind, f"and {len(row.notes) - MOST_NOTES} more facts")
                row.notes[MOST_NOTES:] = [more]
            made.rows.append(row)
        self._total(made, by_rank, lanes)
        seconds = (sum(c.seconds for c in self.of_home.get((rank, home), ())) for rank in by_rank)
        made.seconds = max(seconds, default=0)
        return made

    def line(self, mark: Mark) -> int:
        """The row of a mark: what is said of a function stands at its `def`, below the decorators; what is said of the
        rest of one, at its first operator, since ranks that broke elsewhere have that in common."""
        if mark.kind not in ("def", "recompile", "unfinished", "limit", "inlined", "symbol"):
            return mark.line
        region = self.attempts[mark.rank, mark.compile][0]
        if mark.kind != "inlined" and region[2]:
            return self.low.get((mark.rank, region), mark.line)
        whole = self.wholes[self.home(mark.file, mark.line, mark.func)]
        return whole.line if whole and mark.line < whole.line else mark.line

    def _numbers(self, home: Home, whole: Function | None, by_rank: Mapping[int, Part]) -> Sequence[int]:
        if whole and whole.last - whole.first < min(MOST_LINES, self.rows_left):
            self.rows_left -= whole.last - whole.first + 1
            return range(whole.first, whole.last + 1)
        lines = {self.line(m) for mine in by_rank.values() for m in mine.marks}
        lines |= {mine.eager.line for mine in by_rank.values() if mine.eager}
        lines |= {c.line for mine in by_rank.values() for c in mine.ran}
        numbers = sorted(lines)[: max(min(MOST_LINES, self.rows_left), 1)]
        self.rows_left -= len(numbers)
        if whole or len(numbers) < len(lines):
            self.notes.append(f"{cut(home[3])} has too many lines: {len(numbers)} of them are shown")
        return numbers

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
        self, rank: int, home: Home, part: Part, odd: set[tuple[int, str, str]]
    ) -> tuple[Counter[Fact], set[Region]]:
        """What Dynamo saw at each line, in the first compile of each code that has the line: not how torch numbers its
        compiles, not how a graph was lowered, not a size, and not the name of a group, which is another one in each row
        of a mesh. A function that is called twice in one graph is what it is in two graphs."""
        found: Counter[Fact] = Counter()
        inlined: dict[Region, list[Fact]] = defaultdict(list)
        for m in part.marks:
            region, n = self.attempts[m.rank, m.compile]
            fact: Fact | None = None
            if m.kind in ("op", "collective") and m.stage == "dynamo":
                if n == part.first[region, m.line, m.stage]:
                    group = _group(m) if (m.line, m.name, _group(m)) in odd else ""
                    fact = m.line, m.kind, region, m.name, f"{m.text if self.shapes else ''} {group}"
                    if fact not in found and self.owner[region] != home:
                        inlined[region].append(fact)
                    found[fact] += 1
            elif m.kind in ("recompile", "limit"):
                guard = m.name if self.shapes else guard_words.form(m.name)
                found[self.line(m), m.kind, region, guard, ""] += 1
            elif m.kind not in ("op", "collective", "kernel", *["symbol"] * (not self.shapes)):
                found[self.line(m), m.kind, region, m.name, ""] = 1
        for facts in inlined.values():
            calls = math.gcd(*(found[fact] for fact in facts))
            for fact in facts:
                found[fact] //= calls
        for c in part.ran:
            group = c.group if (c.line, c.name, c.group) in odd else ""
            sizes = f"{c.shapes} {c.dtype}" if self.shapes else ""
            found[c.line, "ran", None, c.name, f"{sizes} {c.compiled} {group}"] += c.runs
        if part.eager:
            found[part.eager.line, "eager", None, "", ""] = 1
        for (region, line), tries in part.held.items():
            if len(tries) < len(self.graphs[rank, region]):
                found[line, "only", region, str(sorted(tries)), ""] = 1
        return found, {region for region, _ in part.held}

    def _odd_groups(self, by_rank: Mapping[int, Part]) -> set[tuple[int, str, str]]:
        """Collectives on a group of which another member does not call it at that line. Where torch told no members
        and a rank is the group's only known one, it is odd if others call it together."""
        users: dict[tuple[int, str], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for rank, part in by_rank.items():
            for m in part.marks:
                if m.kind == "collective":
                    users[m.line, m.name][_group(m)].add(rank)
            for c in part.ran:
                users[c.line, c.name][c.group].add(rank)
        found = set[tuple[int, str, str]]()
        present = set(self.ranks)
        for (line, name), groups in users.items():
            if len(groups) < 2:
                continue
            most = max(map(len, groups.values()))
            for group, ranks in groups.items():
                members = self.members.get(group.partition(":")[0], set())
                if (members & present) - ranks or (len(members) == 1 < most and ":" not in group):
                    found.add((line, name, group))
        return found

    # --- what stands beside a line ---

    def _notes(
        self, home: Home, marks: Mapping[int, Sequence[Mark]], ran: Mapping[int, Sequence[Collective]]
    ) -> list[Note]:
        found: dict[tuple[str, str], tuple[Note, dict[int, float]]] = {}

        def add(rank: int, note: Note, runs: float = 0) -> None:
            by_rank = found.setdefault((note.kind, note.words), (note, {}))[1]
            by_rank[rank] = by_rank.get(rank, 0) + runs

        for rank, mine in sorted(marks.items()):
            recompiles: list[Mark] = []
            done = set[str]()  # said already, by the break itself
            made = ""
            first = self.parts[home][rank].first
            for m in mine:
                region, n = self.attempts[rank, m.compile]
                c = self.compiles[rank, m.compile]
                if m.kind in ("op", "kernel", "inlined", "collective"):
                    if m.kind not in ("op", "collective") or n != first[region, m.line, m.stage]:
                        continue
                    if m.kind == "collective":
                        add(rank, self._called(m))
                    elif m.stage == "dynamo":
                        made = m.text or made
                    elif m.stage == "forward" and not c.collectives and (op := COLLECTIVE.search(m.name)):
                        words = " · ".join(filter(None, (op[1], m.text, LOWERED)))
                        add(rank, Note("collective", words))
                elif m.kind == "recompile":
                    if c.again:
                        recompiles.append(m)
                elif m.kind == "symbol":
                    if self.shapes:
                        add(rank, Note("shape", f"{m.name}: {m.text}", hints=m.hints))
                elif m.kind != "cause" or m.name not in done:
                    done.add(m.name)
                    ran_it = c.executed_breaks if m.kind == "break" else 0
                    add(rank, self._note(m), self.each(rank, ran_it or 0) or 0)
            if recompiles:
                add(rank, again(recompiles))
            if made and self.shapes:
                add(rank, Note("shape", made))
        for rank, calls in sorted(ran.items()):
            for call in calls:
                where = LOWERED if call.compile else "in a backward" if call.compiled else "in eager"
                parts = (call.name, typed(call), f"group {call.group}" if call.group else "", where)
                note = Note("collective", " · ".join(filter(None, parts)), exact=call.exact)
                add(rank, note, self.each(rank, call.runs) or 0)
        notes = []
        for note, times in found.values():
            note.who = self.said.who(times)
            note.words, note.explanation = cut(note.words), cut(note.explanation, 8 * MOST_TEXT)
            note.hints = tuple(cut(hint) for hint in note.hints[:MOST_NOTES])
            if max(times.values()) > 0:
                few, many = number(min(times.values())), number(max(times.values()))
                note.runs = f"{few if few == many else f'{few} to {many}'}× a step"
            notes.append(note)
        return notes

    def _called(self, m: Mark) -> Note:
        """A collective of a graph."""
        group = f"group {_group(m)}" if _group(m) else ""
        note = Note("collective", " · ".join(filter(None, (m.name, m.text, group))), exact=m.exact)
        if not m.exact:
            note.hints = (f"line worked out from the text: torch reports {spot(m.via)}",)
        return note

    def _note(self, m: Mark) -> Note:
        words = plain(m.name, m.text) if m.kind in ("break", "gave-up", "error", "cause", "def") else m.name
        hints = m.hints
        if m.kind == "limit":
            words = guard_words.words(m.name)
        elif m.kind == "error" and (why := self.compiles[m.rank, m.compile].why):
            hints = (*hints, f"its earlier code did not hold: {guard_words.words(why)}")
        where = ""
        if m.kind in ("break", "gave-up", "cause", "def") and m.via:
            file, _, line = m.via.rpartition(":")
            where = f" (line {line})" if file == m.file else f" ({spot(m.via)})"
            inner = m.cause
            if m.chain and inner[:2] != (m.file, m.line):
                at = f"line {inner[1]}" if inner[0] == m.file else place(*inner[:2])
                where = f" (in {inner[2]}, {at})"
        said = "" if m.kind == "limit" or (m.name in words and m.text in words) else m.text or m.name
        if m.text and m.name not in (words, m.text) and m.text != said:
            said = f"{m.name}. {said}"
        page = _PAGE.search(m.report)
        link = page[0] if page else ""
        return Note(m.kind, cut(words) + where, explanation=said, hints=hints, link=link, exact=m.exact)

    def _unseen(self, row: Row, lanes: Sequence[Lane]) -> list[Note]:
        """That a rank runs in eager what is a collective in another one's graph: a trace does not record that."""
        if self.tables.collectives or not any(n.kind == "collective" and n.who for n in row.notes):
            return []
        eager = [c.eager or (c.ends and not c.block) for c in row.cells]
        ranks = [r for lane, is_eager in zip(lanes, eager, strict=True) if is_eager for r in lane.ranks]
        said = "in eager, if at all: a trace does not record that"
        return [Note("collective", said, self.said.who(ranks))] if ranks else []

    def _inlined(self, lanes: Sequence[LaneBlocks]) -> list[Note]:
        """Into which functions' graphs this one was traced, by the ranks that agree on it."""
        alike: dict[str, tuple[list[int], list[str]]] = {}
        for lane in lanes:
            into: dict[str, set[str]] = {}
            for region, owner in lane.inlined.items():
                into.setdefault(owner[3], set()).add(lane.owners_letter(region))
            names = [
                f"graph{'s' * (len(ls) > 1)} {', '.join(sorted(ls, key=lambda one: (len(one), one)))} of {cut(name)}"
                for name, ls in into.items()
            ]
            if names:
                alike.setdefault(str(names), ([], names))[0].extend(lane.ranks)
        notes = []
        for ranks, names in alike.values():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            words = cut("inlined into " + ", ".join(names[:3]) + more)
            notes.append(Note("inlined", words, self.said.who(ranks), hints=tuple(names[3 : 3 + MOST_NOTES])))
        return notes

    def _beside(self, n: int, whole: Function | None, by_rank: Mapping[int, Part]) -> list[Note]:
        """How often a function ran in eager outside of what is compiled, by the ranks that agree on it."""
        alike: dict[tuple[str, str], list[int]] = defaultdict(list)
        for rank, part in by_rank.items():
            if part.eager and n == (whole.line if whole else part.eager.line):
                alike[_often(part.eager)].append(rank)
        return [Note("eager", words, self.said.who(ranks), runs) for (words, runs), ranks in alike.items()]

    def _operators(self, n: int, lanes: Sequence[LaneBlocks]) -> dict[str, dict[str, list[Operator]]]:
        """The operators of a line, by the ranks that have the same."""
        alike: dict[str, tuple[list[int], dict[str, list[Operator]]]] = {}
        for lane in lanes:
            if stages := lane.operators(n):
                alike.setdefault(str(stages), ([], stages))[0].extend(lane.ranks)
        if len(alike) == 1:
            ((ranks, stages),) = alike.values()
            return {self.said.who(ranks): stages}
        return {self.said.who(ranks) or "all ranks": stages for ranks, stages in alike.values()}

    def _total(self, made: Section, by_rank: Mapping[int, Part], lanes: Sequence[LaneBlocks]) -> None:
        kinds: dict[str, set[int]] = defaultdict(set)
        kinds["graphs"] = {lane.graphs for lane in lanes}
        for part in (*by_rank.values(), *[Part()] * (len(by_rank) < len(self.ranks))):
            kept = [m for m in part.marks if m.kind in ("break", "collective", "recompile")]
            called = {(m.line, m.name) for m in kept if m.kind == "collective"}
            kinds["breaks"].add(len({(m.line, m.name) for m in kept if m.kind == "break"}))
            kinds["recompiles"].add(
                sum(m.kind == "recompile" and self.compiles[m.rank, m.compile].again for m in kept)
            )
            kinds["collectives"].add(len(called | {(c.line, c.name) for c in part.ran}))
        for name, values in kinds.items():
            setattr(made, name, sorted(values))
        eager = [rank for lane in lanes if lane.eager for rank in lane.ranks]
        made.eager, made.eager_on = bool(eager), self.said.who(eager)
        made.beside = any(lane.beside for lane in lanes)
        made.error = any(m.kind == "error" for part in by_rank.values() for m in part.marks)


def _often(one: Eager | None) -> tuple[str, str]:
    """How often a function ran in eager, in words: since the first compiled call, or in a step."""
    if one is None:
        return "", ""
    if one.steps:
        return "", f"{number(one.calls / one.steps)}× a step"
    return f"{counted(one.calls, 'times')} since the first compiled call", ""


def _by_line(facts: Counter[Fact]) -> dict[int, frozenset[object]]:
    """The facts of each line, whichever graph has them."""
    found: dict[int, dict[object, int]] = defaultdict(dict)
    for (line, kind, _, *rest), times in facts.items():
        what = kind, *rest
        found[line][what] = max(found[line].get(what, 0), times)
    return {line: frozenset(what.items()) for line, what in found.items()}


def _group(m: Mark) -> str:
    return m.hints[0] if m.hints else ""
