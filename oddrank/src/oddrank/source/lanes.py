"""One rank's blocks in one function: which lines a graph has, where it ends, what runs in eager."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from oddrank.record.source import Function
from oddrank.record.tables import Collective, Mark
from oddrank.source.listing import Cell, Operator
from oddrank.source.words import cut, short

if TYPE_CHECKING:
    from oddrank.source.builder import Builder

__all__ = ["Eager", "Home", "LaneBlocks", "Part", "Region", "last_name"]

MOST_OPERATORS = 200  # of a stage of a line
MOST_COMPILES = 30  # that are named in a cell
MOST_LINES = 5_000  # of a function; of a longer one, those that something happened at
BREAKS = ("break", "gave-up", "cause")

Home = tuple[
    str, int, int, str
]  # file, first line, last line, name; lines are 0 where the source is not here
Region = tuple[str, int, int, int]  # file, first line of the code, where it is resumed, which of several
Attempt = tuple[Region, int]  # which of the compiles that have a graph; 0 for one without
STAGES = {"dynamo": "Dynamo", "forward": "forward", "backward": "backward"}


@dataclass(slots=True)
class Eager:
    """A function that a rank ran in Python, outside of all that is compiled.

    Args:
        rank: The rank.
        file, line, func: Where its `def` stands, and its name.
        calls: How often it was called.
        steps: In so many steps; 0 for all calls since the first compiled one.
    """

    rank: int
    file: str
    line: int
    func: str
    calls: int
    steps: int


@dataclass(slots=True)
class Part:
    """What one rank has in one function.

    Args:
        marks, ran: Its facts.
        eager: Its calls in Python, outside of all that is compiled; None for none that are known.
        held: A code and a line of it -> which of its compiles have an operator there.
        first: A code, a line and a stage -> the first of its compiles that has anything there.
    """

    marks: list[Mark] = field(default_factory=list)
    ran: list[Collective] = field(default_factory=list)
    eager: Eager | None = None
    held: dict[tuple[Region, int], set[int]] = field(default_factory=dict)
    first: dict[tuple[Region, int, str], int] = field(default_factory=dict)

    def add(self, m: Mark, region: Region, n: int) -> None:
        self.marks.append(m)
        if m.kind in ("op", "kernel", "collective"):
            self.first.setdefault((region, m.line, m.stage), n)
        if m.kind == "op" and m.stage == "dynamo":
            self.held.setdefault((region, m.line), set()).add(n)


class LaneBlocks:
    """One rank's blocks in one function; it stands for all ranks that are alike."""

    def __init__(self, of: Builder, home: Home, whole: Function | None, ranks: list[int]) -> None:
        self.of, self.home, self.whole, self.ranks = of, home, whole, ranks
        rank = self.rank = ranks[0]
        self.part = part = of.parts[home].get(rank, Part())
        self.by_line: dict[int, list[Mark]] = defaultdict(list)  # operators and kernels
        self.lines: dict[Region, set[int]] = defaultdict(set)
        for region, line in part.held:
            self.lines[region].add(line)
        self.inlined = {region: of.owner[region] for region in self.lines if of.owner[region] != home}
        self.errors, self.ends, self.splits = set[int](), set[int](), set[int]()
        self.broke: dict[Region, list[int]] = defaultdict(list)
        self.letters = of.letters(rank, home)
        self.graphs = len(self.letters)
        # codes of the function itself, and not of a lambda or a comprehension in it
        self._of_body = {
            region for region in self.letters if last_name(of.func[region]) == last_name(home[3])
        }
        eager = set[int]()
        given_up = False
        for m in part.marks:
            region = of.attempts[rank, m.compile][0]
            if m.kind in ("op", "kernel"):
                self.by_line[m.line].append(m)
                if last_name(m.func) == last_name(home[3]) and region in self.inlined:
                    self._of_body.add(region)
            elif m.kind == "inlined" and of.owner[region] != home:
                self.inlined[region] = of.owner[region]
                self._of_body.add(region)
            elif m.kind == "split":
                self.splits.add(m.line)
            elif m.kind == "error":
                self.errors.add(m.line)
            elif m.kind in BREAKS:
                self.ends.add(m.line)
                if m.kind == "break":
                    self.broke[region].append(m.line)
            elif m.kind == "def":
                given_up = given_up or last_name(m.func) == last_name(home[3])
                eager.add(m.line)
        self.blocks = {region: self._block(region) for region in (*self.letters, *self.inlined)}
        if not of.of_home.get((rank, home)) and not self.inlined:
            eager |= {c.line for c in part.ran}
            given_up = given_up or any(last_name(c.func) == last_name(home[3]) for c in part.ran)
        self.eager = given_up or bool(eager)
        self.beside = part.eager is not None
        self._eager_lines = None if given_up or self.beside else eager

    def owners_letter(self, region: Region) -> str:
        """The letter of a graph in the function that it begins in."""
        return self.of.letters(self.rank, self.of.owner[region]).get(region, "A")

    def _letter(self, region: Region) -> str:
        if region in self.letters:
            return self.letters[region]
        alone = len(set(self.inlined.values())) == 1 and not self.letters
        return self.owners_letter(region) if alone else "…"

    def _block(self, region: Region) -> tuple[int, int]:
        """First and last line of a graph's block: from where its code begins to where that ends, as far as the order of
        the statements tells it."""
        lines = self.lines.get(region, set())
        low, high = min(lines, default=0), max(lines, default=0)
        if not self.whole or not self.whole.body or region not in self._of_body:
            return low, high
        body, own = self.whole.body, region in self.letters
        if own or not region[2]:  # the rest of a caller may hold the rest of this function
            begin = region[2] + 1 if own and region[2] else body[0][0]
            low = begin if not lines else min(low, begin) if not region[2] or low > region[2] else low
        if own and (broke := [n for n in self.broke[region] if n >= low]):
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

    def _branches(self) -> tuple[dict[int, int], dict[int, int], set[int]]:
        """The innermost branch of each line, the one around each branch, and the lines of functions inside."""
        at: dict[int, int] = {}
        around: dict[int, int] = {}
        inner = set[int]()
        if self.whole and self.whole.last - self.whole.first < MOST_LINES:
            spans = sorted((*self.whole.branches, *self.whole.inner), key=lambda one: (one[0], -one[1]))
            for i, (first, last) in enumerate(spans):
                if first in at:
                    around[i] = at[first]
                at |= dict.fromkeys(range(first, last + 1), i)
            inner.update(n for first, last in self.whole.inner for n in range(first, last + 1))
        return at, around, inner

    def cells(self, numbers: Sequence[int]) -> list[Cell]:
        """What it has at each of these lines, which ascend."""
        branch, around, inner = self._branches()
        reached: dict[Region, set[int]] = {}  # the branches that its graph has an operator or a break in
        at: dict[int, list[Region]] = defaultdict(list)
        for one in self.blocks:
            seen = reached[one] = set[int]()
            lines = self.lines.get(one, set())
            for n in lines:
                at[n].append(one)
            for n in (*lines, *self.broke.get(one, ()), one[2] if one in self.letters else 0):
                i = branch.get(n)
                while i is not None and i not in seen:
                    seen.add(i)
                    i = around.get(i)
        begins = sorted(
            (first, -i, last, one) for i, (one, (first, last)) in enumerate(self.blocks.items()) if first
        )
        open_: list[tuple[int, int, Region]] = []  # the blocks around a line, the last one first
        made: list[Cell] = []
        k, begun = 0, set[Region]()
        region: Region | None = None
        for n in numbers:
            while k < len(begins) and begins[k][0] <= n:
                heapq.heappush(open_, begins[k][1:])
                k += 1
            while open_ and open_[0][1] < n:
                heapq.heappop(open_)
            mine = at.get(n, [])
            before, region = region, mine[-1] if mine else open_[0][2] if open_ else None
            if not mine and region and branch.get(n) is not None and branch[n] not in reached[region]:
                region = None  # a branch that was not taken, as far as one can tell
            cell = self._cell(n, region, mine, begun)
            cell.eager = (
                (self.eager or self.beside)
                and not region
                and n not in inner
                and (self._eager_lines is None or n in self._eager_lines)
            )
            cell.also = self.beside and bool(region) and n not in inner
            if region and region != before:
                cell.edge = "only"
            elif region:
                made[-1].edge = {"only": "first", "last": ""}.get(made[-1].edge, made[-1].edge)
                cell.edge = "last"
            made.append(cell)
        return made

    def _cell(self, n: int, region: Region | None, mine: Sequence[Region], begun: set[Region]) -> Cell:
        cell = Cell(ends=n in self.ends, error=n in self.errors)
        if region is None:
            return cell
        if cell.ends:
            ended = [one for one in mine if n in self.broke.get(one, ())]
            cell.cut = "above" if mine and not ended else "below" if region in ended or not mine else "middle"
            cell.before = self._letter(ended[-1]) if cell.cut == "middle" else ""
        cell.graphs = tuple(dict.fromkeys(self._letter(one) for one in mine))
        cell.block, cell.between = self._letter(region), not mine
        cell.inlined = region in self.inlined and region not in self.letters
        cell.split = n in self.splits
        if mine:
            held, tries = self.part.held[region, n], self.of.graphs[self.rank, region]
            if held != set(tries) and len(tries) > 1:
                cell.only = ", ".join(map(str, sorted(held)[:MOST_COMPILES]))
        if region not in begun and self.rank in self.of.forwards:
            cell.runs = self.of.each(self.rank, self.of.runs[self.rank, region])
        begun.add(region)
        return cell

    def operators(self, n: int) -> dict[str, list[Operator]]:
        """The operators and kernels of a line by stage, of the first compile of each code that has any there."""
        found: dict[str, Counter[tuple[str, str]]] = {}
        for m in self.by_line.get(n, ()):
            region, attempt = self.of.attempts[self.rank, m.compile]
            if attempt == self.part.first[region, m.line, m.stage]:
                stage = "kernels" if m.kind == "kernel" else STAGES[m.stage]
                found.setdefault(stage, Counter())[cut(short(m.name)), cut(m.text)] += 1
        order = [*STAGES.values(), "kernels"]
        return {
            stage: [Operator(*key, times) for key, times in found[stage].most_common(MOST_OPERATORS)]
            for stage in order
            if stage in found
        }


def last_name(func: str) -> str:
    return func.rpartition(".")[2]
