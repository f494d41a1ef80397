"""The flight record of a rank: its collectives and messages."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from oddrank.postmortem.rows import Frame, own_lines

__all__ = ["Call", "Dump", "scatters"]

GENERATED = re.compile(
    r"^<eval_with_key>|torchinductor_|(^|/)c[a-z0-9]{50,}\.py$|_functorch/_aot_autograd|_inductor/"
)
COMPILES = re.compile(r"torch/_dynamo/convert_frame|torch/_inductor/compile_fx")


@dataclass(frozen=True, slots=True)
class Call:
    """One collective or message of a flight record; `index` is its place in the record, `entry` counts from 0 there."""

    rank: int
    group: str
    desc: str
    seq: int
    op: str
    p2p: bool
    inputs: tuple
    outputs: tuple
    dtypes: tuple
    open: bool
    index: int
    created: int
    timeout_ms: int
    frames: tuple[Frame, ...]
    file: str

    @property
    def cite(self) -> str:
        """The place of the call in its record."""
        return f"{self.file}#{self.index}"

    @property
    def where(self) -> str:
        """The program's own line that made the call, '' where the record has none."""
        return own_lines(self.frames)

    @property
    def of(self) -> str:
        """The group in words: its description, or its name where it has none."""
        return self.desc if self.desc not in ("", "undefined") else f"group {self.group}"

    @property
    def by(self) -> str:
        """What made the call: 'the compiler', 'a compiled graph', or '' for the program."""
        if any(COMPILES.search(frame.file) for frame in self.frames):
            return "the compiler"
        return "a compiled graph" if any(GENERATED.search(frame.file) for frame in self.frames) else ""

    @property
    def line(self) -> str:
        """The innermost of the program's own lines."""
        return self.where.partition(" < ")[0]

    @property
    def way(self) -> str:
        """The program's own lines from the call outwards, many of them: the same where two ranks went the same way."""
        return own_lines(self.frames, 9)

    @property
    def phrase(self) -> str:
        """The call in words: what, its number, its group and its line."""
        by = f", by {self.by}" if self.by else ""
        return f"{self} number {self.seq} of {self.of}" + (f" at {self.where}" if self.where else "") + by

    def __str__(self) -> str:
        shown = self.outputs if scatters(self.op) else self.inputs
        sizes = ", ".join(str(list(size)) for size in shown[:3]) + (", …" if len(shown) > 3 else "")
        kinds = ", ".join(dict.fromkeys(self.dtypes))
        return f"{self.op}({sizes}{' ' + kinds if kinds else ''})"


@dataclass(slots=True)
class Dump:
    """The flight record of one rank: its calls in order, and the members of its groups where it has them."""

    file: str
    rank: int | None
    members: dict[str, tuple[int, ...]]
    calls: list[Call] = field(default_factory=list)
    backend: str = ""
    wrapped: bool = False  # whether its oldest calls have been overwritten
    written: float = 0.0  # when its file was

    @property
    def cite(self) -> str:
        """The place of the evidence."""
        return self.file

    @property
    def collectives(self) -> list[Call]:
        """The calls that are no messages."""
        return [call for call in self.calls if not call.p2p]

    def ends_with(self, call: Call) -> bool:
        """Whether a call is the last collective."""
        return call in self.collectives[-1:]


def scatters(op: str) -> bool:
    """Whether a collective is a scatter, of which only the source has inputs: all ranks have an output.

    >>> scatters("gloo:scatter"), scatters("_reduce_scatter_base"), scatters("gather")
    (True, False, False)
    """
    return "scatter" in op and "reduce_scatter" not in op
