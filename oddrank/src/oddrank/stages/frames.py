"""Frames that Dynamo compiled, with every stage of each as text, so that a rank can send them to a notebook."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from oddrank.places import place
from oddrank.record.compiles import Try
from oddrank.record.nodes import Node, nodes
from oddrank.record.tables import Compile, Mark
from oddrank.stages import guards as guarding
from oddrank.stages.bytecode import clean, decompile, disassemble

__all__ = ["GRAPHS", "STAGES", "Frame", "Frames", "frames_of"]

# in the order in which a function passes through them
STAGES: dict[str, str] = {
    "bytecode": "what Python compiled your lines to: what Dynamo reads",
    "dynamo": "the graph Dynamo traced: torch calls, as you wrote them",
    "guards": "what must stay as it was for this code to be used again",
    "aot_joint": "AOTAutograd: forward and backward in one graph of plain operators",
    "aot_forward": "AOTAutograd: the forward alone, with what it saves for the backward",
    "aot_backward": "AOTAutograd: the backward alone",
    "inductor": "Inductor's code for the forward",
    "inductor_backward": "Inductor's code for the backward",
    "bytecode_after": "the bytecode that Dynamo put in the place of yours",
    "decompiled": "the same, as depyf writes it in Python: calls of the compiled graph, and what runs around it",
}
GRAPHS = ("dynamo", "aot_joint", "aot_forward", "aot_backward")  # the stages that are graphs
EARLIER = (
    "it was compiled before stages were kept: `inspect(fn, ..., fresh=True)` forgets that and compiles anew"
)
_BREAKS = ("break", "gave-up", "cause", "def", "limit")  # kinds of marks
# where the part of Inductor's file begins that is worth reading, and where it ends
_CODE = re.compile(r"^(?:async_compile = |# kernel path:|cpp_|triton_|class Runner|def call\()", re.M)
_BENCHMARK = re.compile(r"^(?:def benchmark_compiled_module|def get_args\(|if __name__ == )", re.M)


@dataclass(frozen=True)
class Frame:
    """One compile of one function, or of the rest of one after a graph break, as text alone.

    Args:
        compile: Its row.
        graph_break: The graph break that ends it, or for which it was given up; None for none.
        texts: Each stage that it has, as torch wrote it; `stage` gives the form for reading.
        missing: Why a stage is not there.
    """

    compile: Compile
    graph_break: Mark | None = None
    texts: dict[str, str] = field(default_factory=dict, repr=False)
    missing: dict[str, str] = field(default_factory=dict, repr=False)

    def stage(self, name: str) -> str:
        """The text of a stage, without imports, benchmarks and guards that rarely fail.

        Args:
            name: A key of `STAGES`.

        Raises:
            ValueError: For an unknown stage, and with the reason for one that is missing.
        """
        text = self._whole(name)
        if name == "guards":
            return guarding.group(text)
        return _worth_reading(text) if name.startswith("inductor") else text

    def nodes(self, stage: str = "dynamo") -> list[Node]:
        """The operations of one of its graphs.

        Args:
            stage: One of `GRAPHS`.

        Raises:
            ValueError: For a stage that is no graph, or is missing.
        """
        if stage not in GRAPHS:
            raise ValueError(f"stage {stage!r} is no graph: the graphs are {', '.join(GRAPHS)}")
        return nodes(self._whole(stage))

    @property
    def guards(self) -> list[guarding.Guard]:
        """Its guards, in the order in which they are checked; empty where they are missing."""
        return guarding.parse(self.texts.get("guards", ""))

    @property
    def title(self) -> str:
        """Its id, name and place on one line."""
        row = self.compile
        return f"{row.id} {row.name}" + ("" if row.resume else f" at {place(row.file, row.line)}")

    @property
    def said(self) -> str:
        """A summary in one line: operations, collectives, calls, and how it ends."""
        row, ends = self.compile, self.graph_break
        if row.outcome == "gave-up":
            return "given up, runs as plain Python" + (f": {ends.name}" if ends else "")
        parts = [_count(row.operators, "operation")]
        if row.graphs > 1:
            parts.append(f"cut into {row.graphs} graphs for the backend")
        if row.collectives:
            parts.append(_count(row.collectives, "collective"))
        parts.append(f"called {_count(row.runs or 0, 'time')}")
        if not row.during:
            parts.append("compiled earlier")
        if ends:
            parts.append(f"ends in a graph break at {ends.place}: {ends.name}")
        return ", ".join(parts)

    def _whole(self, name: str) -> str:
        if name not in STAGES:
            raise ValueError(f"{name!r} is no stage: there are {', '.join(STAGES)}")
        if name not in self.texts:
            raise ValueError(
                f"frame {self.compile.id} ({self.compile.name}) has no {name!r}: {self.missing[name]}"
            )
        return self.texts[name]

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.said}"]
        for name, about in STAGES.items():
            size = (
                f"{len(self.texts[name].splitlines()):6} lines" if name in self.texts else f"{'-':>6}      "
            )
            lines.append(f"  {name:18}{size}  {self.missing.get(name, about)}")
        return "\n".join(lines)


class Frames(list[Frame]):
    """The frames of one record, in the order in which they were compiled.

    Args:
        frames: The frames.
        notes: What is missing, and why.
    """

    def __init__(self, frames: Iterable[Frame] = (), notes: Iterable[str] = ()) -> None:
        super().__init__(frames)
        self.notes = list(notes)

    @property
    def graphs(self) -> list[Frame]:
        """The frames whose code has an operation: what `torch._dynamo.explain` counts as graphs."""
        return [frame for frame in self if frame.compile.outcome == "graph"]

    @property
    def breaks(self) -> list[Mark]:
        """The graph breaks that end frames, or for which they were given up; each has torch's hints."""
        return [frame.graph_break for frame in self if frame.graph_break]

    def __repr__(self) -> str:
        given_up = sum(frame.compile.outcome == "gave-up" for frame in self)
        breaks = sum(frame.compile.broke for frame in self)
        counts = [_count(len(self), "frame"), _count(len(self.graphs), "graph"), _count(breaks, "break")]
        counts += [f"{given_up} given up"] if given_up else []
        lines = [f"{frame.title}: {frame.said}" for frame in self]
        return "\n".join([f"Frames({', '.join(counts)})", *lines, *(f"note: {note}" for note in self.notes)])


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def _worth_reading(code: str) -> str:
    """Inductor's code without imports, aliases and benchmarks; of several graphs each begins anew."""
    parts = []
    for part in re.split(r"^(?=# AOT ID:)", code, flags=re.M):
        begins, ends = _CODE.search(part), _BENCHMARK.search(part)
        parts.append(part[begins.start() if begins else 0 : ends.start() if ends else None].strip("\n"))
    return "\n\n".join(part for part in parts if part)


# --- from a record ---


def frames_of(compiles: Iterable[tuple[Try, Compile]], marks: Iterable[Mark]) -> Frames:
    """The frames of some compiles. What was not ended, or ended in an error, is none.

    Args:
        compiles: Each with its row.
        marks: The facts about them.
    """
    breaks: dict[str, Mark] = {}
    for mark in marks:
        if mark.kind in _BREAKS:
            breaks.setdefault(mark.compile, mark)
    made = ("graph", "empty", "gave-up")
    return Frames(_frame(one, row, breaks.get(row.id)) for one, row in compiles if row.outcome in made)


def _frame(one: Try, row: Compile, graph_break: Mark | None) -> Frame:
    texts: dict[str, str] = {}
    if one.before is not None:
        texts["bytecode"] = disassemble(one.before)
    for stage in dict.fromkeys(stage for stage, _ in one.texts):
        texts[stage] = clean(one.text(stage))
    if one.after is not None:
        texts["bytecode_after"] = disassemble(one.after)
        python, why = decompile(one.after)
        texts["decompiled"] = python or f"# {why}: this is its bytecode\n{texts['bytecode_after']}"
    texts = {name: texts[name] for name in STAGES if texts.get(name)}
    missing = {name: _why_missing(name, row, texts) for name in STAGES if name not in texts}
    return Frame(row, graph_break, texts, missing)


def _why_missing(name: str, row: Compile, texts: dict[str, str]) -> str:
    if row.outcome == "gave-up":
        return "the frame was given up, so there is no code"
    if name == "dynamo":
        return "no operation on tensors was captured"
    if not row.during and texts.keys() <= {"dynamo"}:
        return EARLIER
    if name in ("bytecode", "bytecode_after", "decompiled", "guards"):
        return "torch did not hand it out"
    if "dynamo" not in texts:
        return "there is no graph to compile"
    if "aot_forward" not in texts and "inductor" not in texts:
        return "the backend of this compile runs Dynamo's graph without AOTAutograd"
    if name.startswith("inductor") and "inductor" not in texts:
        return "the backend of this compile is not Inductor"
    if name == "inductor_backward" and "aot_backward" in texts:
        return "Inductor compiles it when the backward first runs, and it did not run here"
    if row.cached and name != "inductor_backward":
        return (
            "the compile was a cache hit, which leaves this out: `inspect(fn, ..., fresh=True)` uses no cache"
        )
    return "nothing in it needs a gradient"
