"""Builds Frames from the compiles of a record: every stage as text, and the reason for one that is missing."""

from __future__ import annotations

import linecache
import re

from labkit.records import decompiled
from labkit.records.compile_log import Compile
from labkit.records.frame import STAGES, Frame, Frames
from labkit.records.names import Names
from labkit.records.reasons import Break, read_break
from labkit.records.recorded_compiles import KnownCompile, RecordedCompiles

__all__ = ["frames_of"]

EARLIER = (
    "it was compiled before stages were kept: `inspect(fn, ..., fresh=True)` forgets that and compiles anew"
)
_IN_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_RESUMES_IN = re.compile(r"^torch_dynamo_resume_in_(?P<name>.+)_at_(?P<line>\d+)$")


def frames_of(compiles: RecordedCompiles, rank: int) -> Frames:
    """Return the compiles of a record, and the frames that Dynamo gave up, as Frames in the order they were made."""
    names = Names()
    found = [_frame(k, rank, names) for k in compiles.known.values() if _matters(k.compile)]
    notes = [
        f"region {i} ({u.name}) was compiled before labkit listened: nothing is known of its stages"
        for i, u in compiles.unwatched.items()
    ]
    return Frames(found, notes)


def _matters(c: Compile) -> bool:
    return c.has_code or c.skipped


def _frame(known: KnownCompile, rank: int, names: Names) -> Frame:
    c = known.compile
    broke = None
    if known.why:
        broke = read_break(c.break_text or c.failure, known.why, _own_line(c))
    raw: dict[str, str] = {}
    notes: dict[str, str] = {}
    if source := _source(c, names, broke):
        raw["source"] = source
    if c.before:
        raw["bytecode"] = decompiled.disassemble(c.before)
    if c.graph:
        raw["dynamo"] = decompiled.clean(c.graph)
    for name, text in c.stages.items():
        raw[name] = decompiled.clean(text)
    if c.after:
        raw["bytecode_after"] = decompiled.disassemble(c.after)
        python, why = decompiled.decompile(c.after)
        raw["decompiled"] = (
            decompiled.simplify(python)
            if python
            else f"# {why}: this is its bytecode\n{raw['bytecode_after']}"
        )
    for name in STAGES:
        if name not in raw:
            notes[name] = _why_missing(name, c, raw, known.during)
    return Frame(
        id=known.id, name=known.name, place=known.place, rank=rank, co_name=c.co_name, ops=c.ops,
        collectives=c.collectives, calls=known.calls, backend_graphs=c.backend_graphs, during=known.during,
        has_code=c.has_code, cached=c.cached, breaks=broke, raw=raw, missing=notes,
    )  # fmt: skip


def _why_missing(name: str, c: Compile, raw: dict[str, str], during: bool) -> str:
    """One clear reason for a stage that is not there."""
    if name == "source":
        return "its source is not at hand"
    if not c.has_code:
        return "the frame was given up, so there is no code"
    if name == "dynamo":
        return "no operation on tensors was captured"
    if not during and not c.stages:
        return EARLIER
    if name in ("bytecode", "bytecode_after", "decompiled", "guards"):
        return EARLIER if not during else "torch did not hand it out"
    if not c.ops and "dynamo" not in raw:
        return "there is no graph to compile"
    if "aot_forward" not in raw and "inductor" not in raw:
        return "the backend of this compile runs Dynamo's graph without AOTAutograd"
    if name.startswith("inductor") and "inductor" not in raw:
        return "the backend of this compile is not Inductor"
    if name == "inductor_backward" and "aot_backward" in raw:
        return "Inductor compiles it when the backward first runs, and it did not run here"
    if c.cached and name.startswith(("aot", "inductor")) and name != "inductor_backward":
        return (
            "the compile was a cache hit, which leaves this out: `inspect(fn, ..., fresh=True)` uses no cache"
        )
    return "nothing in it needs a gradient"


def _source(c: Compile, names: Names, broke: Break | None) -> str:
    """The function's lines with their numbers: `✗` where a break leaves it, `▶` where this frame takes over."""
    if not c.filename:
        return ""
    lines = linecache.getlines(c.filename)
    resumed = _RESUMES_IN.match(c.co_name)
    at = int(resumed["line"]) if resumed else c.line
    first, last = names.extent(c.filename, c.co_name, at)
    out = []
    for number in range(first, min(last, len(lines)) + 1):
        mark = "✗" if broke and number == broke.line else "▶" if resumed and number == at else " "
        out.append(f"{number:5} {mark} {lines[number - 1].rstrip()}")
    return "\n".join(out)


def _own_line(c: Compile) -> int:
    """The line of this frame's own function at which its break left it."""
    _, _, stack = c.break_text.partition("User code traceback:")
    resumed = _RESUMES_IN.match(c.co_name)
    mine = {c.co_name, resumed["name"] if resumed else c.co_name}
    found = [
        int(m["line"]) for m in _IN_FRAME.finditer(stack) if m["file"] == c.filename and m["name"] in mine
    ]
    return found[-1] if found else 0
