"""Dynamo's reports of graph breaks and failed guards, as one line, a place, and the full text without paths."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit import places
from labkit.records.names import Names

__all__ = ["Break", "Why", "graph_break", "kind_of_break", "libraries_of", "read_break", "recompile"]

_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)
_LOCATION = re.compile(r"^Graph break in user code at (?P<file>.*):(?P<line>\d+)$", re.MULTILINE)
_HEADER = re.compile(r"^Graph Break Reason: (?P<first>.*)$", re.MULTILINE)
_ANOTHER = "*** While handling this graph break, another graph break occurred: ***"
# torch names the kind of break in one line and the function in another
_WHAT = (
    (re.compile(r"Skip calling function `<function (\S+) at"), "{reason} {what}"),
    (re.compile(r"Developer debug context: .*qualname: (\S+?),"), "{reason}: {what}"),
    (re.compile(r"Developer debug context: builtin (\S+) "), "{reason} {what}"),
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|, \d{9,}(?=\))")
_COMPILE = re.compile(r"^(?P<id>!?\d+(?:/\d+)+): ")
_USER_STACK = "User stack trace:"
CODE_STACK = "User code traceback:"
_LIBRARIES = "In libraries:"


@dataclass(frozen=True)
class Why:
    """A reason in one line, its place in the reader's code, and torch's full text."""

    reason: str
    place: str
    text: str


def graph_break(report: str, names: Names) -> Why:
    """Parse the payload of a `dynamo_graph_break_reason` record.

    The place is the innermost frame of the reader's code (or of labkit's model): a break inside a function that was
    inlined is shown where it stands, not where it was called from.
    """
    said, _, stack = report.partition(CODE_STACK)
    frames = [(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(stack)]
    own = [frame for frame in frames if not places.is_library(frame[0])]
    if own or frames:
        place = names.place(*(own or frames)[-1])
    else:
        at = _LOCATION.search(report)
        place = places.place(at["file"], int(at["line"])) if at else ""
    header = _HEADER.search(said)
    body = said[header.start("first") :] if header else said
    body = body.partition("Stack variable source attribution:")[0]
    first, _, second = body.partition(_ANOTHER)
    reason = _line(first)
    for pattern, form in _WHAT:
        if what := pattern.search(first):
            reason = form.format(reason=reason, what=what[1])
            break
    if second.strip():
        reason = f"{_line(second)}, after: {reason}"
    lines = [clean(body).strip()]
    if own:
        lines += ["", "In your code:", *(f"  {names.place(*frame)}" for frame in own)]
    if inner := frames[frames.index(own[-1]) + 1 :] if own else frames:
        lines += ["", _LIBRARIES, *(f"  {names.place(*frame)}" for frame in inner)]
    return Why(clean(reason), place, "\n".join(lines))


def libraries_of(text: str) -> list[str]:
    """Return the places in libraries that lie between the reader's line and the break, the innermost one last.

    Args:
        text: Of a `Why`.
    """
    return [line.strip() for line in text.partition(f"\n{_LIBRARIES}\n")[2].splitlines()]


def _line(body: str) -> str:
    """The line that says what happened: the one after 'Encountered graph break when ...:', else the first."""
    lines = [line.strip() for line in body.strip().splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(":"):
        return lines[1]
    return lines[0] if lines else ""


def limit(failure: str, place: str) -> Why:
    """Parse the failure of a frame that reached the recompile limit."""
    return Why(_line(failure), place, clean(failure).strip())


def recompile(reasons: list[str], place: str, names: Names) -> Why:
    """Parse the failed guards of a recompile.

    Args:
        reasons: The failed guards, those of the newest cached code first.
        place: The function's own place, for where Dynamo does not say where the guarded value is used.
        names: How functions are named.
    """
    newest = reasons[0] if reasons else ""
    guard, _, stack = newest.partition(_USER_STACK)
    frames = [(m["file"], int(m["line"]), m["name"]) for m in _FRAME.finditer(stack)]
    own = [frame for frame in frames if not places.is_library(frame[0])] or frames
    if own:
        place = names.place(*own[-1])
    reason = _COMPILE.sub("", guard.strip().splitlines()[0]) if guard.strip() else "no guard was reported"
    reason = reason.split("  # ")[0].strip()
    text = "\n".join(clean(r.partition(_USER_STACK)[0].strip().split("  # ")[0].strip()) for r in reasons)
    return Why(clean(reason), place, text)


def clean(text: str) -> str:
    """Remove full paths and memory addresses from a text, so that it is the same on every rank.

    >>> clean("calling <function f at 0x7fd0a7b75d00> in /home/ada/model.py:3")
    'calling <function f> in model.py:3'
    """
    return places.rewrite(_ADDRESS.sub("", text))


# --- Graph breaks with the entry of torch's registry for their kind: its name, an explanation, and hints ---

_ID = re.compile(r"\bgb(\d{4})\b", re.IGNORECASE)
_PART = re.compile(r"^\s*(Explanation|Hint|Developer debug context): (.*)$")


@dataclass(frozen=True)
class Break:
    """One graph break, or one kind of break in torch's registry.

    Args:
        id: The id in torch's registry, such as 'GB0059'.
        kind: The registry's name for this kind of break.
        reason: What happened, in a line.
        place: The place in the reader's code.
        explanation: Why torch breaks the graph here.
        hints: What torch suggests.
        context: Torch's context for developers.
        line: The line of the frame's own function. The break itself may be in something that it calls.
    """

    id: str
    kind: str
    reason: str
    place: str
    explanation: str = ""
    hints: tuple[str, ...] = ()
    context: str = ""
    line: int = 0

    def __str__(self) -> str:
        lines = [f"{self.id or 'no id'} · {self.kind}", f"  at {self.place}" if self.place else ""]
        lines += [f"  why: {self.explanation}" if self.explanation else ""]
        lines += [f"  hint: {hint}" for hint in self.hints]
        lines += [f"  context: {self.context}" if self.context else ""]
        return "\n".join(line for line in lines if line)


def read_break(report: str, why: Why, line: int = 0) -> Break:
    """Parse torch's report of one break, and take what the report leaves out from the registry.

    >>> report = "Graph break while tracing CALL:\\n\\nCall to `breakpoint()`\\n  Hint: Remove it."
    >>> read_break(report, Why("Call to `breakpoint()`", "In [5]:3 (f)", report)).hints
    ('Remove it.',)
    """
    said, _, _ = report.partition(CODE_STACK)
    parts: dict[str, list[str]] = {}
    now = ""
    for text in said.splitlines():
        if part := _PART.match(text):
            now = part[1]
            parts.setdefault(now, []).append(part[2].strip())
        elif now and text.startswith("    ") and text.strip():
            parts[now][-1] += " " + text.strip()
        else:
            now = ""
    ids = _ID.findall(said)
    number = f"GB{ids[-1]}" if ids else ""
    known = kind_of_break(number) if number else None
    title = known.kind if known else why.reason
    explanation = parts.get("Explanation", [known.explanation if known else ""])[-1]
    hints = tuple(clean(hint) for hint in parts.get("Hint", known.hints if known else ()))
    context = parts.get("Developer debug context", [""])[-1]
    return Break(number, title, why.reason, why.place, clean(explanation), hints, clean(context), line)


def kind_of_break(number: str) -> Break | None:
    """Look an id such as 'GB0059' up in the registry of graph breaks that comes with torch.

    Returns:
        The kind of break, whose texts have `{placeholders}`; None for an id that this torch does not know.
    """
    entry = _registry().get(number.upper())
    if not entry:
        return None
    newest = entry[0]
    hints = tuple(str(hint) for hint in newest.get("Hints") or ())
    kind = str(newest.get("Gb_type", ""))
    return Break(number.upper(), kind, kind, "", str(newest.get("Explanation", "")), hints)


@functools.cache
def _registry() -> dict[str, list[dict[str, Any]]]:
    path = Path(torch.__file__).parent / "_dynamo" / "graph_break_registry.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
