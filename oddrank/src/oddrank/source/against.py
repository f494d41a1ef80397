"""Two runs beside each other: a function by its file and name, a line by its text, so that edits above do not count."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from oddrank.source.listing import Cell, Lane, Listing, Note, Row, Section

__all__ = ["against"]

MOST_COMPARED = 1_000  # lines between what is alike at both ends of a function


def against(old: Listing, new: Listing) -> Listing:
    """Put an older run's lanes before a newer one's.

    Args:
        old, new: The runs.

    Returns:
        The newer run's lines, and those of the older one that are gone ('-'); lines that only the newer one has are
        '+'. A line differs where the runs do. What both say of a line stands there once.
    """
    before, after = (_named(run) for run in (old, new))
    pairs: list[tuple[Section | None, Section | None]] = [
        (before.get(key), one) for key, one in after.items()
    ]
    pairs += [(one, None) for key, one in before.items() if key not in after]
    sections = [_section(a, b) for a, b in pairs]
    sections.sort(key=lambda s: s.library)
    versions = " against ".join(dict.fromkeys(filter(None, (new.torch, old.torch))))
    notes = [f"before: {note}" for note in old.notes if note not in new.notes] + new.notes
    counted = old.counted and new.counted
    return Listing(sections, new.ranks, versions, notes, counted, new.shapes, against=True)


def _named(run: Listing) -> dict[tuple[str, str, int], Section]:
    """The functions by file, name, and which of several of that name."""
    times: Counter[tuple[str, str]] = Counter()
    found: dict[tuple[str, str, int], Section] = {}
    for one in run.sections:
        found[one.file, one.name, times[one.file, one.name]] = one
        times[one.file, one.name] += 1
    return found


def _section(old: Section | None, new: Section | None) -> Section:
    one = new or old
    assert one is not None
    lanes = [replace(lane, head=_head("before", lane)) for lane in (old.lanes if old else ())]
    lanes += [replace(lane, head=_head("after", lane)) for lane in (new.lanes if new else ())]
    made = replace(one, lanes=lanes, rows=_rows(old, new))
    for name in ("graphs", "breaks", "recompiles", "collectives"):
        values = {n for run in (old, new) if run for n in getattr(run, name)}
        setattr(made, name, sorted(values))
    made.eager = any(run.eager for run in (old, new) if run)
    made.beside = any(run.beside for run in (old, new) if run)
    made.error = any(run.error for run in (old, new) if run)
    made.left_out = "; ".join(run.left_out for run in (old, new) if run and run.left_out)
    return made


def _head(when: str, lane: Lane) -> str:
    return when if lane.head in ("", "all") else f"{when} {lane.head}"


def _rows(old: Section | None, new: Section | None) -> list[Row]:
    wide = len(old.lanes) if old else 0, len(new.lanes) if new else 0
    if old is None or new is None:
        rows = (new or old).rows  # type: ignore[union-attr]
        return [replace(row, differs=bool(row.notes or row.operators)) for row in rows]
    texts, later = ([row.text.strip() for row in run.rows] for run in (old, new))
    made: list[Row] = []
    for kind, a, b, c, d in _steps(texts, later):
        if kind == "equal":
            made += [_both(x, y) for x, y in zip(old.rows[a:b], new.rows[c:d], strict=True)]
            continue
        made += [
            replace(x, number=0, cells=[*x.cells, *_blank(wide[1])], change="-", differs=False)
            for x in old.rows[a:b]
        ]
        made += [
            replace(y, cells=[*_blank(wide[0]), *y.cells], change="+", differs=False) for y in new.rows[c:d]
        ]
    return made


def _steps(old: list[str], new: list[str]) -> list[tuple[str, int, int, int, int]]:
    """How one text becomes another, as difflib has it. It takes more than linear time for what is in the middle."""
    least = min(len(old), len(new))
    head = next((i for i in range(least) if old[i] != new[i]), least)
    tail = next((i for i in range(least - head) if old[-1 - i] != new[-1 - i]), least - head)
    a, b = len(old) - tail, len(new) - tail
    steps = [("equal", 0, head, 0, head)]
    if max(a, b) - head > MOST_COMPARED:
        steps.append(("replace", head, a, head, b))
    else:
        matched = difflib.SequenceMatcher(None, old[head:a], new[head:b], autojunk=False).get_opcodes()
        steps += [(kind, w + head, x + head, y + head, z + head) for kind, w, x, y, z in matched]
    return [*steps, ("equal", a, len(old), b, len(new))]


def _blank(n: int) -> list[Cell]:
    return [Cell() for _ in range(n)]


def _both(old: Row, new: Row) -> Row:
    """One line of both runs."""
    said = [(note.kind, note.words, note.runs, note.who) for note in old.notes]
    known = [(note.kind, note.words, note.runs, note.who) for note in new.notes]
    notes = [_when("before", note) for note, key in zip(old.notes, said, strict=True) if key not in known]
    notes += [
        note if key in said else _when("after", note) for note, key in zip(new.notes, known, strict=True)
    ]
    operators = new.operators
    if old.operators != new.operators:
        operators = {", ".join(filter(None, ("before", who))): what for who, what in old.operators.items()}
        operators |= {", ".join(filter(None, ("after", who))): what for who, what in new.operators.items()}
    names = [_names(row) for row in (old, new)]
    differs = said != known or names[0] != names[1]
    return replace(new, cells=[*old.cells, *new.cells], notes=notes, operators=operators, differs=differs)


def _when(when: str, note: Note) -> Note:
    return replace(note, who=", ".join(filter(None, (when, note.who))))


def _names(row: Row) -> list[Sequence[str]]:
    """What Dynamo saw at a line: lowering and types may change without another program."""
    return [[op.name for op in stages.get("Dynamo", ())] for stages in row.operators.values()]
