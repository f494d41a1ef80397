"""Graphs by rank with and without compile on one rank, and what one process compiled, used by all ranks."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from course.shared.options import chosen
from course.shared.program import choose
from course.since.declared import ONE_COMPILE as ABOUT
from labkit.experiments.options import on_cpu
from labkit.ranks import Ranks
from labkit.report import Report, provenance

__all__ = ["FORMS", "carry", "run"]

NEEDED = (
    "PROGRAMS",
    "STORES",
    "graphs_of",
    "compile_ahead",
    "use",
    "first_call",
    "compile_alone",
)  # what is taken of the program
FORMS = ("mesh", "DTensor")  # how the sum is asked for
SIZES = (2, 4)
EACH, AHEAD, ALONE = "each compiles", "one compiled ahead", "the one, beforehand"


def run(
    ranks: Ranks,
    store: Sequence[str] = (),
    *,
    programs: Sequence[str] = (),
    sizes: Sequence[int] = SIZES,
    program: Any = None,
    talk: bool = False,
) -> Report:
    """Compare the graphs of all ranks, and let real ranks use what one process compiled.

    Graphs are compared over a fake group, on two and on four ranks; what was stored is used on `ranks`. Tables:
    `graphs` (program, ranks, switch, number of different graphs), `carried` (store, form, switch, rank, outcome, what
    was said) and `first` (ranks, way, seconds and CPU seconds of each rank's first call in a new process).

    Args:
        ranks: four, or another even number from four, on the CPU.
        store: which stores, all of this torch by default.
        programs: which of the lesson's PROGRAMS, all by default.
        sizes: numbers of ranks whose first calls are timed, even ones; none leaves it out.
        program: the cells of lesson 17, as a module or a mapping such as a notebook's `globals()`; None is the lesson's
            own.
        talk: print each point as it is measured.

    Raises:
        ValueError: ranks that make no two pairs, or an unknown store or program; before any rank is asked.

    >>> with Ranks(4, device="cpu", backend="gloo", quiet=True) as ranks:
    ...     report = run(ranks, ["aot_compile"], programs=["a sub mesh"], sizes=())
    >>> report.frame.groupby("switch")["graphs"].max().to_dict()
    {'off': 2, 'on': 1}
    """
    on_cpu(ranks)
    if ranks.world_size < 4 or ranks.world_size % 2:
        raise ValueError(
            f"ranks form pairs, two at the least: give 4 ranks or 6 or more, got {ranks.world_size}"
        )
    if any(size < 2 or size % 2 for size in sizes):
        raise ValueError(f"sizes are even numbers of ranks, got {list(sizes)}")
    ours = choose("since", program, NEEDED)
    code = ours.code
    stores = chosen(store, code.STORES, "store") if store else list(code.STORES)
    names = chosen(programs, code.PROGRAMS, "program") if programs else list(code.PROGRAMS)
    graphs: list[dict[str, Any]] = []
    for size in SIZES:
        with Ranks(size, device="cpu", backend="fake", quiet=True) as fake:
            for name in names:
                for on in (False, True):
                    texts = list(fake.run(code.graphs_of, name, on))
                    marks = {hashlib.sha256(text.encode()).hexdigest() for text in texts}
                    graphs.append({"program": name, "ranks": size, "switch": _word(on), "graphs": len(marks)})
    carried: list[dict[str, Any]] = []
    with Ranks(ranks.world_size, device="cpu", backend="fake", quiet=True) as fake:
        for kind, form, on in ((s, f, o) for s in stores for f in FORMS for o in (False, True)):
            if talk:
                print(f"{kind}, {form}, switch {_word(on)}")
            found = carry(code, fake, ranks, (kind, form, on))
            point = {"store": kind, "form": form, "switch": _word(on)}
            carried += [
                {**point, "rank": r, "outcome": out, "said": said} for r, (out, said) in enumerate(found)
            ]
    first = [row for size in sizes for row in _first_calls(code, size)]
    columns = ["store", "form", "switch", "rank", "outcome", "said"]
    tables = {"graphs": pd.DataFrame(graphs), "carried": pd.DataFrame(carried, columns=columns)}
    tables["first"] = pd.DataFrame(first, columns=["ranks", "way", "seconds", "cpu_s"])
    facts = provenance(
        backend=ranks.backend, device="cpu", world_size=ranks.world_size, threads=ranks.threads, program=ours.digest,
    )  # fmt: skip
    view = "course.since.figures:figure"
    return Report("one_compile", ABOUT.title, ranks.label, tables, [], facts, list(ours.notes), view)


def carry(
    code: Any, one: Ranks, ranks: Ranks, way: tuple[str, str, bool], *through: Any
) -> list[tuple[str, str]]:
    """Let one process compile, and every rank use what it left.

    Args:
        code: the program of lesson 17.
        one: a fake group as large as `ranks`, whose rank 0 compiles.
        ranks: the ranks that use it.
        way: the store, the form of the program, and whether the switch is on.
        *through: what the calls on ranks go through, such as `quietly`.

    Returns:
        For each rank the outcome, and what it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        failed = one.run(*through, code.compile_ahead, *way, Path(folder), ranks=0)[0]
        if failed:
            return [("not made", failed)] * ranks.world_size
        return list(ranks.run(*through, code.use, *way, Path(folder)))


def _first_calls(code: Any, size: int) -> list[dict[str, Any]]:
    """First calls in new processes: each rank compiles, or each loads what one process compiled."""

    def fresh(backend: str, function: Any, *arguments: Any, only: int | None = None) -> list[Any]:
        with Ranks(size, device="cpu", backend=backend, quiet=True, timeout=300) as new:
            return list(new.run(function, *arguments, ranks=only))

    with tempfile.TemporaryDirectory() as folder:
        rows = [{"way": ALONE, **fresh("fake", code.compile_alone, Path(folder), only=0)[0]}]
        for way, ahead in ((EACH, False), (AHEAD, True)):
            rows += [{"way": way, **one} for one in fresh("gloo", code.first_call, ahead, Path(folder))]
    if not all(row.get("right", True) for row in rows):
        raise RuntimeError(f"a first call of {size} ranks gave other numbers than eager")
    return [{"ranks": size, **row} for row in rows]


def _word(on: bool) -> str:
    return "on" if on else "off"
