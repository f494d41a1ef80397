"""Graph breaks with the entry of torch's registry for their kind: its name, an explanation, and hints."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from labkit.records.reasons import Why, clean

__all__ = ["Break", "kind_of_break", "read_break"]

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
    said, _, _ = report.partition("User code traceback:")
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
