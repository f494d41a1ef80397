"""The records of torch's logs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_PREFIX = re.compile(r"^(?:\[rank\d+\]:)?[VIWE]\d{4} [\d:.]+ \d+ \S+\] \[(!?[\d/]+)\S*\] \[__(\w+)\] ?(.*)$")


@dataclass
class Said:
    """One record of torch's log: which compile, of which artifact, and its lines."""

    compile: str
    kind: str
    lines: list[str] = field(default_factory=list)


def records(lines: list[str]) -> Iterator[Said]:
    """A record begins with these words; each of its lines has torch's prefix."""
    begins = ("Graph break in user code", "Recompiling function", "TRACED GRAPH")
    one: Said | None = None
    for line in lines:
        found = _PREFIX.match(line)
        if found is None:
            continue
        if found[3].startswith(begins):
            if one:
                yield one
            one = Said(found[1], found[2])
        if one and one.kind == found[2]:
            one.lines.append(found[3])
    if one:
        yield one
