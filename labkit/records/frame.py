"""Frames that Dynamo compiled, with every stage of each as text, so that they can be sent from a rank to a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from labkit.records import guards as guarding
from labkit.records.nodes import Node, nodes
from labkit.records.reasons import Break

__all__ = ["GRAPHS", "STAGES", "Frame", "Frames", "code_block", "fold_inductor", "merge_frames"]

# in the order in which a function passes through them
STAGES: dict[str, str] = {
    "source": "your lines, with where a graph break leaves the frame and where it resumes",
    "bytecode": "what Python compiled your lines to: what Dynamo reads",
    "dynamo": "the graph Dynamo traced: torch calls, as you wrote them",
    "guards": "what must stay as it was for this code to be used again",
    "aot_joint": "AOTAutograd: forward and backward in one graph of plain operators",
    "aot_forward": "AOTAutograd: the forward alone, with what it saves for the backward",
    "aot_backward": "AOTAutograd: the backward alone",
    "inductor": "Inductor's code for the forward",
    "inductor_backward": "Inductor's code for the backward",
    "bytecode_after": "the bytecode that Dynamo put in the place of yours",
    "decompiled": "the same, as Python: calls of the compiled graph, and what runs around it",
}
GRAPHS = ("dynamo", "aot_joint", "aot_forward", "aot_backward")  # the stages that are graphs
MOST_LINES = 400  # of one stage on a page; the rest is counted
_PRE = "margin:2px 0 6px 0;padding:6px;background:#f7f7f7;color:#222;overflow-x:auto;font-size:12px;line-height:1.35"
# what begins and ends the part of Inductor's file that is worth reading
_HEADER_ENDS = (
    "async_compile = AsyncCompile()",
    "# kernel path:",
    "cpp_",
    "triton_",
    "class Runner",
    "def call(",
)
_FOOTER = ("def benchmark_compiled_module", "def get_args():", 'if __name__ == "__main__":', "# AOT ID:")


@dataclass(frozen=True)
class Frame:
    """One compile of one function, or of the rest of one after a graph break. Text only: it can be pickled anywhere.

    `raw` holds each stage as it was recorded, `stage(name)` the form for reading; `missing` says why a stage is not
    there. `calls` is how often it ran in the record, `during` whether it was compiled in it. `backend_graphs` is how
    many graphs the backend was given for it: more than one where DDPOptimizer cut it. `breaks` is the graph break that
    ends it, or None.
    """

    id: str
    name: str
    place: str
    rank: int = 0
    co_name: str = ""
    ops: int = 0
    collectives: int = 0
    calls: int = 0
    backend_graphs: int = 0
    during: bool = True
    has_code: bool = True
    cached: bool | None = None
    breaks: Break | None = None
    raw: dict[str, str] = field(default_factory=dict, repr=False)
    missing: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def resumed(self) -> bool:
        """Whether it is the rest of a function after a graph break."""
        return self.co_name.startswith("torch_dynamo_resume_in_")

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages it has, in the order a function passes through them."""
        return tuple(name for name in STAGES if name in self.raw)

    def stage(self, name: str, whole: bool = False) -> str:
        """Return the text of one stage.

        Args:
            name: A key of `STAGES`.
            whole: Return all of it. Without this, imports, benchmarks and guards that rarely fail are folded.

        Raises:
            ValueError: For an unknown stage, and with the reason for one that is missing.
        """
        if name not in STAGES:
            raise ValueError(f"{name!r} is no stage: there are {', '.join(STAGES)}")
        if name not in self.raw:
            why = self.missing.get(name, "it was not recorded")
            raise ValueError(f"frame {self.id} ({self.name}) has no stage {name!r}: {why}")
        text = self.raw[name]
        if name == "guards":
            return guarding.group(text, minor=whole)
        if whole:
            return text
        return fold_inductor(text) if name.startswith("inductor") else text

    @property
    def guards(self) -> list[guarding.Guard]:
        """Its guards, in the order in which they are checked; empty where they were not recorded."""
        return guarding.parse(self.raw.get("guards", ""))

    def nodes(self, stage: str = "dynamo") -> list[Node]:
        """Return the operations of one of its graphs.

        Raises:
            ValueError: For a stage that is no graph, or is missing.
        """
        if stage not in GRAPHS:
            raise ValueError(f"stage {stage!r} is no graph: the graphs are {', '.join(GRAPHS)}")
        return nodes(self.stage(stage))

    @property
    def title(self) -> str:
        """Its id, name and place on one line."""
        place = self.place.removesuffix(f" ({self.name})")
        at = f" at {place}" if place and not self.resumed else ""
        return f"{self.id} {self.name}{at}"

    @property
    def said(self) -> str:
        """A summary in one line: operations, collectives, calls, and how it ends."""
        if not self.has_code:
            why = f": {self.breaks.reason}" if self.breaks else ""
            return f"given up, runs as plain Python{why}"
        parts = [f"{self.ops} operation{'' if self.ops == 1 else 's'}"]
        if self.backend_graphs > 1:
            parts.append(f"cut into {self.backend_graphs} graphs for the backend")
        if self.collectives:
            parts.append(f"{self.collectives} collective{'' if self.collectives == 1 else 's'}")
        parts.append(f"called {self.calls} time{'' if self.calls == 1 else 's'}")
        if not self.during:
            parts.append("compiled earlier")
        if self.breaks:
            parts.append(f"ends in a graph break at {self.breaks.place}: {self.breaks.reason}")
        return ", ".join(parts)

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.said}"]
        for name in self.stages:
            count = len(self.raw[name].splitlines())
            lines.append(f"  {name:18}{count:6} line{' ' if count == 1 else 's'}  {STAGES[name]}")
        lines += [f"  {name:18}     -        {why}" for name, why in self.missing.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return _html(self)


class Frames:
    """The frames of one record in the order they were compiled, of one rank, or of several after `together`.

    They are indexed by number (`frames[0]`), sliced and iterated like a tuple.

    Args:
        frames: The frames.
        notes: What is missing, and why.
        label: The backend, device and number of ranks, as in a `Report`.
    """

    def __init__(self, frames: Iterable[Frame], notes: Iterable[str] = (), label: str = "") -> None:
        self.frames = tuple(frames)
        self.notes = tuple(notes)
        self.label = label

    @overload
    def __getitem__(self, index: int) -> Frame: ...
    @overload
    def __getitem__(self, index: slice) -> Frames: ...
    def __getitem__(self, index: int | slice) -> Frame | Frames:
        if isinstance(index, slice):
            return Frames(self.frames[index], self.notes, self.label)
        if not -len(self.frames) <= index < len(self.frames):
            raise IndexError(f"there is no frame {index}: {self.counts}")
        return self.frames[index]

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self.frames)

    def of_rank(self, rank: int) -> Frames:
        """Return the frames of one rank.

        Raises:
            ValueError: For a rank that has no frames here.
        """
        if rank not in self.ranks:
            raise ValueError(f"there are no frames of rank {rank}, only of {self.ranks}")
        return Frames((f for f in self.frames if f.rank == rank), self.notes, self.label)

    @property
    def ranks(self) -> list[int]:
        """The ranks whose frames these are."""
        return sorted({f.rank for f in self.frames})

    @property
    def graphs(self) -> list[Frame]:
        """The frames that compiled something: what `torch._dynamo.explain` counts as graphs."""
        return [f for f in self.frames if f.has_code and f.ops]

    @property
    def breaks(self) -> list[Frame]:
        """The frames that end in a graph break, or were given up because of one."""
        return [f for f in self.frames if f.breaks]

    @property
    def counts(self) -> str:
        """How many frames, graphs and breaks, in words."""
        breaks = sum(f.has_code for f in self.breaks)
        given_up = sum(not f.has_code for f in self.frames)
        text = f"{len(self.frames)} frame{'' if len(self.frames) == 1 else 's'}, "
        text += f"{len(self.graphs)} graph{'' if len(self.graphs) == 1 else 's'}, "
        text += f"{breaks} break{'' if breaks == 1 else 's'}"
        return text + (f", {given_up} given up" if given_up else "")

    def __repr__(self) -> str:
        several = len(self.ranks) > 1
        lines = [f"rank {f.rank}: {f.title}: {f.said}" if several else f"{f.title}: {f.said}" for f in self]
        return "\n".join([f"Frames({self.counts})", *lines, *(f"note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        head = f"<div><b>{html.escape(self.counts)}</b></div>"
        several = len(self.ranks) > 1
        body = "".join(_html(f, several) for f in self)
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in self.notes)
        label = f"<div style='opacity:.7'>{html.escape(self.label)}</div>" if self.label else ""
        return f"<div>{head}{body}{notes}{label}</div>"


def merge_frames(parts: Sequence[Frames]) -> Frames:
    """Combine the frames of several ranks; see `merge`."""
    notes = []
    for part in parts:
        ranks = ", ".join(map(str, part.ranks))
        notes += [f"rank {ranks}: {note}" if ranks else note for note in part.notes]
    labels = {part.label for part in parts}
    return Frames((f for part in parts for f in part), notes, labels.pop() if len(labels) == 1 else "")


def fold_inductor(text: str) -> str:
    """Replace the imports, aliases and benchmark in Inductor's code by one line each that counts them.

    >>> code = "import torch\\nimport math\\ndef call(args):\\n    return ()\\ndef get_args():\\n    pass"
    >>> print(fold_inductor(code))
    # ... 2 lines of imports and aliases
    def call(args):
        return ()
    # ... 2 lines of benchmark
    """
    lines: list[str] = []
    part, left = "header", 0

    def close() -> None:
        nonlocal left
        if left:
            what = "imports and aliases" if part == "header" else "benchmark"
            lines.append(f"# ... {left} line{'' if left == 1 else 's'} of {what}")
        left = 0

    for line in text.splitlines():
        if line.startswith("# AOT ID:"):  # of several graphs in one compile, each begins anew
            close()
            part = "header"
            lines.append(line)
            continue
        if part == "header" and line.startswith(_HEADER_ENDS):
            close()
            part = "code"
        elif part == "code" and line.startswith(_FOOTER):
            part = "footer"
        if part == "code":
            lines.append(line)
        elif line.strip():
            left += 1
    close()
    return "\n".join(lines)


def code_block(text: str, most: int = MOST_LINES) -> str:
    """Return a block of code as HTML, cut after its first `most` lines."""
    lines = text.splitlines()
    shown = "\n".join(lines[:most])
    if len(lines) > most:
        shown += f"\n... and {len(lines) - most:,} more lines"
    return f"<pre style='{_PRE}'>{html.escape(shown)}</pre>"


def _html(one: Frame, rank: bool = False) -> str:
    """A frame as a folded HTML block with its stages inside, each folded again."""
    title = f"rank {one.rank}: {one.title}" if rank else one.title
    parts: list[str] = []
    if one.breaks:
        parts.append(f"<div><i>graph break</i>{code_block(str(one.breaks))}</div>")
    for name in one.stages:
        text = one.stage(name)
        head = f"<b>{name}</b> · {html.escape(STAGES[name])} · {_lines(one.raw[name])}"
        parts.append(_details(head, code_block(text)))
    parts += [
        f"<div style='opacity:.7'><b>{name}</b>: {html.escape(why)}</div>"
        for name, why in one.missing.items()
    ]
    head = f"<b>{html.escape(title)}</b>: {html.escape(one.said)}"
    return _details(head, f"<div style='margin-left:14px'>{''.join(parts)}</div>")


def _lines(text: Any) -> str:
    count = len(str(text).splitlines())
    return f"{count:,} line{'' if count == 1 else 's'}"


def _details(head: str, body: str) -> str:
    return f"<details><summary>{head}</summary>{body}</details>"
